"""A sync reports what reached the disk, also when another one fails or its own bookkeeping raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.store.block_jobs import BlockJobs
from penstock.store.block_syncs import BlockSyncs
from penstock.store.blocks import BlockFiles
from penstock.store.erasures import Erasures
from penstock.store.executor import InlineExecutor
from penstock.store.files import OpenFiles
from penstock.store.interface import StreamStore
from penstock.testing.sim.sim_disk import SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.file_stores import MSGS, Hanging, filled, opened, stored
from tests.support.simdisks import FailingDisk


def raising(function: Callable[..., Any], raised: list[BaseException], *, always: bool) -> Callable[..., Any]:
    """Raises in place of the first call, or of each call."""

    def broken(*args: Any) -> Any:
        if always or not raised:
            raised.append(RuntimeError("injected"))
            raise raised[-1]
        return function(*args)

    return broken


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (BlockSyncs, "_succeeded"),
        (BlockJobs, "sync_ended"),
        (BlockFiles, "_sync_ended"),
        (BlockFiles, "_sync_for_erasures"),
    ],
)
def test_the_end_of_a_sync_is_reported_when_other_work_at_it_raises(
    owner: type, name: str, always: bool, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    raised: list[BaseException] = []
    monkeypatch.setattr(owner, name, raising(getattr(owner, name), raised, always=always))
    ends: list[StoreWriteError | None] = []
    stream.start_sync(ends.append)
    background.finish()
    assert ends == [None] and raised
    noted_faults.clear()
    monkeypatch.undo()
    stream.start_sync(ends.append)
    background.finish()
    assert ends == [None, None]


def test_syncs_of_removals_do_not_follow_each_other_for_ever_when_their_ends_raise(
    monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    """Who waits for the syncs of a stream waits until there is none: the whole server did."""
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    stream.sync()
    raised: list[BaseException] = []

    def broken(*_: Any) -> None:
        raised.append(RuntimeError("injected"))
        if len(raised) > 20:
            pytest.fail("syncs follow each other for ever")  # no Exception: it is not contained
        raise raised[-1]

    monkeypatch.setattr(BlockSyncs, "_succeeded", broken)
    stream.log.remove(2, secure=True)
    stream.write()
    background.finish()
    assert raised
    monkeypatch.undo()
    noted_faults.clear()
    assert 2 in stored(disk)
    ends: list[StoreWriteError | None] = []
    stream.start_sync(ends.append)
    background.finish()
    assert ends == [None]
    assert 2 not in stored(disk), "the next sync lets it be overwritten"


def test_a_sync_whose_report_raises_is_reported_as_failed(noted_faults: list[BaseException]) -> None:
    disk, background = SimDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    ends: list[StoreWriteError | None] = []
    stream.start_sync(raising(ends.append, raised := [], always=False))
    background.finish()
    assert [type(one) for one in ends] == [StoreWriteError] and noted_faults == raised
    noted_faults.clear()


def test_the_next_sync_covers_a_failed_one_whose_bookkeeping_raised(
    monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    raised: list[BaseException] = []
    monkeypatch.setattr(BlockSyncs, "_failed", raising(BlockSyncs._failed, raised, always=False))
    ends: list[StoreWriteError | None] = []
    disk.fails_at = "sync"
    stream.start_sync(ends.append)
    background.finish()
    assert [type(one) for one in ends] == [StoreWriteError] and noted_faults == raised
    noted_faults.clear()
    stream.write()
    stream.start_sync(ends.append)
    background.finish()
    assert ends[1:] == [None]
    disk.lose_power(all_of_it=True)
    assert opened(disk).account("$G").open_stream("S").log.last_seq == 3


def test_a_background_job_does_not_believe_its_sync_of_a_file_after_another_one_failed() -> None:
    disk = FailingDisk(Random(1))
    path = Path("/1.blk")
    disk.close(disk.open(path))
    files = OpenFiles(disk=disk)
    syncs = BlockSyncs(path.parent, files, Erasures(path.parent, files), set)
    disk.fails_at = "sync"
    with pytest.raises(StoreWriteError, match="Input/output error"):
        syncs.sync_files([path])
    with pytest.raises(StoreWriteError, match="written again first"):
        syncs.sync_files([path])
    syncs.distrusted.discard(path)  # as when it was written again
    syncs.sync_files([path])


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


def last_after_power_loss(disk: SimDisk) -> int:
    disk.lose_power(all_of_it=True)
    return opened(disk).account("$G").open_stream("S").log.last_seq


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("closed_blocks", [False, True])
def test_a_sync_after_a_failed_one_says_nothing_before_the_bytes_are_written_again(
    inline: bool, closed_blocks: bool
) -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    store = opened(disk, background, block_size=150 if closed_blocks else 4000)
    stream = filled(store, count=6)
    background.finish()
    results: list[StoreWriteError | None] = []

    def synced() -> bool:
        if not inline:
            stream.start_sync(results.append)
            background.finish()
            return results.pop() is None
        background.finish()
        try:
            stream.sync()
        except StoreWriteError:
            return False
        return True

    stream.sync()
    stream.log.append(b"S", b"", b"7" * 20, 7)
    stream.write()
    disk.fails_at = "sync"
    assert not synced()
    assert not synced()
    assert stream.synced_number < stream.change_number
    stream.write()
    assert synced()
    assert stream.synced_number >= stream.change_number
    assert last_after_power_loss(disk) == 7


@pytest.mark.parametrize("then", ["close", "sync", "sync of the stream"])
@pytest.mark.parametrize("inline", [False, True])
def test_what_a_consumer_wrote_is_written_again_after_a_failed_sync(inline: bool, then: str) -> None:
    disk = FailingDisk(Random(1))
    stream = filled(opened(disk))
    consumer = stream.create_consumer("c", b"{}")
    stream.sync()
    consumer.append(b"entry")
    consumer.write()
    disk.fails_at = "sync"
    if inline:
        with pytest.raises(StoreWriteError):
            consumer.sync()
    else:
        results: list[StoreWriteError | None] = []
        stream.start_sync(results.append)
        assert results != [None]
    if then == "close":
        consumer.close()
    elif then == "sync":
        consumer.sync()
    else:
        stream.write()
        stream.start_sync(lambda error: None)
    assert entries_after_power_loss(disk) == [b"entry"]


def test_a_sync_of_a_consumer_says_nothing_about_bytes_that_one_in_flight_failed_to_write() -> None:
    disk, background = FailingDisk(Random(1)), SimExecutor()
    stream = filled(opened(disk, background))
    consumer = stream.create_consumer("c", b"{}")
    stream.sync()
    consumer.append(b"entry")
    consumer.write()
    stream.start_sync(lambda error: None)
    disk.fails_at = "sync"
    background.work()  # it fails, and its result is not delivered yet
    consumer.sync()
    assert entries_after_power_loss(disk) == [b"entry"]


def entries_after_power_loss(disk: SimDisk) -> list[bytes]:
    disk.lose_power(all_of_it=True)
    return opened(disk).account("$G").open_stream("S").open_consumer("c").load()[1]


def test_closing_writes_again_what_the_sync_in_flight_failed_to_write() -> None:
    disk, background = FailingDisk(Random(1)), SimExecutor()
    stream = filled(opened(disk, background))
    stream.start_sync(lambda error: None)
    disk.fails_at = "sync"
    stream.close()
    assert last_after_power_loss(disk) == 3


def test_a_change_is_on_the_disk_after_a_sync_that_began_after_its_write() -> None:
    disk, background = FailingDisk(Random(1)), Hanging()
    stream = filled(opened(disk, background))
    written = stream.change_number
    stream.start_sync(lambda error: None)
    stream.log.remove(2)
    removed = stream.change_number
    stream.write()
    assert stream.change_number == removed
    background.finish()
    assert written <= stream.synced_number < removed
    disk.fails_at = "sync"
    stream.start_sync(lambda error: None)
    background.finish()
    assert stream.synced_number < removed
    stream.write()
    stream.sync()
    assert stream.synced_number >= removed


def test_what_a_killed_process_wrote_is_on_the_disk_after_the_next_sync() -> None:
    disk = SimDisk(Random(1))
    filled(opened(disk))
    disk.restart()
    stream = opened(disk).account("$G").open_stream("S")
    found = stream.change_number
    assert stream.synced_number < found
    stream.sync()
    assert stream.synced_number >= found
