"""A consumer: a state machine over its stream's log.

Inputs are acks (collected by the stream's AckSink and applied once per tick), pull requests, time, and the
consumer's own deliveries (consumer_delivery.py). The engine calls `apply`, `write` and `deliver` in each tick
that concerns the consumer, releases its `effects` after the write and after the delivery, and calls `on_time`
when `next_deadline` has passed.

Ordering contracts:
- An ack is confirmed only after `write` handed it to the operating system.
- Deliveries are written in the same tick, after they were sent: a crash in between repeats them, but loses
  none.
- Requests are answered in the tick in which they arrive. Advisories leave in the tick in which they arise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import partial

import msgspec

from penstock.errors import StoreWriteError
from penstock.jetstream.commands import ProgressConsumer, SetConsumer
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.ack_handler import AckHandler
from penstock.jetstream.consumer.consumer_advisories import ConsumerAdvisories
from penstock.jetstream.consumer.consumer_delivery import ConsumerDelivery
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.jetstream.consumer.consumer_ports import ConsumerPorts
from penstock.jetstream.consumer.consumer_subscriptions import ConsumerSubscriptions
from penstock.jetstream.consumer.dead_letters import MAX_DELIVER, DeadLetter, DeadLetters
from penstock.jetstream.consumer.late_sending import LateSending
from penstock.jetstream.consumer.standby import NO_PIN, Pin, policy_of
from penstock.jetstream.consumer.state import ConsumerMeta, Recorder
from penstock.jetstream.deadlines import earliest
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.endpoints import AckQueue
from penstock.kernels.ingest.copying import settle_upto
from penstock.kernels.routing.grammar import has_wildcard
from penstock.protocol.api import AckPolicy, ApiConsumerConfig, ApiConsumerInfo, SequenceInfo, encode
from penstock.protocol.durations import format_time
from penstock.protocol.status import CONSUMER_DELETED, LEADERSHIP_CHANGE, SERVER_SHUTDOWN
from penstock.store.interface import ConsumerStore


class ConsumerReplica:
    """A consumer of `stream`, with the stored state of `store`. Constructed by `ConsumerRegistry`, which also
    deletes it. pin: of the standby that takes over.

    Raises StoreCorruptError when its state cannot be read.
    """

    def __init__(
        self,
        ports: ConsumerPorts,
        stream: StreamReplica,
        meta: ConsumerMeta,
        store: ConsumerStore,
        now: int,
        pin: Pin = NO_PIN,
    ) -> None:
        config = meta.config
        self._ports = ports
        self.stream = stream
        self.store = store
        self.meta = meta
        self.name = meta.name
        self.config = config
        self._inactive_ns = rules.inactive_threshold_ns(config)
        self.created = meta.created
        self.closed = False
        self._suspended = False  # closed, and end() has yet to follow
        self._acked_at = 0  # time of the last ack in ns; 0 before the first
        self._used_at = now
        self._floor_shown: tuple[int, int] | None = None  # the floor that infos show; None: the real one
        self._paused = rules.pause_until_ns(config) > now
        # A driven consumer delivers nothing itself: a mirror or source reports what it has read.
        self.is_driven = config.ack_policy is AckPolicy.FLOW_CONTROL if meta.driven is None else meta.driven
        self.state = AckState(policy_of(meta), meta.start_seq)
        self._recorder = Recorder(
            store,
            self.state,
            ports.config().journal_min_bytes,
            self._record if stream.is_recorded else None,
        )
        self._recorder.recover(stream.log.last_seq)
        meta = self._begin_within_position()
        self.effects = ConsumerEffects(ports.index, ports.advisories)
        self.advisories = ConsumerAdvisories(self.effects, stream.name, meta.name)
        self.acks = AckQueue(self, ports.dirty)
        self._subscriptions = stream.serve_consumers(self._make_subscriptions)
        self.delivery = ConsumerDelivery(
            ports,
            stream,
            meta,
            self.state,
            self.advisories,
            self.effects,
            is_driven=self.is_driven,
            mark=self.acks.mark,
            activate=partial(ports.activate, self),
            wait=partial(self._subscriptions.wait, self),
            gave_up=self._gave_up,
            pin=pin,
            now=now,
        )
        self.pump = self.delivery.pump
        self._late_sending: LateSending | None = None
        if stream.group is not None and config.ack_policy is AckPolicy.NONE and not self.is_driven:
            activate = partial(ports.activate, self)
            self._late_sending = LateSending(stream.group, self.pump.rotation, ports.defer, activate)
            self.effects.send_by(self._late_sending.send)
        self.dead_letters = DeadLetters(
            ports.streams, stream, meta, self.state, self.advisories, self.effects, self.acks.mark
        )
        self._acks = AckHandler(
            config, self.acks, self.state, self.delivery, self.dead_letters, self.advisories, self.effects
        )
        try:
            self._join()
        except Exception:
            self._leave()
            raise

    def _make_subscriptions(self, stream_name: str) -> ConsumerSubscriptions:
        config = self._ports.config()
        return ConsumerSubscriptions(self._ports.index, config.account, config.domain, stream_name)

    def _join(self) -> None:
        """Registers for acks and new messages, and makes the stream retain the messages that it needs."""
        self._subscriptions.add(self)
        if any(has_wildcard(one.encode()) for one in rules.filters_of(self.config)):
            self._ports.index_subjects(self.stream)
        if self.stream.interest_state is not None:
            self.stream.interest_state.add(self.pump, self.since)

    def _begin_within_position(self) -> ConsumerMeta:
        """After a power failure the position may be from before the last change of filters. Acks of what lies
        between count: sequences that the stream lost are used again."""
        meta, begins = self.meta, self.state.delivered_stream + 1
        if self.state.resets > meta.resets or meta.since <= begins:
            return meta
        self.meta = msgspec.structs.replace(meta, since=begins)
        with contextlib.suppress(StoreWriteError):  # already logged; the next start comes here again
            self.store.save_meta(encode(self.meta))
        return self.meta

    @property
    def since(self) -> int:
        """The first stream sequence that the consumer's position covers."""
        if self.state.resets > self.meta.resets:
            return self.state.since
        return self.meta.since or self.meta.start_seq

    # --- the tick ------------------------------------------------------------------------------

    def apply(self, now: int) -> None:
        """Applies the acks that arrived since the last call."""
        self.acks.clean()
        if self.closed:
            return
        is_used, settled = self._acks.apply(now)
        if is_used:
            self._used_at = now
        if settled:
            self._acked_at = now
            self._floor_shown = None

    def write(self) -> None:
        """Hands changes to the operating system. With `sync: always`, syncs them if confirmations depend on
        them. Raises StoreWriteError."""
        if not self.closed:
            if not self.effects.unwritten and not self.dead_letters.unwritten:
                self._recorder.write()  # the usual case
                if self._late_sending is not None:
                    self._late_sending.recorded()
                return
            self._recorder.write(sync=self._ports.config().sync_always)
            if self._late_sending is not None:
                self._late_sending.recorded()
            if self.stream.group is not None:
                given_up = self.dead_letters.unwritten.copy()
                confirmed = self.effects.take_unwritten()
                self.stream.group.when_committed(partial(self._committed, confirmed, given_up))
                return
            self.dead_letters.written()
            self.effects.written()

    def _committed(self, confirmed: list[bytes], given_up: set[int]) -> None:
        """The group of the stream has committed the entry with these acks and decisions to give up."""
        if not self.closed:
            self.effects.confirm(confirmed)
            self.dead_letters.committed(given_up)
            self._ports.activate(self)

    def _record(self, entry: bytes) -> None:
        # The entry has its own times.
        self.stream.apply(ProgressConsumer(self.name, entry), self.stream.now)

    def deliver(self, now: int, quantum: int) -> None:
        """Sends pending messages, at most `quantum`, so that others get their turn and the journal is
        written."""
        group = self.stream.group
        if self.closed or self.is_driven or (group is not None and group.is_full):
            return  # a full group activates its consumers when it has room
        if self._paused:
            self.delivery.rest(now)
        elif self._late_sending is None or not self._late_sending.is_full:
            self.delivery.run(now, quantum)

    def purged(self) -> None:
        """Counts purged messages as delivered and acked."""
        self._floor_shown = None
        self.delivery.drop_missing()
        self.state.skip(self.stream.log.first_seq - 1)
        self._ports.activate(self)

    def _gave_up(self, messages: list[tuple[int, int]], floor: tuple[int, int]) -> None:
        """Handles messages that reached max_deliver and are marked so in the ack state. floor: the ack floor
        before."""
        if not self.dead_letters.wanted:
            # They were not acked. As on the official server, infos show the earlier floor until the next ack.
            self._floor_shown = self._floor_shown or floor
        for stream_seq, deliveries in messages:
            if self.dead_letters.wanted:
                self.dead_letters.add(stream_seq, DeadLetter(deliveries, MAX_DELIVER, ""))
            else:
                self.advisories.given_up(stream_seq, deliveries)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `on_time` is due next (ns), or None."""
        if self.closed:
            return None
        pause = rules.pause_until_ns(self.config) if self._paused else None
        inactive = self._inactive_at() if self._inactive_ns else None
        return earliest(self.delivery.next_deadline(), pause, self.dead_letters.retry_at, inactive)

    def on_time(self, now: int) -> None:
        """Handles redeliveries, expired requests, heartbeats and the inactive threshold. The engine calls
        deliver() next."""
        if self.closed:
            return
        self._check_pause(now)
        self.delivery.pinning.on_time(now)
        floor = self._floor
        given_up = self.delivery.redelivery.on_time(now)
        if given_up:
            self._gave_up(given_up, floor)
        self.dead_letters.on_time(now)
        self.delivery.on_time(now)
        inactive_at = self._inactive_at()
        if inactive_at is not None and inactive_at <= now and self._is_unused(now):
            self._ports.expired(self)
            if not self.closed:
                self._used_at = now  # the disk refused its removal: it is tried after the next threshold

    def _check_pause(self, now: int) -> None:
        """Enters or leaves the pause, and adds an advisory about the change."""
        paused = rules.pause_until_ns(self.config) > now
        if paused != self._paused:
            self._paused = paused
            self._advise_pause()

    def advise_if_paused(self) -> None:
        """Adds the advisory about the pause that a new consumer begins with."""
        if self._paused:
            self._advise_pause()

    def _advise_pause(self) -> None:
        self.advisories.pause_changed(is_paused=self._paused, until_ns=rules.pause_until_ns(self.config))

    def _inactive_at(self) -> int | None:
        if not self._inactive_ns:
            return None
        since = self.delivery.unused_since()
        return max(since, self._used_at) + self._inactive_ns if since is not None else None

    def _is_unused(self, now: int) -> bool:
        if self.dead_letters.is_busy:
            self._used_at = now
            return False
        if self.delivery.push is not None:
            return not self.delivery.is_in_use(now)
        if self.delivery.is_in_use(now):
            self._used_at = now
            return False
        # A client may work on a message until its ack wait ends, so the threshold counts from there.
        unacked = max((ts + self.state.wait_ns(seq) for seq, _, ts, _ in self.state.pending()), default=0)
        if unacked + self._inactive_ns > now:
            self._used_at = unacked
            return False
        return True

    # --- requests ------------------------------------------------------------------------------

    def on_flow_reply(self, subject: bytes, header: bytes) -> None:
        """Handles a flow control response. What it acks is applied with the acks of this tick."""
        push = self.delivery.push
        if push is not None and push.on_flow_reply(subject):
            if push.acks_by_flow:
                self._acks.on_flow_reply(header)
                self.acks.mark()
            self._ports.activate(self)

    def update(self, config: ApiConsumerConfig, now: int) -> None:
        """Changes to a (checked) configuration. Raises JetStreamApiError 10012, 10013 and 10116 for fields
        that cannot change, StoreWriteError when the configuration cannot be stored."""
        rules.check_update(self.config, config)
        self.delivery.check_move(config, now)
        meta, before = self._updated_meta(config), self.config
        self._save(meta, now)
        self._follow_meta(meta, before, now)

    def propose_update(self, config: ApiConsumerConfig, now: int) -> Generator[int, None, None]:
        """update() of a consumer whose stream has a group: yields work until it is committed. Raises
        LeadershipLostError too. The leader changes its consumer with the others', by follow()."""
        rules.check_update(self.config, config)
        self.delivery.check_move(config, now)
        yield from self.stream.change(SetConsumer(self.name, encode(self._updated_meta(config))), now)

    def follow(self, meta: ConsumerMeta, now: int) -> None:
        """Takes the configuration of a committed SetConsumer."""
        if meta != self.meta:
            before = self.config
            self._take_meta(meta)
            self._follow_meta(meta, before, now)

    def _updated_meta(self, config: ApiConsumerConfig) -> ConsumerMeta:
        since, resets = self.meta.since, self.meta.resets
        if rules.filters_of(config) != rules.filters_of(self.config):
            since, resets = self.state.delivered_stream + 1, self.state.resets
            # The meta says which position and which reset came first. A power failure must not leave it with
            # the acks of the position before: a work queue would remove messages of the new filters as acked.
            self._recorder.write(sync=True)
        return msgspec.structs.replace(self.meta, config=config, since=since, resets=resets)

    def _follow_meta(self, meta: ConsumerMeta, before: ApiConsumerConfig, now: int) -> None:
        config = meta.config
        self.delivery.configure(meta, now)
        self._acks.configure(config)
        if rules.filters_of(config) != rules.filters_of(before):
            self._subscriptions.claim(self)
            self._needs_changed()
        self._used_at = now
        self.dead_letters.configure(config)
        self._check_pause(now)
        self._ports.activate(self)

    def _save(self, meta: ConsumerMeta, now: int) -> None:
        """Stores what changed. Raises StoreWriteError, and the present one remains."""
        text = encode(meta)
        self.store.save_meta(text)
        self.stream.apply(SetConsumer(self.name, text), now)
        self._take_meta(meta)

    def _take_meta(self, meta: ConsumerMeta) -> None:
        self.meta, self.config = meta, meta.config
        self._inactive_ns = rules.inactive_threshold_ns(meta.config)

    def settle_upto(self, upto_seq: int, filters: list[bytes], now: int) -> None:
        """Counts the messages up to stream sequence `upto_seq` that pass `filters` as delivered and acked.
        Only for a driven consumer."""
        if settle_upto(self.state, self.stream.log, filters, upto_seq, now):
            self._acked_at = now
        self.delivery.skip_to(upto_seq + 1)
        self._ports.activate(self)

    def set_back(self, seq: int) -> None:
        """Continues at stream sequence `seq`, while its stream is opened: what it counts as acked from there
        on is to be read again. Only for a driven consumer. Raises StoreWriteError."""
        self.state.truncate(seq - 1)
        self.delivery.skip_to(seq)
        if self.stream.interest_state is not None:
            self.stream.interest_state.refilter(self.pump, self.since)
        self._recorder.replace()

    def reset(self, seq: int, now: int) -> int:
        """Restarts delivery at stream sequence `seq`, as if nothing from there on had been delivered; 0:
        directly above the ack floor. Returns the sequence.

        Raises JetStreamApiError 10204 where the deliver policy does not allow it, and StoreWriteError: what
        is not stored then follows when the disk takes it.
        """
        if seq:
            first = self.stream.log.seq_at_time(rules.start_ns(self.config))
            rules.check_reset(self.config, seq, first)
        else:
            seq = self.state.ack_floor_stream + 1
        self.state.reset(seq, self._start_of(seq))
        self.delivery.start_over(self.meta, seq, now)
        self.dead_letters.start_over(seq)
        self._needs_changed()
        self._acked_at = 0
        self._floor_shown = None
        self._used_at = now
        self._ports.activate(self)
        # With `sync: always` the response promises durability.
        self._recorder.write(sync=self._ports.config().sync_always)
        return seq

    def _start_of(self, seq: int) -> int:
        """The first sequence of a consumer that is reset to `seq`, which it keeps when a power failure takes
        the end of the stream. 0: within the stream the position follows its end, because new messages take
        the sequences of lost ones."""
        return seq if seq > self.stream.log.last_seq + 1 else 0

    def _needs_changed(self) -> None:
        interest_state = self.stream.interest_state
        if interest_state is not None:
            interest_state.refilter(self.pump, self.since)
            if not interest_state.work_queue:
                self._ports.review(self.stream)

    def info(self, now: int) -> ApiConsumerInfo:
        """The consumer's info, as `$JS.API.CONSUMER.INFO` returns it."""
        state, delivery = self.state, self.delivery
        delivery.drop_missing()
        delivery.look(now)
        if self.effects.waiting:  # statuses of requests that were found to have expired
            self._ports.activate(self)
        # A driven consumer's messages count as delivered when they are acked.
        delivered_at = self._acked_at if self.is_driven else delivery.sent_at
        return ApiConsumerInfo(
            stream_name=self.stream.name,
            name=self.name,
            created=format_time(self.created),
            config=rules.with_versions(self.config, self._ports.config()),
            delivered=_sequence(state.delivered_consumer, state.delivered_stream, delivered_at),
            ack_floor=_sequence(*(self._floor_shown or self._floor), self._acked_at),
            num_ack_pending=state.num_pending,
            # With max_deliver 1 there are no redeliveries: a message that was given up does not count as one.
            num_redelivered=0 if self.config.max_deliver == 1 else state.num_redelivered,
            num_waiting=len(delivery.pull) if delivery.pull is not None else 0,
            num_pending=self.pump.num_pending,
            push_bound=delivery.push is not None and delivery.push.is_active,
            paused=self._paused,
            pause_remaining=rules.pause_until_ns(self.config) - now if self._paused else 0,
            ts=format_time(now),
            priority_groups=delivery.pinning.state(),
        )

    @property
    def _floor(self) -> tuple[int, int]:
        """The ack floor: consumer and stream sequence."""
        return self.state.ack_floor_consumer, self.state.ack_floor_stream

    # --- the end -------------------------------------------------------------------------------

    def end_pulls(self) -> None:
        """Ends waiting requests when the server stops, with a status that has their remaining messages and
        bytes."""
        self.delivery.end_requests(SERVER_SHUTDOWN, with_rest=True)
        self.effects.release()

    def close(self) -> None:
        """Stops and writes what is left. The consumer can be recovered."""
        if not self.closed:
            self._recorder.write()
            self._leave()
            self.store.close()

    def abandon(self) -> None:
        """Stops without writing: the stored state remains as it is."""
        if self.closed:
            return
        self.closed = True
        try:
            self.delivery.end_requests(LEADERSHIP_CHANGE)
            self._release_last()
        finally:
            self._leave()
            self.store.abandon()

    def suspend(self) -> None:
        """Stops applying, delivering and writing; end() follows."""
        self._suspended = self.closed = True
        self.delivery.stop()

    def end(self) -> None:
        """Ends waiting requests and unregisters. The caller removes the files."""
        if not self.closed or self._suspended:
            self._suspended = False
            self.delivery.end_requests(CONSUMER_DELETED)
            self._release_last()
            self._leave()

    def _release_last(self) -> None:
        """Releases what waits, for no tick follows, and drops the confirmations that are not written."""
        self.effects.drop_unwritten()
        self.effects.release()

    def _leave(self) -> None:
        self.closed = True
        self.delivery.close()
        self._subscriptions.remove(self)
        if self.stream.interest_state is not None:
            self.stream.interest_state.remove(self.pump)


def _sequence(consumer_seq: int, stream_seq: int, at: int) -> SequenceInfo:
    return SequenceInfo(
        consumer_seq=consumer_seq, stream_seq=stream_seq, last_active=format_time(at) if at else None
    )
