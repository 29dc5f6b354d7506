"""File stores on simulated disks, and an executor that works when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.kernels.log.records import Corrupt, RecordReader
from penstock.store.executor import DiskExecutor, InlineExecutor
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.testing.sim.sim_disk import SimDisk

MSGS = Path("/store/jetstream/%24G/streams/S/msgs")


class Hanging:
    """Background work that waits until the test does it. Waiting for it is an error."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any, Any], None], owner: object) -> None:
        self.waiting.append((work, done))

    def complete_one(self, owner: object) -> bool:
        assert not self.waiting, "something waits for background work"
        return False

    def finish(self) -> None:
        """Runs the work there is, and what it starts."""
        while self.waiting:
            InlineExecutor().run(*self.waiting.pop(0))


def opened(disk: SimDisk, background: DiskExecutor | None = None, *, block_size: int = 4000) -> FileStore:
    return FileStore("/store", disk=disk, block_size=block_size, executor=background)


def filled(store: FileStore, *, count: int = 3, size: int = 20) -> StreamStore:
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for seq in range(1, count + 1):
        stream.log.append(b"S", b"", b"%d" % seq * size, seq)
    stream.write()
    return stream


def stored(disk: SimDisk, directory: Path = MSGS) -> list[int]:
    """The sequences of the messages in all block files."""
    found = []
    for name in disk.names(directory):
        if name.endswith(".blk"):
            reader = RecordReader(disk.read(directory / name))
            while (record := reader.next()) is not None:
                assert not isinstance(record, Corrupt)
                found += [record[1]] if record[0] == 0 else []
    return found


def restarted(disk: SimDisk) -> SimDisk:
    disk.restart()
    return disk
