"""Three bugs planted on purpose, by patching the product while a test runs: the simulation must find each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream.engine import JetStream
from penstock.kernels.streamlog import StreamLog
from penstock.store import blocks, recovery
from penstock.store.disk import Disk


def ack_before_write(patch: pytest.MonkeyPatch) -> None:
    """Pub acks leave before what they promise is with the operating system."""
    write = JetStream.write

    def early(engine: JetStream) -> None:
        engine.acknowledge()
        write(engine)

    patch.setattr(JetStream, "write", early)


class WithoutNotes:
    """A log that does not tell its store which messages are gone."""

    def __init__(self, log: StreamLog) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def flush_notes(self) -> None:
        pass

    def take_patches(self) -> list[tuple[int, int, bytes]]:
        self.log.take_patches()
        return []


def lost_tombstone(patch: pytest.MonkeyPatch) -> None:
    """Every other time, the notes that messages were removed are not written in the tick of their removal."""
    write, compact = blocks.BlockFiles.write, blocks.compact
    turns = iter(range(1 << 60))

    def forgetful(files: blocks.BlockFiles, log: StreamLog) -> None:
        write(files, WithoutNotes(log) if next(turns) % 2 else log)  # type: ignore[arg-type]

    patch.setattr(blocks.BlockFiles, "write", forgetful)
    patch.setattr(blocks, "compact", lambda log, most: compact(getattr(log, "log", log), most))


def off_by_one_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """Recovery reads all but the last byte of a block."""
    map_file = recovery.map_file

    def short(disk: Disk, path: Path) -> memoryview:
        return map_file(disk, path)[:-1]

    patch.setattr(recovery, "map_file", short)


PLANTED = [ack_before_write, lost_tombstone, off_by_one_in_recovery]
