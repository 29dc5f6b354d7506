"""Contains unexpected exceptions to one stream, consumer or source (see faults.py).

Work on streams and consumers has boundaries in engine_tick.py, in opening.py and in requests that change
them: each step of a tick, each timer, each change by a request, each recovery. A failure is passed to one of
the methods here, and the others continue.

- A stream is set aside: its state in memory is indeterminate, so it accepts, acknowledges and writes nothing
  more. Its files stay as the last write left them, and a restart opens it from them.
- A consumer is left out: its stream continues. What the consumer still needs is unknown, so an interest or
  work-queue stream removes no messages until the consumer is deleted.
- A step that failed as a whole leaves all state valid, but lost track of pending work. Everything is checked
  in the next tick, and no ack leaves before a write has succeeded.

Failed assets are offline: requests about them are rejected with the reason, and infos and healthz show it.

Invariant: an ack leaves only for what a completed write covers, whatever was raised before and after.

Rejected: stopping the server (a client that finds a message that causes an exception could stop all accounts,
again after each restart); retrying on a failed stream (its batch is partly applied, and which part is
unknown).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from penstock import faults
from penstock.errors import JetStreamApiError, LeadershipLostError, StoreError
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commands import RetainMessages
from penstock.jetstream.commit import Commit
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import error_codes as codes

FORESEEN = (JetStreamApiError, LeadershipLostError, StoreError)


class Problem(msgspec.Struct, frozen=True):
    """An asset of the account that is offline. `consumer`: "" when it is the stream."""

    stream: str
    consumer: str
    why: str


class Containment:
    """Handles unexpected exceptions of one account's engine.

    account: its name. index, table, pending, commit, deferrals, capacity: what a failed stream is taken out
    of. stop_readers: stops the readers of a stream's mirror or sources until a restart. reader_failures:
    returns the streams with a stopped reader, and why.
    """

    def __init__(
        self,
        account: str,
        index: SubscriptionIndex,
        table: StreamTable,
        pending: PendingWork,
        commit: Commit,
        deferrals: Deferrals,
        capacity: Capacity,
        *,
        stop_readers: Callable[[StreamReplica], None],
        reader_failures: Callable[[], list[tuple[str, str]]],
    ) -> None:
        self._account = account
        self._index = index
        self._table = table
        self._pending = pending
        self._commit = commit
        self._deferrals = deferrals
        self._capacity = capacity
        self._stop_readers = stop_readers
        self._reader_failures = reader_failures

    # --- what failed ---------------------------------------------------------------------------

    def stream_failed(self, error: Exception, stream: StreamReplica, *_: object) -> None:
        """Work on a stream raised: sets the stream aside."""
        self.set_aside(stream, faults.describe(self._note(error, f"stream {stream.name}")))

    def consumer_failed(self, error: Exception, consumer: ConsumerReplica, *_: object) -> None:
        """Work on a consumer raised: takes the consumer out of its stream."""
        stream = consumer.stream
        fault = self._note(error, f"consumer {consumer.name} of stream {stream.name}")
        self.leave_out(stream, consumer.name, faults.describe(fault))
        self._pending.forget_consumer(consumer)
        if stream.consumers.get(consumer.name) is consumer:
            del stream.consumers[consumer.name]
        self._each(consumer.abandon)

    def step_failed(self, error: Exception, *_: object) -> None:
        """A step of a tick raised outside of every stream and consumer. The caller checks everything in the
        next tick."""
        self._note(error, "step of a tick")

    def work_failed(self, error: Exception, *_: object) -> None:
        """Logs an exception in work without a caller that waits for it and without state to discard."""
        self._note(error, "work at the end of a tick")

    @contextmanager
    def changing(self, asset: StreamReplica | ConsumerReplica) -> Iterator[None]:
        """Guards a request's change of an asset. Re-raises; an unexpected exception also takes the asset
        offline, since its state in memory is indeterminate."""
        try:
            yield
        except Exception as error:
            self.change_failed(error, asset)
            raise

    def change_failed(self, error: Exception, asset: StreamReplica | ConsumerReplica) -> None:
        """The same for pull requests, which are so frequent that they have their own `try` statement."""
        if isinstance(error, FORESEEN):
            return
        if isinstance(asset, StreamReplica):
            self.stream_failed(error, asset)
        else:
            self.consumer_failed(error, asset)

    # --- what becomes of it --------------------------------------------------------------------

    def set_aside(self, stream: StreamReplica, why: str) -> None:
        """Takes the stream offline: releases everything, and writes nothing."""
        self._table.offline[stream.name] = why
        self.take_out(stream)
        self._each(partial(self._refuse_waiting, stream, why), stream.store.abandon)

    def take_out(self, stream: StreamReplica) -> None:
        """Disconnects a stream from subscriptions, timers and pending work."""
        consumers = list(stream.consumers.values())
        self._each(
            *self._dropping(stream),
            partial(stream.unsubscribe, self._index),
            partial(self._stop_readers, stream),
            *(partial(self._pending.forget_consumer, consumer) for consumer in consumers),
            *(consumer.abandon for consumer in consumers),
            stream.atomic.drop,
        )

    def drop(self, stream: StreamReplica) -> None:
        """Takes a stream off the table, with its pending work and deadlines. A sync in flight ends without
        effect."""
        for step in self._dropping(stream):
            step()

    def _dropping(self, stream: StreamReplica) -> tuple[Callable[[], None], ...]:
        return (
            partial(self._take_off, stream),
            partial(self._pending.forget_stream, stream),
            partial(self._capacity.forget, stream),
            partial(self._deferrals.drop, stream),
            partial(self._commit.drop, stream),
        )

    def _take_off(self, stream: StreamReplica) -> None:
        # Only dict operations before the removal. A call that raises each time would leave a stream on the
        # table that is half taken apart, and what all streams of the account are asked for would fail.
        if self._table.open.get(stream.name) is stream:
            del self._table.open[stream.name]

    def leave_out(self, stream: StreamReplica, consumer: str, why: str) -> None:
        """Takes a consumer offline. Its stream continues, and keeps messages that the consumer may still
        need."""
        stream.offline[consumer] = why
        stream.apply(RetainMessages(True), stream.now)

    def record_leftover_stream(self, stream: str, error: Exception) -> None:
        """Records a failed stream creation whose files could not be removed: a later request can remove
        them."""
        self._table.offline[stream] = faults.describe(self._note(error, f"removing stream {stream}"))

    def record_leftover_consumer(self, stream: StreamReplica, consumer: str, error: Exception) -> None:
        """Records the same for a consumer."""
        fault = self._note(error, f"removing consumer {consumer} of stream {stream.name}")
        self.leave_out(stream, consumer, faults.describe(fault))

    def problems(self) -> list[Problem]:
        """The offline assets, for monitoring."""
        found = [Problem(name, "", why) for name, why in sorted(self._table.offline.items())]
        for name, stream in sorted(self._table.open.items()):
            found += [Problem(name, consumer, why) for consumer, why in sorted(stream.offline.items())]
        return found + [Problem(stream, "", why) for stream, why in self._reader_failures()]

    # --- own -----------------------------------------------------------------------------------

    def _note(self, error: Exception, what: str) -> str:
        return faults.note(f"{what} of account {self._account}", error)

    def _each(self, *steps: Callable[[], object]) -> None:
        """Runs all steps, also when the state they find makes some of them raise."""
        for step in steps:
            faults.contain(step, self.work_failed)

    def _refuse_waiting(self, stream: StreamReplica, why: str) -> None:
        """Rejects the publishes that wait for an ack. Their messages may be stored all the same: the write is
        unresolved."""
        text = stream.refusal(codes.STREAM_OFFLINE_REASON.format(err=why))
        replies = stream.effects.take_replies()
        replies += [publish[1] for publish in stream.take_waiting()]
        for reply in replies:
            if reply:
                publish(self._index, reply, b"", b"", text)
