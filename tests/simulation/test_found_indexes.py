"""What the simulation found about indexes that survive a power loss without the tombstones of what they omit,
told as briefly as it can be."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.sim_disk import SimDisk

MSGS = Path("/store/jetstream/%24G/streams/S/msgs")
KEY = StoreKey("aes", "secret")


def opened(disk: SimDisk, key: StoreKey | None = None) -> StreamStore:
    disk.restart()
    return FileStore("/store", disk=disk, block_size=600, key=key).account("$G").open_stream("S")


def present(disk: SimDisk, key: StoreKey | None = None) -> list[int]:
    log = opened(disk, key).log
    return [seq for seq in range(1, log.last_seq + 1) if log.load(seq) is not None]


def without_tombstones(disk: SimDisk) -> None:
    """Message 2 is removed as the index of its block says; its tombstone was in a file that is empty now."""
    stream = FileStore("/store", disk=disk, block_size=600).account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 5):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.log.remove(2)
    stream.log.append(b"S.5", b"", b"." * 100, 5)
    stream.write()
    assert disk.exists(MSGS / "1.idx")
    file = disk._file(MSGS / "2.blk")
    del file.data[:]
    file.sync()
    assert present(disk) == [1, 3, 4]


@pytest.mark.parametrize("restarts", [0, 1])
def test_it_stays_removed_when_another_message_of_its_block_is_erased(restarts: int) -> None:
    disk = SimDisk(Random(1))
    without_tombstones(disk)
    for seq in (3, 1):
        stream = opened(disk)
        stream.log.remove(seq, True)
        stream.write()
        stream.sync()
        stream.write()
        for _ in range(restarts):
            opened(disk)
        assert b"S.%d" % seq not in disk.read(MSGS / "1.blk")
    assert present(disk) == [4]


def test_it_stays_removed_when_its_block_is_encrypted() -> None:
    disk = SimDisk(Random(1))
    without_tombstones(disk)
    stream = opened(disk, KEY)
    stream.write()
    stream.sync()
    assert present(disk, KEY) == [1, 3, 4]


def test_a_block_whose_tombstones_are_there_is_overwritten_in_place() -> None:
    disk = SimDisk(Random(1))
    without_tombstones(disk)
    stream = opened(disk)
    stream.log.remove(3, True)
    stream.write()
    stream.sync()
    stream.write()
    size = len(disk.read(MSGS / "1.blk"))
    stream.log.remove(1, True)
    stream.write()
    stream.sync()
    stream.write()
    assert len(disk.read(MSGS / "1.blk")) == size
    assert present(disk) == [4]
