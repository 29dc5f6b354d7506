"""Snapshot and journal: what was written is read back, a torn end is cut, generations do not mix."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorruptError, StoreWriteError
from penstock.store.files import OpenFiles
from penstock.store.journal import FileConsumerStore, frame_entry, read_entries

pytestmark = pytest.mark.feature("stream.recovery")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "consumer"
    path.mkdir()
    return path


def reopened(directory: Path) -> FileConsumerStore:
    return FileConsumerStore.open(directory, OpenFiles())


def test_entries_come_back_in_order(directory: Path) -> None:
    store = FileConsumerStore.create(directory, "c", b"meta", OpenFiles())
    for entry in (b"one", b"", b"three" * 100):
        store.append(entry)
    assert reopened(directory).load() == (None, [])
    store.write()
    assert store.journal_bytes == sum(len(frame_entry(e, 0)) for e in (b"one", b"", b"three" * 100))
    again = reopened(directory)
    assert again.load() == (None, [b"one", b"", b"three" * 100])
    assert again.journal_bytes == store.journal_bytes and again.meta == b"meta" and again.name == "c"
    again.append(b"four")
    again.close()
    assert reopened(directory).load()[1][3:] == [b"four"]


def test_a_snapshot_replaces_what_was_before(directory: Path) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    store.append(b"old")
    store.write()
    store.append(b"covered by the snapshot")
    store.snapshot(b"state")
    assert store.journal_bytes == 0
    assert reopened(directory).load() == (b"state", [])
    store.append(b"new")
    store.close()
    assert reopened(directory).load() == (b"state", [b"new"])


def test_a_journal_torn_at_every_byte_keeps_its_whole_entries(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    entries = [b"first", b"2", b"the third"]
    ends = [0]
    for entry in entries:
        store.append(entry)
        ends.append(store.journal_bytes)
    store.close()
    path = directory / "journal.0"
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends) - 1
        caplog.clear()
        with caplog.at_level(logging.WARNING, "penstock.store"):
            again = reopened(directory)
            assert again.load() == (None, entries[:kept])
        assert bool(caplog.messages) == (cut not in ends)
        again.append(b"next")
        again.close()
        assert reopened(directory).load() == (None, [*entries[:kept], b"next"])


def test_a_flipped_byte_ends_the_journal_there(directory: Path) -> None:
    frames = [frame_entry(entry, 3) for entry in (b"first", b"2", b"the third")]
    whole = b"".join(frames)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        found, size = read_entries(bytes(damaged), 3)
        kept = sum(len(b"".join(frames[: i + 1])) <= at for i in range(3))
        assert found == [b"first", b"2", b"the third"][:kept] and size == len(b"".join(frames[:kept]))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_entries(data: bytes) -> None:
    entries, size = read_entries(data, 0)
    assert size <= len(data) and b"".join(frame_entry(entry, 0) for entry in entries) == data[:size]


def test_an_old_journal_is_never_applied_to_a_new_snapshot(directory: Path, tmp_path: Path) -> None:
    """A crash between replacing the snapshot and removing the journal."""
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    store.append(b"old")
    store.write()
    shutil.copy(directory / "journal.0", tmp_path / "kept")
    store.snapshot(b"state")
    shutil.copy(tmp_path / "kept", directory / "journal.0")
    assert reopened(directory).load() == (b"state", [])
    assert not (directory / "journal.0").exists()


def test_entries_of_one_generation_are_not_read_as_those_of_another(directory: Path) -> None:
    assert read_entries(frame_entry(b"old", 0), 1) == ([], 0)


def test_a_crash_before_the_snapshot_is_in_place_keeps_the_old_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    store.snapshot(b"first")
    store.append(b"entry")
    store.write()

    def broken(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(StoreWriteError):
        store.snapshot(b"second")
    monkeypatch.undo()
    assert reopened(directory).load() == (b"first", [b"entry"])
    store.snapshot(b"third")
    assert reopened(directory).load() == (b"third", [])


def test_a_full_disk_keeps_what_is_left_for_the_next_write(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    for i in range(10):
        store.append(b"entry %d" % i)
    real = os.pwrite
    room = [100]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        count = real(fd, data[: room[0]], offset)
        room[0] -= count
        return count

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StoreWriteError):
        store.write()
    room[0] = 10000
    store.append(b"last")
    store.write()
    assert reopened(directory).load()[1] == [*(b"entry %d" % i for i in range(10)), b"last"]


def test_a_damaged_snapshot_is_reported_with_its_file(directory: Path) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    store.snapshot(b"state")
    path = directory / "state"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreCorruptError, match="consumer's state is damaged") as caught:
        reopened(directory).load()
    assert caught.value.path == str(path)


def test_a_deleted_consumer_leaves_nothing(directory: Path) -> None:
    store = FileConsumerStore.create(directory, "c", b"", OpenFiles())
    store.append(b"x")
    store.write()
    store.delete()
    assert list(directory.parent.iterdir()) == []
    store.close()
