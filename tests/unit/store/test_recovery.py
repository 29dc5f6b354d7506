"""Recovery: what is whole before a damage is kept, and nothing else is made of what is behind it."""

from __future__ import annotations

import logging
import os
import shutil
import struct
from pathlib import Path

import pytest

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.file import FileStore

pytestmark = pytest.mark.feature("stream.recovery")


def messages(log: StreamLog) -> list[tuple[int, bytes, bytes, bytes]]:
    """Every live message, in order."""
    found = []
    seq = log.next_seq(1)
    while seq:
        message = log.load(seq)
        if message is not None:
            found.append((message.seq, message.subject, message.header, message.payload))
        seq = log.next_seq(seq + 1)
    return found


def write_stream(root: Path, count: int, *, block_size: int = 1 << 20) -> tuple[Path, list[int]]:
    """A stream of `count` messages; its block directory, and the first block's size after each message."""
    store = FileStore(root, block_size=block_size)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    ends = []
    for i in range(count):
        stream.log.append(b"s.%d" % (i % 3), b"NATS/1.0\r\n\r\n" if i % 2 else b"", b"payload %d" % i, i)
        ends.append(stream.log.block_list()[0].size)
        if i % 100 == 99:  # as ticks do; one write of many blocks syncs all later ones for each of them
            stream.write()
    stream.write()
    store.abandon()
    return root / "jetstream" / "%24G" / "streams" / "S" / "msgs", ends


def recovered(root: Path, *, block_size: int = 1 << 20) -> tuple[FileStore, StreamLog]:
    store = FileStore(root, block_size=block_size)
    return store, store.account("$G").open_stream("S").log


@pytest.fixture
def template(tmp_path: Path) -> tuple[Path, Path, list[int]]:
    root = tmp_path / "template"
    blocks, ends = write_stream(root, 6)
    return root, blocks.relative_to(root), ends


def test_a_cut_at_every_byte_of_the_last_records_keeps_exactly_the_whole_ones(
    tmp_path: Path, template: tuple[Path, Path, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    root, blocks, ends = template
    whole = (root / blocks / "1.blk").read_bytes()
    for cut in range(ends[2], len(whole) + 1):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(root, copy)
        (copy / blocks / "1.blk").write_bytes(whole[:cut])
        caplog.clear()
        kept = sum(end <= cut for end in ends)
        with caplog.at_level(logging.WARNING, "penstock.store"):
            store, log = recovered(copy)
        assert (log.messages, log.last_seq, log.first_seq) == (kept, kept, 1)
        assert [seq for seq, *_ in messages(log)] == list(range(1, kept + 1))
        torn = cut not in ends
        assert any(f"cut at byte {ends[kept - 1]} of {cut}" in text for text in caplog.messages) == torn
        if torn:
            side = copy / blocks / f"1.blk.cut-{ends[kept - 1]}"
            assert side.read_bytes() == whole[ends[kept - 1] : cut]
        assert log.append(b"s.0", b"", b"next", 99) == kept + 1
        store.close()
        store, log = recovered(copy)
        assert log.messages == kept + 1 and messages(log)[-1][3] == b"next"
        store.close()


def records_in(data: bytes) -> list[tuple[int, int, bool]]:
    """(offset, end, is it a message) of each record of a whole block."""
    found = []
    at = 0
    while at < len(data):
        length, tagged = struct.unpack_from("<IQ", data, at)
        size = length & 0x7FFFFFFF
        found.append((at, at + size, tagged >> 48 == 0))
        at += size
    return found


def test_a_flipped_byte_loses_its_record_and_where_it_was_of_a_length_what_is_behind(
    tmp_path: Path, template: tuple[Path, Path, list[int]]
) -> None:
    root, blocks, ends = template
    whole = (root / blocks / "1.blk").read_bytes()
    path = root / blocks / "1.blk"
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        store, log = recovered(root)
        records = records_in(whole)
        start, end, is_message = next(record for record in records if record[0] <= at < record[1])
        if at - start < 4 or end == len(whole):
            kept = sum(message for _, until, message in records if until <= start)
            assert path.stat().st_size == start
        else:
            kept = len(ends) - is_message
            assert path.read_bytes() == damaged
        assert log.messages == kept
        store.abandon()


def with_batch(root: Path, *, removed: int = 0) -> Path:
    """A stream of the message 1, a batch of 2 to 5, and the message 6; its block file."""
    store = FileStore(root)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"s", b"", b"message 1", 1)
    stream.log.begin_batch(1000, 4)
    for seq in (2, 3, 4, 5):
        stream.log.append(b"s", b"", b"message %d" % seq * 4, seq)
    stream.log.end_batch()
    stream.log.append(b"s", b"", b"message 6", 6)
    if removed:
        stream.log.remove(removed)
    stream.write()
    store.abandon()
    return root / "jetstream" / "%24G" / "streams" / "S" / "msgs" / "1.blk"


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("damaged", [2, 3, 5])
def test_a_batch_of_which_a_power_loss_kept_bytes_back_is_lost_whole(
    tmp_path: Path, damaged: int, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = with_batch(tmp_path)
    data = path.read_bytes()
    at = data.index(b"message %d" % damaged)
    path.write_bytes(data[:at] + bytes(20) + data[at + 20 :])  # as of a page that a power loss kept back
    if is_closed:
        (path.parent / "2.blk").write_bytes(b"")
    for _ in range(2):
        store, log = recovered(tmp_path)
        assert [seq for seq, *_ in messages(log)] == [1, 6]
        assert (log.messages, log.last_seq) == (2, 6)
        store.abandon()
    assert any("the atomic batch of messages 2 to 5 is lost" in text for text in caplog.messages)


def test_a_batch_is_whole_when_its_damaged_message_was_removed(tmp_path: Path) -> None:
    path = with_batch(tmp_path, removed=3)
    data = path.read_bytes()
    at = data.index(b"message 3")
    path.write_bytes(data[:at] + bytes(20) + data[at + 20 :])  # half overwritten, because it was to be erased
    store, log = recovered(tmp_path)
    assert [seq for seq, *_ in messages(log)] == [1, 2, 4, 5, 6]
    store.abandon()


def test_recovering_twice_gives_the_same(tmp_path: Path, template: tuple[Path, Path, list[int]]) -> None:
    root, blocks, _ends = template
    path = root / blocks / "1.blk"
    path.write_bytes(path.read_bytes()[:-3])
    seen = []
    for _ in range(3):
        store, log = recovered(root)
        seen.append((log.first_seq, log.last_seq, log.bytes, messages(log), path.read_bytes()))
        store.abandon()
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_damaged_block_in_the_middle_costs_its_end_and_not_the_blocks_after(
    tmp_path: Path, with_index: bool, caplog: pytest.LogCaptureFixture
) -> None:
    blocks, _ = write_stream(tmp_path, 60, block_size=400)
    numbers = sorted(int(path.stem) for path in blocks.glob("*.blk"))
    middle = blocks / f"{numbers[len(numbers) // 2]}.blk"
    data = bytearray(middle.read_bytes())
    data[-20] ^= 1
    middle.write_bytes(data)
    if not with_index:
        middle.with_suffix(".idx").unlink()
    for _ in range(2):
        store, log = recovered(tmp_path, block_size=400)
        with caplog.at_level(logging.ERROR, "penstock.store"):
            found = [seq for seq, *_ in messages(log)]
        missing = set(range(1, 61)) - set(found)
        assert len(missing) == 1 and log.last_seq == 60
        assert log.num_deleted == 1 and log.deleted() == list(missing)
        assert any(str(middle) in text and "lost" in text for text in caplog.messages)
        store.abandon()


def test_a_damaged_index_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocks, _ = write_stream(tmp_path, 60, block_size=400)
    index = min(blocks.glob("*.idx"))
    whole = index.read_bytes()
    for at in range(0, len(whole), 7):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        store, log = recovered(tmp_path, block_size=400)
        assert log.messages == 60 and len(messages(log)) == 60
        store.abandon()
        assert index.read_bytes() == whole  # written again


def test_an_index_of_other_bytes_is_not_trusted(tmp_path: Path) -> None:
    blocks, _ = write_stream(tmp_path, 60, block_size=400)
    first, second = sorted(blocks.glob("*.idx"), key=lambda path: int(path.stem))[:2]
    first.write_bytes(second.read_bytes())
    store, log = recovered(tmp_path, block_size=400)
    assert len(messages(log)) == 60
    store.close()


def test_removals_purges_and_limits_survive(tmp_path: Path) -> None:
    store = FileStore(tmp_path, block_size=500)
    log = (stream := store.account("$G").create_stream("S", b"{}", "file")).log
    for i in range(100):
        log.append(b"s.%d" % (i % 4), b"", b"x" * 20, i)
    stream.write()
    log.remove(50)
    log.remove(60, secure=True)
    log.purge(b"s.2", upto_seq=70)
    log.limit(60, 0)
    log.limit_subject(b"s.3", 5)
    stream.write()
    before = (log.first_seq, log.last_seq, log.bytes, log.first_ts, log.subjects(), messages(log))
    store.abandon()
    assert b"x" * 20 not in _record_bytes(tmp_path, 60)
    for _ in range(2):
        store, log = recovered(tmp_path, block_size=500)
        after = (log.first_seq, log.last_seq, log.bytes, log.first_ts, log.subjects(), messages(log))
        assert after == before
        store.close()


def _record_bytes(root: Path, seq: int) -> bytes:
    """What the files hold around the sequence's number, of messages alone."""
    needle = seq.to_bytes(8, "little") + (seq - 1).to_bytes(8, "little")  # the time it was given
    data = b"".join(path.read_bytes() for path in root.glob("**/*.blk"))
    at = data.find(needle)
    return b"" if at < 0 else data[at : at + 60]


def test_sequences_go_on_after_everything_was_purged(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for i in range(10):
        stream.log.append(b"a", b"", b"x", i)
    stream.write()
    stream.log.purge()
    stream.write()
    store.abandon()
    store, log = recovered(tmp_path)
    assert (log.first_seq, log.last_seq, log.messages, log.last_ts) == (11, 10, 0, 9)
    assert log.append(b"a", b"", b"y", 11) == 11
    store.close()


def test_the_first_sequence_survives_without_a_message(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    stream.log.set_first_seq(1000)
    stream.write()
    store.abandon()
    store, log = recovered(tmp_path)
    assert (log.first_seq, log.last_seq) == (1000, 999)
    store.close()


def test_blocks_whose_messages_are_gone_leave_the_disk(tmp_path: Path) -> None:
    store = FileStore(tmp_path, block_size=500)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for i in range(200):
        stream.log.append(b"a", b"", b"x" * 20, i)
        stream.log.limit(10, 0)
        stream.write()
    blocks = tmp_path / "jetstream" / "%24G" / "streams" / "S" / "msgs"
    assert len(list(blocks.iterdir())) < 10
    store.close()


class FullDisk:
    """os.pwrite on a disk with room for so many bytes more; takes half of what it is given at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.pwrite = os.pwrite

    def __call__(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.room == 0 and len(data):
            raise OSError(28, "No space left on device")
        count = min(self.room, max(len(data) // 2, 1))
        self.room -= count
        return self.pwrite(fd, bytes(data[:count]), offset)


def test_a_full_disk_keeps_what_is_left_for_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, block_size=500)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    disk = FullDisk(0)
    monkeypatch.setattr(os, "pwrite", disk)
    for i in range(40):
        stream.log.append(b"a", b"", b"x" * i, i)
        with pytest.raises(StoreWriteError, match="No space left"):
            stream.write()
        disk.room = 31
    disk.room = 1 << 20
    stream.write()
    store.abandon()
    monkeypatch.undo()
    store, log = recovered(tmp_path, block_size=500)
    assert [len(payload) for *_, payload in messages(log)] == list(range(40))
    store.close()


def test_a_stream_does_not_write_into_a_removed_file_of_one_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, block_size=500)
    account = store.account("$G")
    stream = account.create_stream("S", b"{}", "file")
    disk = FullDisk(1 << 20)
    monkeypatch.setattr(os, "pwrite", disk)
    stream.log.append(b"a", b"", b"x" * 300, 1)
    stream.write()
    disk.room = 0
    stream.log.append(b"a", b"", b"x" * 300, 2)
    with pytest.raises(StoreWriteError, match="No space left"):
        stream.write()  # creates the file of the second block, and writes nothing
    stream.delete()
    disk.room = 1 << 20
    stream = account.create_stream("S", b"{}", "file")
    for number in (3, 4, 5):
        stream.log.append(b"a", b"", bytes([number]) * 300, number)
        stream.write()
    store.abandon()
    monkeypatch.undo()
    store, log = recovered(tmp_path, block_size=500)
    assert [payload for *_, payload in messages(log)] == [bytes([number]) * 300 for number in (3, 4, 5)]
    store.close()


def test_a_process_killed_on_a_full_disk_leaves_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    monkeypatch.setattr(os, "pwrite", FullDisk(333))
    for i in range(40):
        stream.log.append(b"a", b"", b"x" * 20, i)
    with pytest.raises(StoreWriteError):
        stream.write()
    monkeypatch.undo()
    store.abandon()
    store, log = recovered(tmp_path)
    assert [seq for seq, *_ in messages(log)] == list(range(1, log.messages + 1)) and 0 < log.messages < 40
    store.close()


def test_a_failing_sync_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"a", b"", b"x", 1)
    stream.write()

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StoreWriteError, match=r"1\.blk: cannot sync: Input/output error"):
        stream.sync()
    monkeypatch.undo()
    with pytest.raises(StoreWriteError, match="written again first"):
        stream.sync()
    stream.write()
    stream.sync()
    store.close()


def test_a_read_that_finds_other_bytes_gives_no_message_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks, _ = write_stream(tmp_path, 60, block_size=400)
    store, log = recovered(tmp_path, block_size=400)
    path = min(blocks.glob("*.blk"), key=lambda path: int(path.stem))
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR, "penstock.store"):
        found = messages(log)
    assert len(found) == 59 and log.lost == 1 and log.messages == 59
    assert any("is lost" in text and path.name in text for text in caplog.messages)
    store.abandon()


def test_a_stream_that_is_not_there_is_reported(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with pytest.raises(StoreError, match="keeps no stream 'none'"):
        store.account("$G").open_stream("none")
    store.close()


def test_reading_a_long_stream_keeps_few_of_its_blocks_in_memory(tmp_path: Path) -> None:
    write_stream(tmp_path, 3000, block_size=200)
    store, log = recovered(tmp_path, block_size=200)
    assert len(log.block_list()) > 700
    for _ in range(2):
        assert len(messages(log)) == 3000
        assert sum(block.resident for block in log.block_list()) <= 260
    for seq in range(2999, 0, -7):
        assert log.remove(seq)
    assert log.messages == 3000 - 429 and len(messages(log)) == log.messages
    store.close()
