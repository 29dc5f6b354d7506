"""The deliveries of one consumer: which messages go to which receivers, and when.

The pump (kernels/consumer/pump.pyx) moves messages from the stream's log to receivers and records each in
the ack state. A `ConsumerDelivery` runs it, and has what only a consumer that delivers needs: its receivers
(waiting pull requests, or a deliver subject), pins, and ack waits.

Ordering contracts:
- Redeliveries are sent before new messages.
- While the stream cannot be written, only messages that a crash cannot revoke are delivered. (Rejected: no
  deliveries while a disk is full, because consuming is what frees it.)

Invariant: after a run, the consumer is activated again, or waits for new messages (`wait`), for a slow
receiver to drain (`when_drained`, so that it cannot fill memory), for acks, or for a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.jetstream.commands import PinConsumer
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.consumer_advisories import ConsumerAdvisories
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.jetstream.consumer.consumer_ports import ConsumerPorts
from penstock.jetstream.consumer.groups import Pinning, check_group
from penstock.jetstream.consumer.pull_requests import PullQueue, PullRefusedError, check_request
from penstock.jetstream.consumer.push import FLOW_PREFIX, PushDelivery
from penstock.jetstream.consumer.redelivery import Redelivery
from penstock.jetstream.consumer.standby import Pin
from penstock.jetstream.consumer.start import last_per_subject
from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.deadlines import earliest
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.endpoints import Target, TargetEnd
from penstock.kernels.consumer.pump import Pump, RunEnd
from penstock.protocol.acks import parse_pull
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    DecodeError,
    DeliverPolicy,
    PriorityPolicy,
    PullRequest,
    ReplayPolicy,
)
from penstock.protocol.status import BAD_REQUEST, CONSUMER_IS_PUSH_BASED, Status

UINT32_MAX = 2**32 - 1

# A run that ended for one of these reasons continues only after acks.
_FULL = (RunEnd.RUN_ACKS_FULL, RunEnd.RUN_KEYS_FULL)


class ConsumerDelivery:
    """The deliveries of a consumer of `stream`.

    state: records them. effects: gets statuses and heartbeats. mark: makes the consumer apply and deliver in
    the next tick. activate: makes it deliver in this tick. wait: sets whether new messages of the stream
    activate it. gave_up: called with messages [(stream seq, deliveries)] that had their last delivery, and
    the ack floor before. pin: see groups.py.

    position: see fair_scheduler.py. sent_at: time of the last delivery in ns; 0 before the first.
    """

    def __init__(
        self,
        ports: ConsumerPorts,
        stream: StreamReplica,
        meta: ConsumerMeta,
        state: AckState,
        advisories: ConsumerAdvisories,
        effects: ConsumerEffects,
        *,
        is_driven: bool,
        mark: Callable[[], object],
        activate: Callable[[], None],
        wait: Callable[[bool], None],
        gave_up: Callable[[list[tuple[int, int]], tuple[int, int]], None],
        pin: Pin,
        now: int,
    ) -> None:
        self._ports = ports
        self._stream = stream
        self._state = state
        self._effects = effects
        self._config = config = meta.config
        self._mark = mark
        self._activate = activate
        self._wait = wait
        self._gave_up = gave_up
        self.position = 0
        self.sent_at = 0
        self._first_seq = 0
        self._removals = -1  # the log's removal counter at the last drop_missing()
        self._acks_full = False  # the last run stopped at max_ack_pending
        self._is_stopped = False
        ack_prefix = f"{stream.name}.{meta.name}.".encode()
        self.pump = Pump(
            stream.log,
            state,
            ports.index,
            b"$JS.ACK." + ack_prefix,
            [one.encode() for one in rules.filters_of(config)],
            state.delivered_stream + 1,
            on_end=self._on_end,
            replaying=config.replay_policy is ReplayPolicy.ORIGINAL,
        )
        self._start_last_per_subject(meta)
        self.redelivery = Redelivery(state, rules.ack_waits_ns(config), config.max_deliver)
        self.pull: PullQueue | None = None
        self.push: PushDelivery | None = None
        if rules.is_push(config):
            self.push = PushDelivery(
                ports.index,
                effects,
                self.pump,
                config.deliver_subject.encode(),
                group=config.deliver_group.encode(),
                heartbeat_ns=config.idle_heartbeat,
                flow_prefix=FLOW_PREFIX.encode() + ack_prefix if config.flow_control else b"",
                acks_by_flow=config.ack_policy is AckPolicy.FLOW_CONTROL and not is_driven,
                new_id=ports.new_id,
                now=now,
            )
        else:
            self.pull = PullQueue(ports.index, effects, self.pump.rotation, config.max_waiting)
        self.pinning = Pinning(
            config,
            self.pump.rotation,
            advisories,
            new_id=ports.new_id,
            account=ports.config().account,
            activate=activate,
            record=partial(_record_pin, stream, meta.name),
            held=pin,
            now=now,
        )
        self._configure_pump()
        self.pump.set_key_token(rules.key_token(config))
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)

    # --- configuration -------------------------------------------------------------------------

    def check_move(self, config: ApiConsumerConfig, now: int) -> None:
        """Raises JetStreamApiError 10013 when the configuration has another deliver subject while the present
        one has subscribers."""
        if self.push is not None and config.deliver_subject != self._config.deliver_subject:
            self.push.look(now)
            if self.push.is_active:
                raise rules.name_in_use()

    def configure(self, meta: ConsumerMeta, now: int) -> None:
        """Follows a change of the consumer's configuration."""
        before, config = self._config, meta.config
        self._config = config
        if rules.key_token(config) != rules.key_token(before):
            self.pump.set_key_token(rules.key_token(config))
        filters = rules.filters_of(config)
        if filters != rules.filters_of(before):
            self._wait(False)
            self.pump.set_filters([one.encode() for one in filters])
            self._start_last_per_subject(meta)  # with the new filters, as after a restart
        self._configure_pump()
        self.pinning.configure(config)
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        subject, group = config.deliver_subject, config.deliver_group
        if self.push is not None and (subject, group) != (before.deliver_subject, before.deliver_group):
            self.push.move_to(subject.encode(), group.encode(), now)

    def start_over(self, meta: ConsumerMeta, seq: int, now: int) -> None:
        """Continues at stream sequence `seq` with an ack state that was replaced."""
        config = meta.config
        self.pump.move_to(seq)
        self.pump.set_key_token(rules.key_token(config))
        self._start_last_per_subject(meta)
        self.redelivery.configure(rules.ack_waits_ns(config), config.max_deliver, now)
        self.sent_at = 0

    def skip_to(self, seq: int) -> None:
        """Continues at stream sequence `seq`: another reader has taken what precedes it."""
        self.pump.move_to(seq)

    def _start_last_per_subject(self, meta: ConsumerMeta) -> None:
        delivered, resume = self._state.delivered_stream, meta.resume_seq
        if meta.config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT and delivered < resume:
            seqs = last_per_subject(meta.config, self._stream.log, resume)
            self.pump.start_with([seq for seq in seqs if seq > delivered], resume)

    def _configure_pump(self) -> None:
        config = self._config
        self.pump.configure(
            headers_only=config.headers_only,
            max_ack_pending=config.max_ack_pending,
            max_deliver=min(max(config.max_deliver, 0), UINT32_MAX),
            prioritized=config.priority_policy is PriorityPolicy.PRIORITIZED,
        )
        size_max = self._stream.config.max_msg_size
        self.pump.set_rate(
            config.rate_limit_bps // 8, size_max if size_max > 0 else self._ports.config().max_payload
        )

    # --- runs ----------------------------------------------------------------------------------

    def run(self, now: int, quantum: int) -> None:
        """Sends at most `quantum` messages."""
        if self._stream.log.first_seq != self._first_seq:
            self.drop_removed()
        push = self.push
        if push is not None:
            self._run_push(push, now, quantum)
            return
        pull = self.pull
        assert pull is not None
        if pull.requests:
            pull.drop_expired(now)
        if not pull.requests:
            self._wait(False)
            return
        self.pinning.delivers_at(now)
        end = self._run(pull.requests, now, quantum)
        self._acks_full = end in _FULL
        if self.pump.sent:
            pull.after_delivery(now)
        at_end = end in (RunEnd.RUN_EMPTY, RunEnd.RUN_STANDBY)
        if at_end:
            pull.at_end_of_stream(now)
        self._wait(at_end and bool(pull.requests))

    def rest(self, now: int) -> None:
        """Takes the place of run() while the consumer is paused."""
        self.drop_removed()
        self._wait(False)
        if self.pull is not None:
            self.pull.at_end_of_stream(now)
        elif self.push is not None:
            self.push.look(now)
            self._await_change(self.push)

    def _run_push(self, push: PushDelivery, now: int, quantum: int) -> None:
        push.look(now)
        end = self._run(push.targets, now, quantum)
        if self.pump.sent:
            push.after_delivery(now)
        if end in _FULL:
            push.acks_full()
        self._wait(end == RunEnd.RUN_EMPTY and push.is_active)
        self._await_change(push)

    def _await_change(self, push: PushDelivery) -> None:
        """Registers for the next subscription change that may start or end the interest in the deliver
        subject."""
        interest = self._ports.interest
        wait = interest.await_silence if push.is_active else interest.await_listener
        wait(self, push.target.subject, self._mark)

    def _run(self, targets: list[Target], now: int, quantum: int) -> int:
        if self._stream.durability.failure is not None:
            quantum = self._durable_quantum(quantum)
        floor = (self._state.ack_floor_consumer, self._state.ack_floor_stream)
        pump = self.pump
        end = pump.run(targets, now, quantum)
        if not quantum:
            end = RunEnd.RUN_EMPTY  # the engine calls again when the stream can be written
        if end in _FULL and self._removals != self._stream.log.removals:
            self.drop_missing()
            self._activate()
        if pump.sent:
            self.position = self._ports.scheduler.delivered(self.position, pump.sent)
            self.sent_at = now
            self.redelivery.delivered(now)
        if pump.given_up:
            self._gave_up(pump.given_up, floor)
            pump.given_up.clear()
        if end == RunEnd.RUN_BUDGET:
            self._activate()
        if end == RunEnd.RUN_BLOCKED:
            for target in targets:
                target.when_drained(self._on_drained)
        return end

    def _durable_quantum(self, quantum: int) -> int:
        """How many of `quantum` messages are certainly durable: new messages come in order, so the unwritten
        ones are the last of the pending ones."""
        stream = self._stream
        durable_seq = stream.durability.durable_seq
        if durable_seq >= stream.log.last_seq:
            return quantum
        if rules.key_token(self._config) or self.pump.skipping:
            return 0
        filters = [one.encode() for one in rules.filters_of(self._config)] or [b""]
        unwritten = sum(stream.log.count_from(durable_seq + 1, one) for one in filters)
        return min(quantum, max(self.pump.num_pending - unwritten, 0))

    def _on_drained(self) -> None:
        """Continues after a congested receiver has drained."""
        if not self._is_stopped:
            self._activate()

    def _on_end(self, target: Target, why: int) -> None:
        if why == TargetEnd.END_FULL:
            return  # the usual case: the request has all its messages, and no status follows
        if self.pull is not None:
            self.pull.on_end(target, why)
        elif self.push is not None and why == TargetEnd.END_NO_INTEREST:
            self.push.lost(self._ports.clock())

    def drop_removed(self) -> None:
        """Drops pending messages below the stream's first sequence: they can no longer be acked."""
        first = self._stream.log.first_seq
        if first != self._first_seq:
            self._first_seq = first
            self._state.drop_below(first)

    def drop_missing(self) -> None:
        """Drops all pending messages that are no longer in the stream. Checks each one, so it runs only where
        the exact count matters."""
        self.drop_removed()
        removals = self._stream.log.removals
        if removals != self._removals:
            self._removals = removals
            self.pump.drop_missing()

    # --- requests ------------------------------------------------------------------------------

    def request_messages(self, reply: bytes, payload: bytes, now: int) -> None:
        """Handles a pull request; responses go to `reply`."""
        if not reply:
            return
        if self.pull is None:
            self._effects.status(reply, CONSUMER_IS_PUSH_BASED.block())
        else:
            try:
                self._add_request(self.pull, reply, parse_pull(payload), now)
            except DecodeError as error:
                self._effects.status(reply, Status(BAD_REQUEST.code, f"{BAD_REQUEST.text} - {error}").block())
        self._activate()  # releases the status of a refused one too

    def _add_request(self, pull: PullQueue, reply: bytes, request: PullRequest, now: int) -> None:
        try:
            check_request(request, self._config)
            check_group(request, self._config)
            if request.id:
                self.pinning.on_request(request, now)
            pending = self.pump.num_pending + self._state.num_queued if request.no_wait else 0
            pull.add(reply, request, pending, now)
        except PullRefusedError as refused:
            # With heartbeats, a rejected client would retry at once. Without a status it waits for the next
            # heartbeat, which costs less.
            if not (refused.status.text == "Exceeded MaxWaiting" and request.idle_heartbeat):
                self._effects.status(reply, refused.status.block())

    def end_requests(self, status: Status, *, with_rest: bool = False) -> None:
        """Ends waiting pull requests. with_rest: add headers with their remaining messages and bytes."""
        if self.pull is not None:
            self.pull.end_all(status, with_rest=with_rest)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When something is due next (ns), or None."""
        receivers = None
        if self.push is not None:
            receivers = self.push.next_deadline()
        elif self.pull is not None and self.pull.requests:
            receivers = self.pull.next_deadline()
        paced = self.pump.wait_until or None  # replay policy original, or a rate limit
        return earliest(self.redelivery.next_deadline(), receivers, paced, self.pinning.due)

    def on_time(self, now: int) -> None:
        """Ends expired requests, and sends heartbeats."""
        state = self._state
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

    def look(self, now: int) -> None:
        """Updates what is known of receivers: expired pull requests, subscribers of the deliver subject."""
        if self.pull is not None:
            self.pull.sweep(now)
        if self.push is not None:
            self.push.look(now)

    def unused_since(self) -> int | None:
        """Since when (ns) no receiver asked for messages or got one; None: a receiver is present. A waiting
        pull request does not count as one before is_in_use() checked it."""
        if self.push is not None:
            return None if self.push.is_active else max(self.push.idle_since, self.sent_at)
        assert self.pull is not None
        return max(self.pull.last_active, self.sent_at)

    def is_in_use(self, now: int) -> bool:
        """Whether a receiver is present."""
        if self.push is not None:
            return self.push.look(now) or self.push.is_active
        assert self.pull is not None
        self.pull.sweep(now)
        return bool(self.pull.requests)

    def stop(self) -> None:
        """Continues no more when a receiver drains."""
        self._is_stopped = True

    def close(self) -> None:
        """Ends deliveries for good."""
        self.stop()
        self.pump.close()
        self._ports.interest.stop(self)


def _record_pin(stream: StreamReplica, name: str, pin: bytes, now: int) -> int:
    pinned_at: int = stream.apply(PinConsumer(name, pin.decode()), now)
    return pinned_at
