"""Readers of the origins of an account's mirrors and sources.

A reader belongs to one source of one stream; a replicated stream has readers on its leader. Origins that are
only reachable by imports, those with a named durable consumer, and those of a replicated stream that this
server cannot read itself, are read by the consumer protocol (external.py). For another stream of the account,
the reader checks its origin in ticks that changed it, after the change was written. It copies new messages to
the source's batch and marks its stream, which applies the batch in the next tick, like publishes. So an
origin's log is read while nothing changes it, a copy is never ahead of what survives of the original in a
crash, and a stream that catches up shares ticks with everything else.

Ordering contract: a batch is filled only after the previous one was applied; the position belongs to the
stream.

Bounds: SLICE_BYTES of copies per tick, over all readers in turn. As on the official server, copies that a
stream rejects (it is full, or sealed) are retried after RETRY_NS.

Rejected: a thread per mirror (the log is single-threaded, and a tick's slice takes half a millisecond).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from penstock import faults
from penstock.errors import StoreError
from penstock.jetstream import source_consumer
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.deadlines import Deadlines
from penstock.jetstream.external import ExternalReader
from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.sourcing_ports import SourcingPorts
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError, ApiStreamSourceInfo

log = logging.getLogger("penstock.jetstream")

SLICE_BYTES = 512 * 1024  # copies per tick
LOOK_BYTES = 16 * 1024  # the cost of checking an origin, which may create a consumer there
RETRY_NS = 2 * SECOND_NS  # after a rejection
HEARTBEAT_NS = SECOND_NS  # a local origin counts as active at least this often
CAUGHT_UP = 10  # messages that a mirror may lack and still answer for its origin


class Reader(Protocol):
    """Reads one origin."""

    stream: StreamReplica
    source_state: SourceState

    def read(self, now: int, enough: int) -> int:
        """Fills the source's batch with up to about `enough` bytes; returns the bytes in it."""

    def deadline(self) -> int | None:
        """When (ns) it has work without a change of its origin or stream, or None."""

    def again(self) -> None:
        """Reads rejected messages again."""

    def lag(self) -> int:
        """How many messages the stream is behind its origin."""

    def active_ns(self, now: int) -> int:
        """Time since the origin was last active (ns); -1: never."""

    def error(self) -> ApiError | None:
        """Current error, or None."""

    def stop(self, *, for_good: bool) -> None:
        """Stop. for_good: the stream no longer has this origin."""


class LocalReader:
    """Reads an origin of the same account."""

    def __init__(self, ports: SourcingPorts, stream: StreamReplica, source_state: SourceState) -> None:
        self.stream = stream
        self.source_state = source_state
        self._ports = ports
        self._origin: StreamReplica | None = None
        self._before = 0  # the sequence before the first wanted one
        self._looked = 0  # up to this sequence of the origin nothing is left for the stream
        self._heard_at = -1
        self._consumer: ConsumerReplica | None = None  # of an interest or work-queue origin

    def read(self, now: int, enough: int) -> int:
        source_state = self.source_state
        origin = self._ports.table.open.get(source_state.source.name)
        if origin is None or not origin.durability.is_durable:
            return 0
        if origin is not self._origin:
            if not self._begin(origin):
                return 0
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

    def _begin(self, origin: StreamReplica) -> bool:
        if not self.source_state.begin(origin.identity):
            return False
        self._origin = origin
        self._before = self._looked = self.source_state.begin_after(origin.log)
        return True

    def deadline(self) -> int | None:
        return None

    def again(self) -> None:
        self._looked = self._before

    def lag(self) -> int:
        origin = self._ports.table.open.get(self.source_state.source.name)
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
        if self.source_state.source.name not in self._ports.table.open:
            return codes.STREAM_NOT_FOUND
        return self.source_state.refusal

    def stop(self, *, for_good: bool) -> None:
        self._origin = None
        consumer, self._consumer = self._consumer, None
        origin = self._ports.table.open.get(self.source_state.source.name)
        if not for_good or origin is None:
            return
        if consumer is None:  # nothing was read since the start, which recovered the consumer
            consumer = source_consumer.find(self._ports, origin, self.stream, self.source_state)
        if consumer is not None and not consumer.closed:
            self._ports.consumers.retire(consumer)

    def _settle(self, origin: StreamReplica, now: int) -> None:
        """Acks what the stream has written, so that an interest or work-queue origin can remove it."""
        if origin.interest_state is None:
            return
        if self._consumer is None or self._consumer.closed or self._consumer.stream is not origin:
            try:
                state = self.source_state
                start_seq = state.first_ever(origin.log) if state.seq else self._before + 1
                self._consumer = source_consumer.make(self._ports, origin, self.stream, state, start_seq, now)
            except StoreError as error:
                log.error(
                    "stream %s: its consumer of %s cannot be stored: %s", self.stream.name, origin.name, error
                )
                return
        if self.stream.durability.is_durable:
            source_consumer.settle(self._consumer, self.source_state, now)


class Sourcing:
    """The readers of one account.

    readers: by stream. next_deadline: when (ns) `on_time` is due, or None.
    """

    def __init__(self, ports: SourcingPorts) -> None:
        self._ports = ports
        self.readers: dict[str, list[Reader]] = {}
        self._by_origin: dict[str, list[Reader]] = {}
        self._due: dict[Reader, None] = {}  # readers that have to check their origin
        self._refused: dict[Reader, ApiError] = {}  # readers that wait because their stream rejected a copy
        self._failed: dict[Reader, ApiError] = {}  # readers that raised: they are stopped
        self._logged: dict[Reader, ApiError] = {}  # the last rejection of each that was logged
        self._deadlines: Deadlines[Reader] = Deadlines()
        self.next_deadline = self._deadlines.earliest
        self._is_reading = False

    def retire_orphans(self) -> None:
        """Removes consumers of streams that no longer exist: after a restart, when all streams are open, and
        when an offline one was deleted."""
        source_consumer.retire_orphans(self._ports)

    def set_back(self) -> None:
        """Makes origins retain what their targets lost in a power failure: after a restart, before anything
        is removed."""
        source_consumer.set_back(self._ports)

    def follow(self, stream: StreamReplica) -> None:
        """Starts the readers of a new stream, or of a new configuration."""
        present = {reader.source_state: reader for reader in self.readers.get(stream.name, ())}
        readers = [
            present.get(source_state) or self._reader(stream, source_state)
            for source_state in stream.sources.states
        ]
        self._drop(reader for reader in present.values() if reader not in readers)
        if readers:
            self.readers[stream.name] = readers
        else:
            self.readers.pop(stream.name, None)
        self._due.update(dict.fromkeys(readers))

    def origin_changed(self, name: str) -> None:
        """A replicated stream of this name is open here, or no more: those that read it may have to do it
        otherwise."""
        for readers in list(self.readers.values()):
            stream = readers[0].stream
            if any(self._is_other_kind(one) for one in readers if one.source_state.source.name == name):
                self.forget(stream, for_good=False)
                self.follow(stream)

    def _is_other_kind(self, reader: Reader) -> bool:
        return isinstance(reader, LocalReader) != self._reads_here(reader.stream, reader.source_state)

    def _reads_here(self, target: StreamReplica, source_state: SourceState) -> bool:
        """Whether to read the origin's log. A replica of the origin may be behind, so that a time says
        nothing there yet; and only the origin's leader has consumers, on which an interest or work-queue
        stream depends."""
        origin = self._ports.table.open.get(source_state.source.name)
        is_replicated = target.group is not None or (origin is not None and origin.group is not None)
        if not source_state.reads_log or not is_replicated:
            return source_state.reads_log
        if origin is None or source_state.source.opt_start_time:
            return False
        return origin.interest_state is None

    def _reader(self, stream: StreamReplica, source_state: SourceState) -> Reader:
        if not self._reads_here(stream, source_state):
            return ExternalReader(self._ports, stream, source_state, self._look)
        reader = LocalReader(self._ports, stream, source_state)
        self._by_origin.setdefault(source_state.source.name, []).append(reader)
        return reader

    def _look(self, reader: Reader) -> None:
        self._due[reader] = None
        self._ports.wake()

    def forget(self, stream: StreamReplica, *, for_good: bool = True) -> None:
        """Stops the readers of a stream; not for_good: it is offline, and continues after a restart."""
        self._drop(self.readers.pop(stream.name, ()), for_good=for_good)

    def stop(self) -> None:
        """Stops all readers."""
        for readers in self.readers.values():
            self._drop(readers, for_good=False)
        self.readers.clear()

    def _drop(self, readers: Iterable[Reader], *, for_good: bool = True) -> None:
        for reader in readers:
            faults.contain(partial(reader.stop, for_good=for_good), partial(self._note, reader))
            self._failed.pop(reader, None)
            self._due.pop(reader, None)
            self._refused.pop(reader, None)
            self._logged.pop(reader, None)
            self._deadlines.set(reader, None)
            others = self._by_origin.get(reader.source_state.source.name, [])
            if reader in others:
                others.remove(reader)

    def try_again(self) -> None:
        """Asks origins elsewhere soon that did not answer: the way to them may be open again."""
        for readers in self.readers.values():
            for reader in readers:
                if isinstance(reader, ExternalReader):
                    reader.try_again(self._ports.clock())

    def advance(self, changed: Iterable[str], now: int) -> None:
        """Reads new messages. changed: streams that were written, or applied a batch."""
        if not self.readers:
            return
        due = self._due
        for name in changed:
            due.update(dict.fromkeys(self._by_origin.get(name, ())))
            due.update(dict.fromkeys(self.readers.get(name, ())))
        if self._is_reading:
            self._ports.wake()  # a sync ended while a consumer was created: the next tick handles it
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
                self._ports.wake()  # the others follow in the next tick
                return
            del self._due[reader]
            if reader not in self._failed:
                left -= faults.contain(self._read_one, self._reader_failed, reader, now, left) or 0

    def _read_one(self, reader: Reader, now: int, enough: int) -> int:
        """Returns the bytes that it took of the tick's slice."""
        state = reader.source_state
        if state.is_in_flight or len(state.batch) or not self._may_read(reader, now):
            return 0
        return LOOK_BYTES + self._read(reader, now, enough)

    def _reader_failed(self, error: Exception, reader: Reader, *_: object) -> None:
        """Stops a reader that raised. A restart, or another configuration of the stream, restarts it."""
        why = faults.describe(self._note(reader, error))
        self._failed[reader] = codes.STREAM_GENERAL.format(err=why)
        self._deadlines.set(reader, None)
        faults.contain(partial(reader.stop, for_good=False), partial(self._note, reader))

    def _note(self, reader: Reader, error: Exception) -> str:
        return faults.note(f"source {reader.source_state.source.name} of stream {reader.stream.name}", error)

    def failures(self) -> list[tuple[str, str]]:
        """Streams with a stopped reader, and the reason."""
        return [
            (
                reader.stream.name,
                f"reading {reader.source_state.source.name} has stopped: {error.description}",
            )
            for reader, error in self._failed.items()
        ]

    def _may_read(self, reader: Reader, now: int) -> bool:
        """Whether the reader is not waiting after a rejection."""
        source_state = reader.source_state
        if source_state.refusal is None:
            return True
        if reader in self._refused:
            return False
        self._refused[reader] = source_state.refusal
        self._deadlines.set(reader, now + RETRY_NS)
        if self._logged.get(reader) != source_state.refusal:
            self._logged[reader] = source_state.refusal
            log.warning(
                "stream %s: messages from %s are rejected, retry follows: %s",
                reader.stream.name, source_state.source.name, source_state.refusal.description,
            )  # fmt: skip
        return False

    def _read(self, reader: Reader, now: int, enough: int) -> int:
        size = reader.read(now, enough)
        self._deadlines.set(reader, reader.deadline())
        if len(reader.source_state.batch):
            reader.stream.sink.mark()
        return size

    def on_time(self, now: int) -> None:
        """Retries rejected copies, and runs due readers."""
        for reader in self._deadlines.take_due(now):
            faults.contain(self._reader_on_time, self._reader_failed, reader)

    def _reader_on_time(self, reader: Reader) -> None:
        if self._refused.pop(reader, None) is not None:
            reader.source_state.accept_again()
            reader.again()
        self._due[reader] = None

    # --- what others ask -----------------------------------------------------------------------

    def infos(
        self, stream: StreamReplica, now: int
    ) -> tuple[ApiStreamSourceInfo | None, list[ApiStreamSourceInfo]]:
        """The info of a stream's mirror, and of its sources."""
        infos = [_info(reader, now, self._failed.get(reader)) for reader in self.readers.get(stream.name, ())]
        return (infos[0], []) if stream.config.mirror is not None else (None, infos)

    def mirror_of(self, name: str) -> StreamReplica | None:
        """The stream that answers direct gets for the origin of this name, which does not allow them
        itself."""
        for readers in self.readers.values():
            reader = readers[0]
            config = reader.stream.config
            mirror = config.mirror
            answers = mirror is not None and mirror.name == name and config.mirror_direct
            if answers and reader.lag() < CAUGHT_UP:
                return reader.stream
        return None


def _info(reader: Reader, now: int, failure: ApiError | None) -> ApiStreamSourceInfo:
    source_state, source = reader.source_state, reader.source_state.source
    return ApiStreamSourceInfo(
        name=source.name,
        external=source.external,
        lag=reader.lag(),
        seq=0 if source_state.is_mirror else source_state.seq,
        active=reader.active_ns(now),
        error=failure or reader.error(),
        filter_subject=source.filter_subject,
        subject_transforms=source.subject_transforms,
    )
