"""A securely removed message is overwritten once its tombstone is on the disk, and never returns."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreWriteError
from penstock.store.envelope import FileCipher, is_enveloped
from penstock.store.executor import InlineExecutor
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.file_stores import MSGS, Hanging, filled, opened, restarted, stored
from tests.support.simdisks import FailingDisk


def test_an_erased_message_stays_in_its_file_until_a_sync_covers_its_tombstone() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.log.remove(2, secure=True)
    stream.write()
    assert stored(disk) == [1, 2, 3] and len(background.waiting) == 1
    background.finish()
    assert stored(disk) == [1, 3]


def test_a_removal_during_a_sync_waits_for_the_next_one() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.start_sync(lambda error: None)
    stream.log.remove(2, secure=True)
    stream.write()
    assert len(background.waiting) == 1
    InlineExecutor().run(*background.waiting.pop())
    assert stored(disk) == [1, 2, 3] and len(background.waiting) == 1
    background.finish()
    assert stored(disk) == [1, 3]


def test_a_failed_sync_leaves_the_record_for_the_next_one() -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.log.remove(2, secure=True)
    stream.write()
    disk.fails_at = "sync"
    background.finish()
    assert stored(disk) == [1, 2, 3]
    stream.write()
    background.finish()
    assert stored(disk) == [1, 3]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("synced", [False, True])
def test_recovery_erases_what_a_crash_left(power: bool, synced: bool) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.log.remove(2, secure=True)
    stream.write()
    if synced:  # the sync completed, but its end was not handled
        background.waiting.pop()[0]()
    if power:
        disk.lose_power(all_of_it=True)
    else:
        disk.restart()
    stream = opened(disk).account("$G").open_stream("S")
    lost = power and not synced
    assert [seq for seq in range(1, 4) if stream.log.load(seq)] == ([] if lost else [1, 3])
    stream.sync()
    assert stored(disk) == ([] if lost else [1, 3])


def test_a_message_whose_tombstone_was_lost_is_not_erased() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.sync()
    whole = disk.read(MSGS / "1.blk")
    stream.log.remove(2, secure=True)
    stream.write()
    disk.restart()
    fd = disk.open(MSGS / "1.blk", truncate=True)  # as after a power loss that kept the list alone
    disk.write(fd, whole, 0)
    stream = opened(disk).account("$G").open_stream("S")
    stream.sync()
    assert stream.log.load(2) is not None and stored(disk) == [1, 2, 3]


@pytest.mark.parametrize("compress", [False, True])
def test_a_message_erased_after_a_restart_does_not_return_with_its_block(compress: bool) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.log.remove(2, secure=True)
    stream.write()
    background = Hanging()  # what had not run is gone
    stream = opened(restarted(disk), background, block_size=400).account("$G").open_stream("S")
    stream.set_compression(compress)
    background.finish()
    assert stored(disk) == [1, 3]
    for seq in range(4, 9):
        stream.log.append(b"S", b"", bytes(100), seq)
        stream.write()
        background.finish()  # a full block closes, and is written again when it is compressed
    path = MSGS / "1.blk"
    plain = FileCipher().decode(disk.map(path), path).data if compress else disk.read(path)
    assert is_enveloped(disk.read(path)) is compress
    assert b"2" * 20 not in plain and b"1" * 20 in plain


def test_closing_erases_and_removes_the_list() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.log.remove(2, secure=True)
    stream.write()
    assert "erasing" in disk.names(MSGS)
    background.finish()
    stream.close()
    assert stored(disk) == [1, 3] and "erasing" not in disk.names(MSGS)


def test_a_record_that_a_rewrite_moves_is_not_overwritten_in_its_old_place() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background, block_size=400), count=12)
    background.finish()
    for seq in (1, 2, 3, 4):
        stream.log.remove(seq)
    stream.log.remove(5, secure=True)
    stream.write()  # most of the first block is worth nothing: a rewrite moves its records
    background.finish()
    stream.write()
    background.finish()
    kept = stored(disk)
    assert 5 not in kept and set(range(6, 13)) <= set(kept)
    disk.restart()
    log = opened(disk, block_size=400).account("$G").open_stream("S").log
    assert [seq for seq in range(1, 13) if log.load(seq)] == list(range(6, 13))


class ReplacingDisk(SimDisk):
    """Notes which block files there are whenever one is replaced."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.beside: list[set[str]] = []

    def rename(self, old: Path, new: Path) -> None:
        if new.suffix == ".blk":
            self.beside.append({name for name in self.names(MSGS) if name.endswith(".blk")})
        super().rename(old, new)


def test_a_block_is_rewritten_after_the_files_are_gone_that_its_tombstones_are_about() -> None:
    # It may have had some, and omits them. A power loss after its replacement would bring the messages in
    # those files back.
    disk, background = ReplacingDisk(), Hanging()
    stream = filled(opened(disk, background, block_size=200), count=12)
    background.finish()
    first, middle = stream.log.block_list()[:2]
    stream.log.remove(middle.first_seq + 1)
    for seq in range(13, 25):
        stream.log.append(b"S", b"", b"%d" % seq * 20, seq)
    stream.write()
    background.finish()
    stream.start_sync(lambda error: None)  # no file that it covers is removed before it ends
    with stream.removing():
        for seq in range(first.last_seq + 1, 13):  # one message is left in 5.blk
            stream.log.remove(seq)
    for _ in range(6):
        stream.write()
    assert not disk.beside
    background.finish()
    assert disk.beside and not disk.beside[0] & {"2.blk", "3.blk", "4.blk"}


def with_two_blocks(store: FileStore, background: Hanging) -> StreamStore:
    """A stream whose first block is closed and finalised, and synced."""
    stream = filled(store, count=12)
    background.finish()
    stream.sync()
    return stream


def erased_in_background(stream: StreamStore, background: Hanging, seq: int) -> None:
    """Removes a message securely and completes the sync of its tombstone. The overwriting is waiting work."""
    stream.log.remove(seq, secure=True)
    stream.write()
    assert len(background.waiting) == 1
    InlineExecutor().run(*background.waiting.pop())
    assert len(background.waiting) == 1


KEYS = [None, StoreKey("aes", "secret")]


@pytest.mark.parametrize("key", KEYS, ids=["plain", "encrypted"])
def test_records_of_a_closed_block_are_overwritten_in_the_background(key: StoreKey | None) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    store = FileStore("/store", disk=disk, block_size=400, executor=background, key=key)
    stream = with_two_blocks(store, background)
    before = disk.read(MSGS / "1.blk"), disk.exists(MSGS / "1.idx")
    erased_in_background(stream, background, 2)
    assert (disk.read(MSGS / "1.blk"), disk.exists(MSGS / "1.idx")) == before
    background.finish()
    assert disk.read(MSGS / "1.blk") != before[0]
    disk.lose_power(all_of_it=True)
    log = FileStore("/store", disk=disk, block_size=400, key=key).account("$G").open_stream("S").log
    assert [seq for seq in range(1, 13) if log.load(seq)] == [1, *range(3, 13)]


def test_the_old_file_of_an_encrypted_block_is_zeroed_once_readers_know_of_the_new_one() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    store = FileStore("/store", disk=disk, block_size=400, executor=background, key=KEYS[1])
    stream = with_two_blocks(store, background)
    erased_in_background(stream, background, 2)
    old = disk._file(MSGS / "1.blk")
    work, done = background.waiting.pop()
    outcome = work()
    assert any(old.data)  # a reader may be at it
    done(outcome, None)
    assert any(old.data) and disk._file(MSGS / "1.blk") is not old
    background.finish()
    assert len(old.data) and not any(old.data)


@pytest.mark.parametrize("key", KEYS, ids=["plain", "encrypted"])
@pytest.mark.parametrize("operation", range(1, 9))
def test_an_overwriting_that_fails_is_repeated_after_the_next_write(
    operation: int, key: StoreKey | None
) -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    store = FileStore("/store", disk=disk, block_size=400, executor=background, key=key)
    stream = with_two_blocks(store, background)
    erased_in_background(stream, background, 2)
    before = bytes(disk.read(MSGS / "1.blk"))
    disk.fails_in = operation
    background.finish()
    disk.fails_in = 0
    stream.write()
    background.finish()
    assert disk.read(MSGS / "1.blk") != before
    stream.close()
    assert "erasing" not in disk.names(MSGS)
    log = (
        FileStore("/store", disk=restarted(disk), block_size=400, key=key).account("$G").open_stream("S").log
    )
    assert [seq for seq in range(1, 13) if log.load(seq)] == [1, *range(3, 13)]


@pytest.mark.parametrize("key", KEYS, ids=["plain", "encrypted"])
@pytest.mark.parametrize("is_finalised", [False, True])
def test_an_overwriting_in_flight_leaves_the_files_of_the_next_stream_of_its_name_alone(
    key: StoreKey | None, is_finalised: bool
) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    store = FileStore("/store", disk=disk, block_size=400, executor=background, key=key)
    stream = with_two_blocks(store, background)
    erased_in_background(stream, background, 2)
    late = background.waiting.pop()
    stream.delete()
    filled(store, count=12)
    if is_finalised:
        background.finish()
    before = {name: disk.read(MSGS / name) for name in disk.names(MSGS)}
    InlineExecutor().run(*late)
    assert {name: disk.read(MSGS / name) for name in disk.names(MSGS)} == before
    assert is_finalised is ("1.idx" in before)


def test_the_list_keeps_a_record_until_the_file_of_its_dropped_block_is_gone() -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    with_two_blocks(opened(disk, background, block_size=400), background)
    file = disk._file(MSGS / "1.blk")
    file.data[:38] = bytes(38)  # only the index finds the records behind it: the block must be rewritten
    file.sync()
    disk.restart()
    stream = opened(disk, background, block_size=400).account("$G").open_stream("S")
    erased_in_background(stream, background, 2)
    InlineExecutor().run(*background.waiting.pop())
    _, done = background.waiting.pop()
    done(None, OSError(errno.EIO, "Input/output error"))  # the rewrite fails
    for seq in range(1, 12):
        stream.log.remove(seq)
    disk.fails_at = "write"
    with pytest.raises(StoreWriteError):
        stream.write()  # the block left the log, and its file stays until its tombstones are written
    stream.start_sync(lambda error: None)
    background.finish()
    assert disk.exists(MSGS / "1.blk") and "erasing" in disk.names(MSGS)
    stream.write()
    background.finish()
    stream.sync()
    assert not disk.exists(MSGS / "1.blk") and "erasing" not in disk.names(MSGS)
