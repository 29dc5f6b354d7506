"""What the simulation found, each told as briefly as it can be."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import pytest

from penstock.kernels.dispatch import publish
from penstock.store.file import FileStore
from penstock.testing.sim.disk import Killed, SimDisk
from tests.support.consumers import ConsumerBench
from tests.support.engine import EngineHarness


def opened(disk: SimDisk, *, block_size: int = 4000) -> FileStore:
    return FileStore("/store", disk=disk, block_size=block_size)


def test_a_confirmed_ack_survives_power_loss_of_a_server_that_always_syncs() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1", "s.2")
    [message, _] = bench.pull("x", b"2").take()
    confirmations = bench.listen(b"_OK")
    bench.ack(message, reply=b"_OK")
    bench.tick()
    assert len(confirmations) == 1
    disk.lose_power(all_of_it=True)
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
    assert bench.floors("x") == (2, 2, 1, 1)


class TearAt(Random):
    """Tears a write there."""

    def __init__(self, at: int) -> None:
        super().__init__(1)
        self._at = at

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self._at


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
    bench = ConsumerBench()
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
    ConsumerBench(opened(disk).account("$G"), sync_always=True).consumer("x", durable_name="x")
    disk.restart()
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
    bench.store_messages("s.1")
    [message] = bench.pull("x", b"1").take()
    bench.ack(message, reply=b"_OK")
    bench.tick()
    disk.lose_power(all_of_it=True)
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
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
    # The note of the removal is written and synced, then the record is written over.
    disk.kill_at = disk.ops + 4
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


def test_num_pending_counts_anew_when_the_front_passed_the_consumer() -> None:
    bench = ConsumerBench()
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


def test_a_name_is_free_again_when_the_disk_refused_to_remove_its_stream() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"))
    bench.create("S")
    disk.fail_rate = 1.0
    assert bench.api("STREAM.DELETE.S")["error"]["err_code"] == 10050
    disk.fail_rate = 0.0
    bench.create("S")


def test_a_consumer_whose_files_the_disk_refuses_to_remove_does_not_stop_the_server() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerBench(opened(disk).account("$G"))
    bench.consumer("x", inactive_threshold=1_000_000_000)
    disk.fail_rate = 1.0
    bench.wait_until(bench.now + 5_000_000_000)
    assert not bench.engine.streams["S"].consumers
