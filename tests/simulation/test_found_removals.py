"""What seeds of the simulation found about streams and consumers that are removed, in small."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.testing.sim.disk import Killed, SimDisk
from tests.support.consumers import ConsumerBench

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


def test_a_deleted_consumer_does_not_come_back_with_the_power_where_syncs_are_waited_for() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1")
    assert bench.api("CONSUMER.DELETE.S.x")["success"]
    disk.lose_power(all_of_it=True)
    bench = ConsumerBench(opened(disk).account("$G"), sync_always=True)
    assert list(bench.engine.streams["S"].consumers) == []
