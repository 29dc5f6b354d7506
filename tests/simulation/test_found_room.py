"""What the simulation found about room that is made on a full disk, each told as briefly as it can be."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreWriteError
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.simdisks import FailingDisk

MESSAGES = Path("/store/jetstream/%24G/streams/S/msgs")


@pytest.mark.parametrize("done", range(6))
def test_a_removed_message_does_not_come_back_when_a_purge_of_a_full_disk_dies(done: int) -> None:
    disk, background = SimDisk(Random(1)), SimExecutor()
    store = FileStore("/store", disk=disk, block_size=300, executor=background)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 5):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.log.remove(2)
    stream.write()  # work about the first block waits for the background
    for number in range(5, 9):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.write()
    for _ in range(done):
        background.work()
        background.finish()
    stream.log.purge()
    disk.room = 0
    with pytest.raises(StoreWriteError):
        stream.write()
    assert done or not background.is_idle, "other streams' work was waited for"
    disk.restart()
    log = FileStore("/store", disk=disk, block_size=300).account("$G").open_stream("S").log
    assert log.load(2) is None
    assert log.last_seq >= 8


def test_the_last_sequence_stays_when_a_purge_of_a_full_disk_overtakes_a_sync() -> None:
    disk, background = FailingDisk(Random(1)), SimExecutor()
    store = FileStore("/store", disk=disk, block_size=300, executor=background)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 7):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.write()
    stream.sync()
    stream.log.append(b"S.7", b"", b"." * 200, 7)
    stream.write()
    disk.fails_at = "sync"  # before the index of the block before
    background.drain()
    stream.start_sync(lambda error: None)
    stream.log.purge()
    disk.room = 0
    with pytest.raises(StoreWriteError):
        stream.write()
    disk.sync_directory(MESSAGES)  # removed files are, as it happens
    disk.lose_power(all_of_it=True)
    log = FileStore("/store", disk=disk, block_size=300).account("$G").open_stream("S").log
    assert log.last_seq >= 6


def test_a_block_may_leave_the_log_while_it_is_rewritten_and_nothing_can_be_written() -> None:
    disk, background = SimDisk(Random(1)), SimExecutor()
    store = FileStore("/store", disk=disk, block_size=600, executor=background)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 13):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.write()
    background.drain()
    for seq in (1, 2, 3):
        stream.log.remove(seq)
    stream.write()  # the first block is rewritten in the background
    stream.log.purge()
    disk.room = 0
    with pytest.raises(StoreWriteError):
        stream.write()
    disk.room = None
    background.drain()
    stream.write()
    background.drain()
    assert [name for name in disk.names(MESSAGES) if name.endswith(".blk")] == ["4.blk"]
    disk.restart()
    log = FileStore("/store", disk=disk, block_size=600).account("$G").open_stream("S").log
    assert (log.messages, log.last_seq) == (0, 12)
