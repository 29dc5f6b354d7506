"""Requests wait for no background work: neither of another stream, nor of what they delete."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.kernels.log.records import Corrupt, RecordReader
from penstock.server.disk_executor import LoopExecutor
from penstock.store.block_jobs import BlockJobs
from penstock.store.block_syncs import BlockSyncs
from penstock.store.blocks import BlockFiles
from penstock.store.envelope import FileCipher, is_enveloped
from penstock.store.executor import DiskExecutor, InlineExecutor
from penstock.store.file import FileStore
from penstock.store.files import Permit, write_atomically
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
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


def restarted(disk: SimDisk) -> SimDisk:
    disk.restart()
    return disk


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


@pytest.mark.parametrize("at", ["_on_done", "_finish"])
@pytest.mark.parametrize("always", [False, True])
def test_work_whose_delivery_raises_ends_as_failed_without_later_work(
    at: str, always: bool, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    """Always: the next work ends as failed, too. Once: it is delivered as usual."""
    deliver, raised = getattr(LoopExecutor, at), []

    def broken(executor: LoopExecutor, *args: Any) -> None:
        if always or not raised:
            raised.append(RuntimeError("injected"))
            raise raised[-1]
        deliver(executor, *args)

    monkeypatch.setattr(LoopExecutor, at, broken)
    results: list[tuple[str | None, str]] = []

    async def works() -> None:
        executor = LoopExecutor(asyncio.get_running_loop())
        for count in (1, 2):
            ended = asyncio.Event()

            def done(result: str | None, error: Exception | None, ended: asyncio.Event = ended) -> None:
                results.append((result, str(error or "")[:14]))
                ended.set()

            executor.run(lambda: "result", done, "owner")
            await asyncio.wait_for(ended.wait(), 10)
            assert len(results) == count
        executor.close()

    asyncio.run(works())
    failed = (None, "internal error")
    assert results == [failed, failed if always else ("result", "")]
    assert noted_faults == raised
    noted_faults.clear()


# --- the end of a sync


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
