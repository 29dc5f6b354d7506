"""One consumer: a state machine over its stream's log.

What changes it: acks (gathered by the wiring's AckSink, applied once a tick), pull requests, time, and
its own deliveries. The engine drives it: `apply`, `write`, `confirm`, `deliver`, and `on_time` when
`next_deadline` has come.

Ordering contracts:
- an ack is confirmed (`confirm`) only after `write`, when what it changed is with the operating system;
- what was delivered is written in the same tick, after it was delivered: a crash in between repeats it;
- redeliveries leave before new messages; requests and advisories are answered in the tick they arise in.

Invariant: whoever may be able to go on is either active in this tick, waits for news of the stream
(`consumer_subscriptions.wait`) or for a slow receiver to take what it was sent (`when_drained`, so that it
can't fill memory), or has a deadline.
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
from penstock.kernels.consumer.ack_sink import AckQueue
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.delivery_targets import Target, TargetEnd
from penstock.kernels.consumer.pump import Pump, RunEnd
from penstock.kernels.routing.grammar import has_wildcard
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.acks import parse_pull
from penstock.protocol.api import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
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

# Ends of a run that only acks bring on.
_FULL = (RunEnd.RUN_ACKS_FULL, RunEnd.RUN_KEYS_FULL)


class ConsumerReplica:
    """A consumer of `stream`. Make one by `create` or `recover`."""

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
        self._stands_still = False  # closed, and end() was not called yet
        self.turn = 0
        self._share = 0
        self.ack_metric = f"CONSUMER.ACK.{stream.name}.{self.name}"
        self.delivered_at = 0  # ns of the last delivery and the last ack; 0 before the first
        self.acked_at = 0
        self._first_seq = 0
        self._removals = -1  # what is pending was not held against what the stream has yet
        self._acks_full = False  # max_ack_pending stopped the last delivery
        self._used_at = now
        self._floor_held: tuple[int, int] | None = None  # what infos show; None: the floor as it is
        self._paused = rules.pause_until_ns(config) > now
        acks_by_flow = config.ack_policy is AckPolicy.FLOW_CONTROL
        # Does it deliver nothing itself, because a mirror or source tells it what was taken?
        self.is_driven = acks_by_flow if meta.driven is None else meta.driven
        policy = KernelPolicy.ACK_NONE if self.is_driven else KERNEL_POLICY[config.ack_policy]
        self.state = AckState(policy, meta.start_seq)
        self._recorder = Recorder(store, self.state, engine.config.journal_min_bytes)
        self._recorder.recover(stream.log.last_seq)
        prefix = f"{stream.name}.{self.name}.".encode()
        filters = [one.encode() for one in rules.filters_of(config)]
        position = max(meta.start_seq, self.state.delivered_stream + 1)
        self.pump = Pump(stream.log, self.state, engine.index, b"$JS.ACK." + prefix, filters, position)
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
            self.pull = PullQueue(engine.index, self.send_status, config.max_waiting)
        self.pinning = Pinning(self)
        self.dead_letters = DeadLetters(self)
        self.pump.rotation.on_end = self._on_end
        self.pump.replaying = config.replay_policy is ReplayPolicy.ORIGINAL
        self._configure_pump()
        self.pump.set_key_token(rules.key_token(config))
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        try:
            self._join(filters)
        except Exception:
            self._leave()
            raise

    def _join(self, filters: list[bytes]) -> None:
        """From now on acks and news of the stream reach it, and the stream keeps what it needs."""
        self._wiring().add(self)
        if any(has_wildcard(one) for one in filters):
            self.engine.indexing.add(self.stream)
        if self.stream.interest_state is not None:
            self.stream.interest_state.add(self.pump, self.since)

    @classmethod
    def create(
        cls,
        engine: JetStreamEngine,
        stream: StreamReplica,
        config: ConsumerConfig,
        name: str,
        now: int,
        *,
        driven: bool = False,
    ) -> ConsumerReplica:
        """A new consumer of a checked configuration; driven: see ConsumerMeta.

        Raises StoreError when it can't be kept.
        """
        one_per_subject = stream.config.max_msgs_per_subject == 1
        start = start_of(config, stream.log, one_per_subject=one_per_subject)
        meta = ConsumerMeta(config, name, now, start.seq, start.resume_seq, driven=driven)
        store = stream.store.create_consumer(name, encode(meta), config.mem_storage or config.direct)
        try:
            return cls(engine, stream, meta, store, now)
        except Exception:
            # A restart must not meet what can't be opened.
            faults.contain(store.delete, partial(engine.containment.consumer_still_kept, stream, name))
            raise

    @classmethod
    def recover(
        cls, engine: JetStreamEngine, stream: StreamReplica, store: ConsumerStore, now: int
    ) -> ConsumerReplica:
        """The consumer a store holds. Raises StoreCorruptError when its state can't be read."""
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
        """The first stream sequence of which its position says that it was delivered."""
        return self.meta.since or self.meta.start_seq

    def _wiring(self) -> ConsumerSubscriptions:
        consumer_subscriptions = self.stream.consumer_subscriptions
        if consumer_subscriptions is None:
            consumer_subscriptions = self.stream.consumer_subscriptions = ConsumerSubscriptions(
                self.engine, self.stream.name
            )
        return consumer_subscriptions

    def _start_last_per_subject(self) -> None:
        delivered, resume = self.state.delivered_stream, self.meta.resume_seq
        if self.config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT and delivered < resume:
            seqs = last_per_subject(self.config, self.stream.log, resume)
            self.pump.start_with([seq for seq in seqs if seq > delivered], resume)

    def _configure_pump(self) -> None:
        config, pump = self.config, self.pump
        pump.headers_only = config.headers_only
        pump.max_ack_pending = config.max_ack_pending
        pump.max_deliver = min(max(config.max_deliver, 0), UINT32_MAX)
        pump.rotation.prioritized = config.priority_policy is PriorityPolicy.PRIORITIZED
        if self.pull is not None:
            self.pull.prioritized = pump.rotation.prioritized
        size_max = self.stream.config.max_msg_size
        pump.set_rate(
            config.rate_limit_bps // 8, size_max if size_max > 0 else self.engine.config.max_payload
        )
        self.pinning.configure()

    # --- the tick ------------------------------------------------------------------------------

    def apply(self, now: int) -> None:
        """Applies the acks that came since the last time."""
        self.acks.clean()
        if self.closed:
            return
        if self._acks.apply(now):
            self._used_at = now

    def acked(self, now: int) -> None:
        """An ack settled messages."""
        self.acked_at = now
        self._floor_held = None

    def write(self) -> None:
        """Hands what changed to the operating system; with sync_always what is to be confirmed also to the
        disk. Raises StoreWriteError."""
        if not self.closed:
            rests_on_it = self._acks.to_confirm or self.dead_letters.has_unkept
            self._recorder.write(sync=self.engine.config.sync_always and rests_on_it)
            self.dead_letters.kept()

    def confirm(self) -> None:
        """Answers the acks that asked for it. Only after `write`, and not while that fails."""
        if not self._recorder.is_behind and not self.closed:  # (then they were not written)
            self._acks.confirm()

    def deliver(self, now: int, share: int) -> None:
        """Sends what may be sent now, `share` messages at most: others get their turn, and its journal is
        written."""
        if self.closed or self.is_driven:
            return
        self._share = share
        self._drop_removed()
        if self._paused:
            self._wiring().wait(self, False)
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
            self._wiring().wait(self, False)
            return
        self.pinning.delivers_at(now)
        end = self._run(pull.requests, now)
        self._acks_full = end in _FULL
        if self.pump.sent:
            pull.after_delivery(now)
        at_end = end in (RunEnd.RUN_EMPTY, RunEnd.RUN_STANDBY)
        if at_end:
            pull.at_end_of_stream(now)
        self._wiring().wait(self, at_end and bool(pull.requests))

    def _deliver_push(self, push: PushDelivery, now: int) -> None:
        push.look(now)
        end = self._run(push.targets, now)
        if self.pump.sent:
            push.after_delivery(now)
        if end in _FULL:
            push.acks_full()
        self._wiring().wait(self, end == RunEnd.RUN_EMPTY and push.is_active)
        self._await_change(push)

    def _await_change(self, push: PushDelivery) -> None:
        """The next subscription that may begin or end its interest makes it look again."""
        interest = self.engine.interest
        wait = interest.await_silence if push.is_active else interest.await_listener
        wait(self, push.target.subject, self.acks.mark)

    def _run(self, targets: list[Target], now: int) -> int:
        share = unwritten.share_of(self, self._share)
        floor = self._floor
        end = self.pump.run(targets, now, share)
        if not share:
            end = RunEnd.RUN_EMPTY  # the engine comes back when the stream is written again
        if end in _FULL and self._removals != self.stream.log.removals:
            self._drop_missing()
            self.engine.tick.touch_consumer(self)
        if self.pump.sent:
            self.engine.turns.delivered(self, self.pump.sent)
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
        """A receiver that had too much unsent can take more."""
        if not self.closed:
            self.engine.tick.touch_consumer(self)

    def _drop_removed(self) -> None:
        """Pending messages that left the front of the stream will never be acked."""
        first = self.stream.log.first_seq
        if first != self._first_seq:
            self._first_seq = first
            self.state.drop_below(first)

    def _drop_missing(self) -> None:
        """The same for those which left anywhere. Looks at each pending one: only where the count matters."""
        self._drop_removed()
        removals = self.stream.log.removals
        if removals != self._removals:
            self._removals = removals
            self.pump.drop_missing()

    def purged(self) -> None:
        """Messages were purged: what is gone counts as delivered and acked."""
        self._floor_held = None
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
        """When (ns) `on_time` has something to do; None when never."""
        if self.closed:
            return None
        pull = self.pull.next_deadline() if self.pull is not None else None
        push = self.push.next_deadline() if self.push is not None else None
        pause = rules.pause_until_ns(self.config) if self._paused else None
        paced = self.pump.wait_until or None  # replay policy original, rate limit
        pinned = self.pinning.next_deadline()
        more = (paced, pinned, self.dead_letters.next_deadline(), self._inactive_at())
        deadlines = (self.redelivery.next_deadline(), pull, push, pause, *more)
        return min((due for due in deadlines if due is not None), default=None)

    def on_time(self, now: int) -> None:
        """Redeliveries, expiries, heartbeats, and the end of a consumer nobody uses. The engine delivers
        next."""
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
                    # As the official server: no_wait does not wait for acks beyond its first timer.
                    self.pull.sweep(now)
                    self.pull.at_end_of_stream(now)
                self.pull.on_time(now, state.delivered_consumer, state.delivered_stream)
        elif self.push is not None:
            self.push.on_time(now, state.delivered_consumer, state.delivered_stream)
        inactive_at = self._inactive_at()
        if inactive_at is not None and inactive_at <= now and self._is_unused(now):
            self._expire(now)

    def _check_pause(self, now: int) -> None:
        """Enters or leaves the pause, and tells those who listen for it."""
        paused = rules.pause_until_ns(self.config) > now
        if paused != self._paused:
            self._paused = paused
            self._tell_pause()

    def tell_created(self) -> None:
        """Advisories of a new consumer: that it is there, and that it is paused already."""
        self.engine.advisories.consumer_action(self.stream.name, self.name, "create")
        if self._paused:
            self._tell_pause()

    def _tell_pause(self) -> None:
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
        # A client may work on its messages until their ack waits end; the threshold counts from there.
        unacked = max((ts + self.state.wait_ns(seq) for seq, _, ts, _ in self.state.pending()), default=0)
        if unacked + rules.inactive_threshold_ns(self.config) > now:
            self._used_at = unacked
            return False
        return True

    # --- requests ------------------------------------------------------------------------------

    def request_messages(self, reply: bytes, payload: bytes, now: int) -> None:
        """A pull request arrived; its answers go to `reply`."""
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
            # A requester with heartbeats would ask again at once; it is better off waiting for the next beat.
            if not (refused.status.text == "Exceeded MaxWaiting" and request.idle_heartbeat):
                self.send_status(reply, refused.status.block())
            return
        self.engine.tick.touch_consumer(self)

    def _messages_pending(self, request: PullRequest) -> int:
        return self.pump.num_pending + self.state.num_queued if request.no_wait else 0

    def on_flow_reply(self, subject: bytes, header: bytes) -> None:
        """The receiver answered a flow control request; what that acks is applied with the tick's acks."""
        if self.push is not None and self.push.on_flow_reply(subject):
            if self.push.acks_by_flow:
                self._acks.on_flow_reply(header)
                self.acks.mark()
            self.engine.tick.touch_consumer(self)

    def update(self, config: ConsumerConfig, now: int) -> None:
        """Runs on another (checked) configuration from now on. Raises JetStreamApiError 10012, 10013, 10116
        for what may not change, StoreWriteError when it can't be kept."""
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
            self._wiring().wait(self, False)
            self.pump.set_filters([one.encode() for one in filters])
            self._start_last_per_subject()  # of what it takes now, as after a restart
            self._wiring().claim(self)
            self._needs_changed()
        self._configure_pump()
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        self._used_at = now
        self.dead_letters.resume()
        self._check_pause(now)
        if (moved or is_regrouped) and self.push is not None:
            self.push.move_to(config.deliver_subject.encode(), config.deliver_group.encode(), now)
        self.engine.tick.touch_consumer(self)

    def reset(self, seq: int, now: int) -> int:
        """Delivers again from stream sequence `seq` on, as if nothing behind it had been delivered; 0: from
        just above the ack floor. Returns where it goes on.

        Raises JetStreamApiError 10204 where the deliver policy doesn't allow it, StoreWriteError.
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
        self._floor_held = None
        self._used_at = now
        self.engine.tick.touch_consumer(self)
        return seq

    def _needs_changed(self) -> None:
        interest_state = self.stream.interest_state
        if interest_state is not None:
            interest_state.refilter(self.pump, self.since)
            if not interest_state.work_queue:
                self.engine.reviews.begin(self.stream)

    def info(self, now: int) -> ConsumerInfo:
        """What the consumer has done and has before it."""
        self._drop_missing()
        state = self.state
        if self.pull is not None:
            self.pull.sweep(now)
        if self.push is not None:
            self.push.look(now)
        return ConsumerInfo(
            stream_name=self.stream.name,
            name=self.name,
            created=format_time(self.created),
            config=rules.with_versions(self.config, self.engine.config),
            delivered=_sequence(state.delivered_consumer, state.delivered_stream, self.delivered_at),
            ack_floor=_sequence(*(self._floor_held or self._floor), self.acked_at),
            num_ack_pending=state.num_pending,
            # With one delivery there are no redeliveries; what is given up is none either.
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
        """A status message to whoever waits at `reply`."""
        publish(self.engine.index, reply, b"", block, b"")

    def advise(self, event: str, kind: str, **fields: object) -> None:
        """An advisory about one of its messages."""
        where = {"stream": self.stream.name, "consumer": self.name}
        suffix = f"CONSUMER.{event}.{self.stream.name}.{self.name}"
        self.engine.advisories.publish(suffix, kind, where | fields)

    @property
    def _floor(self) -> tuple[int, int]:
        """The ack floor: consumer and stream sequence."""
        return self.state.ack_floor_consumer, self.state.ack_floor_stream

    def _give_up(self, given_up: list[tuple[int, int]], floor: tuple[int, int]) -> None:
        """These reached max_deliver, and are so in the ack state. floor: before that."""
        if not self.dead_letters.wanted:
            # They were not acked: until the next ack, infos show the earlier floor, as the official ones do.
            self._floor_held = self._floor_held or floor
        for stream_seq, deliveries in given_up:
            if self.dead_letters.wanted:
                self.dead_letters.add(stream_seq, DeadLetter(deliveries, MAX_DELIVER, ""))
            else:
                self.tell_given_up(stream_seq, deliveries)

    def settle(self, stream_seq: int) -> int:
        """A message that was given up is done with; returns how many stopped being pending by it."""
        return int(self.state.drop(stream_seq))

    def tell_given_up(self, stream_seq: int, deliveries: int) -> None:
        """The advisory about a message that reached max_deliver."""
        self.advise("MAX_DELIVERIES", "max_deliver", stream_seq=stream_seq, deliveries=deliveries)

    def tell_terminated(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> None:
        """The advisory about a +TERM."""
        fields: dict[str, object] = {"reason": reason} if reason else {}
        fields |= {"consumer_seq": consumer_seq, "stream_seq": stream_seq, "deliveries": deliveries}
        self.advise("MSG_TERMINATED", "terminated", **fields)

    # --- the end -------------------------------------------------------------------------------

    def end_pulls(self) -> None:
        """The server stops: waiting requests are told, and what is left of them."""
        if self.pull is not None:
            self.pull.end_all(SERVER_SHUTDOWN, with_rest=True)

    def close(self) -> None:
        """Stands still and writes what is left; it can be recovered."""
        if not self.closed:
            self._recorder.write()
            self._leave()
            self.store.close()

    def abandon(self) -> None:
        """Stands still, and writes nothing: what is kept of it stays as it is."""
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
            self.engine.tick.keep_removals(self.stream)
        except StoreWriteError:  # it was logged
            self._used_at = now
        else:
            self.retire()

    def retire(self) -> None:
        """Ends for good and leaves its stream, without a request. A restart finds it where its files can't be
        removed, and it ends again."""
        with contextlib.suppress(StoreWriteError):  # it was logged
            self.engine.tick.keep_removals(self.stream)
        self._leave_stream()
        try:
            self.store.delete()
        except StoreError as error:
            log.error("consumer %s: its files can not be removed: %s", self.name, error)
        self._left_stream()

    def remove(self, *, sync: bool) -> None:
        """The same by a request. sync: power loss does not bring it back. Raises StoreError where its files
        can't be removed: it is offline then, because a restart may find it, until another request removes
        it. The same where the removals by its acks can't be written: then it goes on."""
        self.engine.tick.keep_removals(self.stream)
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

    def stand_still(self) -> None:
        """Applies, delivers and writes nothing any more; end() follows."""
        self._stands_still = self.closed = True

    def end(self) -> None:
        """Stands still for good, and tells waiting requests. Its files are others' business."""
        if not self.closed or self._stands_still:
            self._stands_still = False
            if self.pull is not None:
                self.pull.end_all(CONSUMER_DELETED)
            self._leave()

    def _leave(self) -> None:
        self.closed = True
        self.pump.close()
        self._wiring().remove(self)
        if self.stream.interest_state is not None:
            self.stream.interest_state.remove(self.pump)
        self.engine.interest.stop(self)


def _sequence(consumer_seq: int, stream_seq: int, at: int) -> SequenceInfo:
    return SequenceInfo(
        consumer_seq=consumer_seq, stream_seq=stream_seq, last_active=format_time(at) if at else None
    )


__all__ = ["ConsumerReplica", "StartPosition"]
