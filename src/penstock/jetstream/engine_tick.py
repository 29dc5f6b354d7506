"""One account's part of the end of a tick: the steps in which its pending work is done.

The server calls `apply`, `write`, `acknowledge`, `deliver` at the end of each tick, and `on_time` when
`next_deadline` has come. Between two ticks, publishes gather in the streams' batches and acks in the
consumers' sinks; both are in the engine's dirty lists, whose first entry wakes the server. What requests and
deadlines change is in the engine's `PendingWork`.

Ordering contracts:
- apply before write before acknowledge: an ack leaves only after its record is with the operating system
  (with `sync: always` on the disk, unless the stream's `persist_mode` is async).
- deliver after write: a consumer never sees a message that the end of the process could take back. (A power
  failure could, unless it waited for a sync.)
- API requests see every publish that arrived before them: their sinks run `apply` first.

Each step is contained as a whole, and in it the work on each stream and consumer (containment.py). These
boundaries are `try` statements in the loops, which cost nothing until something is raised. Rejected:
`faults.contain` with a function for each boundary. A tick often has a single publish to apply, and the twenty
calls that this took lowered the rate of publishes that are acked one at a time by a sixth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from penstock.errors import StoreWriteError
from penstock.jetstream import pending_work
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commit import Commit
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.fair_scheduler import FairScheduler
from penstock.jetstream.containment import Containment
from penstock.jetstream.deadlines import earliest
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.indexing import SubjectIndexing
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.replicated_streams import ReplicatedStreams
from penstock.jetstream.slices import Slices
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.stream.overflow import Overflow
from penstock.jetstream.stream.rollups import Allowance
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.jetstream.transfers import Transfers
from penstock.kernels.base.duration_histogram import DurationHistogram
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList

log = logging.getLogger("penstock.jetstream")

EXPIRY_WORK = 512 * 1024  # of all streams in a tick: 1 ms, in the units of slices.py
AGAIN_NS = 100_000_000  # until the next tick at the latest, after a step that failed


class TickParts(Struct, frozen=True, eq=False):
    """The parts of an engine that have work at the end of ticks.

    dirty_streams, dirty_consumers: those with publishes or acks to apply. allowance: what roll-ups may remove
    in a tick. wake: requests the end of another tick.
    """

    index: SubscriptionIndex
    table: StreamTable
    pending: PendingWork
    commit: Commit
    deferrals: Deferrals
    containment: Containment
    capacity: Capacity
    overflow: Overflow
    allowance: Allowance
    scheduler: FairScheduler
    dirty_streams: DirtyList
    dirty_consumers: DirtyList
    sourcing: Sourcing
    replicated: ReplicatedStreams
    transfers: Transfers
    slices: Slices
    indexing: SubjectIndexing
    clock: Callable[[], int]
    wake: Callable[[], None]


class EngineTick:
    """Work of one account's engine at the end of a tick.

    ack_times: how long publishes waited for their acks, from their arrival at the stream on.
    """

    def __init__(self, parts: TickParts) -> None:
        self._parts = parts
        self._index = parts.index
        self._streams = parts.table.open
        self._pending = parts.pending
        self._changed = parts.pending.changed
        self._active = parts.pending.active
        self._lagging = parts.pending.lagging
        self._deferred = parts.pending.deferred
        self._commit = parts.commit
        self._deferrals = parts.deferrals
        self._dirty_streams = parts.dirty_streams
        self._dirty_consumers = parts.dirty_consumers
        self._allowance = parts.allowance
        self._stream_failed = parts.containment.stream_failed
        self._consumer_failed = parts.containment.consumer_failed
        self._work_failed = parts.containment.work_failed
        self.routing = parts.pending.routing
        self.ack_times = DurationHistogram()
        self._written: list[ConsumerReplica] = []  # consumers in this tick, which may confirm acks
        self._may_send = True  # everything applied since a failed step is written
        self._again: list[ConsumerReplica] = []  # to be looked at in the next tick
        self._again_due: int | None = None

    # --- the steps -----------------------------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """Whether `apply` has anything to do. Every request asks first; most of them find nothing."""
        return bool(
            self._dirty_streams
            or self._dirty_consumers
            or self._deferred
            or self._deferrals.ready
            or self._deferrals.has_requests
            or self._again
            or self._allowance.left != self._allowance.most
        )

    def apply(self, now: int) -> None:
        """Applies publishes, then consumers' acks."""
        self.routing.require_idle()
        try:
            self._apply(now)
        except Exception as error:
            self._fail_step(error)

    def _apply(self, now: int) -> None:
        if self._allowance.left != self._allowance.most:
            self._allowance.renew()
        ready = dict.fromkeys(self._deferrals.take_ready()) if self._deferrals.ready else {}
        dirty: list[StreamReplica] = self._dirty_streams.take()
        for stream in [*ready, *dirty]:
            if self._streams.get(stream.name) is stream:  # else deleted or set aside in this tick
                try:
                    self._apply_stream(stream, now, was_deferred=stream in ready)
                except Exception as error:
                    self._stream_failed(error, stream)
        again, self._again = self._again, []
        for consumer in [*again, *self._dirty_consumers.take()]:
            try:
                self._apply_consumer(consumer, now)
            except Exception as error:
                self._consumer_failed(error, consumer)
        if self._deferrals.has_requests and not self._commit.in_flight:
            self._deferred += self._deferrals.take_requests()
        while self._deferred:
            work = self._deferred.pop(0)
            try:
                work()
            except Exception as error:
                self._work_failed(error)

    def _apply_stream(self, stream: StreamReplica, now: int, *, was_deferred: bool) -> None:
        durability = stream.durability
        # In a group, publishes are only submitted here, and its roll-ups end between two entries.
        if durability.is_syncing or (durability.is_rolling_up and stream.group is None):
            if durability.is_syncing or stream.rollups.unfinished:
                # Applying now would mix messages that the sync in flight does not cover with those it does,
                # or acknowledge messages behind an unfinished roll-up.
                self._deferrals.defer(stream)
                return
            durability.rollup_ended()
        self._parts.capacity.admit(stream)
        if was_deferred and (stream.timers.next_deadline() or now + 1) <= now:
            stream.expire(now, EXPIRY_WORK)  # came due while it was deferred
            self._pending.defer_for_rollups(stream)  # of a schedule's message
            if durability.is_rolling_up:
                self._pending.note_stream(stream)
                return
        stream.apply_pending(now)
        if stream.rollups.unfinished:
            self._pending.defer_for_rollups(stream)
        self._pending.note_stream(stream)

    def _apply_consumer(self, consumer: ConsumerReplica, now: int) -> None:
        consumer.apply(now)
        self._active[consumer] = None
        if consumer.stream.interest_state is not None:
            self._remove_settled(consumer)

    def write(self) -> None:
        """Writes everything new to the operating system; with `sync: always`, starts the syncs."""
        self.routing.require_idle()
        try:
            self._commit.write()
            self._written = self._pending.first_active() if self._active else []
            for consumer in self._written:
                try:
                    self._write_consumer(consumer)
                except Exception as error:
                    self._consumer_failed(error, consumer)
            self._may_send = True
        except Exception as error:
            self._fail_step(error)

    def acknowledge(self) -> None:
        """Releases the effects of streams and consumers, such as pub acks and confirmations. Only after
        `write`."""
        if self._may_send:
            try:
                self._acknowledge()
            except Exception as error:
                self._fail_step(error)

    def _acknowledge(self) -> None:
        index, times, overflow = self._index, self.ack_times, self._parts.overflow
        with self.routing:
            if overflow.full:
                try:
                    overflow.answer(index, self._parts.clock())
                except Exception as error:
                    self._work_failed(error)
            for stream in list(self._changed.values()):
                if not stream.durability.is_syncing:
                    try:
                        stream.effects.release(index, times)
                    except Exception as error:
                        self._stream_failed(error, stream)
            for consumer in self._written:
                if consumer in self._active and consumer.effects.waiting:
                    try:
                        consumer.effects.release()
                    except Exception as error:
                        self._consumer_failed(error, consumer)

    def deliver(self, now: int) -> None:
        """Lets consumers with work send messages, and writes their deliveries to their journals."""
        if self._may_send:
            try:
                self._deliver_all(now)
            except Exception as error:
                self._fail_step(error)
        if self._parts.replicated.changed:
            self._propose()

    def _propose(self) -> None:
        """Proposes what the tick's publishes, acks, deliveries and timers submitted: last, so that one entry
        has all of it."""
        try:
            self._parts.replicated.flush()
        except Exception as error:
            self._fail_step(error)

    def _deliver_all(self, now: int) -> None:
        changed: dict[str, StreamReplica] = {}
        if self._changed:
            changed.update(self._changed)
            self._changed.clear()
        for stream in changed.values():
            if stream.consumer_subscriptions is not None and stream.durability.may_deliver:
                try:
                    ready = stream.consumer_subscriptions.ready_consumers()
                except Exception as error:
                    self._stream_failed(error, stream)
                else:
                    self._active.update(dict.fromkeys(ready))
        if self._active:
            self._deliver(self._pending.take_active(), now)
        parts = self._parts
        if parts.sourcing.readers:
            try:
                parts.sourcing.advance(changed, now)
            except Exception as error:
                self._work_failed(error)
        transfers, slices, indexing = parts.transfers, parts.slices, parts.indexing
        if transfers.snapshots or transfers.restores or slices.unfinished or indexing.streams:
            # One check for all, as each may leave work to those behind it.
            for advance in (transfers.advance, slices.advance, indexing.advance):
                try:
                    advance(now)
                except Exception as error:
                    self._work_failed(error)

    def _deliver(self, consumers: list[ConsumerReplica], now: int) -> None:
        scheduler = self._parts.scheduler
        quantum = scheduler.quantum(len(consumers))
        with self.routing:
            for consumer in scheduler.in_order(consumers):
                try:
                    if consumer.stream.durability.is_syncing:
                        # A delivery before the sync ends could show a message that a power loss takes back.
                        self._deferrals.defer_consumer(consumer)
                    else:
                        self._deliver_one(consumer, now, quantum)
                except Exception as error:
                    self._consumer_failed(error, consumer)

    def _deliver_one(self, consumer: ConsumerReplica, now: int, quantum: int) -> None:
        effects = consumer.effects
        if effects.waiting:  # what precedes the messages, such as a heartbeat
            effects.release()
        consumer.deliver(now, quantum)
        self._write_consumer(consumer)
        if effects.waiting:
            effects.release()
        # Without acks, a delivery settles.
        if consumer.stream.interest_state is not None and self._remove_settled(consumer):
            self._parts.wake()
        self._pending.deadlines.set(consumer, consumer.next_deadline())

    def _fail_step(self, error: Exception) -> None:
        self._parts.containment.step_failed(error)
        self.begin_again()

    def begin_again(self) -> None:
        """Schedules everything for the next tick after a step failed as a whole and lost track of pending
        work. Nothing is sent before a write succeeds."""
        self._may_send = False
        self._deferrals.begin_again(self._streams.values())
        self._commit.begin_again(self._streams.values())
        for stream in self._streams.values():
            self._changed[stream.name] = stream
            self._again += stream.consumers.values()
        self._again_due = self._parts.clock() + AGAIN_NS

    # --- outside of the tick's end -------------------------------------------------------------

    def committed(self, stream: StreamReplica) -> None:
        """Continues after a background sync of the stream: sends the acks and deliveries that it deferred."""
        if self.routing.is_active:  # the sync ended while a delivery was recorded, which waits for the disk
            self._pending.defer(partial(self.committed, stream))
            return
        with self.routing:
            stream.effects.release(self._index, self.ack_times)
        waiting = self._deferrals.take_consumers(stream)
        if stream.consumer_subscriptions is not None and stream.durability.may_deliver:
            waiting += stream.consumer_subscriptions.ready_consumers()
        now = self._parts.clock()
        self._deliver([one for one in dict.fromkeys(waiting) if not one.closed], now)
        self._parts.sourcing.advance([stream.name], now)
        self._deferrals.synced(stream)

    def recovered(self, stream: StreamReplica) -> None:
        """Continues with a stream that can be written again: its consumers, and what waited to be released.
        What was written may be the retry of a periodic sync, without a change of the stream in this tick."""
        self._changed[stream.name] = stream
        self._pending.activate_all(stream)

    # --- deadlines -----------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When (ns since the epoch) `on_time` must be called next; None for never."""
        parts = self._parts
        return earliest(
            self._pending.deadlines.earliest(), self._commit.sync_due, self._commit.retry_due,
            self._again_due, parts.replicated.retry_due,
            parts.transfers.next_deadline(), parts.sourcing.next_deadline(),
        )  # fmt: skip

    def on_time(self, now: int) -> None:
        """Does what is due at `now`: expiries, redeliveries, heartbeats, the periodic sync."""
        try:
            self._on_time(now)
        except Exception as error:
            self._fail_step(error)

    def _on_time(self, now: int) -> None:
        self._again_due = None
        if self._parts.replicated.changed:
            self._parts.replicated.flush()
        # Those that are left are due at once again: the timer brings another tick. They are taken one by one,
        # because a stream with more to expire is due again behind the others.
        work = EXPIRY_WORK
        for _ in range(pending_work.CONSUMERS_TICK):
            due = self._pending.deadlines.take_due(now, 1) if work > 0 else []
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
        for on_time in (self._parts.transfers.on_time, self._parts.sourcing.on_time):
            try:
                on_time(now)
            except Exception as error:
                self._work_failed(error)
        self._commit.sync_if_due(now)
        failing = self._commit.take_retries(now)
        if failing is not None:
            for stream in failing:
                self._pending.time_passed(stream)
            for consumer in self._lagging:
                self._pending.touch_consumer(consumer)

    def _stream_on_time(self, stream: StreamReplica, now: int) -> int:
        """Runs the stream's expired timers. Returns the work done, in the units of slices.py."""
        if stream.durability.is_syncing or stream.durability.is_rolling_up:
            self._deferrals.defer(stream)  # what time stores must not leave with the sync that has begun
            return 0
        self._parts.capacity.admit(stream)
        work = stream.expire(now, EXPIRY_WORK)
        self._pending.time_passed(stream)
        return work

    def _consumer_on_time(self, consumer: ConsumerReplica, now: int) -> None:
        consumer.on_time(now)
        self._pending.touch_consumer(consumer)

    # --- own -----------------------------------------------------------------------------------

    def _remove_settled(self, consumer: ConsumerReplica) -> int:
        """Removes messages that the consumer settled from an interest or work-queue stream, unless another
        consumer needs them. Returns how many."""
        stream = consumer.stream
        if stream.interest_state is None or consumer.closed:
            return 0
        settled = stream.interest_state.settled(consumer.pump)
        if settled is None:
            return 0
        gone = stream.remove_settled(settled)
        if gone:
            self._pending.note_stream(stream)
        return gone

    def _write_consumer(self, consumer: ConsumerReplica) -> None:
        try:
            consumer.write()
        except StoreWriteError as error:
            log.error("consumer %s: its state cannot be written: %s", consumer.name, error)
            self._lagging[consumer] = None
            self._commit.retry_later()
        else:
            if self._lagging:
                self._lagging.pop(consumer, None)
