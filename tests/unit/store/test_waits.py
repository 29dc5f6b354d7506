"""Requests wait for no background work: neither of another stream, nor of what they delete."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.kernels.log.records import Corrupt, RecordReader
from penstock.server.disk_executor import LoopExecutor
from penstock.store.executor import DiskExecutor, InlineExecutor
from penstock.store.file import FileStore
from penstock.store.files import Permit, write_atomically
from penstock.store.interface import StreamStore
from penstock.testing.sim.sim_disk import SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.simdisks import FailingDisk

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


# --- the executor


def test_completing_the_work_of_one_owner_does_not_wait_for_that_of_another() -> None:
    loop = asyncio.new_event_loop()
    executor = LoopExecutor(loop)
    hang, ended, here = threading.Event(), [], []

    def hung() -> str:
        hang.wait()
        return "hung"

    for _ in range(3):  # both threads, and the queue
        executor.run(hung, lambda result, error: ended.append(result), "other")
    executor.run(
        lambda: here.append(threading.current_thread()), lambda result, error: ended.append("own"), "own"
    )
    assert executor.complete_one("own") and not executor.complete_one("own")
    assert ended == ["own"] and here == [threading.current_thread()]
    hang.set()
    executor.close()
    assert ended == ["own", "hung", "hung", "hung"]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert len(ended) == 4


# --- secure removals


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


def removed_and_synced(
    disk: SimDisk, background: Hanging
) -> tuple[StreamStore, list[StoreWriteError | None]]:
    """A removal starts a sync, which covers a message that the same write wrote. The sync that the writer of
    the message starts then finds nothing left to cover. Returns the results of the latter."""
    stream = filled(opened(disk, background))
    stream.sync()
    stream.log.remove(2, secure=True)
    stream.log.append(b"S", b"", b"4", 4)
    stream.write()
    results: list[StoreWriteError | None] = []
    stream.start_sync(results.append)
    assert len(background.waiting) == 2
    return stream, results


def test_a_sync_ends_after_those_that_were_in_flight_at_its_start() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    _, results = removed_and_synced(disk, background)
    InlineExecutor().run(*background.waiting.pop())  # the second thread is faster
    assert results == []
    background.finish()
    assert results == [None]
    disk.lose_power(all_of_it=True)
    assert opened(disk).account("$G").open_stream("S").log.last_seq == 4


@pytest.mark.parametrize("first", [0, 1])
def test_a_sync_fails_with_one_that_was_in_flight_at_its_start(first: int) -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    stream, results = removed_and_synced(disk, background)
    works = [background.waiting.pop(0), background.waiting.pop(0)]
    if first == 1:
        InlineExecutor().run(*works.pop())
    disk.fails_at = "sync"
    InlineExecutor().run(*works.pop(0))
    for work in works:
        InlineExecutor().run(*work)
    assert [str(error) for error in results] == [f"{MSGS}/erasing: cannot sync: Input/output error"]
    stream.write()
    stream.start_sync(results.append)
    background.finish()
    assert results[1:] == [None] and stored(disk) == [1, 3, 4]


def test_a_sync_that_waits_for_a_failing_one_fails() -> None:
    disk = FailingDisk(Random(1))
    stream = filled(opened(disk, executor := SimExecutor()))
    stream.start_sync(lambda error: None)
    disk.fails_at = "sync"
    with pytest.raises(StoreWriteError, match="cannot sync"):
        stream.sync()
    assert executor.is_idle
    stream.write()
    stream.sync()


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


# --- deletes


def test_deleting_a_stream_waits_for_none_of_its_work_and_the_next_of_its_name_is_left_alone() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    store = opened(disk, background, block_size=400)
    stream = filled(store, count=30)  # its first block is being finalised
    ended: list[StoreWriteError | None] = []
    stream.start_sync(ended.append)
    stream.delete()
    stream = filled(store, count=8)
    before = {name: disk.read(MSGS / name) for name in disk.names(MSGS)}
    late, background.waiting = background.waiting[:2], background.waiting[2:]
    for work, done in late:
        InlineExecutor().run(work, done)
    assert ended == [None]
    assert {name: disk.read(MSGS / name) for name in disk.names(MSGS)} == before
    background.finish()
    stream.close()
    disk.restart()
    log = opened(disk, block_size=400).account("$G").open_stream("S").log
    assert log.messages == 8


def test_the_list_of_a_deleted_stream_is_not_that_of_the_next_of_its_name() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    store = opened(disk, background)
    stream = filled(store)
    stream.log.remove(2, secure=True)
    stream.write()
    background.finish()
    stream.start_sync(lambda error: None)  # its end removes the list: everything was overwritten
    stream.delete()
    stream = filled(store)
    stream.log.remove(2, secure=True)
    stream.write()
    InlineExecutor().run(*background.waiting.pop(0))
    disk.restart()
    stream = opened(disk).account("$G").open_stream("S")
    stream.sync()
    assert stored(disk) == [1, 3]


def test_deleting_a_consumer_waits_for_none_of_its_work_and_the_next_of_its_name_is_left_alone() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    consumer = stream.create_consumer("c", b"old")
    consumer.append(b"old entry")
    consumer.start_snapshot(b"old state")
    stream.start_sync(lambda error: None)
    consumer.delete()
    consumer = stream.create_consumer("c", b"new")
    consumer.append(b"new entry")
    consumer.write()
    background.finish()
    disk.restart()
    consumer = opened(disk).account("$G").open_stream("S").open_consumer("c")
    assert (consumer.meta, consumer.load()) == (b"new", (None, [b"new entry"]))


def test_a_reset_of_a_consumer_does_not_wait_for_its_snapshot_in_flight() -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    consumer = stream.create_consumer("c", b"")
    consumer.append(b"entry")
    consumer.start_snapshot(b"old state")
    consumer.snapshot(b"new state")
    consumer.append(b"newer entry")
    consumer.write()
    background.finish()
    disk.restart()
    consumer = opened(disk).account("$G").open_stream("S").open_consumer("c")
    assert consumer.load() == (b"new state", [b"newer entry"])


def test_a_replacement_in_flight_ends_without_effect_when_its_permit_is_revoked() -> None:
    class Revoking(SimDisk):
        permit = Permit()

        def sync(self, fd: int) -> None:
            super().sync(fd)
            self.permit.revoke()

    disk = Revoking(Random(1))
    disk.make_directory(Path("/store"))
    write_atomically(disk, Path("/store/file"), b"the new owner's", sync=False)
    with pytest.raises(StoreWriteError, match="cannot replace the file"):
        write_atomically(disk, Path("/store/file"), b"late", permit=disk.permit)
    assert disk.read(Path("/store/file")) == b"the new owner's"


def test_a_permit_is_revoked_at_once_after_a_change_of_a_name_raised() -> None:
    permit = Permit()
    with pytest.raises(RuntimeError, match="injected"), permit.entered():
        raise RuntimeError("injected")
    permit.revoke()  # runs in the event loop's thread: a lock that stays held would stop the server
    with pytest.raises(FileNotFoundError), permit.entered():
        pass
    permit.revoke()
