"""A disk that can't read some sectors (EIO): what lies there is lost and said to be, the server goes on."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreCorruptError
from penstock.store.block_reading import read_readable_sectors
from penstock.store.disk import LOCAL_DISK, populate
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.consumers import ConsumerHarness

pytestmark = pytest.mark.feature("stream.recovery", "operations.fault-containment")

BLOCK = 64 * 1024
PAYLOAD = b"." * 2000


class BadSectors(SimDisk):
    """Some sectors of block files can't be read."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.bad: dict[str, set[int]] = {}

    def _refuse(self, path: Path, first: int, last: int) -> None:
        if any(first <= sector <= last for sector in self.bad.get(path.name, ())):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def map(self, path: Path) -> memoryview:
        self._refuse(path, 0, self.size(path) // 4096)
        return super().map(path)

    def read(self, path: Path) -> bytes:
        self._refuse(path, 0, self.size(path) // 4096)
        return super().read(path)

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        self._refuse(path, offset // 4096, (offset + count - 1) // 4096)
        return super().read_at(path, offset, count)


def filled(disk: BadSectors) -> ConsumerHarness:
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    for number in range(100):
        bench.store_messages(f"s.{number}", payload=PAYLOAD)
    return bench


def got(bench: ConsumerHarness, seq: int) -> str:
    answer = bench.api("STREAM.MSG.GET.S", {"seq": seq})
    return str(answer["error"]["err_code"]) if "error" in answer else str(answer["message"]["seq"])


def test_messages_in_a_sector_that_can_not_be_read_are_lost_and_all_others_are_served() -> None:
    disk = BadSectors()
    bench = filled(disk)
    disk.bad["1.blk"] = {3}  # bytes 12288..16383: of messages 6 to 8
    found = {seq: got(bench, seq) for seq in range(1, 101)}
    lost = [seq for seq, text in found.items() if text == "10037"]
    assert lost and set(lost) <= {6, 7, 8, 9}
    assert all(found[seq] == str(seq) for seq in found if seq not in lost)
    bench.store_messages("s.more")
    assert got(bench, 101) == "101"


def test_the_message_before_a_removed_last_one_is_found_beyond_lost_ones() -> None:
    disk = BadSectors()
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    for number in range(1, 101):
        bench.store_messages("s.x" if number in (7, 60, 70, 80) else f"s.{number}", payload=PAYLOAD)
    disk.bad["1.blk"] = set(range(100))
    for number in range(1, 15):  # what the first block has is lost, and nothing leads from 7 to 60 any more
        bench.api("STREAM.MSG.GET.S", {"seq": number})
    for gone, last in ((80, 70), (70, 60)):
        assert bench.api("STREAM.MSG.DELETE.S", {"seq": gone, "no_erase": True})["success"]
        assert bench.api("STREAM.MSG.GET.S", {"last_by_subj": "s.x"})["message"]["seq"] == last
        assert bench.engine.streams["S"].log.last_seq_of(b"s.x") == last


def test_the_last_message_of_a_subject_is_the_last_that_can_be_read() -> None:
    disk = BadSectors()
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    for number in range(1, 101):
        bench.store_messages("s.x" if number in (2, 7) else f"s.{number}", payload=PAYLOAD)
    disk.bad["1.blk"] = {3}  # 7 is there
    for filter_subject in ("s.x", "*.x"):
        answer = bench.api("STREAM.MSG.GET.S", {"last_by_subj": filter_subject})
        assert answer["message"]["seq"] == 2
    assert bench.api("STREAM.MSG.GET.S", {"last_by_subj": "s.8"})["error"]["err_code"] == 10037
    assert bench.api("STREAM.MSG.GET.S", {"last_by_subj": "s.none"})["error"]["err_code"] == 10037


def test_a_consumer_is_given_what_can_be_read() -> None:
    disk = BadSectors()
    bench = filled(disk)
    disk.restart()
    disk.bad["2.blk"] = {0}
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    bench.consumer("c", durable_name="c")
    seqs = [one.seq for one in bench.pull("c", {"batch": 200, "no_wait": True}).take() if one.reply]
    missing = set(range(1, 101)) - set(seqs)
    assert 1 <= len(missing) <= 4 and seqs == sorted(seqs)


def test_a_start_reads_around_a_sector_of_a_closed_block() -> None:
    disk = BadSectors()
    filled(disk)
    disk.restart()
    disk.bad["2.blk"] = {5}
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    answers = [got(bench, seq) for seq in range(1, 101)]
    assert 1 <= answers.count("10037") <= 4


def test_a_newest_block_that_can_not_be_read_is_not_touched_and_its_stream_is_offline() -> None:
    disk = BadSectors()
    filled(disk)
    newest = max(int(path.rsplit("/", 1)[1][:-4]) for path, _ in disk.files() if path.endswith(".blk"))
    before = {path: bytes(file.data) for path, file in disk.files() if path.endswith(".blk")}
    disk.restart()
    disk.bad[f"{newest}.blk"] = {0}
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    assert "Input/output error" in bench.engine.offline["S"]
    assert {path: bytes(file.data) for path, file in disk.files() if path.endswith(".blk")} == before
    disk.bad.clear()
    disk.restart()
    bench = ConsumerHarness(FileStore("/store", disk=disk, block_size=BLOCK).account("$G"))
    assert bench.state("S")["messages"] == 100


def test_a_file_of_which_too_much_is_refused_counts_as_unreadable() -> None:
    disk = BadSectors()
    fd = disk.open(Path("/x.blk"))
    disk.write(fd, bytes(4096 * 200), 0)
    disk.bad["x.blk"] = set(range(200))
    with pytest.raises(StoreCorruptError):
        read_readable_sectors(disk, Path("/x.blk"))


def test_mapped_bytes_that_are_not_there_are_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 4096)  # what lies behind raises SIGBUS now, as a bad sector does
    with pytest.raises(OSError) as caught:
        populate(mapped)
    assert caught.value.errno in (errno.EIO, errno.EINVAL)


def test_a_mapped_file_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(b"bytes of a block" * 1000)
    assert LOCAL_DISK.map(path) == path.read_bytes()
    path.write_bytes(b"")
    assert LOCAL_DISK.map(path) == b""
