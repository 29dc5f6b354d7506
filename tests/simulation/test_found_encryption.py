"""What seeds of the simulation found about encrypted stores, in small."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreWriteError
from penstock.store.file import FileStore
from penstock.store.interface import ConsumerStore, StreamStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.sim_disk import SimDisk

KEY = StoreKey("chacha", "secret")


class FailingAt(SimDisk):
    """One of its operations fails."""

    fail_at = 0

    def _step(self, what: str, path: Path | None = None) -> None:
        super()._step(what, path)
        if self.ops == self.fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path or what))


def opened(disk: SimDisk) -> FileStore:
    return FileStore("/store", disk=disk, key=KEY)


def consumer_of(store: FileStore) -> ConsumerStore:
    return store.account("$G").open_stream("S").open_consumer("c")


@pytest.mark.parametrize("room", [0, 5, 8, 30, 32, 40])
def test_a_journal_whose_first_bytes_did_not_fit_on_the_disk_is_begun_again_by_the_next_start(
    room: int,
) -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    journal = stream.create_consumer("c", b"{}")
    journal.append(b"one")
    disk.room = room
    with pytest.raises(StoreWriteError):
        journal.write()
    disk.restart()  # the process was killed
    journal = consumer_of(opened(disk))
    assert journal.load() == (None, [])
    journal.append(b"two")
    journal.write()
    disk.restart()
    assert consumer_of(opened(disk)).load() == (None, [b"two"])


class CountingDisk(SimDisk):
    """Counts replaced files, and refuses to read the blocks on request."""

    renames = 0
    unreadable = False

    def rename(self, old: Path, new: Path) -> None:
        self.renames += 1
        super().rename(old, new)

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        if self.unreadable and path.suffix == ".blk":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().read_at(path, offset, count)


def filled(disk: SimDisk, key: StoreKey | None = KEY) -> StreamStore:
    stream = FileStore("/store", disk=disk, key=key).account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 6):
        stream.log.append(b"s", b"", b"%d" % number, number)
    stream.write()
    return stream


def payloads(disk: SimDisk) -> list[bytes]:
    disk.restart()
    log = FileStore("/store", disk=disk, key=KEY).account("$G").open_stream("S").log
    found = [log.load(seq) for seq in range(log.first_seq, log.last_seq + 1)]
    return [message.payload for message in found if message is not None]


def test_erasures_of_one_tick_rewrite_the_encrypted_file_of_a_block_once() -> None:
    disk = CountingDisk(Random(1))
    stream = filled(disk)
    before = disk.renames
    for seq in (1, 3, 4):
        stream.log.remove(seq, True)
    stream.write()
    assert disk.renames == before + 1
    assert payloads(disk) == [b"2", b"5"]


@pytest.mark.parametrize("operation", range(1, 9))
def test_an_erasure_that_the_disk_interrupts_leaves_the_encrypted_file_fit_to_be_appended_to(
    operation: int,
) -> None:
    disk = FailingAt(Random(1))
    stream = filled(disk)
    stream.log.remove(3, True)
    disk.fail_at = disk.ops + operation
    with contextlib.suppress(StoreWriteError):
        stream.write()
    stream.log.append(b"s", b"", b"6", 6)
    stream.write()
    assert payloads(disk) == [b"1", b"2", b"4", b"5", b"6"]


@pytest.mark.parametrize("key", [KEY, None])
def test_an_erasure_in_a_block_that_can_not_be_read_is_reported_and_the_stream_goes_on(
    key: StoreKey | None, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CountingDisk(Random(1))
    stream = filled(disk, key)
    disk.unreadable = True
    stream.log.remove(3, True)
    stream.write()
    stream.log.append(b"s", b"", b"6", 6)
    stream.write()
    assert "securely removed records may still be in it" in caplog.text
    assert stream.log.messages == 5


@pytest.mark.parametrize(
    ("key", "at", "mask"),
    [(KEY, 8, 64), (KEY, 9, 64), (None, 9, 1)],
    ids=["version", "cipher", "needs a key"],
)
def test_a_changed_bit_in_the_head_of_a_closed_block_loses_the_messages_of_that_block_alone(
    key: StoreKey | None, at: int, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk(Random(1))
    store = FileStore("/store", disk=disk, key=key, block_size=300)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    stream.set_compression(True)
    for number in range(1, 7):
        stream.log.append(b"s", b"", b"." * 100, number)
    stream.write()
    head = next(file for path, file in disk.files() if path.endswith("/2.blk"))
    head.data[at] ^= mask
    disk.restart()
    store = FileStore("/store", disk=disk, key=key, block_size=300)
    log = store.account("$G").open_stream("S").log
    assert [seq for seq in range(1, 7) if log.load(seq) is not None] == [1, 2, 5, 6]
    assert log.lost == 2
    assert "/2.blk: it " in caplog.text
