"""Streams and consumers on disk.

<dir>/jetstream/.lock                                   locked while a server uses the directory
<dir>/jetstream/<account>/streams/<stream>/meta
                                          /msgs/<n>.blk  records      <n>.idx  index of a closed block
                                          /spilled/<n>.blk  records of a replicated stream, until a start
                                          /consumers/<consumer>/meta, state, journal.<generation>

Directory names are quoted (files.quote_name); the meta file contains the original name. Streams and consumers
in memory live beside those on disk and end with the process.

Invariants: a directory with a meta file is a complete asset, one without is none; one process at a time uses
a store directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StoreError, StoreFormatError, StoreWriteError
from penstock.store.block_memory import MEMORY_MAX, BlockMemory
from penstock.store.disk import LOCAL_DISK, Disk
from penstock.store.executor import DiskExecutor
from penstock.store.files import (
    CONSUMERS,
    MESSAGES,
    META,
    SPILLED,
    OpenFiles,
    hide_directory,
    list_assets,
    make_directory,
    make_empty,
    pack_meta,
    quote_name,
    remove_directory,
    sweep_deleted,
    sync_directory,
    unpack_meta,
    unquote_name,
)
from penstock.store.keys import StoreKey, open_file_cipher

if TYPE_CHECKING:
    from penstock.store.interface import StorageType, StreamStore
    from penstock.store.memory import MemoryStreamStore
    from penstock.store.replica_store import ReplicaStreamStore
    from penstock.store.streamfiles import FileStreamStore

_OFFICIAL_META = "meta.inf"


class FileAccountStore:
    """One account's directory; see interface.AccountStore."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        files: OpenFiles,
        block_memory: BlockMemory,
        block_size: int | None = None,
    ) -> None:
        self.name = name
        self._streams_directory = directory / "streams"
        self._files = files
        self._block_memory = block_memory
        self._disk = files.disk
        self._block_size = block_size
        self._open: dict[str, FileStreamStore | ReplicaStreamStore] = {}
        self._memory: dict[str, MemoryStreamStore] = {}
        self._undeleted: set[str] = set()  # deleted streams whose files could not be removed
        _sync_present_names(self._disk, directory, self._streams_directory)
        sweep_deleted(self._disk, self._streams_directory)

    def stream_names(self) -> list[str]:
        return sorted(set(list_assets(self._files, self._streams_directory, META)) | set(self._memory))

    def has_stream(self, name: str) -> bool:
        return name in self._memory or self._disk.exists(self._directory(name) / META)

    def open_stream(self, name: str) -> StreamStore:
        if name in self._memory:
            return self._memory[name]
        if name in self._open:
            return self._open[name]
        directory = self._directory(name)
        if not self._disk.exists(directory / META):
            raise StoreError(f"account {self.name!r} keeps no stream {name!r}", path=str(directory))
        return self._opened(directory)

    def _opened(self, directory: Path, *, is_new: bool = False) -> StreamStore:
        from penstock.store.streamfiles import FileStreamStore  # unused, and not loaded, in an empty store

        stream = FileStreamStore(
            self._open, directory, files=self._files, undeleted=self._undeleted, block_size=self._block_size,
            is_new=is_new,
        )  # fmt: skip
        self._open[stream.name] = stream
        return stream

    def _opened_replica(self, directory: Path) -> StreamStore:
        from penstock.store.replica_store import ReplicaStreamStore

        name, meta = unpack_meta(self._files, directory / META)
        stream = self._open[name] = ReplicaStreamStore(
            self._open, directory, name, meta, files=self._files, memory=self._block_memory,
            undeleted=self._undeleted, block_size=self._block_size,
        )  # fmt: skip
        return stream

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        return self._create(name, meta, storage, (MESSAGES, CONSUMERS), partial(self._opened, is_new=True))

    def create_replica(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        return self._create(name, meta, storage, (SPILLED,), self._opened_replica)

    def _create(
        self,
        name: str,
        meta: bytes,
        storage: StorageType,
        parts: tuple[str, ...],
        opened: Callable[[Path], StreamStore],
    ) -> StreamStore:
        directory = self._directory(name)
        if name in self._undeleted:
            remove_directory(self._disk, directory, META)
            self._undeleted.discard(name)
        if name in self._memory or self._disk.exists(directory / META):
            raise StoreError(f"account {self.name!r} keeps a stream {name!r} already", path=str(directory))
        if storage == "memory":
            from penstock.store.memory import MemoryStreamStore

            memory = MemoryStreamStore(self._memory, name, meta, storage=storage, block_size=self._block_size)
            self._memory[name] = memory
            return memory
        make_directory(self._disk, self._streams_directory)
        make_empty(self._disk, directory, sync_name=False)
        try:
            # One sync of the parent covers all names: the sync of the meta's name covers those beside it.
            for part in parts:
                make_directory(self._disk, directory / part, sync_name=False)
            sync_directory(self._disk, self._streams_directory)
            self._files.replace(directory / META, pack_meta(name, meta))
            return opened(directory)
        except Exception:
            self._undeleted.add(name)  # the next attempt removes what is left on disk
            # The caller reports that the stream does not exist: a restart must not bring it back.
            with contextlib.suppress(StoreWriteError):
                remove_directory(self._disk, directory, META)
                self._undeleted.discard(name)
            raise

    def delete_stream(self, name: str) -> None:
        if self._memory.pop(name, None) is not None:
            return
        path = self._directory(name)  # maybe hidden already, but not durably
        if not self._disk.exists(path / META):
            # Only a damaged meta makes its directory differ: do not read those of all streams.
            path = list_assets(self._files, self._streams_directory, META).get(name, path)
        hidden = hide_directory(self._disk, path, META)
        self._undeleted.discard(name)
        self._files.remove_hidden(hidden)

    def _directory(self, name: str) -> Path:
        return self._streams_directory / quote_name(name)

    def close(self) -> None:
        for stream in list(self._open.values()):
            stream.close()


class FileStore:
    """A store directory on a disk, locked for this process; see interface.Store.

    `block_size`: bytes of records per block; None: the log's default. `key`: the encryption key, if any.
    `executor`: runs slow disk work; None: run it inline. `block_memory`: bytes of blocks of replicated
    streams that stay in memory.

    Raises StoreLockedError when another process uses the directory, StoreWriteError when it cannot be
    created, StoreFormatError when it contains an official server's streams, StoreError when it is encrypted
    with another key.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        block_size: int | None = None,
        disk: Disk = LOCAL_DISK,
        key: StoreKey | None = None,
        executor: DiskExecutor | None = None,
        block_memory: int = MEMORY_MAX,
    ) -> None:
        self._directory = Path(directory) / "jetstream"
        self._disk = disk
        make_directory(disk, self._directory)
        refuse_official_streams(disk, self._directory)
        _sync_present_names(disk, self._directory.parent, self._directory)
        self._lock = disk.lock(self._directory)
        try:
            file_cipher = open_file_cipher(disk, self._directory, key or StoreKey())
        except BaseException:
            self._lock.release()
            raise
        self._files = OpenFiles(disk=disk, file_cipher=file_cipher, executor=executor)
        self._block_memory = BlockMemory(self._files.executor, block_memory)
        self._block_size = block_size
        self._accounts: dict[str, FileAccountStore] = {}

    def account(self, name: str) -> FileAccountStore:
        if name not in self._accounts:
            self._accounts[name] = FileAccountStore(
                self._directory / quote_name(name), name, files=self._files, block_memory=self._block_memory,
                block_size=self._block_size,
            )  # fmt: skip
        return self._accounts[name]

    def account_names(self) -> list[str]:
        names = {
            unquote_name(name)
            for name in self._disk.names(self._directory)
            if self._disk.exists(self._directory / name / "streams")
        }
        return sorted(names | set(self._accounts))

    def close(self) -> None:
        try:
            for account in self._accounts.values():
                account.close()
        finally:
            self._files.close()
            self._lock.release()

    def abandon(self) -> None:
        """Releases everything without writing, like a killed process. For tests and the simulator."""
        self._accounts.clear()
        self._files.close()
        self._lock.release()


def refuse_official_streams(disk: Disk, directory: Path) -> None:
    """Raises StoreFormatError when `directory` contains streams of an official nats-server.

    Both servers use `jetstream/<account>/streams/<stream>`. Ignoring foreign streams would look to the
    operator like an empty server that lost its messages.
    """
    for account in disk.names(directory):
        streams = directory / account / "streams"
        if not disk.exists(streams):
            continue
        found = [name for name in disk.names(streams) if disk.exists(streams / name / _OFFICIAL_META)]
        if found:
            named = ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
            raise StoreFormatError(
                f"it holds streams of an official nats-server (account {account}: {named}), whose format "
                "penstock does not read. Give penstock another store_dir and bring the streams over: "
                "`nats account backup DIR` from the official server, `nats account restore DIR` here",
                path=str(directory),
            )


def _sync_present_names(disk: Disk, *directories: Path) -> None:
    """Syncs existing names: the process that created them may have died before its sync."""
    for directory in directories:
        if disk.exists(directory):
            sync_directory(disk, directory.parent)
