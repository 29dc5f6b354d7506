"""What the simulation found, each told as briefly as it can be."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreWriteError
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.dispatch import publish
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.consumers import SECOND, ConsumerHarness
from tests.support.engine import EngineHarness
from tests.support.simdisks import FailingDisk, TearAt


def opened(disk: SimDisk, *, block_size: int = 4000) -> FileStore:
    return FileStore("/store", disk=disk, block_size=block_size)


def test_a_confirmed_ack_survives_power_loss_of_a_server_that_always_syncs() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1", "s.2")
    [message, _] = bench.pull("x", b"2").take()
    confirmations = bench.listen(b"_OK")
    bench.ack(message, reply=b"_OK")
    bench.tick()
    assert len(confirmations) == 1
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    assert bench.floors("x") == (2, 2, 1, 1)


def test_a_message_and_the_one_it_replaced_are_not_both_there_after_a_crash() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"))
    bench.create("S", max_msgs_per_subject=1)
    publish(bench.index, b"S", b"", b"", b"1")
    bench.tick()
    publish(bench.index, b"S", b"", b"", b"2")
    # The new message is written, the note behind it that the old one is gone is not.
    disk.random = TearAt(32)
    disk.kill_at = disk.ops + 1
    with pytest.raises(Killed):
        bench.tick()
    disk.restart()
    bench = EngineHarness(opened(disk).account("$G"))
    assert (bench.state("S")["messages"], bench.state("S")["first_seq"]) == (1, 2)


def test_num_pending_counts_a_removal_ahead_though_the_front_moved_over_a_gap() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*(f"s.{number}" for number in range(6)))
    bench.consumer("x", durable_name="x")
    bench.engine.streams["S"].delete_message(2, erase=False)
    bench.pull("x", b"2")
    assert bench.info("x")["num_pending"] == 3
    for seq in (1, 5):
        bench.engine.streams["S"].delete_message(seq, erase=False)
    assert bench.info("x")["num_pending"] == 2


def test_the_sequence_survives_when_only_an_empty_file_is_left_of_the_newest_block() -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"S", b"", b"payload", 1)
    stream.log.remove(1)
    stream.write()
    msgs = Path("/store/jetstream/%24G/streams/S/msgs")
    disk.close(disk.open(msgs / "2.blk"))  # power loss took its bytes
    for _ in range(3):
        disk.restart()
        stream = opened(disk).account("$G").open_stream("S")
        assert stream.log.last_seq == 1
        stream.write()


def test_what_a_killed_process_wrote_is_synced_by_the_next_one() -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"S", b"", b"payload", 1)
    stream.write()
    disk.restart()
    opened(disk).account("$G").open_stream("S").sync()
    disk.lose_power(all_of_it=True)
    assert opened(disk).account("$G").open_stream("S").log.messages == 1


def test_a_consumer_that_a_killed_process_made_is_synced_by_the_next_one() -> None:
    disk = SimDisk(Random(1))
    ConsumerHarness(opened(disk).account("$G"), sync_always=True).consumer("x", durable_name="x")
    disk.restart()
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.store_messages("s.1")
    [message] = bench.pull("x", b"1").take()
    bench.ack(message, reply=b"_OK")
    bench.tick()
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    assert bench.floors("x") == (1, 1, 1, 1)


@pytest.mark.parametrize("operation", range(1, 14))
def test_a_created_stream_survives_power_loss_though_an_earlier_try_was_killed(operation: int) -> None:
    disk = SimDisk(Random(1))
    disk.kill_at = operation
    with contextlib.suppress(Killed):
        EngineHarness(opened(disk).account("$G")).create("S")
    disk.restart()
    bench = EngineHarness(opened(disk).account("$G"))
    if "S" not in bench.engine.streams:
        bench.create("S")
        disk.lose_power(all_of_it=True)
        bench = EngineHarness(opened(disk).account("$G"))
    assert "S" in bench.engine.streams


@pytest.mark.parametrize("torn_at", range(0, 60, 3))
def test_a_secure_removal_that_is_torn_takes_nothing_else_along(torn_at: int) -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    for number in range(3):
        stream.log.append(b"S", b"", b"a payload of some length %d" % number, number)
    stream.write()
    stream.log.remove(2, True)
    # The list (two operations) and the note of the removal are written and synced (three), then the record is
    # written over.
    disk.kill_at = disk.ops + 7
    disk.random = TearAt(torn_at)
    with pytest.raises(Killed):
        stream.write()
    disk.lose_power()
    log = opened(disk).account("$G").open_stream("S").log
    assert [seq for seq in range(4) if log.load(seq)] == [1, 3]
    assert log.last_seq == 3


def test_a_periodic_sync_that_failed_is_tried_again() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"), sync_interval_ns=1_000_000_000)
    bench.create("S")
    publish(bench.index, b"S", b"", b"", b"payload")
    bench.tick()
    disk.fail_rate = 1.0
    bench.wait_until(bench.now + 1_500_000_000)
    disk.fail_rate = 0.0
    bench.wait_until(bench.now + 1_500_000_000)
    disk.lose_power(all_of_it=True)
    assert EngineHarness(opened(disk).account("$G")).state("S")["messages"] == 1


def test_num_pending_counts_again_when_the_front_passed_the_consumer() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*(f"s.{number}" for number in range(6)))
    bench.consumer("x", durable_name="x")
    assert bench.info("x")["num_pending"] == 6
    bench.engine.streams["S"].log.purge(upto_seq=5)
    bench.store_messages("s.6")
    bench.pull("x", b"1")
    assert bench.info("x")["num_pending"] == 2


def test_a_duplicate_is_known_after_a_crash_that_left_the_newest_block_empty() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"))
    bench.create("S")
    bench.request("S", b"payload", b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n")
    disk.close(disk.open(Path("/store/jetstream/%24G/streams/S/msgs/2.blk")))
    disk.restart()
    bench = EngineHarness(opened(disk).account("$G"), now=bench.now)
    assert bench.request("S", b"payload", b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n")["duplicate"]


def test_a_consumer_whose_files_the_disk_refuses_to_remove_does_not_stop_the_server() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"))
    bench.consumer("x", inactive_threshold=1_000_000_000)
    disk.fail_rate = 1.0
    bench.wait_until(bench.now + 5_000_000_000)
    assert not bench.engine.streams["S"].consumers


class Steady(Random):
    """Always the same: `chance` of random(), and the greatest of randrange() or the least."""

    def __init__(self, chance: float, *, greatest: bool) -> None:
        super().__init__(1)
        self._chance, self._greatest = chance, greatest

    def random(self) -> float:
        return self._chance

    def randrange(self, start: int, *_: int) -> int:  # type: ignore[override]
        return start - 1 if self._greatest else 0


BYTES_LOST_NAMES_KEPT = Steady(0.1, greatest=True)


class TornNamesLost(Random):
    """Power loss keeps no changes of names, all writes, and half of the last one."""

    def random(self) -> float:
        return 0.3

    def randrange(self, start: int, *_: int) -> int:  # type: ignore[override]
        return start // 2 if start > 20 else 0


MSGS = Path("/store/jetstream/%24G/streams/S/msgs")


def filled(disk: SimDisk, count: int) -> StreamStore:
    """A stream of so many messages, each of its own subject and in a block of its own."""
    stream = opened(disk, block_size=150).account("$G").create_stream("S", b"{}", "file")
    for number in range(count):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number + 1)
    stream.write()
    return stream


def reopened(disk: SimDisk) -> StreamLog:
    disk.restart()
    return opened(disk, block_size=150).account("$G").open_stream("S").log


def test_a_time_is_found_behind_a_block_of_notes() -> None:
    log = StreamLog(150, True)
    for number in range(60):
        log.append(b"S.%d" % number, b"", b"payload", 1)
    for seq in range(2, 60, 2):
        log.remove(seq)
        log.flush_tombstones()
    newest = log.append(b"S", b"", b"payload", 10)
    assert any(not len(block) for block in log.block_list())
    assert log.seq_at_time(5) == newest


def test_num_pending_does_not_count_what_is_stored_before_the_sequence_a_consumer_begins_with() -> None:
    bench = ConsumerHarness()
    bench.consumer("x", deliver_policy="by_start_sequence", opt_start_seq=6)
    bench.consumer("y", deliver_policy="by_start_sequence", opt_start_seq=6, filter_subject="s.y")
    bench.store_messages("s.x", "s.y", "s.x")
    bench.engine.streams["S"].delete_message(2, erase=False)
    assert [bench.info(name)["num_pending"] for name in ("x", "y")] == [0, 0]
    bench.store_messages("s.x", "s.y", "s.x", "s.y", "s.y")
    assert [bench.info(name)["num_pending"] for name in ("x", "y")] == [3, 2]


def test_the_sequence_survives_a_full_disk_that_made_room_more_than_once() -> None:
    disk = SimDisk(Random(1))
    stream = filled(disk, 5)
    disk.room = 0
    for number in range(3):
        stream.log.purge()
        stream.log.append(b"S", b"", b"." * 100, number + 10)
        with pytest.raises(StoreWriteError):
            stream.write()
    assert reopened(disk).last_seq == 5


def test_a_sync_removes_no_block_whose_removal_was_not_written() -> None:
    disk = SimDisk(Random(1))
    stream = filled(disk, 5)
    stream.log.purge()
    disk.room = 0
    with pytest.raises(StoreWriteError):
        stream.write()
    stream.start_sync(lambda error: None)
    assert reopened(disk).last_seq == 5


def test_a_block_that_could_not_be_removed_goes_with_the_next_write() -> None:
    disk = FailingDisk(Random(1))
    stream = filled(disk, 5)
    stream.log.remove(2)
    disk.fails_at = "unlink"
    stream.write()
    assert "2.blk" in disk.names(MSGS)
    stream.log.append(b"S", b"", b"payload", 10)
    stream.write()
    assert "2.blk" not in disk.names(MSGS)


def test_the_sequence_survives_power_loss_after_blocks_were_removed() -> None:
    disk = SimDisk(BYTES_LOST_NAMES_KEPT)
    stream = filled(disk, 5)
    stream.sync()
    stream.log.append(b"S", b"", b"." * 100, 10)
    stream.log.append(b"S", b"", b"payload", 10)
    stream.log.purge(upto_seq=6)
    stream.write()
    disk.lose_power()
    assert reopened(disk).last_seq >= 5


@pytest.mark.parametrize("operation", range(1, 14))
def test_a_stream_can_be_created_after_the_disk_failed_to(operation: int) -> None:
    disk = FailingDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"))
    disk.fails_in = operation
    if "error" in bench.api("STREAM.CREATE.S", {"name": "S"}):
        bench.create("S")
    bench.request("S", b"payload")
    assert bench.state("S")["messages"] == 1


def test_the_subject_of_an_erased_message_is_not_counted_after_power_loss() -> None:
    disk = SimDisk(TornNamesLost(1))
    stream = opened(disk, block_size=400).account("$G").create_stream("S", b"{}", "file")
    for number in range(14):
        stream.log.append(b"S.%d" % number, b"", b".", number + 1)
    stream.write()
    stream.sync()
    index = disk.open(MSGS / "1.idx")
    disk.sync(index)
    stream.log.remove(2, True)
    stream.write()
    disk.lose_power()
    log = reopened(disk)
    assert (log.messages, log.num_subjects) == (13, 13)


def test_a_consumer_comes_back_when_power_loss_took_the_older_of_two_journals() -> None:
    disk = FailingDisk(Random(1))
    consumer = filled(disk, 1).create_consumer("x", b"{}")
    consumer.append(b"one")
    consumer.write()
    disk.fails_at = "rename"  # of the snapshot
    consumer.start_snapshot(b"state")
    consumer.append(b"two")
    consumer.write()
    disk.restart()
    present = opened(disk).account("$G").open_stream("S").open_consumer("x")
    assert present.load() == (None, [b"one", b"two"])
    disk.restart()
    disk.close(disk.open(MSGS.parent / "consumers" / "x" / "journal.0", truncate=True))
    assert opened(disk).account("$G").open_stream("S").open_consumer("x").load() == (None, [])


def test_a_duplicate_is_known_after_a_restart_though_its_id_is_there_twice() -> None:
    disk = SimDisk(Random(1))
    header = b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n"
    bench = EngineHarness(opened(disk).account("$G"))
    bench.create("S", duplicate_window=SECOND)
    bench.request("S", b"payload", header)
    bench.wait_until(bench.now + 2 * SECOND)
    assert "duplicate" not in bench.request("S", b"payload", header)
    bench.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["S"], "duplicate_window": 60 * SECOND})
    disk.restart()
    bench = EngineHarness(opened(disk).account("$G"), now=bench.now)
    bench.wait_until(bench.now + 59 * SECOND)
    assert bench.request("S", b"payload", header)["duplicate"]


def test_new_filters_of_a_consumer_are_on_the_disk_before_the_position_they_give_its_meaning() -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    consumer = stream.create_consumer("x", b"old")
    stream.sync()
    consumer.save_meta(b"new")
    consumer.append(b"position")
    disk.lose_power(all_of_it=True)
    assert opened(disk).account("$G").open_stream("S").open_consumer("x").meta == b"new"


class LastFirst(Random):
    """Takes the last of what there is."""

    def randrange(self, stop: int, *_: int) -> int:  # type: ignore[override]
        return stop - 1


def test_a_sync_does_not_leave_out_what_a_removal_in_progress_has_yet_to_sync() -> None:
    disk, background = SimDisk(Random(1)), SimExecutor()
    background.random = LastFirst(1)
    store = FileStore("/store", disk=disk, block_size=200, executor=background)
    stream = store.account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"S", b"", b"x" * 180, 1)
    stream.write()
    stream.sync()
    stream.log.append(b"S", b"", b"y", 2)
    stream.write()
    background.drain()
    stream.log.remove(1)
    stream.write()  # the first block is to go once the second is on the disk
    acked: list[StoreWriteError | None] = []
    stream.start_sync(acked.append)
    while not acked:
        background.finish()
    assert not background.is_idle
    disk.lose_power(all_of_it=True)
    stream = opened(disk).account("$G").open_stream("S")
    assert (stream.log.first_seq, stream.log.last_seq) == (2, 2)
