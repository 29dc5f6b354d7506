"""What keeps streams and consumers: the contracts that store/file.py and store/memory.py fulfil.

Durable means: whatever write() returned for survives the death of the process; whatever sync() returned
for survives the death of the machine. Meta and consumer state are opaque bytes, their owners' business.

Invariants: one writer per stream; nothing here reads a clock or waits for anything but the disk.
Rejected: writing in a thread (the end of the tick orders write before ack, and an append to a file doesn't
wait long enough to be worth one, for a long one see docs/store.md; a sync does) and per-message calls (a
batch is one write).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import StoreWriteError

if TYPE_CHECKING:
    from penstock.kernels.log.stream_log import StreamLog

StorageType = Literal["file", "memory"]

POSITIONS = ".sources"  # no consumer can have this name


class ConsumerStore(Protocol):
    """State of one consumer: a snapshot, and the entries appended since."""

    @property
    def name(self) -> str:
        """The consumer's name."""

    @property
    def meta(self) -> bytes:
        """What save_meta() was given last."""

    @property
    def journal_bytes(self) -> int:
        """Bytes of entries since the snapshot, buffered ones included: when to take the next one."""

    def save_meta(self, meta: bytes) -> None:
        """Replaces the meta, atomically and at once. Raises StoreWriteError; the old one then stays."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The snapshot (None before the first) and the entries written since, in order.

        A torn end of the journal is cut, with a warning in the log "penstock.store".
        """

    def append(self, entry: bytes) -> None:
        """Buffers an entry for the next write()."""

    def write(self) -> None:
        """Hands the buffered entries to the operating system. Raises StoreWriteError and keeps what is left:
        the next write() goes on where this one stopped."""

    def sync(self) -> None:
        """Everything written so far is on the disk. Raises StoreWriteError."""

    def snapshot(self, state: bytes) -> None:
        """Replaces snapshot and journal by `state`, atomically; buffered entries are covered by it.

        Raises StoreWriteError; the old snapshot and its journal then stay.
        """

    def start_snapshot(self, state: bytes) -> None:
        """The same without waiting for the disk; `state` must be what snapshot and entries lead to.

        Until it is there, the old one and all entries stay. Raises StoreWriteError when those can't be
        written.
        """

    def close(self) -> None:
        """Writes what is buffered and lets go. Closing twice is fine."""

    def abandon(self) -> None:
        """Lets go as it is: nothing is written any more. For a consumer whose state is doubtful."""

    def delete(self, *, sync: bool = False) -> None:
        """Forgets the consumer, files and all.

        Power loss does not bring it back with `sync`; without, it may come back whole. Raises
        StoreWriteError: it may come back with a restart too, until the stream's delete_consumer() returned.
        """


class StreamStore(Protocol):
    """One stream: its log, its meta, its consumers."""

    @property
    def name(self) -> str:
        """The stream's name."""

    @property
    def storage(self) -> StorageType:
        """What its configuration calls for. A store without files keeps both kinds in memory."""

    @property
    def log(self) -> StreamLog:
        """The messages. Change it freely; write() makes it last. The same object until close()."""

    @property
    def meta(self) -> bytes:
        """What save_meta() was given last."""

    def save_meta(self, meta: bytes) -> None:
        """Replaces the meta, atomically and at once. Raises StoreWriteError; the old one then stays."""

    def set_compression(self, compress: bool) -> None:
        """Blocks closed from now on are compressed, or not. Reading is the same either way."""

    def write(self) -> None:
        """Hands all that is new in the log to the operating system, one write a file.

        Raises StoreWriteError (disk full, for one) and keeps what is left: the next write() goes on where
        this one stopped. Nothing appended meanwhile may be acked.
        """

    def sync(self) -> None:
        """Everything written so far is on the disk. Raises StoreWriteError."""

    def sync_name(self) -> None:
        """The stream itself is on the disk, whatever it holds: who hears that it exists may rely on it.

        It may not be after a start: the process that made it can have ended first. Raises StoreWriteError.
        """

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        """sync() in the background: calls `done` when everything written until now is on the disk, or
        with what is in the way. It may be called at once."""

    def rest(self) -> None:
        """Nothing of the log is in use just now: what can be loaded again may leave memory."""

    def close(self) -> None:
        """Writes what is new, syncs and lets go. Closing twice is fine."""

    def abandon(self) -> None:
        """Lets go as it is: nothing is written any more, and the files stay. For a stream whose log is
        doubtful."""

    def delete(self) -> None:
        """Forgets the stream with its messages and consumers, files and all.

        Raises StoreWriteError: it may come back with a restart, until the account's delete_stream() returned.
        """

    def begin_delete(self) -> Iterator[object]:
        """The same, but what takes long is left to the iterator: files that nothing finds any more, a few at
        each step. Those that are left go with the next start. Raises what delete() raises."""

    def consumer_names(self) -> list[str]:
        """Names of the kept consumers, sorted."""

    def open_consumer(self, name: str) -> ConsumerStore:
        """A kept consumer. Raises StoreError when there is none of this name."""

    def delete_consumer(self, name: str, *, sync: bool = False) -> None:
        """Forgets a kept consumer that isn't open, as ConsumerStore.delete() does, or goes on where that
        failed. Raises StoreWriteError."""

    def open_positions(self) -> ConsumerStore:
        """Where the stream notes how far it got with its sources: kept like a consumer, but none of them."""

    def create_consumer(self, name: str, meta: bytes, memory: bool = False) -> ConsumerStore:
        """A new consumer, with `memory` in memory only. Raises StoreError when the name is taken."""


class AccountStore(Protocol):
    """The streams of one account."""

    @property
    def name(self) -> str:
        """The account's name."""

    def stream_names(self) -> list[str]:
        """Names of the kept streams, sorted."""

    def open_stream(self, name: str) -> StreamStore:
        """A kept stream, recovered. Raises StoreError when there is none of this name.

        What could not be recovered is told in the log "penstock.store", with file and offset.
        """

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        """A new stream. Raises StoreError when the name is taken, StoreWriteError when the disk refuses."""

    def delete_stream(self, name: str) -> None:
        """Forgets a kept stream that isn't open, as StreamStore.delete() does, or goes on where that failed.
        Raises StoreWriteError."""

    def close(self) -> None:
        """Closes every open stream."""


class Store(Protocol):
    """Everything one server keeps: the accounts' stores, under one lock."""

    def account(self, name: str) -> AccountStore:
        """The store of an account, made when it isn't there yet; the same object each time."""

    def account_names(self) -> list[str]:
        """Accounts that keep something, sorted."""

    def close(self) -> None:
        """Closes every account and gives the lock back. Closing twice is fine."""
