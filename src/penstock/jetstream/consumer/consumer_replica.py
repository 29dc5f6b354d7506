"""A consumer: a state machine over its stream's log.

Inputs are acks (collected by the stream's AckSink and applied once per tick), pull requests, time, and the
consumer's own deliveries. The engine calls `apply`, `write`, `confirm` and `deliver` in each tick that
concerns the consumer, and `on_time` when `next_deadline` has passed.

Ordering contracts:
- An ack is confirmed (`confirm`) only after `write` handed its effects to the operating system.
- Deliveries are written in the same tick, after they were sent: a crash in between repeats them, but loses
  none.
- Redeliveries are sent before new messages. Requests and advisories are answered in the tick in which they
  arise.

Invariant: a consumer that may be able to continue is active in this tick, or waits for new messages
(`ConsumerSubscriptions.wait`) or for a slow receiver to drain (`when_drained`, so that it cannot fill
memory), or has a deadline.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer import unwritten
from penstock.jetstream.consumer.ack_handler import AckHandler
from penstock.jetstream.consumer.consumer_subscriptions import ConsumerSubscriptions
from penstock.jetstream.consumer.dead_letters import MAX_DELIVER, DeadLetter, DeadLetters
from penstock.jetstream.consumer.groups import Pinning, check_group
from penstock.jetstream.consumer.pull_requests import PullQueue, PullRefusedError, check_request
from penstock.jetstream.consumer.push import FLOW_PREFIX, PushDelivery
from penstock.jetstream.consumer.redelivery import Redelivery
from penstock.jetstream.consumer.start import StartPosition, last_per_subject, start_of
from penstock.jetstream.consumer.state import KERNEL_POLICY, ConsumerMeta, Recorder
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.endpoints import AckQueue, Target, TargetEnd
from penstock.kernels.consumer.pump import Pump, RunEnd
from penstock.kernels.ingest.copying import settle_upto
from penstock.kernels.routing.grammar import has_wildcard
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.acks import parse_pull
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    ApiConsumerInfo,
    DecodeError,
    DeliverPolicy,
    PriorityPolicy,
    PullRequest,
    ReplayPolicy,
    SequenceInfo,
    encode,
)
from penstock.protocol.durations import format_time, format_time_or_zero
from penstock.protocol.status import (
    BAD_REQUEST,
    CONSUMER_DELETED,
    CONSUMER_IS_PUSH_BASED,
    LEADERSHIP_CHANGE,
    SERVER_SHUTDOWN,
    Status,
)
from penstock.store.interface import ConsumerStore

log = logging.getLogger("penstock.jetstream")

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica

UINT32_MAX = 2**32 - 1

# A run that ended for one of these reasons continues only after acks.
_FULL = (RunEnd.RUN_ACKS_FULL, RunEnd.RUN_KEYS_FULL)


class ConsumerReplica:
    """A consumer of `stream`. Constructed by `create` or `recover`."""

    def __init__(
        self,
        engine: JetStreamEngine,
        stream: StreamReplica,
        meta: ConsumerMeta,
        store: ConsumerStore,
        now: int,
    ) -> None:
        config = meta.config
        self.engine = engine
        self.stream = stream
        self.store = store
        self.meta = meta
        self.name = meta.name
        self.config = config
        self.created = meta.created
        self.closed = False
        self._suspended = False  # closed, and end() has yet to follow
        self.turn = 0  # see fair_scheduler.py
        self._quantum = 0
        self.ack_metric = f"CONSUMER.ACK.{stream.name}.{self.name}"
        self.delivered_at = 0  # time of the last delivery and the last ack in ns; 0 before the first
        self.acked_at = 0
        self._first_seq = 0
        self._removals = -1  # the log's removal counter at the last _drop_missing()
        self._acks_full = False  # the last delivery stopped at max_ack_pending
        self._used_at = now
        self._floor_shown: tuple[int, int] | None = None  # the floor that infos show; None: the real one
        self._paused = rules.pause_until_ns(config) > now
        acks_by_flow = config.ack_policy is AckPolicy.FLOW_CONTROL
        # A driven consumer delivers nothing itself: a mirror or source reports what it has read.
        self.is_driven = acks_by_flow if meta.driven is None else meta.driven
        policy = KernelPolicy.ACK_NONE if self.is_driven else KERNEL_POLICY[config.ack_policy]
        self.state = AckState(policy, meta.start_seq)
        self._recorder = Recorder(store, self.state, engine.config.journal_min_bytes)
        self._recorder.recover(stream.log.last_seq, meta.start_seq)
        prefix = f"{stream.name}.{self.name}.".encode()
        filters = [one.encode() for one in rules.filters_of(config)]
        position = max(meta.start_seq, self.state.delivered_stream + 1)
        self.pump = Pump(
            stream.log,
            self.state,
            engine.index,
            b"$JS.ACK." + prefix,
            filters,
            position,
            on_end=self._on_end,
            replaying=config.replay_policy is ReplayPolicy.ORIGINAL,
        )
        self._start_last_per_subject()
        self.redelivery = Redelivery(self.state, rules.ack_waits_ns(config), config.max_deliver)
        self.acks = AckQueue(self, engine.dirty_consumers)
        self._acks = AckHandler(self)
        self.pull: PullQueue | None = None
        self.push: PushDelivery | None = None
        if rules.is_push(config):
            self.push = PushDelivery(
                engine.index,
                self.pump,
                config.deliver_subject.encode(),
                group=config.deliver_group.encode(),
                heartbeat_ns=config.idle_heartbeat,
                flow_prefix=FLOW_PREFIX.encode() + prefix if config.flow_control else b"",
                acks_by_flow=acks_by_flow and not self.is_driven,
                new_id=engine.new_id,
                now=now,
            )
        else:
            self.pull = PullQueue(engine.index, self.pump.rotation, self.send_status, config.max_waiting)
        self._subscriptions = stream.serve_consumers(partial(ConsumerSubscriptions, engine))
        self.pinning = Pinning(self)
        self.dead_letters = DeadLetters(self)
        self._configure_pump()
        self.pump.set_key_token(rules.key_token(config))
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        try:
            self._join(filters)
        except Exception:
            self._leave()
            raise

    def _join(self, filters: list[bytes]) -> None:
        """Registers for acks and new messages, and makes the stream retain the messages that it needs."""
        self._subscriptions.add(self)
        if any(has_wildcard(one) for one in filters):
            self.engine.indexing.add(self.stream)
        if self.stream.interest_state is not None:
            self.stream.interest_state.add(self.pump, self.since)

    @classmethod
    def create(
        cls,
        engine: JetStreamEngine,
        stream: StreamReplica,
        config: ApiConsumerConfig,
        name: str,
        now: int,
        *,
        driven: bool = False,
    ) -> ConsumerReplica:
        """Creates a consumer with a checked configuration. driven: see ConsumerMeta.

        Raises StoreError when it cannot be stored.
        """
        one_per_subject = stream.config.max_msgs_per_subject == 1
        start = start_of(config, stream.log, one_per_subject=one_per_subject)
        meta = ConsumerMeta(config, name, now, start.seq, start.resume_seq, driven=driven)
        store = stream.store.create_consumer(name, encode(meta), config.mem_storage or config.direct)
        try:
            return cls(engine, stream, meta, store, now)
        except Exception:
            # Do not leave files that a restart cannot open.
            faults.contain(store.delete, partial(engine.containment.record_leftover_consumer, stream, name))
            raise

    @classmethod
    def recover(
        cls, engine: JetStreamEngine, stream: StreamReplica, store: ConsumerStore, now: int
    ) -> ConsumerReplica:
        """Opens the consumer in `store`. Raises StoreCorruptError when its state cannot be read."""
        try:
            meta = msgspec.json.decode(store.meta, type=ConsumerMeta)
            consumer = cls(engine, stream, meta, store, now)
        except Exception:
            store.abandon()
            raise
        try:
            consumer.dead_letters.resume()
        except Exception:
            consumer.abandon()
            raise
        return consumer

    @property
    def since(self) -> int:
        """The first stream sequence that the consumer's position covers."""
        return self.meta.since or self.meta.start_seq

    def _start_last_per_subject(self) -> None:
        delivered, resume = self.state.delivered_stream, self.meta.resume_seq
        if self.config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT and delivered < resume:
            seqs = last_per_subject(self.config, self.stream.log, resume)
            self.pump.start_with([seq for seq in seqs if seq > delivered], resume)

    def _configure_pump(self) -> None:
        config = self.config
        self.pump.configure(
            headers_only=config.headers_only,
            max_ack_pending=config.max_ack_pending,
            max_deliver=min(max(config.max_deliver, 0), UINT32_MAX),
            prioritized=config.priority_policy is PriorityPolicy.PRIORITIZED,
        )
        size_max = self.stream.config.max_msg_size
        self.pump.set_rate(
            config.rate_limit_bps // 8, size_max if size_max > 0 else self.engine.config.max_payload
        )
        self.pinning.configure()

    # --- the tick ------------------------------------------------------------------------------

    def apply(self, now: int) -> None:
        """Applies the acks that arrived since the last call."""
        self.acks.clean()
        if self.closed:
            return
        if self._acks.apply(now):
            self._used_at = now

    def acked(self, now: int) -> None:
        """Records that acks removed messages from the pending ones."""
        self.acked_at = now
        self._floor_shown = None

    def write(self) -> None:
        """Hands changes to the operating system. With sync_always, syncs them if confirmations depend on
        them. Raises StoreWriteError."""
        if not self.closed:
            is_needed = self._acks.to_confirm or self.dead_letters.has_unwritten
            self._recorder.write(sync=self.engine.config.sync_always and is_needed)
            self.dead_letters.written()

    def confirm(self) -> None:
        """Sends the requested ack confirmations. Call only after `write`; does nothing while writes fail."""
        if not self._recorder.is_behind and not self.closed:  # else they were not written
            self._acks.confirm()

    def deliver(self, now: int, quantum: int) -> None:
        """Sends pending messages, at most `quantum`, so that others get their turn and the journal is
        written."""
        if self.closed or self.is_driven:
            return
        self._quantum = quantum
        self._drop_removed()
        if self._paused:
            self._subscriptions.wait(self, False)
            if self.pull is not None:
                self.pull.at_end_of_stream(now)
            elif self.push is not None:
                self.push.look(now)
                self._await_change(self.push)
        elif self.push is not None:
            self._deliver_push(self.push, now)
        elif self.pull is not None:
            self._deliver_pull(self.pull, now)

    def _deliver_pull(self, pull: PullQueue, now: int) -> None:
        pull.drop_expired(now)
        if not pull.requests:
            self._subscriptions.wait(self, False)
            return
        self.pinning.delivers_at(now)
        end = self._run(pull.requests, now)
        self._acks_full = end in _FULL
        if self.pump.sent:
            pull.after_delivery(now)
        at_end = end in (RunEnd.RUN_EMPTY, RunEnd.RUN_STANDBY)
        if at_end:
            pull.at_end_of_stream(now)
        self._subscriptions.wait(self, at_end and bool(pull.requests))

    def _deliver_push(self, push: PushDelivery, now: int) -> None:
        push.look(now)
        end = self._run(push.targets, now)
        if self.pump.sent:
            push.after_delivery(now)
        if end in _FULL:
            push.acks_full()
        self._subscriptions.wait(self, end == RunEnd.RUN_EMPTY and push.is_active)
        self._await_change(push)

    def _await_change(self, push: PushDelivery) -> None:
        """Registers for the next subscription change that may start or end the interest in the deliver
        subject."""
        interest = self.engine.interest
        wait = interest.await_silence if push.is_active else interest.await_listener
        wait(self, push.target.subject, self.acks.mark)

    def _run(self, targets: list[Target], now: int) -> int:
        quantum = unwritten.durable_quantum(self, self._quantum)
        floor = self._floor
        end = self.pump.run(targets, now, quantum)
        if not quantum:
            end = RunEnd.RUN_EMPTY  # the engine calls again when the stream can be written
        if end in _FULL and self._removals != self.stream.log.removals:
            self._drop_missing()
            self.engine.tick.touch_consumer(self)
        if self.pump.sent:
            self.turn = self.engine.scheduler.delivered(self.turn, self.pump.sent)
            self.delivered_at = self._used_at = now
            self.redelivery.delivered(now)
        if self.pump.given_up:
            self._give_up(self.pump.given_up, floor)
            self.pump.given_up.clear()
        if end == RunEnd.RUN_BUDGET:
            self.engine.tick.touch_consumer(self)
        if end == RunEnd.RUN_BLOCKED:
            for target in targets:
                target.when_drained(self._on_drained)
        return end

    def _on_drained(self) -> None:
        """Continues after a congested receiver has drained."""
        if not self.closed:
            self.engine.tick.touch_consumer(self)

    def _drop_removed(self) -> None:
        """Drops pending messages below the stream's first sequence: they can no longer be acked."""
        first = self.stream.log.first_seq
        if first != self._first_seq:
            self._first_seq = first
            self.state.drop_below(first)

    def _drop_missing(self) -> None:
        """Drops all pending messages that are no longer in the stream. Checks each one, so it runs only where
        the exact count matters."""
        self._drop_removed()
        removals = self.stream.log.removals
        if removals != self._removals:
            self._removals = removals
            self.pump.drop_missing()

    def purged(self) -> None:
        """Counts purged messages as delivered and acked."""
        self._floor_shown = None
        self._drop_missing()
        self.state.skip(self.stream.log.first_seq - 1)
        self.engine.tick.touch_consumer(self)

    def _on_end(self, target: Target, why: int) -> None:
        if self.pull is not None:
            self.pull.on_end(target, why)
        elif self.push is not None and why == TargetEnd.END_NO_INTEREST:
            self.push.lost(self.engine.clock())

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When `on_time` is due next (ns), or None."""
        if self.closed:
            return None
        pull = self.pull.next_deadline() if self.pull is not None else None
        push = self.push.next_deadline() if self.push is not None else None
        pause = rules.pause_until_ns(self.config) if self._paused else None
        paced = self.pump.wait_until or None  # replay policy original, or a rate limit
        pinned = self.pinning.next_deadline()
        more = (paced, pinned, self.dead_letters.next_deadline(), self._inactive_at())
        deadlines = (self.redelivery.next_deadline(), pull, push, pause, *more)
        return min((due for due in deadlines if due is not None), default=None)

    def on_time(self, now: int) -> None:
        """Handles redeliveries, expired requests, heartbeats and the inactive threshold. The engine calls
        deliver() next."""
        if self.closed:
            return
        self._check_pause(now)
        self.pinning.on_time(now)
        floor = self._floor
        given_up = self.redelivery.on_time(now)
        if given_up:
            self._give_up(given_up, floor)
        self.dead_letters.on_time(now)
        state = self.state
        if self.pull is not None:
            due = self.pull.next_deadline()
            if due is not None and due <= now:
                if self._acks_full:
                    # Matches the official server: no_wait requests do not wait for acks beyond their first
                    # timer.
                    self.pull.sweep(now)
                    self.pull.at_end_of_stream(now)
                self.pull.on_time(now, state.delivered_consumer, state.delivered_stream)
        elif self.push is not None:
            self.push.on_time(now, state.delivered_consumer, state.delivered_stream)
        inactive_at = self._inactive_at()
        if inactive_at is not None and inactive_at <= now and self._is_unused(now):
            self._expire(now)

    def _check_pause(self, now: int) -> None:
        """Enters or leaves the pause, and publishes an advisory about the change."""
        paused = rules.pause_until_ns(self.config) > now
        if paused != self._paused:
            self._paused = paused
            self._advise_pause()

    def advise_created(self) -> None:
        """Publishes the advisories of a new consumer: that it was created, and whether it is paused."""
        self.engine.advisories.consumer_action(self.stream.name, self.name, "create")
        if self._paused:
            self._advise_pause()

    def _advise_pause(self) -> None:
        until = format_time_or_zero(rules.pause_until_ns(self.config))
        self.advise("PAUSE", "consumer_pause", paused=self._paused, pause_until=until)

    def _inactive_at(self) -> int | None:
        threshold = rules.inactive_threshold_ns(self.config)
        if not threshold:
            return None
        if self.push is not None:
            return None if self.push.is_active else max(self.push.idle_since, self._used_at) + threshold
        assert self.pull is not None
        return max(self.pull.last_active, self._used_at) + threshold

    def _is_unused(self, now: int) -> bool:
        if self.dead_letters.is_busy:
            self._used_at = now
            return False
        if self.push is not None:
            return not self.push.look(now) and not self.push.is_active
        assert self.pull is not None
        self.pull.sweep(now)
        if self.pull.requests:
            self._used_at = now
            return False
        # A client may work on a message until its ack wait ends, so the threshold counts from there.
        unacked = max((ts + self.state.wait_ns(seq) for seq, _, ts, _ in self.state.pending()), default=0)
        if unacked + rules.inactive_threshold_ns(self.config) > now:
            self._used_at = unacked
            return False
        return True

    # --- requests ------------------------------------------------------------------------------

    def request_messages(self, reply: bytes, payload: bytes, now: int) -> None:
        """Handles a pull request; responses go to `reply`."""
        if not reply:
            return
        if self.pull is None:
            self.send_status(reply, CONSUMER_IS_PUSH_BASED.block())
            return
        try:
            request = parse_pull(payload)
        except DecodeError as error:
            self.send_status(reply, Status(BAD_REQUEST.code, f"{BAD_REQUEST.text} - {error}").block())
            return
        try:
            check_request(request, self.config)
            check_group(request, self.config)
            self.pinning.on_request(request, now)
            self.pull.add(reply, request, self._messages_pending(request), now)
        except PullRefusedError as refused:
            # With heartbeats, a rejected client would retry at once. Without a status it waits for the next
            # heartbeat, which costs less.
            if not (refused.status.text == "Exceeded MaxWaiting" and request.idle_heartbeat):
                self.send_status(reply, refused.status.block())
            return
        self.engine.tick.touch_consumer(self)

    def _messages_pending(self, request: PullRequest) -> int:
        return self.pump.num_pending + self.state.num_queued if request.no_wait else 0

    def on_flow_reply(self, subject: bytes, header: bytes) -> None:
        """Handles a flow control response. What it acks is applied with the acks of this tick."""
        if self.push is not None and self.push.on_flow_reply(subject):
            if self.push.acks_by_flow:
                self._acks.on_flow_reply(header)
                self.acks.mark()
            self.engine.tick.touch_consumer(self)

    def update(self, config: ApiConsumerConfig, now: int) -> None:
        """Changes to a (checked) configuration. Raises JetStreamApiError 10012, 10013 and 10116 for fields
        that cannot change, StoreWriteError when the configuration cannot be stored."""
        rules.check_update(self.config, config)
        moved = self.push is not None and config.deliver_subject != self.config.deliver_subject
        is_regrouped = config.deliver_group != self.config.deliver_group
        if moved and self.push is not None:
            self.push.look(now)
            if self.push.is_active:
                raise rules.name_in_use()
        meta = msgspec.structs.replace(self.meta, config=config)
        filters = rules.filters_of(config)
        other_filters = filters != rules.filters_of(self.config)
        if other_filters:
            meta = msgspec.structs.replace(meta, since=self.state.delivered_stream + 1)
        self.store.save_meta(encode(meta))
        other_keys = rules.key_token(config) != rules.key_token(self.config)
        self.meta, self.config = meta, config
        if other_keys:
            self.pump.set_key_token(rules.key_token(config))
        if other_filters:
            self._subscriptions.wait(self, False)
            self.pump.set_filters([one.encode() for one in filters])
            self._start_last_per_subject()  # with the new filters, as after a restart
            self._subscriptions.claim(self)
            self._needs_changed()
        self._configure_pump()
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        self._used_at = now
        self.dead_letters.resume()
        self._check_pause(now)
        if (moved or is_regrouped) and self.push is not None:
            self.push.move_to(config.deliver_subject.encode(), config.deliver_group.encode(), now)
        self.engine.tick.touch_consumer(self)

    def settle_upto(self, upto_seq: int, filters: list[bytes], now: int) -> None:
        """Counts the messages up to stream sequence `upto_seq` that pass `filters` as delivered and acked.
        Only for a driven consumer."""
        if settle_upto(self.state, self.stream.log, filters, upto_seq, now):
            self.delivered_at = self.acked_at = now
        self.pump.move_to(upto_seq + 1)
        self.engine.tick.touch_consumer(self)

    def reset(self, seq: int, now: int) -> int:
        """Restarts delivery at stream sequence `seq`, as if nothing from there on had been delivered; 0:
        directly above the ack floor. Returns the sequence.

        Raises JetStreamApiError 10204 where the deliver policy does not allow it, and StoreWriteError.
        """
        if seq:
            first = self.stream.log.seq_at_time(rules.start_ns(self.config))
            rules.check_reset(self.config, seq, first)
        else:
            seq = self.state.ack_floor_stream + 1
        meta = msgspec.structs.replace(self.meta, since=seq)
        self.store.save_meta(encode(meta))
        self.meta = meta
        self._recorder.start_over(seq)
        self.pump.move_to(seq)
        self.pump.set_key_token(rules.key_token(self.config))
        self._start_last_per_subject()
        self._needs_changed()
        self.redelivery.configure(rules.ack_waits_ns(self.config), self.config.max_deliver, now)
        self.delivered_at = self.acked_at = 0
        self._floor_shown = None
        self._used_at = now
        self.engine.tick.touch_consumer(self)
        return seq

    def _needs_changed(self) -> None:
        interest_state = self.stream.interest_state
        if interest_state is not None:
            interest_state.refilter(self.pump, self.since)
            if not interest_state.work_queue:
                self.engine.reviews.begin(self.stream)

    def info(self, now: int) -> ApiConsumerInfo:
        """The consumer's info, as `$JS.API.CONSUMER.INFO` returns it."""
        self._drop_missing()
        state = self.state
        if self.pull is not None:
            self.pull.sweep(now)
        if self.push is not None:
            self.push.look(now)
        return ApiConsumerInfo(
            stream_name=self.stream.name,
            name=self.name,
            created=format_time(self.created),
            config=rules.with_versions(self.config, self.engine.config),
            delivered=_sequence(state.delivered_consumer, state.delivered_stream, self.delivered_at),
            ack_floor=_sequence(*(self._floor_shown or self._floor), self.acked_at),
            num_ack_pending=state.num_pending,
            # With max_deliver 1 there are no redeliveries: a message that was given up does not count as one.
            num_redelivered=0 if self.config.max_deliver == 1 else state.num_redelivered,
            num_waiting=len(self.pull) if self.pull is not None else 0,
            num_pending=self.pump.num_pending,
            push_bound=self.push is not None and self.push.is_active,
            paused=self._paused,
            pause_remaining=rules.pause_until_ns(self.config) - now if self._paused else 0,
            ts=format_time(now),
            priority_groups=self.pinning.state(),
        )

    # --- telling others ------------------------------------------------------------------------

    def send_status(self, reply: bytes, block: bytes) -> None:
        """Publishes a status message to `reply`."""
        publish(self.engine.index, reply, b"", block, b"")

    def advise(self, event: str, kind: str, **fields: object) -> None:
        """Publishes an advisory about a message of this consumer."""
        where = {"stream": self.stream.name, "consumer": self.name}
        suffix = f"CONSUMER.{event}.{self.stream.name}.{self.name}"
        self.engine.advisories.publish(suffix, kind, where | fields)

    @property
    def _floor(self) -> tuple[int, int]:
        """The ack floor: consumer and stream sequence."""
        return self.state.ack_floor_consumer, self.state.ack_floor_stream

    def _give_up(self, given_up: list[tuple[int, int]], floor: tuple[int, int]) -> None:
        """Handles messages that reached max_deliver and are marked so in the ack state. floor: the ack floor
        before."""
        if not self.dead_letters.wanted:
            # They were not acked. As on the official server, infos show the earlier floor until the next ack.
            self._floor_shown = self._floor_shown or floor
        for stream_seq, deliveries in given_up:
            if self.dead_letters.wanted:
                self.dead_letters.add(stream_seq, DeadLetter(deliveries, MAX_DELIVER, ""))
            else:
                self.advise_given_up(stream_seq, deliveries)

    def settle(self, stream_seq: int) -> int:
        """Drops a message that was given up from the ack state; returns by how many the pending count
        fell."""
        return int(self.state.drop(stream_seq))

    def advise_given_up(self, stream_seq: int, deliveries: int) -> None:
        """Publishes the advisory about a message that reached max_deliver."""
        self.advise("MAX_DELIVERIES", "max_deliver", stream_seq=stream_seq, deliveries=deliveries)

    def advise_terminated(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> None:
        """Publishes the advisory about a +TERM."""
        fields: dict[str, object] = {"reason": reason} if reason else {}
        fields |= {"consumer_seq": consumer_seq, "stream_seq": stream_seq, "deliveries": deliveries}
        self.advise("MSG_TERMINATED", "terminated", **fields)

    # --- the end -------------------------------------------------------------------------------

    def end_pulls(self) -> None:
        """Ends waiting requests when the server stops, with a status that has their remaining messages and
        bytes."""
        if self.pull is not None:
            self.pull.end_all(SERVER_SHUTDOWN, with_rest=True)

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
            if self.pull is not None:
                self.pull.end_all(LEADERSHIP_CHANGE)
        finally:
            self._leave()
            self.store.abandon()

    def _expire(self, now: int) -> None:
        try:
            self.engine.tick.write_removals(self.stream)
        except StoreWriteError:  # already logged
            self._used_at = now
        else:
            self.retire()

    def retire(self) -> None:
        """Removes the consumer without a request, such as after its inactive threshold. Where its files
        cannot be removed, a restart recovers it and it expires again."""
        with contextlib.suppress(StoreWriteError):  # already logged
            self.engine.tick.write_removals(self.stream)
        self._leave_stream()
        try:
            self.store.delete()
        except StoreError as error:
            log.error("consumer %s: its files cannot be removed: %s", self.name, error)
        self._left_stream()

    def remove(self, *, sync: bool) -> None:
        """Removes the consumer on request. sync: the removal survives a power failure.

        Raises StoreError where its files cannot be removed: a restart could recover it, so it is offline
        until another request removes it. Raises StoreWriteError where the removals by its acks cannot be
        written; then the consumer continues.
        """
        self.engine.tick.write_removals(self.stream)
        self._leave_stream()
        try:
            self.store.delete(sync=sync)
        except StoreError as error:
            self.engine.containment.leave_out(self.stream, self.name, str(error))
            raise
        self._left_stream()

    def _leave_stream(self) -> None:
        self.engine.tick.forget_consumer(self)
        self.stream.consumers.pop(self.name, None)
        self.end()

    def _left_stream(self) -> None:
        if self.stream.is_to_be_reviewed(held_back=self.config.direct or self.is_driven):
            self.engine.reviews.begin(self.stream)
        self.engine.advisories.consumer_action(self.stream.name, self.name, "delete")

    def suspend(self) -> None:
        """Stops applying, delivering and writing; end() follows."""
        self._suspended = self.closed = True

    def end(self) -> None:
        """Ends waiting requests and unregisters. The caller removes the files."""
        if not self.closed or self._suspended:
            self._suspended = False
            if self.pull is not None:
                self.pull.end_all(CONSUMER_DELETED)
            self._leave()

    def _leave(self) -> None:
        self.closed = True
        self.pump.close()
        self._subscriptions.remove(self)
        if self.stream.interest_state is not None:
            self.stream.interest_state.remove(self.pump)
        self.engine.interest.stop(self)


def _sequence(consumer_seq: int, stream_seq: int, at: int) -> SequenceInfo:
    return SequenceInfo(
        consumer_seq=consumer_seq, stream_seq=stream_seq, last_active=format_time(at) if at else None
    )


__all__ = ["ConsumerReplica", "StartPosition"]
