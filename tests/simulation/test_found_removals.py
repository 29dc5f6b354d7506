"""What seeds of the simulation found about streams and consumers that are removed, in small."""

from __future__ import annotations

import contextlib
import errno
from copy import deepcopy
from pathlib import Path
from random import Random

import pytest

from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.testing.sim.sim_disk import Killed, SimDisk
from tests.support.consumers import SECOND, ConsumerHarness
from tests.support.engine import EngineHarness

OFFLINE_STREAM, OFFLINE_CONSUMER = 10194, 10195

SEEDS = range(200)


def opened(disk: SimDisk) -> FileStore:
    return FileStore("/store", disk=disk, block_size=4000)


def stream_with_a_consumer(disk: SimDisk) -> StreamStore:
    """All of it on the disk."""
    stream = opened(disk).account("$G").create_stream("S", b"meta", "file")
    stream.log.append(b"a", b"", b"x", 1)
    consumer = stream.create_consumer("c", b"consumer")
    consumer.snapshot(b"state")
    consumer.append(b"entry")
    consumer.write()
    stream.write()
    stream.sync()
    return stream


def has_whole_consumer_or_none(stream: StreamStore) -> bool:
    if not stream.consumer_names():
        return True
    return stream.open_consumer("c").load() == (b"state", [b"entry"])


def test_power_loss_leaves_a_removed_consumer_whole_or_out_of_sight() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        stream_with_a_consumer(disk).open_consumer("c").delete()
        disk.lose_power()
        assert has_whole_consumer_or_none(opened(disk).account("$G").open_stream("S")), seed


def test_power_loss_after_a_restart_leaves_a_removed_consumer_whole_or_out_of_sight() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        consumer = stream_with_a_consumer(disk).open_consumer("c")
        disk.kill_at = disk.ops + 2  # its directory was renamed
        with pytest.raises(Killed):
            consumer.delete()
        disk.restart()
        opened(disk).account("$G").open_stream("S")
        disk.lose_power()
        assert has_whole_consumer_or_none(opened(disk).account("$G").open_stream("S")), seed


def test_power_loss_after_a_restart_leaves_a_removed_stream_whole_or_out_of_sight() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        stream = stream_with_a_consumer(disk)
        disk.kill_at = disk.ops + 1 + seed % 8
        with contextlib.suppress(Killed):
            stream.delete()
        disk.restart()
        opened(disk).account("$G")
        disk.lose_power()
        account = opened(disk).account("$G")
        if account.stream_names():
            assert account.open_stream("S").log.messages == 1, seed


def test_a_deleted_consumer_does_not_come_back_after_a_power_failure_where_syncs_are_waited_for() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1")
    assert bench.api("CONSUMER.DELETE.S.x")["success"]
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    assert list(bench.engine.streams["S"].consumers) == []


class DiskWithoutSyncs(SimDisk):
    """Names change, and come to the disk only while it works."""

    is_well = True

    def sync_directory(self, path: Path) -> None:
        if not self.is_well:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_directory(path)


def test_a_stream_whose_files_the_disk_refuses_to_remove_is_offline_until_a_request_removes_it() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk).account("$G"))
    bench.create("S")
    bench.request("S", b"kept")
    disk.fail_rate = 1.0
    refused = bench.api("STREAM.DELETE.S")["error"]
    assert (refused["code"], refused["err_code"]) == (500, 10050)
    disk.fail_rate = 0.0
    assert bench.api("STREAM.INFO.S")["error"]["err_code"] == OFFLINE_STREAM
    assert bench.api("STREAM.CREATE.S", {"name": "S"})["error"]["err_code"] == OFFLINE_STREAM
    assert bench.api("STREAM.DELETE.S")["success"]
    assert EngineHarness(opened(after_power_loss(disk)).account("$G")).engine.streams == {}
    bench.create("S")


def test_a_stream_that_the_disk_refused_to_remove_is_whole_after_a_restart() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"))
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1")
    disk.fail_rate = 1.0
    assert "error" in bench.api("STREAM.DELETE.S")
    disk.restart()
    bench = ConsumerHarness(opened(disk).account("$G"))
    assert bench.info("x")["num_pending"] == 1


def test_a_consumer_whose_files_the_disk_refuses_to_remove_is_offline_until_a_request_removes_it() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    disk.fail_rate = 1.0
    assert bench.api("CONSUMER.DELETE.S.x")["error"]["code"] == 500
    disk.fail_rate = 0.0
    assert bench.info("x")["error"]["err_code"] == OFFLINE_CONSUMER
    assert bench.define("x", durable_name="x")["error"]["err_code"] == OFFLINE_CONSUMER
    assert bench.api("CONSUMER.DELETE.S.x")["success"]
    assert not ConsumerHarness(opened(after_power_loss(disk)).account("$G")).engine.streams["S"].consumers
    bench.consumer("x", durable_name="x")


@pytest.mark.parametrize("what", ["STREAM.DELETE.S", "CONSUMER.DELETE.S.x"])
def test_a_removal_is_refused_until_the_names_are_on_the_disk(what: str) -> None:
    disk = DiskWithoutSyncs(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    disk.root.sync_all()
    disk.is_well = False
    for _ in range(2):
        assert bench.api(what)["error"]["code"] == 500
    disk.is_well = True
    assert bench.api(what)["success"]
    after = ConsumerHarness(opened(after_power_loss(disk)).account("$G"))
    assert not after.engine.streams["S"].consumers


def test_the_consumer_of_an_offline_stream_goes_with_it() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), stream={"retention": "workqueue"})
    bench.create("T", sources=[{"name": "S"}], subjects=["t"])
    bench.tick()
    disk.fail_rate = 1.0
    assert "error" in bench.api("STREAM.DELETE.T")
    disk.fail_rate = 0.0
    assert len(bench.engine.streams["S"].consumers) == 1, "T may come back, and goes on where it was"
    assert bench.api("STREAM.DELETE.T")["success"]
    assert not bench.engine.streams["S"].consumers


def test_what_was_acked_while_a_consumer_was_offline_leaves_a_work_queue_when_it_is_removed() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), stream={"retention": "workqueue"})
    for name in "xy":
        bench.consumer(name, durable_name=name, filter_subject=f"s.{name}")
    bench.store_messages("s.y", "s.x")
    disk.fail_rate = 1.0
    assert "error" in bench.api("CONSUMER.DELETE.S.x")
    disk.fail_rate = 0.0
    (message,) = bench.pull("y", b"1").take()
    bench.ack(message)
    bench.tick()
    assert bench.state("S")["messages"] == 2
    assert bench.api("CONSUMER.DELETE.S.x")["success"]
    assert bench.state("S")["messages"] == 1, "nobody acked s.x"


class DiskWithFullBlocks(SimDisk):
    """Takes everything but the bytes of blocks while it is not well."""

    is_well = True

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        blocks = [file for path, file in self.files() if path.endswith(".blk")]
        if not self.is_well and self._fds[fd] in blocks:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data, offset)


def test_no_consumer_ends_while_the_removals_by_its_acks_can_not_be_written() -> None:
    disk = DiskWithFullBlocks(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), stream={"retention": "workqueue"})
    bench.consumer("x", durable_name="x", filter_subject="s.x")
    bench.consumer("y", inactive_threshold=5 * SECOND, filter_subject="s.y")
    bench.store_messages("s.x", "s.y")
    (mine,), (other,) = bench.pull("x", b"1").take(), bench.pull("y", b"1").take()
    disk.is_well = False
    confirmations = bench.listen(b"_OK")
    for message in (mine, other):
        bench.ack(message, reply=b"_OK")
    bench.tick()
    assert len(confirmations) == 2, "the acks are kept in the journals of the consumers"
    assert bench.api("CONSUMER.DELETE.S.x")["error"]["code"] == 500
    bench.pass_time(20 * SECOND)
    assert sorted(bench.engine.streams["S"].consumers) == ["x", "y"]
    disk.restart()
    assert ConsumerHarness(opened(disk).account("$G")).state("S")["messages"] == 0

    disk.is_well = True
    disk.restart()
    bench = ConsumerHarness(opened(disk).account("$G"), now=bench.now)
    assert bench.api("CONSUMER.DELETE.S.x")["success"]
    bench.pass_time(20 * SECOND)
    assert not bench.engine.streams["S"].consumers


def after_power_loss(disk: SimDisk) -> SimDisk:
    """Another one with what is on the disk by then."""
    copy = deepcopy(disk)
    copy.lose_power(all_of_it=True)
    return copy
