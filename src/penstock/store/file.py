"""Streams and consumers on disk.

<dir>/jetstream/.lock                                   held while a server uses the directory
<dir>/jetstream/<account>/streams/<stream>/meta
                                          /msgs/<n>.blk  records      <n>.idx  index of a closed block
                                          /consumers/<consumer>/meta, state, journal.<generation>

Directory names are quoted (files.quote_name); the true name stands in the meta file. Streams and consumers
in memory live beside those on disk and are gone with the process.

Invariants: a directory with a meta file is a whole asset, one without is nothing; one process uses a store
directory at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from penstock.errors import StoreError, StoreFormatError, StoreWriteError
from penstock.kernels.streamlog import DEFAULT_BLOCK_SIZE, StreamLog
from penstock.store.background import Background
from penstock.store.blocks import BlockFiles
from penstock.store.disk import LOCAL_DISK, Disk
from penstock.store.files import (
    OpenFiles,
    list_assets,
    make_directory,
    pack_meta,
    quote_name,
    remove_directory,
    replace_meta,
    sweep_deleted,
    sync_directory,
    unpack_meta,
    unquote_name,
)
from penstock.store.interface import POSITIONS, ConsumerStore, StorageType, StreamStore
from penstock.store.journal import FileConsumerStore
from penstock.store.keys import StoreKey, open_vault
from penstock.store.memory import MemoryConsumerStore, MemoryStreamStore
from penstock.store.recovery import recover_log

logger = logging.getLogger("penstock.store")

META = "meta"
_OFFICIAL_META = "meta.inf"


class FileStreamStore:
    """One stream's directory; see interface.StreamStore."""

    storage: StorageType = "file"

    def __init__(
        self, owner: dict[str, FileStreamStore], directory: Path, *, files: OpenFiles, block_size: int
    ) -> None:
        files.encrypt(directory / META)
        self.name, self.meta = unpack_meta(files, directory / META)
        self._owner = owner
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._consumers: dict[str, FileConsumerStore] = {}
        self._memory_consumers: dict[str, MemoryConsumerStore] = {}
        self._consumers_changed = False
        # Who wrote its name, or the one of its meta, may have been killed before it was synced.
        self._name_unsynced = True
        self._name_syncing = False
        self._undeleted: set[str] = set()  # consumers whose files the disk refused to remove
        self.undeleted: set[str] = set()  # its name while its files should have gone and have not
        self._closed = False
        make_directory(self._disk, directory / "msgs")
        make_directory(self._disk, directory / "consumers")
        sweep_deleted(self._disk, directory / "consumers")
        self.log: StreamLog
        self._blocks: BlockFiles
        self.log, self._blocks = recover_log(
            directory / "msgs", files, block_size=block_size, on_lost=self._on_lost
        )

    def _on_lost(self, number: int, offset: int, seq: int, why: str) -> None:
        logger.error(
            "%s: message %d of stream %s is lost: its record at byte %d is bad (%s)",
            self._directory / "msgs" / f"{number}.blk", seq, self.name, offset, why,
        )  # fmt: skip

    def save_meta(self, meta: bytes) -> None:
        try:
            replace_meta(self._files, self._directory / META, self.name, self.meta, meta)
        except StoreWriteError:
            self._name_unsynced = True
            raise
        self.meta = meta

    def name_synced(self) -> None:
        """Its names are on the disk."""
        self._name_unsynced = False

    def sync_name(self) -> None:
        if self._name_unsynced or self._name_syncing:
            sync_directory(self._disk, self._directory)
            sync_directory(self._disk, self._directory.parent)
            self._name_unsynced = False

    def write(self) -> None:
        self._blocks.write(self.log)

    def set_compression(self, compress: bool) -> None:
        self._blocks.compress = compress

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        self._consumers = {name: one for name, one in self._consumers.items() if not one.closed}
        taken = [(consumer, *consumer.take_unsynced()) for consumer in self._consumers.values()]
        files = {path for _, paths, _ in taken for path in paths}
        names = {path for _, _, paths in taken for path in paths}
        if self._consumers_changed:
            names.add(self._directory / "consumers")
        if self._name_unsynced:
            names |= {self._directory, self._directory.parent}
            self._name_syncing = True
        self._consumers_changed = self._name_unsynced = False

        def settle(error: StoreWriteError | None) -> None:
            self._name_syncing = False
            self._name_unsynced |= error is not None
            for consumer, its_files, its_names in taken:
                (consumer.came_to_disk if error is None else consumer.give_back)(its_files, its_names)

        self._blocks.start_sync(self.log, done, also=sorted(files), names=sorted(names), settle=settle)

    def rest(self) -> None:
        self.log.release_idle()

    def sync(self) -> None:
        self._blocks.sync()
        self.sync_name()
        self._consumers = {name: one for name, one in self._consumers.items() if not one.closed}
        if self._consumers_changed:
            sync_directory(self._disk, self._directory / "consumers")
            self._consumers_changed = False
            for consumer in self._consumers.values():
                consumer.is_new = False
        for consumer in self._consumers.values():
            consumer.sync()

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.write()
            self.sync()
            for consumer in self._consumers.values():
                consumer.close()
            self._files.background.drain()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._closed = True
        self._blocks.close()
        if self._owner.get(self.name) is self:
            del self._owner[self.name]

    def abandon(self) -> None:
        for consumer in self._consumers.values():
            consumer.abandon()
        self._forget()

    def delete(self) -> None:
        self._files.background.drain()
        self._memory_consumers.clear()
        self.abandon()
        self.undeleted.add(self.name)
        remove_directory(self._disk, self._directory, META)
        self.undeleted.discard(self.name)

    def consumer_names(self) -> list[str]:
        on_disk = list_assets(self._files, self._directory / "consumers", META)
        return sorted((set(on_disk) | set(self._memory_consumers)) - {POSITIONS})

    def open_consumer(self, name: str) -> ConsumerStore:
        if name in self._memory_consumers:
            return self._memory_consumers[name]
        if name in self._consumers and not self._consumers[name].closed:
            return self._consumers[name]
        directory = self._consumer_directory(name)
        if not self._disk.exists(directory / META):
            raise StoreError(f"stream {self.name!r} keeps no consumer {name!r}", path=str(directory))
        consumer = self._consumers[name] = FileConsumerStore.open(directory, self._files)
        consumer.undeleted = self._undeleted
        return consumer

    def delete_consumer(self, name: str, *, sync: bool = False) -> None:
        if self._memory_consumers.pop(name, None) is None:
            found = list_assets(self._files, self._directory / "consumers", META)
            self._files.background.drain()
            path = found.get(name, self._consumer_directory(name))  # it may be hidden, and that not be synced
            remove_directory(self._disk, path, META, sync_name=sync)
            self._undeleted.discard(name)
            self._consumers_changed = True

    def open_positions(self) -> ConsumerStore:
        if self._disk.exists(self._consumer_directory(POSITIONS) / META):
            return self.open_consumer(POSITIONS)
        return self.create_consumer(POSITIONS, b"")

    def create_consumer(self, name: str, meta: bytes, memory: bool = False) -> ConsumerStore:
        directory = self._consumer_directory(name)
        if name in self._undeleted:
            remove_directory(self._disk, directory, META, sync_name=False)
            self._undeleted.discard(name)
        if name in self._memory_consumers or self._disk.exists(directory / META):
            raise StoreError(f"stream {self.name!r} keeps a consumer {name!r} already", path=str(directory))
        if memory:
            held = self._memory_consumers[name] = MemoryConsumerStore(self._memory_consumers, name, meta)
            return held
        _make_empty(self._disk, directory, sync_name=False)
        consumer = FileConsumerStore.create(directory, name, meta, self._files)
        consumer.undeleted = self._undeleted
        self._consumers[name] = consumer
        self._consumers_changed = True
        return consumer

    def _consumer_directory(self, name: str) -> Path:
        return self._directory / "consumers" / quote_name(name)


class FileAccountStore:
    """One account's directory; see interface.AccountStore."""

    def __init__(
        self, directory: Path, name: str, *, files: OpenFiles, block_size: int = DEFAULT_BLOCK_SIZE
    ) -> None:
        self.name = name
        self._streams_directory = directory / "streams"
        self._files = files
        self._disk = files.disk
        self._block_size = block_size
        self._open: dict[str, FileStreamStore] = {}
        self._memory: dict[str, MemoryStreamStore] = {}
        self._undeleted: set[str] = set()  # streams whose files the disk refused to remove
        _sync_present_names(self._disk, directory, self._streams_directory)
        sweep_deleted(self._disk, self._streams_directory)

    def stream_names(self) -> list[str]:
        return sorted(set(list_assets(self._files, self._streams_directory, META)) | set(self._memory))

    def open_stream(self, name: str) -> StreamStore:
        if name in self._memory:
            return self._memory[name]
        if name in self._open:
            return self._open[name]
        directory = self._directory(name)
        if not self._disk.exists(directory / META):
            raise StoreError(f"account {self.name!r} keeps no stream {name!r}", path=str(directory))
        return self._opened(directory)

    def _opened(self, directory: Path) -> FileStreamStore:
        stream = FileStreamStore(self._open, directory, files=self._files, block_size=self._block_size)
        self._open[stream.name] = stream
        stream.undeleted = self._undeleted
        return stream

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        directory = self._directory(name)
        if name in self._undeleted:
            remove_directory(self._disk, directory, META)
            self._undeleted.discard(name)
        if name in self._memory or self._disk.exists(directory / META):
            raise StoreError(f"account {self.name!r} keeps a stream {name!r} already", path=str(directory))
        if storage == "memory":
            held = MemoryStreamStore(self._memory, name, meta, storage=storage, block_size=self._block_size)
            self._memory[name] = held
            return held
        make_directory(self._disk, self._streams_directory)
        _make_empty(self._disk, directory, sync_name=False)
        try:
            # Few syncs: the one of the meta's name covers the other names in the directory as well.
            for part in ("msgs", "consumers"):
                make_directory(self._disk, directory / part, sync_name=False)
            sync_directory(self._disk, self._streams_directory)
            self._files.replace(directory / META, pack_meta(name, meta))
            stream = self._opened(directory)
            stream.name_synced()
            return stream
        except Exception:
            self._undeleted.add(name)  # the next try removes what the disk keeps of it
            # Its maker hears that it does not exist: a restart must not bring it back.
            with contextlib.suppress(StoreWriteError):
                remove_directory(self._disk, directory, META)
                self._undeleted.discard(name)
            raise

    def delete_stream(self, name: str) -> None:
        if self._memory.pop(name, None) is None:
            found = list_assets(self._files, self._streams_directory, META)
            self._files.background.drain()
            path = found.get(name, self._directory(name))  # it may be hidden, and that not be synced
            remove_directory(self._disk, path, META)
            self._undeleted.discard(name)

    def _directory(self, name: str) -> Path:
        return self._streams_directory / quote_name(name)

    def close(self) -> None:
        for stream in list(self._open.values()):
            stream.close()


class FileStore:
    """A store directory on a disk, locked for this process; see interface.Store.

    key: what it is encrypted with, if anything. background: who does what takes long; None: it is waited for.

    Raises StoreLockedError when another process has it, StoreWriteError when it can't be made,
    StoreFormatError when an official server's streams are in it, StoreError when it is encrypted and the key
    is not the right one.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        disk: Disk = LOCAL_DISK,
        key: StoreKey | None = None,
        background: Background | None = None,
    ) -> None:
        self._directory = Path(directory) / "jetstream"
        self._disk = disk
        make_directory(disk, self._directory)
        refuse_official_streams(disk, self._directory)
        _sync_present_names(disk, self._directory.parent, self._directory)
        self._lock = disk.lock(self._directory)
        try:
            vault = open_vault(disk, self._directory, key or StoreKey())
        except BaseException:
            self._lock.release()
            raise
        self._files = OpenFiles(disk=disk, vault=vault, background=background)
        self._block_size = block_size
        self._accounts: dict[str, FileAccountStore] = {}

    def account(self, name: str) -> FileAccountStore:
        if name not in self._accounts:
            self._accounts[name] = FileAccountStore(
                self._directory / quote_name(name), name, files=self._files, block_size=self._block_size
            )
        return self._accounts[name]

    def account_names(self) -> list[str]:
        kept = {
            unquote_name(name)
            for name in self._disk.names(self._directory)
            if self._disk.exists(self._directory / name / "streams")
        }
        return sorted(kept | set(self._accounts))

    def close(self) -> None:
        try:
            for account in self._accounts.values():
                account.close()
        finally:
            self._files.close()
            self._lock.release()

    def abandon(self) -> None:
        """Lets everything go as a killed process would: nothing is written. For tests and the simulator."""
        self._accounts.clear()
        self._files.close()
        self._lock.release()


def refuse_official_streams(disk: Disk, directory: Path) -> None:
    """Raises StoreFormatError when `directory` holds streams that an official nats-server wrote.

    Both servers keep them below `jetstream/<account>/streams/<stream>`; starting beside them would look like
    an empty server, and its operator would look for lost messages.
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
    """Who made them may have been killed before the names were synced."""
    for directory in directories:
        if disk.exists(directory):
            sync_directory(disk, directory.parent)


def _make_empty(disk: Disk, directory: Path, *, sync_name: bool = True) -> None:
    """A directory for a new asset; what a crash left of an earlier try goes."""
    if disk.exists(directory):
        disk.remove_tree(directory)
    make_directory(disk, directory, sync_name=sync_name)
