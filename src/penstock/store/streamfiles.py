"""One stream's directory: its messages in blocks, and its consumers. The layout is in file.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE, StreamLog
from penstock.store.blocks import BlockFiles
from penstock.store.files import (
    CONSUMERS,
    MESSAGES,
    META,
    OpenFiles,
    hide_directory,
    list_assets,
    make_directory,
    make_empty,
    quote_name,
    remove_directory,
    replace_meta,
    sweep_deleted,
    sync_directory,
    unpack_meta,
)
from penstock.store.interface import POSITIONS, ConsumerStore, StorageType
from penstock.store.journal import FileConsumerStore
from penstock.store.memory import MemoryConsumerStore
from penstock.store.recovery import recover_log

logger = logging.getLogger("penstock.store")

LOST_LOGGED = 10  # unreadable messages of a block, each in a line of its own


class FileStreamStore:
    """One stream's directory; see interface.StreamStore.

    undeleted: contains its name while its files could not be removed. is_new: its name is synced.
    """

    storage: StorageType = "file"

    def __init__(
        self,
        owner: MutableMapping[str, Any],
        directory: Path,
        *,
        files: OpenFiles,
        undeleted: set[str],
        block_size: int | None,
        is_new: bool,
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
        # The process that wrote its name, or the name of its meta, may have died before its sync.
        self._name_unsynced = not is_new
        self._name_syncing = False
        self._undeleted: set[str] = set()  # deleted consumers whose files could not be removed
        self._undeleted_streams = undeleted
        self._closed = False
        make_directory(self._disk, directory / MESSAGES)
        make_directory(self._disk, directory / CONSUMERS)
        sweep_deleted(self._disk, directory / CONSUMERS)
        self.log: StreamLog
        self._blocks: BlockFiles
        self.log, self._blocks = recover_log(
            directory / MESSAGES, files, block_size=block_size or DEFAULT_BLOCK_SIZE, on_lost=self._on_lost
        )

    def _on_lost(self, number: int, lost: list[tuple[int, int, str]]) -> None:
        """Logs the unreadable messages (offset, sequence, reason) of a block.

        A block has up to 8 MiB, which may be 60,000 messages. One line for each would take the event loop
        most of a second, so all but the first are counted only. `penstock store check` lists them.
        """
        path = self._directory / MESSAGES / f"{number}.blk"
        for offset, seq, why in lost[:LOST_LOGGED]:
            logger.error(
                "%s: message %d of stream %s is lost: its record at byte %d is bad (%s)",
                path, seq, self.name, offset, why,
            )  # fmt: skip
        if len(lost) > LOST_LOGGED:
            logger.error(
                "%s: %d more messages of stream %s are lost, the last one is %d",
                path, len(lost) - LOST_LOGGED, self.name, lost[-1][1],
            )  # fmt: skip

    def save_meta(self, meta: bytes) -> None:
        try:
            replace_meta(self._files, self._directory / META, self.name, self.meta, meta)
        except StoreWriteError:
            self._name_unsynced = True
            raise
        self.meta = meta

    @property
    def change_number(self) -> int:
        return self._blocks.writes + (not self.log.is_written)

    @property
    def synced_number(self) -> int:
        return self._blocks.synced_writes

    def sync_name(self) -> None:
        if self._name_unsynced or self._name_syncing:
            sync_directory(self._disk, self._directory)
            sync_directory(self._disk, self._directory.parent)
            self._name_unsynced = False

    def write(self) -> None:
        self._blocks.write()

    def removing(self) -> AbstractContextManager[None]:
        return self._blocks.removing()

    def set_compression(self, compress: bool) -> None:
        self._blocks.set_compression(compress)

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        self._consumers = {name: one for name, one in self._consumers.items() if not one.closed}
        taken = [(consumer, *consumer.take_unsynced()) for consumer in self._consumers.values()]
        consumer_of = {path: consumer for consumer, paths, _ in taken for path in paths}
        names = {path for _, _, paths in taken for path in paths}
        if self._consumers_changed:
            names.add(self._directory / CONSUMERS)
        if self._name_unsynced:
            names |= {self._directory, self._directory.parent}
            self._name_syncing = True
        self._consumers_changed = self._name_unsynced = False

        def on_end(error: StoreWriteError | None) -> None:
            self._name_syncing = False
            self._name_unsynced |= error is not None
            for consumer, its_files, its_names in taken:
                (consumer.sync_succeeded if error is None else consumer.sync_failed)(its_files, its_names)

        def sync_consumers() -> None:
            self._disk.for_each(lambda path: consumer_of[path].sync_file(path), sorted(consumer_of))

        self._blocks.start_sync(done, also=sync_consumers, names=sorted(names), on_end=on_end)

    def trim_cache(self) -> None:
        self.log.release_idle()

    def sync(self) -> None:
        self._blocks.sync()
        self.sync_name()
        self._consumers = {name: one for name, one in self._consumers.items() if not one.closed}
        if self._consumers_changed:
            sync_directory(self._disk, self._directory / CONSUMERS)
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
            self._blocks.drain()  # jobs may write: sync after them
            if self._blocks.must_write_again:
                self.write()
                self._blocks.drain()
            self.sync()
            for consumer in self._consumers.values():
                consumer.close()
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
        self._memory_consumers.clear()
        self.abandon()  # work in flight changes no more names, here or in a new stream of this name
        self._undeleted_streams.add(self.name)
        hidden = hide_directory(self._disk, self._directory, META)
        self._undeleted_streams.discard(self.name)
        self._files.remove_hidden(hidden)

    def consumer_names(self) -> list[str]:
        on_disk = list_assets(self._files, self._directory / CONSUMERS, META)
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
            found = list_assets(self._files, self._directory / CONSUMERS, META)
            if name in self._consumers:
                self._consumers[name].abandon()
            path = found.get(name, self._consumer_directory(name))  # maybe hidden already, but not durably
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
            store = self._memory_consumers[name] = MemoryConsumerStore(self._memory_consumers, name, meta)
            return store
        make_empty(self._disk, directory, sync_name=False)
        consumer = FileConsumerStore.create(directory, name, meta, self._files)
        consumer.undeleted = self._undeleted
        self._consumers[name] = consumer
        self._consumers_changed = True
        return consumer

    def _consumer_directory(self, name: str) -> Path:
        return self._directory / CONSUMERS / quote_name(name)
