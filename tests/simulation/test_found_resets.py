"""What the simulation found about resets of consumers, told as briefly as it can be."""

from __future__ import annotations

import contextlib
import json
from random import Random

import pytest

from penstock.jetstream.consumer.state import Recorder
from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import Killed, SimDisk
from tests.support.consumers import SECOND, ConsumerHarness
from tests.support.simdisks import FailingDisk


def opened(disk: SimDisk) -> FileStore:
    return FileStore("/store", disk=disk)


def reset(bench: ConsumerHarness, seq: int) -> bool:
    """Resets a consumer. Returns whether the server says that it did."""
    return "error" not in bench.request("$JS.API.CONSUMER.RESET.S.x", {"seq": seq})


def test_a_reset_survives_power_loss_of_a_server_that_always_syncs() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1", "s.2")
    for message in bench.pull("x", b"2").take():
        bench.ack(message)
    bench.tick()
    assert reset(bench, 2)
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    assert bench.floors("x") == (0, 1, 0, 1)


@pytest.mark.parametrize("operation", range(1, 9))
def test_a_consumer_comes_back_as_it_was_after_a_reset_that_the_disk_interrupted(operation: int) -> None:
    disk = FailingDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"))
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1", "s.2", "s.3")
    for message in bench.pull("x", b"2").take():
        bench.ack(message)
    bench.tick()
    disk.fails_in = operation
    reset(bench, 1)
    disk.fails_in = 0
    bench.pass_time(2 * SECOND)  # the disk takes what it refused
    [message] = bench.pull("x", b"1").take()
    bench.ack(message)
    bench.tick()
    left = bench.floors("x")
    disk.restart()
    assert ConsumerHarness(opened(disk).account("$G")).floors("x") == left


def killed_in_reset(disk: SimDisk, bench: ConsumerHarness, seq: int, operation: int) -> None:
    """The process dies at that operation on the disk, or after the reset."""
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        reset(bench, seq)


def queue_of_other_filters(disk: SimDisk, *, sync_always: bool = False) -> ConsumerHarness:
    """A work queue with a consumer that acked 2 and 3, and whose filters message 1 passes since then."""
    queue = {"retention": "workqueue"}
    bench = ConsumerHarness(opened(disk).account("$G"), stream=queue, sync_always=sync_always)
    bench.store_messages("s.b", "s.a", "s.a")
    bench.consumer("x", durable_name="x", filter_subject="s.a")
    for message in bench.pull("x", b"2").take():
        bench.ack(message)
    bench.tick()
    bench.consumer("x", durable_name="x", filter_subject="s.>")
    return bench


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("operation", range(1, 13))
def test_a_crash_inside_a_reset_leaves_a_work_queue_the_messages_that_no_client_got(
    operation: int, power: bool
) -> None:
    disk = SimDisk(Random(1))
    bench = queue_of_other_filters(disk, sync_always=power)
    assert bench.floors("x") == (2, 3, 2, 3)
    killed_in_reset(disk, bench, 1, operation)
    if power:
        disk.lose_power(all_of_it=True)
    else:
        disk.restart()
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=power)
    assert bench.floors("x") in ((2, 3, 2, 3), (0, 0, 0, 0))
    assert bench.engine.streams["S"].log.load(1) is not None


def test_filters_that_follow_a_reset_are_not_on_disk_without_it() -> None:
    disk = SimDisk(Random(1))
    bench = queue_of_other_filters(disk)
    disk.root.sync_all()
    assert reset(bench, 1)
    bench.consumer("x", durable_name="x", filter_subjects=["s.a", "s.b"])
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"))
    assert bench.floors("x") == (0, 0, 0, 0)
    assert bench.engine.streams["S"].log.load(1) is not None


@pytest.mark.parametrize("journal_min_bytes", [1, 1 << 16])  # a snapshot, and a journal
@pytest.mark.parametrize("operation", range(1, 13))
def test_a_consumer_that_was_reset_beyond_the_end_waits_there_after_a_restart(
    operation: int, journal_min_bytes: int
) -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), journal_min_bytes=journal_min_bytes)
    bench.consumer("x", durable_name="x")
    bench.store_messages("s.1", "s.2", "s.3")
    for message in bench.pull("x", b"2").take():
        bench.ack(message)
    bench.tick()
    killed_in_reset(disk, bench, 6, operation)
    is_done = not disk.dead
    disk.restart()
    bench = ConsumerHarness(opened(disk).account("$G"))
    was_reset = bench.floors("x") != (2, 2, 2, 2)
    assert was_reset or not is_done
    assert not was_reset or bench.floors("x") == (0, 5, 0, 5)
    bench.store_messages("s.4", "s.5", "s.6")
    assert bench.pull("x", b"4").seqs() == ([6] if was_reset else [3, 4, 5, 6])


def test_a_position_that_was_reset_within_its_stream_follows_the_end() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    consumer = bench.consumer("x", durable_name="x")
    assert reset(bench, 6)
    state = AckState(AckPolicy.ACK_EXPLICIT)
    Recorder(consumer.store, state, 1 << 16).recover(3)
    assert (state.delivered_stream, state.since) == (3, 4)


def test_a_reset_that_an_earlier_version_stored_is_read_and_followed_by_others() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    store = bench.consumer("x", durable_name="x").store
    store.snapshot(AckState(AckPolicy.ACK_EXPLICIT, 4).snapshot())
    meta = json.loads(store.meta)
    meta.pop("resets", None)
    store.save_meta(json.dumps({**meta, "since": 4}).encode())
    bench = bench.restarted()
    assert bench.floors("x") == (0, 3, 0, 3)
    assert bench.engine.streams["S"].consumers["x"].since == 4
    assert reset(bench, 2)
    bench = bench.restarted()
    assert bench.floors("x") == (0, 1, 0, 1)
    assert bench.engine.streams["S"].consumers["x"].since == 2
    assert bench.pull("x", b"4").seqs() == [2, 3, 4, 5]
