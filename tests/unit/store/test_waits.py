"""Requests wait for no background work: neither of another stream, nor of what they delete."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.server.disk_executor import LoopExecutor
from penstock.store.executor import InlineExecutor
from penstock.store.files import Permit, write_atomically
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.file_stores import MSGS, Hanging, filled, opened, stored

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
