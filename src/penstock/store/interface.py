"""Storage contracts of streams and consumers, implemented by store/streamfiles.py and store/memory.py.

Two levels of durability: data for which write() returned survives the death of the process; data for which
sync() returned survives the death of the machine. Meta and consumer state are opaque bytes that only their
owners interpret.

Invariants: a stream has one writer; nothing here reads a clock or waits for anything but the disk.

Rejected: writing in a thread (the end of the tick orders the write before the ack, and an append to a file is
too short to be worth a hand-over; syncs, which are not, do run in a thread; docs/store.md describes slow
appends) and calls per message (a batch is one write).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import StoreWriteError

if TYPE_CHECKING:
    from penstock.kernels.log.stream_log import StreamLog

StorageType = Literal["file", "memory"]

POSITIONS = ".sources"  # no consumer can have this name


class ConsumerStore(Protocol):
    """State of one consumer: a snapshot, and a journal of the entries appended since."""

    @property
    def name(self) -> str:
        """The consumer's name."""

    @property
    def meta(self) -> bytes:
        """The bytes of the last successful save_meta()."""

    @property
    def journal_bytes(self) -> int:
        """Bytes of entries since the last snapshot, buffered ones included. The owner takes the next snapshot
        by it."""

    def save_meta(self, meta: bytes) -> None:
        """Replaces the meta, atomically and synced. Raises StoreWriteError, and the old meta then stays."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """Returns the snapshot (None before the first) and the entries written since, in order.

        Cuts a torn end off the journal, and logs a warning to "penstock.store".
        """

    def append(self, entry: bytes) -> None:
        """Buffers an entry for the next write()."""

    def write(self) -> None:
        """Writes the buffered entries to the operating system. Raises StoreWriteError and keeps the entries
        that were not written: the next write() continues with them."""

    def sync(self) -> None:
        """Syncs everything written so far. Raises StoreWriteError."""

    def snapshot(self, state: bytes) -> None:
        """Replaces snapshot and journal by `state`, atomically; `state` covers the buffered entries.

        Raises StoreWriteError; the old snapshot and its journal then stay.
        """

    def start_snapshot(self, state: bytes) -> None:
        """Takes a snapshot without waiting for the disk; `state` must equal the current snapshot with all
        entries applied.

        The old snapshot and all entries stay until the new one is on disk. Raises StoreWriteError when
        buffered entries cannot be written.
        """

    def close(self) -> None:
        """Writes the buffered entries, syncs and releases the files. Closing twice is allowed."""

    def abandon(self) -> None:
        """Releases the files without writing: for a consumer whose state in memory is indeterminate."""

    def delete(self, *, sync: bool = False) -> None:
        """Deletes the consumer with its files.

        With `sync`, the consumer stays deleted after power loss; without, it may reappear, but only complete.
        Raises StoreWriteError: the consumer may then reappear after a restart, until the stream's
        delete_consumer() succeeds.
        """


class StreamStore(Protocol):
    """One stream: its log, its meta, its consumers."""

    @property
    def name(self) -> str:
        """The stream's name."""

    @property
    def storage(self) -> StorageType:
        """The storage type its configuration asks for. A store without files keeps both types in memory."""

    @property
    def log(self) -> StreamLog:
        """The messages. The owner changes it freely; write() makes the changes durable. The same object until
        close()."""

    @property
    def meta(self) -> bytes:
        """The bytes of the last successful save_meta()."""

    def save_meta(self, meta: bytes) -> None:
        """Replaces the meta, atomically and synced. Raises StoreWriteError, and the old meta then stays."""

    @property
    def change_number(self) -> int:
        """Number of the newest change of the log. It is on disk when `synced_number` has reached it. Both
        only increase, and begin at each start."""

    @property
    def synced_number(self) -> int:
        """Number of the newest change that is known to be on disk, like all before it."""

    def set_compression(self, compress: bool) -> None:
        """Turns compression of blocks that close from now on on or off. Both kinds of blocks are readable
        either way."""

    def write(self) -> None:
        """Writes everything new in the log to the operating system, one write per file.

        Raises StoreWriteError (for example on a full disk) and keeps what was not written: the next write()
        continues there. The caller must not ack anything appended before a write() succeeds.
        """

    def removing(self) -> AbstractContextManager[None]:
        """While many messages are removed in slices, write() compacts no blocks: the next slices may empty
        the same blocks further, and each rewrite would delay them."""

    def sync(self) -> None:
        """Syncs everything written so far. Raises StoreWriteError: what the system may have dropped then is
        written again by the next write(), without which no sync succeeds."""

    def sync_name(self) -> None:
        """Makes the existence of the stream durable, independent of its contents, before anybody learns of
        it.

        After a restart it may not be: the process that created the stream may have died before its sync.
        Raises StoreWriteError.
        """

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        """Starts a sync() in the background. Calls `done(None)` when everything written until now is on disk,
        or `done(error)`. May call `done` before it returns."""

    def trim_cache(self) -> None:
        """Releases cached blocks that can be loaded again. The caller holds no reference into the log."""

    def close(self) -> None:
        """Writes what is new, syncs and releases the files. Closing twice is allowed."""

    def abandon(self) -> None:
        """Releases the files without writing; they stay on disk. For a stream whose log in memory is
        indeterminate."""

    def delete(self) -> None:
        """Deletes the stream with its messages, consumers and files. The files are unreachable at once, and
        go in the background; the next start removes those that are left.

        Raises StoreWriteError: the stream may then reappear after a restart, until the account's
        delete_stream() succeeds.
        """

    def consumer_names(self) -> list[str]:
        """Names of the stored consumers, sorted."""

    def open_consumer(self, name: str) -> ConsumerStore:
        """Opens a stored consumer. Raises StoreError when there is none of this name."""

    def delete_consumer(self, name: str, *, sync: bool = False) -> None:
        """Deletes a stored consumer that is not open, or completes a ConsumerStore.delete() that failed.
        Raises StoreWriteError."""

    def open_positions(self) -> ConsumerStore:
        """The store of the stream's positions in its sources: the format of a consumer's state, under a
        reserved name."""

    def create_consumer(self, name: str, meta: bytes, memory: bool = False) -> ConsumerStore:
        """Creates a consumer, in memory only with `memory`. Raises StoreError when the name is taken."""


class AccountStore(Protocol):
    """The streams of one account."""

    @property
    def name(self) -> str:
        """The account's name."""

    def stream_names(self) -> list[str]:
        """Names of the stored streams, sorted."""

    def has_stream(self, name: str) -> bool:
        """Whether a stream of this name is stored. Reads no other stream's files, unlike `stream_names`."""

    def open_stream(self, name: str) -> StreamStore:
        """Opens a stored stream and recovers it. Raises StoreError when there is none of this name.

        Logs what could not be recovered to "penstock.store", with file and offset.
        """

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        """Creates a stream. Raises StoreError when the name is taken, StoreWriteError when the disk fails."""

    def create_replica(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        """Creates a stream whose group keeps its messages on this server's disk, in its log and its states.
        The store writes what memory has no room for, and recovers nothing. Raises like create_stream()."""

    def delete_stream(self, name: str) -> None:
        """Deletes a stored stream that is not open, or completes a StreamStore.delete() that failed; like
        that one. Raises StoreWriteError."""

    def close(self) -> None:
        """Closes every open stream."""


class Store(Protocol):
    """The store of one server: one store per account, under one lock."""

    def account(self, name: str) -> AccountStore:
        """The store of an account, created on first use; the same object each time."""

    def account_names(self) -> list[str]:
        """Accounts that have a store, sorted."""

    def close(self) -> None:
        """Closes every account and releases the lock. Closing twice is allowed."""
