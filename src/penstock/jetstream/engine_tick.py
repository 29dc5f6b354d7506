"""One account's part of the end of a tick: what has work, and the steps in which it is done.

The server calls `apply`, `write`, `acknowledge`, `deliver` at the end of each tick, and `on_time` when
`next_deadline` has come. Between two ticks, publishes gather in the streams' batches and acks in the
consumers' sinks; both are in the engine's dirty lists, whose first entry wakes the server. What a request or
a deadline changes is noted here by `touch_stream` and `touch_consumer`.

Ordering contracts:
- apply before write before acknowledge: an ack leaves only after its record is with the operating system
  (on the disk with sync_always).
- deliver after write: a consumer never sees a message that a crash could take back.
- API requests see every publish that arrived before them: their sinks run `apply` first.

Each step is contained as a whole, and in it the work on each stream and consumer (containment.py). These
boundaries are `try` statements in the loops, which cost nothing until something is raised. Rejected:
`faults.contain` with a function for each boundary. A tick often has a single publish to apply, and the twenty
calls that this took lowered the rate of publishes that are acked one at a time by a sixth.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import StoreWriteError
from penstock.jetstream.commit import CommitPorts, LocalCommit
from penstock.jetstream.deadlines import Deadlines, earliest
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.wire.sinks import RoutingGuard

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine

log = logging.getLogger("penstock.jetstream")

CONSUMERS_TICK = 1024  # consumers, or deadlines, that one tick works on: 20 ms at most, and 2 ms mostly
EXPIRY_WORK = 512 * 1024  # of all streams in a tick: 1 ms, in the units of slices.py
AGAIN_NS = 100_000_000  # until the next tick at the latest, after a step that failed


class EngineTick:
    """Work of one account's engine at the end of a tick."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._streams = engine.streams
        self.commit = LocalCommit(
            engine.config,
            CommitPorts(
                clock=engine.clock,
                wake=engine.wake,
                blocked=engine.block_input,
                committed=self.committed,
                recovered=self.recovered,
                stream_failed=engine.containment.stream_failed,
            ),
        )
        self._deferrals = engine.deferrals
        self._allowance = engine.allowance
        self._stream_failed = engine.containment.stream_failed
        self._consumer_failed = engine.containment.consumer_failed
        self._step_failed = engine.containment.step_failed
        self._work_failed = engine.containment.work_failed
        self.routing = RoutingGuard()
        self._changed: dict[str, StreamReplica] = {}  # changed since consumers last checked for messages
        self._lagging: dict[ConsumerReplica, None] = {}  # consumers whose last write failed
        self._active: dict[
            ConsumerReplica, None
        ] = {}  # an ordered set: consumers with something to do this tick
        self._written: list[ConsumerReplica] = []  # consumers in this tick, which may confirm acks
        self.deferred: list[Callable[[], object]] = []  # work that `defer` postponed
        self._deadlines: Deadlines[StreamReplica | ConsumerReplica] = Deadlines()
        self._may_send = True  # everything applied since a failed step is written
        self._again: list[ConsumerReplica] = []  # to be looked at in the next tick
        self._again_due: int | None = None

    # --- the steps -----------------------------------------------------------------------------

    def apply(self, now: int) -> None:
        """Applies publishes, then consumers' acks."""
        self.routing.require_idle()
        try:
            self._apply(now)
        except Exception as error:
            self._step_failed(error)

    def _apply(self, now: int) -> None:
        if self._allowance.left != self._allowance.most:
            self._allowance.renew()
        ready = dict.fromkeys(self._deferrals.take_ready()) if self._deferrals.ready else {}
        dirty: list[StreamReplica] = self._engine.dirty_streams.take()
        for stream in [*ready, *dirty]:
            if self._streams.get(stream.name) is stream:  # else deleted or set aside in this tick
                try:
                    self._apply_stream(stream, now, was_held=stream in ready)
                except Exception as error:
                    self._stream_failed(error, stream)
        again, self._again = self._again, []
        for consumer in [*again, *self._engine.dirty_consumers.take()]:
            try:
                self._apply_consumer(consumer, now)
            except Exception as error:
                self._consumer_failed(error, consumer)
        if self._deferrals.has_requests and not self.commit.in_flight:
            self.deferred += self._deferrals.take_requests()
        while self.deferred:
            work = self.deferred.pop(0)
            try:
                work()
            except Exception as error:
                self._work_failed(error)

    def _apply_stream(self, stream: StreamReplica, now: int, *, was_held: bool) -> None:
        durability = stream.durability
        if durability.is_syncing or durability.is_rolling_up:
            if durability.is_syncing or stream.rollups.unfinished:
                # Applying now would mix messages that the sync in flight does not cover with those it does,
                # or acknowledge messages behind an unfinished roll-up.
                self._deferrals.defer(stream)
                return
            durability.rollup_ended()
        self._engine.capacity.admit(stream)
        if was_held and (stream.next_deadline() or now + 1) <= now:
            stream.expire(now, EXPIRY_WORK)  # came due while it was held
            self._hold_for_rollups(stream)  # of a schedule's message
            if durability.is_rolling_up:
                self._note_stream(stream)
                return
        stream.apply_pending(now)
        if stream.rollups.unfinished:
            self._hold_for_rollups(stream)
        self._note_stream(stream)

    def _hold_for_rollups(self, stream: StreamReplica) -> None:
        if stream.rollups.unfinished and not stream.durability.is_rolling_up:
            self._engine.roll_up(stream)

    def _apply_consumer(self, consumer: ConsumerReplica, now: int) -> None:
        consumer.apply(now)
        self._active[consumer] = None
        self._remove_settled(consumer)

    def write(self) -> None:
        """Writes everything new to the operating system; with sync_always, starts the syncs."""
        self.routing.require_idle()
        try:
            self.commit.write()
            self._written = self._first_active() if self._active else []
            for consumer in self._written:
                try:
                    self._write_consumer(consumer)
                except Exception as error:
                    self._consumer_failed(error, consumer)
            self._may_send = True
        except Exception as error:
            self._step_failed(error)

    def acknowledge(self) -> None:
        """Sends pub acks and confirmations of consumer acks. Only after `write`."""
        if self._may_send:
            try:
                self._acknowledge()
            except Exception as error:
                self._step_failed(error)

    def _acknowledge(self) -> None:
        index, overflow = self._engine.index, self._engine.overflow
        with self.routing:
            if overflow.full:
                try:
                    overflow.answer(index, self._engine.clock())
                except Exception as error:
                    self._work_failed(error)
            for stream in list(self._changed.values()):
                if not stream.durability.is_syncing:
                    try:
                        stream.acknowledge(index)
                    except Exception as error:
                        self._stream_failed(error, stream)
            for consumer in self._written:
                # An ack may be confirmed only when the journal that records it was written.
                if consumer in self._active and consumer not in self._lagging:
                    try:
                        consumer.confirm()
                    except Exception as error:
                        self._consumer_failed(error, consumer)

    def deliver(self, now: int) -> None:
        """Lets consumers with work send messages, and writes their deliveries to their journals."""
        if self._may_send:
            try:
                self._deliver_all(now)
            except Exception as error:
                self._step_failed(error)

    def _deliver_all(self, now: int) -> None:
        changed, self._changed = self._changed, {}
        for stream in changed.values():
            if stream.consumer_subscriptions is not None and stream.durability.may_deliver:
                try:
                    ready = stream.consumer_subscriptions.ready_consumers()
                except Exception as error:
                    self._stream_failed(error, stream)
                else:
                    self._active.update(dict.fromkeys(ready))
        if self._active:
            self._deliver(self._take_active(), now)
        engine = self._engine
        try:
            engine.sourcing.advance(changed, now)
        except Exception as error:
            self._work_failed(error)
        for advance in (engine.transfers.advance, engine.slices.advance, engine.indexing.advance):
            try:
                advance(now)
            except Exception as error:
                self._work_failed(error)

    def _first_active(self) -> list[ConsumerReplica]:
        """The consumers served in one tick, longest active first; the others follow in the next ticks. Ten
        thousand at once would take a tenth of a second."""
        return list(itertools.islice(self._active, CONSUMERS_TICK))

    def _take_active(self) -> list[ConsumerReplica]:
        """Removes and returns the consumers served in this tick. They stay inactive until something activates
        them."""
        active = self._first_active()
        if len(active) == len(self._active):
            self._active = {}
        else:
            for consumer in active:
                del self._active[consumer]
            self._engine.wake()
        return active

    def _deliver(self, consumers: list[ConsumerReplica], now: int) -> None:
        scheduler = self._engine.scheduler
        quantum = scheduler.quantum(len(consumers))
        with self.routing:
            for consumer in scheduler.in_order(consumers):
                if consumer.stream.durability.is_syncing:
                    # A delivery before the sync ends could show a message that a power loss takes back.
                    self._deferrals.defer_consumer(consumer)
                    continue
                try:
                    self._deliver_one(consumer, now, quantum)
                except Exception as error:
                    self._consumer_failed(error, consumer)

    def _deliver_one(self, consumer: ConsumerReplica, now: int, quantum: int) -> None:
        consumer.deliver(now, quantum)
        self._write_consumer(consumer)
        if self._remove_settled(consumer):  # without acks, a delivery settles
            self._engine.wake()
        self._deadlines.set(consumer, consumer.next_deadline())

    def begin_again(self) -> None:
        """Schedules everything for the next tick after a step failed as a whole and lost track of pending
        work. Nothing is sent before a write succeeds."""
        self._may_send = False
        self._deferrals.begin_again(self._streams.values())
        self.commit.begin_again(self._streams.values())
        for stream in self._streams.values():
            self._changed[stream.name] = stream
            self._again += stream.consumers.values()
        self._again_due = self._engine.clock() + AGAIN_NS

    # --- outside of the tick's end -------------------------------------------------------------

    def committed(self, stream: StreamReplica) -> None:
        """Continues after a background sync of the stream: sends the acks and deliveries that it deferred."""
        if self.routing.is_active:  # the sync ended while a delivery was recorded, which waits for the disk
            self.defer(partial(self.committed, stream))
            return
        with self.routing:
            stream.acknowledge(self._engine.index)
        waiting = self._deferrals.take_consumers(stream)
        if stream.consumer_subscriptions is not None and stream.durability.may_deliver:
            waiting += stream.consumer_subscriptions.ready_consumers()
        now = self._engine.clock()
        self._deliver([one for one in dict.fromkeys(waiting) if not one.closed], now)
        self._engine.sourcing.advance([stream.name], now)
        self._deferrals.synced(stream)

    def recovered(self, stream: StreamReplica) -> None:
        """Activates the consumers of a stream that can be written again."""
        self._active.update(dict.fromkeys(stream.consumers.values()))

    def defer(self, work: Callable[[], object]) -> None:
        """Runs `work` in the next tick, after pending publishes were applied."""
        self.deferred.append(work)
        self._engine.wake()

    def touch_stream(self, stream: StreamReplica, *, at_once: bool = True) -> None:
        """Records that a request changed the stream: this tick writes it, and all its consumers check it.

        at_once: with sync_always, the change is durable when the tick ends.
        """
        if at_once and self._engine.config.sync_always:
            stream.durability.ask_sync()
        self._touch(stream)

    def note_removals(self, stream: StreamReplica) -> None:
        """Records that messages left the stream: this tick writes it. Its consumers are not woken."""
        self._note_stream(stream)

    def touch_consumer(self, consumer: ConsumerReplica) -> None:
        """Activates a consumer for this tick."""
        self._active[consumer] = None
        self._engine.wake()

    def forget_stream(self, stream: StreamReplica) -> None:
        """Drops all pending work and deadlines of a stream that goes away."""
        self._changed.pop(stream.name, None)
        self._deadlines.set(stream, None)

    def forget_consumer(self, consumer: ConsumerReplica) -> None:
        """Drops all pending work and deadlines of a consumer that goes away."""
        self._active.pop(consumer, None)
        self._lagging.pop(consumer, None)
        self._deadlines.set(consumer, None)

    def write_change(self, stream: StreamReplica) -> None:
        """Writes a request's change before its response. Raises StoreWriteError: the change is applied, and
        written when the disk recovers, but until then a crash could lose it."""
        self.routing.require_idle()
        self.touch_stream(stream)
        self.commit.write_now(stream)

    def write_removals(self, stream: StreamReplica) -> None:
        """Writes the pending removals that acks caused in an interest or work-queue stream.

        A consumer may be deleted only after that, because until then only its state records what it acked.
        After a crash in between, the next consumer of a work queue would receive messages whose acks were
        confirmed. Raises StoreWriteError.
        """
        if (
            stream.interest_state is not None
            and not stream.durability.is_syncing
            and not stream.log.is_written
        ):
            self.write_change(stream)

    # --- deadlines -----------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When (ns since the epoch) `on_time` must be called next; None for never."""
        engine = self._engine
        return earliest(
            self._deadlines.earliest(), self.commit.sync_due, self.commit.retry_due, self._again_due,
            engine.transfers.next_deadline(), engine.sourcing.next_deadline(),
        )  # fmt: skip

    def on_time(self, now: int) -> None:
        """Does what is due at `now`: expiries, redeliveries, heartbeats, the periodic sync."""
        try:
            self._on_time(now)
        except Exception as error:
            self._step_failed(error)

    def _on_time(self, now: int) -> None:
        self._again_due = None
        # Those that are left are due at once again: the timer brings another turn. They are taken one by one,
        # because a stream with more to expire is due again behind the others.
        work = EXPIRY_WORK
        for _ in range(CONSUMERS_TICK):
            due = self._deadlines.take_due(now, 1) if work > 0 else []
            if not due:
                break
            thing = due[0]
            if isinstance(thing, StreamReplica):
                try:
                    work -= self._stream_on_time(thing, now)
                except Exception as error:
                    self._stream_failed(error, thing)
            else:
                try:
                    self._consumer_on_time(thing, now)
                except Exception as error:
                    self._consumer_failed(error, thing)
        for on_time in (self._engine.transfers.on_time, self._engine.sourcing.on_time):
            try:
                on_time(now)
            except Exception as error:
                self._work_failed(error)
        self.commit.sync_if_due(now)
        failing = self.commit.take_retries(now)
        if failing is not None:
            for stream in failing:
                self._touch(stream)
            for consumer in self._lagging:
                self.touch_consumer(consumer)

    def _stream_on_time(self, stream: StreamReplica, now: int) -> int:
        """Runs the stream's expired timers. Returns the work done, in the units of slices.py."""
        if stream.durability.is_syncing or stream.durability.is_rolling_up:
            self._deferrals.defer(stream)  # what time stores must not leave with the sync that has begun
            return 0
        self._engine.capacity.admit(stream)
        work = stream.expire(now, EXPIRY_WORK)
        self._touch(stream)
        return work

    def _consumer_on_time(self, consumer: ConsumerReplica, now: int) -> None:
        consumer.on_time(now)
        self.touch_consumer(consumer)

    # --- own -----------------------------------------------------------------------------------

    def _touch(self, stream: StreamReplica) -> None:
        self._hold_for_rollups(stream)
        self._note_stream(stream)
        self._active.update(dict.fromkeys(stream.consumers.values()))
        self._engine.wake()

    def _remove_settled(self, consumer: ConsumerReplica) -> int:
        """Removes messages that the consumer settled from an interest or work-queue stream, unless another
        consumer needs them. Returns how many."""
        stream = consumer.stream
        if stream.interest_state is None or consumer.closed:
            return 0
        gone = stream.interest_state.settle(consumer.pump)
        if gone:
            self._note_stream(stream)
        return gone

    def _note_stream(self, stream: StreamReplica) -> None:
        self._engine.capacity.note(stream)
        self.commit.note(stream)
        self._changed[stream.name] = stream
        self._deadlines.set(stream, stream.next_deadline())

    def _write_consumer(self, consumer: ConsumerReplica) -> None:
        try:
            consumer.write()
        except StoreWriteError as error:
            log.error("consumer %s: its state cannot be written: %s", consumer.name, error)
            self._lagging[consumer] = None
            self.commit.retry_later()
        else:
            if consumer in self._lagging:
                del self._lagging[consumer]
