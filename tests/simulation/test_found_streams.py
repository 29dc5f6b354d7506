"""What the simulation found about streams and consumers, each told as briefly as it can be."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from random import Random

import pytest

from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.dispatch import publish
from penstock.store.file import FileStore
from penstock.store.files import OpenFiles
from penstock.store.recovery import _indexed
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.consumers import SECOND, ConsumerHarness
from tests.support.engine import EngineHarness
from tests.support.simdisks import FailingDisk, TearAt

SUBJECTS = [b"s.1", b"s.2", b"s.3"]


def opened(disk: SimDisk, *, block_size: int, executor: SimExecutor | None = None) -> FileStore:
    return FileStore("/store", disk=disk, block_size=block_size, executor=executor)


def publish_all(bench: EngineHarness, subjects: list[bytes], payload: bytes) -> None:
    for subject in subjects:
        publish(bench.index, subject, b"", b"", payload)


def recovered(disk: SimDisk, *, block_size: int) -> dict[bytes, int]:
    """Messages by subject after a restart."""
    disk.restart()
    bench = EngineHarness(opened(disk, block_size=block_size).account("$G"))
    return bench.engine.streams["S"].log.subjects()


@pytest.mark.parametrize("rewritten", [False, True])
def test_work_in_the_background_drops_no_message_whose_successor_is_not_written(rewritten: bool) -> None:
    disk, background = SimDisk(Random(1)), SimExecutor()
    bench = EngineHarness(opened(disk, block_size=600, executor=background).account("$G"))
    bench.create("S", "s.*", max_msgs_per_subject=1)
    publish_all(bench, SUBJECTS, b"first" * 25)
    if rewritten:
        publish_all(bench, [b"t"] * 3, b"")
        publish_all(bench, SUBJECTS[:2] * 4, b"second" * 25)
    else:
        publish_all(bench, [b"s.4"] * 4, b"other" * 25)
    bench.tick()  # closes blocks, whose indexes wait for the background
    publish_all(bench, SUBJECTS, b"third")
    bench.engine.tick.apply(bench.now)
    while not background.is_idle:
        background.finish()
    assert recovered(disk, block_size=600).keys() >= set(SUBJECTS)


@pytest.mark.parametrize("operation", range(1, 20))
def test_a_replaced_message_stays_until_one_that_replaces_it_is_written(operation: int) -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk, block_size=130).account("$G"))
    bench.create("S", "s.*", max_msgs_per_subject=1)
    publish_all(bench, SUBJECTS, b"first" * 10)
    bench.tick()
    # Every message has a block of its own. Those of the second round are replaced before they are written.
    publish_all(bench, SUBJECTS, b"second" * 10)
    publish_all(bench, SUBJECTS, b"third" * 10)
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        bench.tick()
    assert recovered(disk, block_size=130).keys() == set(SUBJECTS)


def scanned(data: bytes) -> tuple[MessageBlock, int]:
    """A block of these bytes, and how many of them recovery keeps."""
    block = MessageBlock(1, 1)
    bad = block.scan(data)
    return block, len(data) if bad is None else bad[0]


def log_with_batches(count: int) -> tuple[StreamLog, list[int]]:
    """Batches of two messages, and where each ends."""
    log, ends = StreamLog(100_000, True), []
    for number in range(count):
        log.begin_batch(1000, 2)
        for at in range(2):
            log.append(b"s", b"", b"payload %d %d" % (number, at), 1)
        log.end_batch()
        ends.append(log.block_list()[0].size)
    return log, ends


def test_a_damaged_batch_with_nothing_good_behind_it_is_left_out_whole() -> None:
    log, ends = log_with_batches(3)
    data = bytearray(bytes(log.block_list()[0]))
    for end in ends[1:]:
        data[end - 10] ^= 1  # in the last message of a batch
    data = data[:-5]
    block, kept = scanned(bytes(data))
    assert (block.last_seq, kept) == (2, ends[0])
    again, all_of_it = scanned(bytes(data[:kept]))
    assert (again.last_seq, all_of_it) == (2, kept)


def test_a_damaged_message_of_a_batch_is_left_out_alone_when_later_ones_are_kept() -> None:
    log, ends = log_with_batches(2)
    data = bytearray(bytes(log.block_list()[0]))
    data[ends[0] - 10] ^= 1
    block, kept = scanned(bytes(data))
    assert (block.live, block.last_seq, kept) == (3, 4, len(data))


@pytest.mark.parametrize("swept", [False, True])
def test_a_consumer_that_power_loss_brings_back_has_its_acks(swept: bool) -> None:
    for seed in range(60):
        disk = SimDisk(Random(seed))
        bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"), sync_always=True)
        bench.consumer("x", durable_name="x")
        bench.store_messages("s.1", "s.2")
        for message in bench.pull("x", b"2").take():
            bench.ack(message, reply=b"_OK")
        bench.tick()
        if swept:  # the next process removes what a killed one began to
            disk.kill_at = disk.ops + 2
            with contextlib.suppress(Killed):
                bench.api("CONSUMER.DELETE.S.x")
            disk.restart()
            opened(disk, block_size=4000).account("$G").open_stream("S")
        else:
            bench.api("CONSUMER.DELETE.S.x")
        disk.lose_power()
        bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"), sync_always=True)
        if "x" in bench.engine.streams["S"].consumers:
            assert bench.floors("x") == (2, 2, 2, 2), seed


def test_an_ack_of_a_delivery_that_power_loss_took_back_is_confirmed_and_kept() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"))
    bench.consumer("x", durable_name="x", ack_policy="all", ack_wait=SECOND)
    bench.store_messages("s.1")
    assert bench.pull("x", b"1").seqs() == [1]
    bench.engine.streams["S"].store.sync()
    bench.wait_until(bench.now + 2 * SECOND)
    [message] = bench.pull("x", b"1").take()
    assert message.numbers[:3] == (2, 1, 2)
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"), now=bench.now)
    confirmations = bench.listen(b"_OK")
    bench.ack(message, reply=b"_OK")
    bench.tick()
    assert len(confirmations) == 1
    bench.wait_until(bench.now + 2 * SECOND)
    assert bench.pull("x", b"1").seqs() == []
    assert bench.info("x")["num_ack_pending"] == 0


@pytest.mark.parametrize("syncing", [False, True])
def test_an_ack_that_repeats_one_is_confirmed_when_that_one_is_on_the_disk(syncing: bool) -> None:
    disk, background = SimDisk(Random(1)), SimExecutor()
    bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"), sync_always=True)
    bench.consumer("x", durable_name="x", ack_policy="explicit", ack_wait=SECOND)
    bench.store_messages("s.1")
    [message] = bench.pull("x", b"1").take()
    bench.ack(message)
    bench.tick()
    if syncing:  # ... and that is not done
        bench.engine.streams["S"].store._files.executor = background  # type: ignore[attr-defined]
        bench.engine.streams["S"].store.start_sync(lambda error: None)
    confirmations = bench.listen(b"_OK")
    bench.ack(message, reply=b"_OK")
    bench.tick()
    assert len(confirmations) == 1
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk, block_size=4000).account("$G"), sync_always=True, now=bench.now)
    assert bench.info("x")["ack_floor"]["stream_seq"] == 1


def test_the_index_of_a_block_without_a_byte_is_used() -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk, block_size=130).account("$G"))
    bench.create("S", "s.*")
    publish_all(bench, SUBJECTS, b"one" * 25)
    bench.tick()
    msgs = Path("/store/jetstream/%24G/streams/S/msgs")
    disk.open(msgs / "2.blk", truncate=True)
    disk.unlink(msgs / "2.idx")
    assert recovered(disk, block_size=130).keys() == {b"s.1", b"s.3"}
    files = OpenFiles(disk=disk)
    block = _indexed(msgs, files, 2)
    assert block is not None and (len(block), block.size) == (0, 0)


def left_in_the_origin(disk: SimDisk) -> int:
    disk.restart()
    return EngineHarness(opened(disk, block_size=4000).account("$G")).engine.streams["W"].log.messages


@pytest.mark.parametrize("operation", range(1, 12))
def test_a_recovery_that_dies_finds_the_same_of_what_a_lost_mirror_took(operation: int) -> None:
    disk = SimDisk(Random(1))
    bench = EngineHarness(opened(disk, block_size=4000).account("$G"))
    bench.create("W", "w", retention="workqueue")
    bench.create("M", storage="memory", subjects=[], mirror={"name": "W"})
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        publish_all(bench, [b"w"], b"taken")
        for _ in range(4):
            bench.tick()
    whole = left_in_the_origin(copy.deepcopy(disk))
    for dies_at in range(1, 30):
        again = copy.deepcopy(disk)
        again.restart()
        again.kill_at = again.ops + dies_at
        with contextlib.suppress(Killed):
            EngineHarness(opened(again, block_size=4000).account("$G"))
        assert left_in_the_origin(again) == whole, dies_at


@pytest.mark.parametrize("torn_at", range(0, 300, 3))
def test_a_number_that_only_a_removal_tells_is_given_to_no_other_message(torn_at: int) -> None:
    disk = SimDisk(TearAt(torn_at))
    stream = opened(disk, block_size=4000).account("$G").create_stream("S", b"{}", "file")
    stream.log.append(b"S", b"", b"first", 1)
    stream.write()
    stream.log.append(b"S", b"", b"second" * 20, 2)
    stream.log.remove(2, True)
    disk.kill_at = disk.ops + 1
    with pytest.raises(Killed):
        stream.write()
    disk.restart()
    stream = opened(disk, block_size=4000).account("$G").open_stream("S")
    seq = stream.log.append(b"S", b"", b"third", 3)
    stream.write()
    disk.restart()
    message = opened(disk, block_size=4000).account("$G").open_stream("S").log.load(seq)
    assert message is not None
    assert message.payload == b"third"


@pytest.mark.parametrize("operation", range(1, 14))
def test_a_stream_whose_creation_the_disk_refused_does_not_come_back_with_a_restart(operation: int) -> None:
    disk = FailingDisk(Random(1))
    bench = EngineHarness(opened(disk, block_size=4000).account("$G"))
    disk.fails_in = operation
    refused = "error" in bench.api("STREAM.CREATE.S", {"name": "S"})
    disk.restart()
    bench = EngineHarness(opened(disk, block_size=4000).account("$G"))
    assert ("S" in bench.engine.streams) is not refused


@pytest.mark.parametrize("operation", range(1, 24))
def test_a_stream_that_a_killed_process_made_survives_power_loss_once_its_creation_is_answered(
    operation: int,
) -> None:
    disk = SimDisk(Random(1))
    disk.kill_at = operation
    with contextlib.suppress(Killed):
        EngineHarness(opened(disk, block_size=4000).account("$G")).create("S")
    disk.restart()
    EngineHarness(opened(disk, block_size=4000).account("$G")).create("S")
    disk.lose_power(all_of_it=True)
    bench = EngineHarness(opened(disk, block_size=4000).account("$G"))
    assert "S" in bench.engine.streams


def test_a_marker_larger_than_what_expired_does_not_exceed_the_bytes_of_a_stream_that_discards_new() -> None:
    bench = EngineHarness()
    bench.create(
        "S", "s.*", max_bytes=150, discard="new", max_age=SECOND, subject_delete_marker_ttl=SECOND,
        allow_msg_ttl=True, allow_rollup_hdrs=True,
    )  # fmt: skip
    for subject, wait in (("s.1", 0), ("s.2", SECOND // 2)):
        bench.now += wait
        bench.request(subject, b"." * 41)
    bench.wait_until(bench.now + SECOND * 3 // 4)
    assert bench.state("S")["messages"] == 1
    assert bench.state("S")["bytes"] <= 150


def test_a_message_stays_when_power_loss_takes_the_one_that_replaced_it_in_the_same_sync() -> None:
    for seed in range(200):
        disk = SimDisk(Random(seed))
        stream = opened(disk, block_size=150).account("$G").create_stream("S", b"{}", "file")
        for number in range(1, 4):
            stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
        stream.write()
        stream.sync()
        last = stream.log.append(b"S.4", b"", b"." * 150, 4)
        stream.log.purge(upto_seq=last)
        disk.kill_at = disk.ops + 1 + seed % 7
        with contextlib.suppress(Killed):
            stream.write()
        disk.lose_power()
        log = opened(disk, block_size=150).account("$G").open_stream("S").log
        assert log.messages in (1, 3, 4), seed


@pytest.mark.parametrize("replaced", [1, 2, 3, 4])
def test_a_message_stays_when_work_in_the_background_overtakes_the_sync_of_what_replaced_it(
    replaced: int,
) -> None:
    for seed in range(200):
        disk, background = SimDisk(Random(seed)), SimExecutor()
        background.random = Random(seed)
        store = opened(disk, block_size=300, executor=background)
        stream = store.account("$G").create_stream("S", b"{}", "file")
        for number in range(1, 5):
            stream.log.append(b"S.%d" % number, b"", b"." * 105, number)
        stream.write()
        stream.sync()
        last = stream.log.append(b"S.5", b"", b"." * 50, 5)
        for seq in range(1, replaced + 1):
            stream.log.remove(seq)
        stream.write()
        stream.start_sync(lambda error: None)
        for _ in range(seed % 8):
            background.work()
            if seed % 3:
                background.finish()
        disk.lose_power()
        log = opened(disk, block_size=300).account("$G").open_stream("S").log
        assert log.load(last) is not None or log.messages == 4, seed
        assert log.last_seq >= 4, seed


def recovery_dies_at(disk: SimDisk, operation: int, count: int) -> None:
    """A start that dies there, and one that does not and stores other messages under the same sequences."""
    disk.kill_at = disk.ops + operation
    with contextlib.suppress(Killed):
        opened(disk, block_size=4000).account("$G").open_stream("S")
    disk.restart()
    stream = opened(disk, block_size=4000).account("$G").open_stream("S")
    for number in range(count):
        stream.log.append(b"s", b"", b"new%d" % number, 1)
    stream.write()


@pytest.mark.parametrize("operation", range(1, 12))
def test_what_a_recovery_cut_does_not_come_back_beside_what_was_stored_since(operation: int) -> None:
    for seed in range(200):
        disk = SimDisk(Random(seed))
        stream = opened(disk, block_size=4000).account("$G").create_stream("S", b"meta", "file")
        for number in range(5):
            stream.log.append(b"s", b"", b"old%d" % number, 1)
        stream.write()
        stream.sync()
        block = next(file for path, file in disk.files() if path.endswith("1.blk"))
        block.data[:100] = bytes(100)
        block.sync()
        disk.restart()
        recovery_dies_at(disk, operation, 3)
        disk.lose_power()
        log = opened(disk, block_size=4000).account("$G").open_stream("S").log
        found = [message.payload for seq in range(1, log.last_seq + 1) if (message := log.load(seq))]
        assert len({payload[:3] for payload in found}) <= 1, (seed, found)
        disk.restart()


class Started(EngineHarness):
    """An engine that has recovered, and runs no tick: nothing was read from an origin yet."""

    def tick(self) -> None:
        return


def test_a_mirror_that_is_deleted_right_after_a_start_leaves_no_consumer_in_its_origin() -> None:
    store = opened(SimDisk(Random(1)), block_size=600).account("$G")
    bench = EngineHarness(store)
    bench.create("S", "s.*", retention="interest")
    bench.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "S"}})
    bench.tick()
    assert [one.is_driven for one in bench.engine.streams["S"].consumers.values()] == [True]
    bench = Started(store, now=bench.now)
    bench.engine.registry.delete("M")
    assert not bench.engine.streams["S"].consumers
