"""Makes streams durable: writes, syncs, retries after a failure. With `sync: always`, acks wait for the disk.

A tick writes every stream that changed. Without `sync: always` what is written counts as durable (it survives
the process), and a sync follows every `sync_interval` (then it survives the machine). With it, a stream that
was written starts a sync in the background, and one sync covers everything that arrived during the previous
one. While it is in flight, the stream is blocked (durability.py): publishes collect in its sink, its acks are
deferred, and its consumers deliver nothing; other streams continue. When the sync completes, the stream runs
the rest of its tick (acknowledge, deliver), in which everything in its log is durable. Then the collected
publishes are applied as one batch, written and synced.

What a request changes is synced inline before its response: such changes are rare, and a background sync
would have to defer the response.

`Commit` is what the engine needs; LocalCommit is the one for a stream with one replica. The simulation has
another one, whose commits come late, in any order among streams, or fail (testing/sim/quorum_commit.py).

Invariants: each sync that starts is followed by exactly one event of the stream's durability, its end or its
failure; between a write and the end of its sync, nothing of a stream leaves the server.

Rejected: applying publishes during a sync (every read of the log would have to exclude the messages above the
last durable one for consumers).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from penstock import faults
from penstock.errors import StoreWriteError
from penstock.jetstream.durability import State
from penstock.protocol.api import PersistMode

if TYPE_CHECKING:
    from penstock.jetstream.limits import EngineConfig
    from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")


SyncEnd = Callable[[StoreWriteError | None], object]
"""Called when a sync ended, with its error."""


class CommitPorts(Struct, frozen=True, eq=False):
    """What LocalCommit uses of its engine.

    clock: ns since the epoch. wake: requests the end of a tick. bound_input: limits what waits for a stream;
    called when a sync blocks it, and when that ends. committed: a background sync of the stream ended, well
    or not; it may acknowledge and deliver. recovered: a stream can be written again. stream_failed: work on a
    stream raised.
    """

    clock: Callable[[], int]
    wake: Callable[[], None]
    bound_input: Callable[[StreamReplica], None]
    committed: Callable[[StreamReplica], None]
    recovered: Callable[[StreamReplica], None]
    stream_failed: Callable[[Exception, StreamReplica], None]


class Commit(Protocol):
    """Commits what the streams of one account's engine applied.

    in_flight: the streams whose commit acks wait for; while there are some, requests wait. sync_due,
    retry_due: when (ns) the next periodic sync starts, and what failed is written again; None for never.
    """

    in_flight: set[StreamReplica]
    sync_due: int | None
    retry_due: int | None

    @property
    def has_failing(self) -> bool:
        """Whether the last write or commit of a stream failed."""

    def configure(self, config: EngineConfig) -> None:
        """Applies changed options to what is written next."""

    def is_unwritten(self, stream: StreamReplica) -> bool:
        """Whether the stream has changes to be written."""

    def note(self, stream: StreamReplica) -> None:
        """Records that a command changed the stream: the tick writes it."""

    def drop(self, stream: StreamReplica) -> None:
        """Forgets a stream that is deleted or set aside. A commit in flight ends without effect."""

    def begin_again(self, streams: Iterable[StreamReplica]) -> None:
        """Writes all of them in the next tick: a step failed and lost track of what changed."""

    def write(self) -> None:
        """Writes what changed, and starts the commits that acks wait for."""

    def write_now(self, stream: StreamReplica) -> None:
        """Writes a request's change before its response. Raises StoreWriteError: the change is applied, and
        written when the disk recovers, but until then a crash could lose it."""

    def retry_later(self) -> None:
        """Requests a retry of what failed to be written, after `write_retry`."""

    def sync_if_due(self, now: int) -> None:
        """Starts the periodic sync when it is due."""

    def take_retries(self, now: int) -> list[StreamReplica] | None:
        """The streams to write again; None when no retry is due."""


class LocalCommit:
    """Commits what the streams of one account's engine applied to the local disk.

    in_flight: the streams with a background sync in flight that acks wait for; while there are some,
    requests wait. A set, because a number would stay wrong after a fault between its change and that of the
    stream's durability. sync_due, retry_due: when (ns) the next periodic sync starts, and what failed is
    written again; None for never.
    """

    def __init__(self, config: EngineConfig, ports: CommitPorts) -> None:
        self._config = config
        self._ports = ports
        self._unwritten: dict[str, StreamReplica] = {}
        self._failing: dict[str, StreamReplica] = {}  # streams whose last write or sync failed
        self.in_flight: set[StreamReplica] = set()
        self._starting = False  # start_sync() runs
        self._unsynced: dict[str, StreamReplica] = {}  # to be synced by the next periodic sync
        self.sync_due: int | None = None
        self.retry_due: int | None = None

    @property
    def has_failing(self) -> bool:
        """Whether the last write or sync of a stream failed."""
        return bool(self._failing)

    def configure(self, config: EngineConfig) -> None:
        """Applies changed options to what is written next."""
        self._config = config

    def is_unwritten(self, stream: StreamReplica) -> bool:
        """Whether the stream has changes to be written."""
        return stream.name in self._unwritten

    def note(self, stream: StreamReplica) -> None:
        """Records that a command changed the stream: the tick writes it."""
        stream.durability.changed()
        self._unwritten[stream.name] = stream

    def drop(self, stream: StreamReplica) -> None:
        """Forgets a stream that is deleted or set aside. A sync in flight ends without effect."""
        for table in (self._unwritten, self._failing, self._unsynced):
            table.pop(stream.name, None)
        if stream in self.in_flight:
            self.in_flight.remove(stream)
            self._ports.wake()
        stream.durability.close()

    def begin_again(self, streams: Iterable[StreamReplica]) -> None:
        """Writes all of them in the next tick: a step failed and lost track of what changed."""
        for stream in streams:
            self.note(stream)

    # --- writing -------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes what changed to the operating system; with `sync: always`, starts the syncs."""
        unwritten, self._unwritten = self._unwritten, {}
        for stream in unwritten.values():
            if stream.durability.is_syncing:
                # A timer changed it during its sync. No ack depends on that change, so write it afterwards.
                self._unwritten[stream.name] = stream
                continue
            try:
                self._write(stream)
            except Exception as error:
                self._ports.stream_failed(error, stream)
        if self._unsynced and self.sync_due is None:
            self.sync_due = self._ports.clock() + self._config.sync_interval_ns

    def write_now(self, stream: StreamReplica) -> None:
        """Writes a request's change before its response. Raises StoreWriteError: the change is applied, and
        written when the disk recovers, but until then a crash could lose it."""
        self._unwritten.pop(stream.name, None)
        self._write(stream)
        failure = stream.durability.failure
        if failure is not None:
            raise StoreWriteError(failure.description)

    def _write(self, stream: StreamReplica) -> None:
        if stream.group is not None:
            self._write_committed(stream)
            return
        try:
            stream.write()
            if stream.is_memory:
                pass
            elif not self._config.sync_always or stream.config.persist_mode is PersistMode.ASYNC:
                self._unsynced[stream.name] = stream
            elif stream.durability.take_sync_asked():
                # A request's response follows in this tick and must not precede durability: sync inline.
                stream.store.sync()
            else:
                self._start(stream, stream.store.start_sync)
                return
        except StoreWriteError as error:
            self._failed(stream, error)
        else:
            if stream.durability.written():
                self._recovered(stream)

    def _write_committed(self, stream: StreamReplica) -> None:
        """Writes a stream whose group has its commands on the disks of a majority: what was applied may leave
        whether this server's files take it or not. A start finds them by the checkpoint."""
        try:
            stream.write()
        except StoreWriteError as error:
            log.error("stream %s: its files cannot be written, its group has it: %s", stream.name, error)
            self._failing[stream.name] = stream
            self.retry_later()
        else:
            self._failing.pop(stream.name, None)
            if not stream.is_memory:
                self._unsynced[stream.name] = stream
        stream.durability.written()

    def _recovered(self, stream: StreamReplica) -> None:
        log.warning("stream %s can be written again", stream.name)
        self._failing.pop(stream.name, None)
        self._ports.recovered(stream)

    def _failed(self, stream: StreamReplica, error: StoreWriteError) -> None:
        log.error("stream %s cannot be written, its publishes are rejected: %s", stream.name, error)
        stream.write_failed(str(error))
        self._ports.bound_input(stream)  # the failure ended a sync, if one was in flight
        self._failing[stream.name] = stream
        self.retry_later()

    # --- syncing -------------------------------------------------------------------------------

    def _start(self, stream: StreamReplica, start: Callable[[SyncEnd], object]) -> None:
        """Starts the sync of a stream that was written; `start` takes what to call at its end. Raises
        StoreWriteError when it ended at once and failed."""
        failed: list[StoreWriteError] = []

        def done(error: StoreWriteError | None) -> None:
            if stream not in self.in_flight:
                return  # drop() ended it: the stream was deleted or set aside during the sync
            self.in_flight.remove(stream)
            # A store may complete the sync inside start_sync(). The caller is then still writing: it gets the
            # error as an exception, and its tick sends the acks itself.
            starting = self._starting
            if not starting:
                self._ports.wake()  # before what may raise: the next tick runs the requests that waited
            if error is None:
                stream.durability.sync_ended()
                self._ports.bound_input(stream)
            elif starting:
                failed.append(error)
            else:
                self._failed(stream, error)
            if not starting:
                self._committed(stream)

        # Block the stream before the sync starts: from here until done(), nothing of it may leave the server.
        # Note it at once: what raises from here on sets the stream aside, and drop() removes it again.
        recovered = stream.durability.sync_started()
        self.in_flight.add(stream)
        self._ports.bound_input(stream)
        self._starting = True
        try:
            start(partial(faults.contain, done, partial(self._sync_lost, stream)))
        finally:
            self._starting = False
        if failed:
            raise failed[0]
        if recovered:
            self._recovered(stream)

    def _sync_lost(self, stream: StreamReplica, fault: Exception, *_: object) -> None:
        """The end of a sync raised: what the stream may send is unknown."""
        self._ports.stream_failed(fault, stream)

    def _committed(self, stream: StreamReplica) -> None:
        self._ports.committed(stream)
        if stream.name in self._unwritten:
            self._ports.wake()

    def _sync_unsynced(self) -> None:
        """The periodic sync."""
        unsynced, self._unsynced = self._unsynced, {}
        for stream in unsynced.values():
            try:
                stream.store.start_sync(partial(self._periodic_sync_ended, stream))
                stream.store.trim_cache()
            except Exception as error:
                self._ports.stream_failed(error, stream)

    def _periodic_sync_ended(self, stream: StreamReplica, error: StoreWriteError | None) -> None:
        if error is None or stream.durability.state is State.CLOSED:
            return
        log.error("stream %s: the periodic sync failed, the next one retries: %s", stream.name, error)
        self.note(stream)  # the next tick writes what the sync covered again: the system may have dropped it
        self._unsynced[stream.name] = stream
        if self.sync_due is None:
            self.sync_due = self._ports.clock() + self._config.sync_interval_ns
        self._ports.wake()

    # --- deadlines -----------------------------------------------------------------------------

    def retry_later(self) -> None:
        """Requests a retry of what failed to be written, after `write_retry`."""
        if self.retry_due is None:
            self.retry_due = self._ports.clock() + self._config.write_retry_ns

    def sync_if_due(self, now: int) -> None:
        """Starts the periodic sync when it is due."""
        if self.sync_due is not None and self.sync_due <= now:
            self.sync_due = None
            self._sync_unsynced()

    def take_retries(self, now: int) -> list[StreamReplica] | None:
        """The streams to write again; None when no retry is due."""
        if self.retry_due is None or self.retry_due > now:
            return None
        self.retry_due = None
        return list(self._failing.values())
