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
from typing import TYPE_CHECKING

import msgspec

from penstock import faults
from penstock.errors import JetStreamApiError, StoreError
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import error_codes as codes

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica

FORESEEN = (JetStreamApiError, StoreError)


class Problem(msgspec.Struct, frozen=True):
    """An asset of the account that is offline. `consumer`: "" when it is the stream."""

    stream: str
    consumer: str
    why: str


class Containment:
    """Handles unexpected exceptions of one account's engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine

    # --- what failed ---------------------------------------------------------------------------

    def stream_failed(self, error: Exception, stream: StreamReplica, *_: object) -> None:
        """Work on a stream raised: sets the stream aside."""
        self.set_aside(stream, faults.describe(self._note(error, f"stream {stream.name}")))

    def consumer_failed(self, error: Exception, consumer: ConsumerReplica, *_: object) -> None:
        """Work on a consumer raised: takes the consumer out of its stream."""
        stream = consumer.stream
        fault = self._note(error, f"consumer {consumer.name} of stream {stream.name}")
        self.leave_out(stream, consumer.name, faults.describe(fault))
        self._engine.tick.forget_consumer(consumer)
        if stream.consumers.get(consumer.name) is consumer:
            del stream.consumers[consumer.name]
        self._each(consumer.abandon)

    def step_failed(self, error: Exception, *_: object) -> None:
        """A step of a tick raised outside of every stream and consumer."""
        self._note(error, "step of a tick")
        self._engine.tick.begin_again()

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
        from penstock.jetstream.stream.stream_replica import StreamReplica

        if isinstance(error, FORESEEN):
            return
        if isinstance(asset, StreamReplica):
            self.stream_failed(error, asset)
        else:
            self.consumer_failed(error, asset)

    # --- what becomes of it --------------------------------------------------------------------

    def set_aside(self, stream: StreamReplica, why: str) -> None:
        """Takes the stream offline: releases everything, and writes nothing."""
        self._engine.offline[stream.name] = why
        self.take_out(stream)
        self._each(partial(self._refuse_waiting, stream, why), stream.store.abandon)

    def take_out(self, stream: StreamReplica) -> None:
        """Disconnects a stream from subscriptions, timers and pending work."""
        engine = self._engine
        consumers = list(stream.consumers.values())
        self._each(
            partial(engine.drop_stream, stream),
            partial(engine.deferrals.drop, stream),
            partial(engine.commit.drop, stream),
            partial(stream.unsubscribe, engine.index),
            partial(engine.sourcing.forget, stream, for_good=False),
            *(partial(engine.tick.forget_consumer, consumer) for consumer in consumers),
            *(consumer.abandon for consumer in consumers),
            stream.atomic.drop,
        )

    def leave_out(self, stream: StreamReplica, consumer: str, why: str) -> None:
        """Takes a consumer offline. Its stream continues, and keeps messages that the consumer may still
        need."""
        stream.offline[consumer] = why
        if stream.interest_state is not None:
            stream.interest_state.keep_all(True)

    def record_leftover_stream(self, stream: str, error: Exception) -> None:
        """Records a failed stream creation whose files could not be removed: a later request can remove
        them."""
        self._engine.offline[stream] = faults.describe(self._note(error, f"removing stream {stream}"))

    def record_leftover_consumer(self, stream: StreamReplica, consumer: str, error: Exception) -> None:
        """Records the same for a consumer."""
        fault = self._note(error, f"removing consumer {consumer} of stream {stream.name}")
        self.leave_out(stream, consumer, faults.describe(fault))

    def problems(self) -> list[Problem]:
        """The offline assets, for monitoring."""
        engine = self._engine
        found = [Problem(name, "", why) for name, why in sorted(engine.offline.items())]
        for name, stream in sorted(engine.streams.items()):
            found += [Problem(name, consumer, why) for consumer, why in sorted(stream.offline.items())]
        return found + [Problem(stream, "", why) for stream, why in engine.sourcing.failures()]

    # --- own -----------------------------------------------------------------------------------

    def _note(self, error: Exception, what: str) -> str:
        return faults.note(f"{what} of account {self._engine.config.account}", error)

    def _each(self, *steps: Callable[[], object]) -> None:
        """Runs all steps, also when the state they find makes some of them raise."""
        for step in steps:
            faults.contain(step, self.work_failed)

    def _refuse_waiting(self, stream: StreamReplica, why: str) -> None:
        """Rejects the publishes that wait for an ack. Their messages may be stored all the same: the write is
        unresolved."""
        text = stream.refusal(codes.STREAM_OFFLINE_REASON.format(err=why))
        replies = [reply for reply, _ in stream.acks.items()]
        stream.acks.clear()
        replies += [publish[1] for publish in stream.take_waiting()]
        for reply in replies:
            if reply:
                publish(self._engine.index, reply, b"", b"", text)
