"""Streams and consumers in memory; they end with the process.

Invariant: apart from durability, everything behaves as in the file store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.compaction import compact
from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE, StreamLog
from penstock.store.interface import POSITIONS, StorageType

COMPACTIONS_A_WRITE = 2


class MemoryConsumerStore:
    """A consumer's state in memory; see interface.ConsumerStore."""

    def __init__(self, owner: dict[str, MemoryConsumerStore], name: str, meta: bytes) -> None:
        self.name = name
        self.meta = meta
        self.journal_bytes = 0
        self._owner = owner
        self._state: bytes | None = None
        self._entries: list[bytes] = []

    def save_meta(self, meta: bytes) -> None:
        self.meta = meta

    def load(self) -> tuple[bytes | None, list[bytes]]:
        return self._state, list(self._entries)

    def append(self, entry: bytes) -> None:
        self._entries.append(entry)
        self.journal_bytes += len(entry)

    def write(self) -> None:
        """No-op: entries in memory need no write."""

    def sync(self) -> None:
        """No-op: nothing to sync."""

    def snapshot(self, state: bytes) -> None:
        self._state = state
        self._entries.clear()
        self.journal_bytes = 0

    def start_snapshot(self, state: bytes) -> None:
        self.snapshot(state)

    def close(self) -> None:
        """No-op: no files to release."""

    def abandon(self) -> None:
        """No-op: no files to release."""

    def delete(self, *, sync: bool = False) -> None:
        if self._owner.get(self.name) is self:
            del self._owner[self.name]


class MemoryStreamStore:
    """A stream in memory; see interface.StreamStore.

    storage: the type its configuration asks for. log: without messages; None: blocks have `block_size`.
    """

    def __init__(
        self,
        owner: MutableMapping[str, Any],
        name: str,
        meta: bytes,
        *,
        storage: StorageType,
        block_size: int | None = None,
        log: StreamLog | None = None,
    ) -> None:
        self.name = name
        self.meta = meta
        self.storage = storage
        self.log = StreamLog(block_size or DEFAULT_BLOCK_SIZE, storage=storage) if log is None else log
        self.change_number = self.synced_number = 0  # nothing to wait for
        self._owner = owner
        self._consumers: dict[str, MemoryConsumerStore] = {}
        self._removals = 0  # removals in slices that have begun and not ended

    def save_meta(self, meta: bytes) -> None:
        self.meta = meta

    def set_compression(self, compress: bool) -> None:
        """No-op: only files are compressed."""

    def write(self) -> None:
        """Compacts sparse blocks to free the memory of removed messages."""
        if not self._removals:
            compact(self.log, COMPACTIONS_A_WRITE)

    @contextmanager
    def removing(self) -> Iterator[None]:
        self._removals += 1
        try:
            yield
        finally:
            self._removals -= 1

    def sync(self) -> None:
        """No-op: nothing to sync."""

    def sync_name(self) -> None:
        """No-op: a stream in memory has no name on disk."""

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        done(None)

    def trim_cache(self) -> None:
        """No-op: memory is the only copy."""

    def close(self) -> None:
        """No-op: no files to release."""

    def abandon(self) -> None:
        """No-op: no files to release."""

    def delete(self) -> None:
        if self._owner.get(self.name) is self:
            del self._owner[self.name]

    def consumer_names(self) -> list[str]:
        return sorted(self._consumers.keys() - {POSITIONS})

    def open_consumer(self, name: str) -> MemoryConsumerStore:
        try:
            return self._consumers[name]
        except KeyError:
            raise StoreError(f"stream {self.name!r} keeps no consumer {name!r}") from None

    def delete_consumer(self, name: str, *, sync: bool = False) -> None:
        self._consumers.pop(name, None)

    def open_positions(self) -> MemoryConsumerStore:
        if POSITIONS in self._consumers:
            return self._consumers[POSITIONS]
        return self.create_consumer(POSITIONS, b"")

    def create_consumer(self, name: str, meta: bytes, memory: bool = False) -> MemoryConsumerStore:
        if name in self._consumers:
            raise StoreError(f"stream {self.name!r} keeps a consumer {name!r} already")
        consumer = self._consumers[name] = MemoryConsumerStore(self._consumers, name, meta)
        return consumer


class MemoryAccountStore:
    """An account's streams in memory; see interface.AccountStore.

    Streams configured with file storage are in memory as well, but report their bytes as the file store does.
    """

    def __init__(self, name: str = "$G", *, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        self.name = name
        self._block_size = block_size
        self._streams: dict[str, MemoryStreamStore] = {}

    def stream_names(self) -> list[str]:
        return sorted(self._streams)

    def has_stream(self, name: str) -> bool:
        return name in self._streams

    def open_stream(self, name: str) -> MemoryStreamStore:
        try:
            return self._streams[name]
        except KeyError:
            raise StoreError(f"account {self.name!r} keeps no stream {name!r}") from None

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> MemoryStreamStore:
        if name in self._streams:
            raise StoreError(f"account {self.name!r} keeps a stream {name!r} already")
        stream = MemoryStreamStore(self._streams, name, meta, storage=storage, block_size=self._block_size)
        self._streams[name] = stream
        return stream

    def create_replica(self, name: str, meta: bytes, storage: StorageType) -> MemoryStreamStore:
        return self.create_stream(name, meta, storage)

    def delete_stream(self, name: str) -> None:
        self._streams.pop(name, None)

    def close(self) -> None:
        """No-op: no files to release."""


class MemoryStore:
    """A server's store in memory; see interface.Store."""

    def __init__(self) -> None:
        self._accounts: dict[str, MemoryAccountStore] = {}

    def account(self, name: str) -> MemoryAccountStore:
        if name not in self._accounts:
            self._accounts[name] = MemoryAccountStore(name)
        return self._accounts[name]

    def account_names(self) -> list[str]:
        return sorted(self._accounts)

    def close(self) -> None:
        """No-op: no files to release."""
