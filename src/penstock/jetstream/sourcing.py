"""Who reads the origins of an account's mirrors and sources, and when.

A reader belongs to one source of one stream. Origins in reach by imports only, and those for which a durable
consumer is named, are read by the consumer protocol (external.py). That of another stream in the account
looks at its origin in ticks in which that changed, after what changed was written, copies what is new into
the source's batch and marks its stream, which applies the batch in the next tick, like publishes. So an
origin's log is read when nothing changes it, a copy never runs ahead of what a crash leaves of the original,
and a stream that catches up takes turns with everything else.

Ordering contract: a batch is filled only when the one before was applied; the position is the stream's own.

Bounds: SLICE_BYTES of copies a tick, over all readers, taken in turns. What a stream refuses (it is full, or
sealed) is tried again after RETRY_NS, as the official server does.

Rejected: a thread a mirror (the log is single-threaded, and a tick's slice costs half a millisecond).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock import faults
from penstock.errors import StoreError
from penstock.jetstream import source_consumer
from penstock.jetstream.deadlines import Deadlines
from penstock.jetstream.external import ExternalReader
from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.stream.source_config import start_ns
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError, StreamSourceInfo

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.source_state import SourceState
    from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")

SLICE_BYTES = 512 * 1024  # of copies a tick
LOOK_BYTES = 16 * 1024  # what a look at an origin counts as: it may make a consumer there
RETRY_NS = 2 * SECOND_NS  # after a refusal
HEARTBEAT_NS = SECOND_NS  # an origin within the server counts as heard from this often
CAUGHT_UP = 10  # messages that a mirror may lack and still answer for its origin


class Reader(Protocol):
    """Reads one origin."""

    stream: StreamReplica
    source_state: SourceState

    def read(self, now: int, enough: int) -> int:
        """Fills the source's batch with up to about `enough` bytes; returns how many it holds then."""

    def deadline(self) -> int | None:
        """When (ns) it has something to do without its origin's or stream's changing."""

    def again(self) -> None:
        """What the stream refused is read another time."""

    def lag(self) -> int:
        """Messages the origin has and the stream does not."""

    def active_ns(self, now: int) -> int:
        """Since the origin was heard from; -1: never."""

    def error(self) -> ApiError | None:
        """What is in the way."""

    def stop(self, *, for_good: bool) -> None:
        """Reads no more; for good: the stream has no use for the origin any longer."""


class LocalReader:
    """Reads an origin of the same account."""

    def __init__(self, engine: JetStreamEngine, stream: StreamReplica, source_state: SourceState) -> None:
        self.stream = stream
        self.source_state = source_state
        self._engine = engine
        self._origin: StreamReplica | None = None
        self._before = 0  # the sequence before the first one wanted
        self._looked = 0  # up to this sequence of the origin there is nothing more for the stream
        self._heard_at = -1
        self._consumer: ConsumerReplica | None = None  # of an origin that keeps only what is needed

    def read(self, now: int, enough: int) -> int:
        source_state = self.source_state
        origin = self._engine.streams.get(source_state.source.name)
        if origin is None or not origin.is_kept:
            return 0
        if origin is not self._origin:
            self._begin(origin)
            self._heard_at = now
        self._settle(origin, now)
        mappers = [one for one in (source_state.mapper, self.stream.sink.mapper) if one is not None]
        from_seq = max(source_state.seq, self._looked) + 1
        if from_seq <= origin.log.last_seq:
            self._looked = source_state.batch.gather(
                origin.log, from_seq, source_state.filters, mappers, enough
            )
            self._heard_at = now
        return source_state.batch.size

    def _begin(self, origin: StreamReplica) -> None:
        self._origin = origin
        self.source_state.begin(origin.identity)
        before = first_wanted(self.source_state, self.stream, origin) - 1
        self._before = self._looked = before
        if self.source_state.is_mirror and before > self.stream.log.last_seq:
            self.source_state.batch.place(before)

    def deadline(self) -> int | None:
        return None

    def again(self) -> None:
        self._looked = self._before

    def lag(self) -> int:
        origin = self._engine.streams.get(self.source_state.source.name)
        if origin is None or origin is not self._origin:
            return 0
        from_seq = max(self.source_state.seq, self._before) + 1
        return sum(origin.log.count_from(from_seq, one) for one in self.source_state.filters or [b""])

    def active_ns(self, now: int) -> int:
        if self._heard_at < 0:
            return -1
        silent_ns = max(0, now - self._heard_at)
        return silent_ns % HEARTBEAT_NS if self.error() is None else silent_ns

    def error(self) -> ApiError | None:
        if self.source_state.source.name not in self._engine.streams:
            return codes.STREAM_NOT_FOUND
        return self.source_state.refusal

    def stop(self, *, for_good: bool) -> None:
        self._origin = None
        consumer, self._consumer = self._consumer, None
        if consumer is not None and for_good and not consumer.closed:
            consumer.retire()

    def _settle(self, origin: StreamReplica, now: int) -> None:
        """What the stream has written leaves an origin that keeps only what is needed."""
        if origin.interest_state is None:
            return
        if self._consumer is None or self._consumer.closed or self._consumer.stream is not origin:
            try:
                start_seq = (
                    self._before + 1 if not self.source_state.seq else first_ever(self.source_state, origin)
                )
                self._consumer = source_consumer.make(
                    self._engine, origin, self.stream, self.source_state, start_seq, now
                )
            except StoreError as error:
                log.error(
                    "stream %s: its consumer of %s can not be kept: %s", self.stream.name, origin.name, error
                )
                return
        if self.stream.is_kept:
            source_consumer.settle(self._consumer, self.source_state, now)


def first_wanted(source_state: SourceState, stream: StreamReplica, origin: StreamReplica) -> int:
    """The origin's sequence that a source begins or goes on with."""
    source, first = source_state.source, max(origin.log.first_seq, 1)
    if source_state.seq:
        return max(source_state.seq + 1, first)
    if source.opt_start_seq:
        return max(source.opt_start_seq, first)
    since = start_ns(source)
    if not since:
        return first
    if not source_state.is_mirror:
        since = max(since, stream.log.last_ts)  # what it had before that time, it has dropped
    return min(max(origin.log.seq_at_time(since), first), origin.log.last_seq + 1)


def first_ever(source_state: SourceState, origin: StreamReplica) -> int:
    """The origin's sequence that a source began with, as far as its configuration says."""
    since = start_ns(source_state.source)
    return origin.log.seq_at_time(since) if since else max(source_state.source.opt_start_seq, 1)


class Sourcing:
    """Of one account."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._readers: dict[str, list[Reader]] = {}  # by stream
        self._by_origin: dict[str, list[Reader]] = {}
        self._due: dict[Reader, None] = {}  # readers that have to look at their origin
        self._refused: dict[Reader, ApiError] = {}  # readers that wait because their stream refused
        self._failed: dict[Reader, ApiError] = {}  # readers that raised: they are stopped
        self._told: dict[Reader, ApiError] = {}  # the last refusal of each that the log has
        self._deadlines: Deadlines[Reader] = Deadlines()
        self._is_reading = False

    def retire_orphans(self) -> None:
        """Streams that read origins may be gone, and their consumers there be left: after a restart, when all
        streams are there, and when one that is offline was deleted."""
        source_consumer.retire_orphans(self._engine)

    def follow(self, stream: StreamReplica) -> None:
        """Reads the stream's origins from now on: it is new, or its configuration changed."""
        present = {reader.source_state: reader for reader in self._readers.get(stream.name, ())}
        readers = [
            present.get(source_state) or self._reader(stream, source_state)
            for source_state in stream.source_states
        ]
        self._drop(reader for reader in present.values() if reader not in readers)
        if readers:
            self._readers[stream.name] = readers
        else:
            self._readers.pop(stream.name, None)
        self._due.update(dict.fromkeys(readers))

    def _reader(self, stream: StreamReplica, source_state: SourceState) -> Reader:
        if not source_state.reads_log:
            return ExternalReader(self._engine, stream, source_state, self._look)
        reader = LocalReader(self._engine, stream, source_state)
        self._by_origin.setdefault(source_state.source.name, []).append(reader)
        return reader

    def _look(self, reader: Reader) -> None:
        self._due[reader] = None
        self._engine.wake()

    def forget(self, stream: StreamReplica, *, for_good: bool = True) -> None:
        """The stream is gone; not for good: it is offline, and reads on after a restart."""
        self._drop(self._readers.pop(stream.name, ()), for_good=for_good)

    def stop(self) -> None:
        """Reads nothing more."""
        for readers in self._readers.values():
            self._drop(readers, for_good=False)
        self._readers.clear()

    def _drop(self, readers: Iterable[Reader], *, for_good: bool = True) -> None:
        for reader in readers:
            faults.contain(partial(reader.stop, for_good=for_good), partial(self._note, reader))
            self._failed.pop(reader, None)
            self._due.pop(reader, None)
            self._refused.pop(reader, None)
            self._told.pop(reader, None)
            self._deadlines.set(reader, None)
            others = self._by_origin.get(reader.source_state.source.name, [])
            if reader in others:
                others.remove(reader)

    def advance(self, changed: Iterable[str], now: int) -> None:
        """Reads what is new. changed: streams that were written, or applied a batch."""
        if not self._readers:
            return
        due = self._due
        for name in changed:
            due.update(dict.fromkeys(self._by_origin.get(name, ())))
            due.update(dict.fromkeys(self._readers.get(name, ())))
        if self._is_reading:
            self._engine.wake()  # a sync came to an end while a consumer was made: the next tick looks at it
            return
        self._is_reading = True
        try:
            self._read_due(now)
        finally:
            self._is_reading = False

    def _read_due(self, now: int) -> None:
        left = SLICE_BYTES
        for reader in list(self._due):
            if left <= 0:
                self._engine.wake()  # the others have their turn in the next tick
                return
            del self._due[reader]
            if reader not in self._failed:
                left -= faults.contain(self._read_one, self._reader_failed, reader, now, left) or 0

    def _read_one(self, reader: Reader, now: int, enough: int) -> int:
        """Returns what that takes of the tick's slice."""
        if len(reader.source_state.batch) or not self._may_read(reader, now):
            return 0
        return LOOK_BYTES + self._read(reader, now, enough)

    def _reader_failed(self, error: Exception, reader: Reader, *_: object) -> None:
        """It reads no more: a restart, or another configuration of the stream, makes it try again."""
        why = faults.describe(self._note(reader, error))
        self._failed[reader] = codes.STREAM_GENERAL.format(err=why)
        self._deadlines.set(reader, None)
        faults.contain(partial(reader.stop, for_good=False), partial(self._note, reader))

    def _note(self, reader: Reader, error: Exception) -> str:
        return faults.note(f"source {reader.source_state.source.name} of stream {reader.stream.name}", error)

    def failures(self) -> list[tuple[str, str]]:
        """Streams with an origin that is read no more, and why."""
        return [
            (reader.stream.name, f"{reader.source_state.source.name} is read no more: {error.description}")
            for reader, error in self._failed.items()
        ]

    def _may_read(self, reader: Reader, now: int) -> bool:
        """After a refusal it waits."""
        source_state = reader.source_state
        if source_state.refusal is None:
            return True
        if reader in self._refused:
            return False
        self._refused[reader] = source_state.refusal
        self._deadlines.set(reader, now + RETRY_NS)
        if self._told.get(reader) != source_state.refusal:
            self._told[reader] = source_state.refusal
            log.warning(
                "stream %s: what comes from %s is refused, it is tried again: %s",
                reader.stream.name, source_state.source.name, source_state.refusal.description,
            )  # fmt: skip
        return False

    def _read(self, reader: Reader, now: int, enough: int) -> int:
        size = reader.read(now, enough)
        self._deadlines.set(reader, reader.deadline())
        if len(reader.source_state.batch):
            reader.stream.sink.mark()
        return size

    def next_deadline(self) -> int | None:
        """When (ns) `on_time` wants to be called."""
        return self._deadlines.earliest()

    def on_time(self, now: int) -> None:
        """Tries again what was refused, and lets readers act."""
        for reader in self._deadlines.take_due(now):
            faults.contain(self._reader_on_time, self._reader_failed, reader)

    def _reader_on_time(self, reader: Reader) -> None:
        if self._refused.pop(reader, None) is not None:
            reader.source_state.refusal = None
            reader.again()
        self._due[reader] = None

    # --- what others ask -----------------------------------------------------------------------

    def infos(
        self, stream: StreamReplica, now: int
    ) -> tuple[StreamSourceInfo | None, list[StreamSourceInfo]]:
        """What a stream's info says about its mirror, and about its sources."""
        infos = [
            _info(reader, now, self._failed.get(reader)) for reader in self._readers.get(stream.name, ())
        ]
        return (infos[0], []) if stream.config.mirror is not None else (None, infos)

    def mirror_of(self, name: str) -> StreamReplica | None:
        """A stream that answers direct gets for the origin of this name, which doesn't do so itself."""
        for readers in self._readers.values():
            reader = readers[0]
            config = reader.stream.config
            mirror = config.mirror
            answers = mirror is not None and mirror.name == name and config.mirror_direct
            if answers and reader.lag() < CAUGHT_UP:
                return reader.stream
        return None


def _info(reader: Reader, now: int, failure: ApiError | None) -> StreamSourceInfo:
    source_state, source = reader.source_state, reader.source_state.source
    return StreamSourceInfo(
        name=source.name,
        external=source.external,
        lag=reader.lag(),
        seq=0 if source_state.is_mirror else source_state.seq,
        active=reader.active_ns(now),
        error=failure or reader.error(),
        filter_subject=source.filter_subject,
        subject_transforms=source.subject_transforms,
    )
