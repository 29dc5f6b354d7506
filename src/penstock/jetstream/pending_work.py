"""What one account's engine has to do: streams to write, consumers to serve, deadlines, postponed calls.

Requests, timers and the steps of a tick record here what they changed; the steps of the next tick
(engine_tick.py) take it. Publishes and acks are no part of it: they gather in sinks, which mark the engine's
dirty lists.

Invariant: a stream that changed is in `changed`, and in the commit's list, until a tick has written it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commit import Commit
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.deadlines import Deadlines
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.wire.sinks import RoutingGuard

CONSUMERS_TICK = 1024  # consumers, or deadlines, that one tick works on: 20 ms at most, and 2 ms mostly


class PendingWork:
    """The pending work of one account's engine.

    commit: writes the streams that changed. capacity: counts their bytes. wake: requests the end of a tick.
    config: returns the present configuration. roll_up: called with a stream whose roll-ups are left to slices
    (rollups.py).

    routing: held while messages are sent from buffers. changed: streams that changed since consumers last
    looked for messages. active: consumers with something to do in this tick, in order. lagging: consumers
    whose last write failed. deferred: calls for the next tick. deadlines: of streams and consumers.
    """

    def __init__(
        self,
        commit: Commit,
        capacity: Capacity,
        *,
        config: Callable[[], EngineConfig],
        wake: Callable[[], None],
        roll_up: Callable[[StreamReplica], None],
    ) -> None:
        self._commit = commit
        self._capacity = capacity
        self._config = config
        self._wake = wake
        self._roll_up = roll_up
        self.routing = RoutingGuard()
        self.changed: dict[str, StreamReplica] = {}
        self.active: dict[ConsumerReplica, None] = {}
        self.lagging: dict[ConsumerReplica, None] = {}
        self.deferred: list[Callable[[], object]] = []
        self.deadlines: Deadlines[StreamReplica | ConsumerReplica] = Deadlines()

    # --- streams -------------------------------------------------------------------------------

    def touch_stream(self, stream: StreamReplica, *, at_once: bool = True) -> None:
        """Records that a request changed the stream: this tick writes it, and all its consumers check it.

        at_once: with sync_always, the change is durable when the tick ends.
        """
        if at_once and self._config().sync_always:
            stream.durability.ask_sync()
        self.time_passed(stream)

    def time_passed(self, stream: StreamReplica) -> None:
        """Records that time may have changed the stream, as touch_stream() does for requests."""
        self.defer_for_rollups(stream)
        self.note_stream(stream)
        self.activate_all(stream)
        self._wake()

    def note_stream(self, stream: StreamReplica) -> None:
        """Records that the stream changed: this tick writes it. Its consumers are not woken."""
        self._capacity.note(stream)
        self._commit.note(stream)
        self.changed[stream.name] = stream
        self.deadlines.set(stream, stream.timers.next_deadline())

    def defer_for_rollups(self, stream: StreamReplica) -> None:
        """Lets slices remove what a tick may not."""
        if stream.rollups.unfinished and not stream.durability.is_rolling_up:
            self._roll_up(stream)

    def forget_stream(self, stream: StreamReplica) -> None:
        """Drops all pending work and deadlines of a stream that goes away."""
        self.changed.pop(stream.name, None)
        self.deadlines.set(stream, None)

    def write_change(self, stream: StreamReplica) -> None:
        """Writes a request's change before its response. Raises StoreWriteError: the change is applied, and
        written when the disk recovers, but until then a crash could lose it."""
        self.routing.require_idle()
        self.touch_stream(stream)
        self._commit.write_now(stream)

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

    # --- consumers -----------------------------------------------------------------------------

    def touch_consumer(self, consumer: ConsumerReplica) -> None:
        """Activates a consumer for this tick."""
        self.active[consumer] = None
        self._wake()

    def activate_all(self, stream: StreamReplica) -> None:
        """Activates the consumers of a stream when there is a tick."""
        self.active.update(dict.fromkeys(stream.consumers.values()))

    def first_active(self) -> list[ConsumerReplica]:
        """The consumers served in one tick, longest active first; the others follow in the next ticks. Ten
        thousand at once would take a tenth of a second."""
        return list(itertools.islice(self.active, CONSUMERS_TICK))

    def take_active(self) -> list[ConsumerReplica]:
        """Removes and returns the consumers served in this tick. They stay inactive until something activates
        them."""
        if len(self.active) <= CONSUMERS_TICK:
            active = list(self.active)
            self.active.clear()
            return active
        active = self.first_active()
        for consumer in active:
            del self.active[consumer]
        self._wake()
        return active

    def forget_consumer(self, consumer: ConsumerReplica) -> None:
        """Drops all pending work and deadlines of a consumer that goes away."""
        self.active.pop(consumer, None)
        self.lagging.pop(consumer, None)
        self.deadlines.set(consumer, None)

    # --- calls ---------------------------------------------------------------------------------

    def defer(self, work: Callable[[], object]) -> None:
        """Runs `work` in the next tick, after pending publishes were applied."""
        self.deferred.append(work)
        self._wake()
