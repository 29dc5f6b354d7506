"""What the simulation found about holes that power loss leaves in files, told as briefly as it can be."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from penstock.store.envelope import is_enveloped
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.sim_disk import Killed, SimDisk

MSGS = Path("/store/jetstream/%24G/streams/S/msgs")
COUNT = 4  # messages of the block with the hole


def opened(disk: SimDisk, key: StoreKey | None = None) -> StreamStore:
    disk.restart()
    return FileStore("/store", disk=disk, block_size=600, key=key).account("$G").open_stream("S")


def with_a_hole(disk: SimDisk) -> StreamStore:
    """Messages whose block begins with zeros; its index, which is whole, tells where they are."""
    stream = FileStore("/store", disk=disk, block_size=600).account("$G").create_stream("S", b"{}", "file")
    for number in range(1, COUNT + 2):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.write()
    assert disk.exists(MSGS / "1.idx")
    file = disk._file(MSGS / "1.blk")
    file.data[:38] = bytes(38)
    file.sync()
    return opened(disk)


def present(disk: SimDisk, key: StoreKey | None = None) -> list[int]:
    log = opened(disk, key).log
    return [seq for seq in range(1, log.last_seq + 1) if log.load(seq) is not None]


def test_a_message_behind_a_hole_stays_when_another_one_is_erased() -> None:
    disk = SimDisk(Random(1))
    stream = with_a_hole(disk)
    stream.log.remove(2, True)
    stream.write()
    assert b"S.2" not in disk.read(MSGS / "1.blk")
    assert present(disk) == [1, 3, 4, 5]
    stream = opened(disk)
    stream.log.remove(3, True)
    stream.write()
    assert present(disk) == [1, 4, 5]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("operation", range(1, 16))
def test_a_message_behind_a_hole_stays_when_a_rewrite_of_its_block_dies(operation: int, secure: bool) -> None:
    disk = SimDisk(Random(1))
    stream = with_a_hole(disk)
    for seq in range(1, COUNT):
        stream.log.remove(seq, secure)
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        stream.write()
    assert {COUNT, COUNT + 1} <= set(present(disk))


@pytest.mark.parametrize("operation", range(1, 30))
def test_messages_behind_a_hole_stay_when_the_store_gets_a_key(operation: int) -> None:
    disk, key = SimDisk(Random(1)), StoreKey("aes", "secret")
    with_a_hole(disk)
    disk.restart()
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        store = FileStore("/store", disk=disk, block_size=600, key=key).account("$G")
        store.open_stream("S").write()
    assert present(disk, key) == [1, 2, 3, 4, 5]
    opened(disk, key).write()
    assert is_enveloped(disk.read(MSGS / "1.blk"))
    assert present(disk, key) == [1, 2, 3, 4, 5]


class Tearing(SimDisk):
    """A disk that loses power in the middle of the write to an offset of the first block."""

    tears_at = -1

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if offset == self.tears_at and self._fds[fd] is self._file(MSGS / "1.blk"):
            super().write(fd, data[: len(data) // 2], offset)
            self._file(MSGS / "1.blk").sync()
            self.tears_at = -1
            raise Killed
        return super().write(fd, data, offset)


def half_erased(seq: int, block_size: int) -> tuple[Tearing, StreamStore]:
    """Four messages, and power is lost in the middle of overwriting one."""
    disk = Tearing(Random(1))
    account = FileStore("/store", disk=disk, block_size=block_size).account("$G")
    stream = account.create_stream("S", b"{}", "file")
    for number in range(1, 5):
        stream.log.append(b"S.%d" % number, b"", b"secret-%d." % number * 20, number)
    stream.write()
    stream.sync()
    disk.tears_at = disk.read(MSGS / "1.blk").index(b"S.%d" % seq) - 22
    stream.log.remove(seq, True)
    with pytest.raises(Killed):
        stream.write()
    assert b"secret-%d." % seq in disk.read(MSGS / "1.blk")
    return disk, opened(disk)


@pytest.mark.parametrize("block_size", [600, 10_000], ids=["closed block", "open block"])
def test_a_record_whose_overwriting_power_loss_tore_is_overwritten_again(block_size: int) -> None:
    disk, stream = half_erased(2, block_size)
    stream.write()
    assert b"secret-2." not in disk.read(MSGS / "1.blk")
    assert present(disk) == [1, 3, 4]
    assert not disk.exists(MSGS / "erasing")


@pytest.mark.parametrize("seq", [1, 4])
@pytest.mark.parametrize("operation", range(1, 9))
def test_an_erasure_beside_a_torn_one_is_done_after_a_restart(operation: int, seq: int) -> None:
    disk, stream = half_erased(2, 10_000)
    stream.log.remove(seq, True)
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        stream.write()
        disk.kill_at = None
    stream = opened(disk)
    gone = stream.log.load(seq) is None
    stream.write()
    content = disk.read(MSGS / "1.blk")
    assert b"secret-2." not in content
    assert not (gone and b"secret-%d." % seq in content)
