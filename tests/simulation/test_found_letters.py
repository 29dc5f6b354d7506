"""What seeds of the simulation found about dead letters, in small."""

from __future__ import annotations

from random import Random

from penstock.protocol import headers
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.consumers import SECOND, ConsumerHarness


def opened(disk: SimDisk) -> FileStore:
    return FileStore("/store", disk=disk, block_size=4000)


def bench_on(disk: SimDisk, **settings: int) -> ConsumerHarness:
    return ConsumerHarness(opened(disk).account("$G"), **settings)


def terminate_one(bench: ConsumerHarness) -> None:
    bench.create("DEAD", "dead", duplicate_window=SECOND)
    bench.consumer("c", durable_name="c", metadata={"penstock.dead_letter": "dead"})
    bench.store_messages("s.1")
    [message] = bench.pull("c", b"1").take()
    bench.ack(message, b"+TERM")


def test_a_letter_whose_answer_was_that_the_disk_is_full_is_not_stored_again_past_the_duplicate_window() -> (
    None
):
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    terminate_one(bench)
    bench.tick()  # gives it up
    disk.room = 0
    bench.tick()  # the letter is in the log of its stream, and can't be written
    bench.pass_time(3 * SECOND)
    disk.room = None
    bench.pass_time(20 * SECOND)
    bench.tick()
    assert bench.state("DEAD")["messages"] == 1
    assert not bench.engine.streams["S"].consumers["c"].dead_letters.is_busy


def test_a_letter_that_is_there_and_not_written_does_not_settle_its_message() -> None:
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    terminate_one(bench)
    bench.tick()
    disk.room = 0
    bench.tick()
    bench.pass_time(6 * SECOND)  # the letter is looked for, and found in memory only
    disk.restart()
    bench = bench_on(disk, now=bench.now)
    bench.pass_time(SECOND)
    bench.tick()
    assert bench.state("DEAD")["messages"] == 1


def test_a_message_that_two_terminate_at_once_becomes_a_letter_after_a_crash() -> None:
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    bench.create("DEAD", "dead")
    bench.consumer("c", durable_name="c", ack_wait=SECOND, metadata={"penstock.dead_letter": "dead"})
    bench.store_messages("s.1")
    [one] = bench.pull("c", b"1").take()
    bench.pass_time(2 * SECOND)
    [two] = bench.pull("c", b"1").take()
    bench.ack(one, b"+TERM")
    bench.ack(two, b"+TERM")
    bench.tick()
    disk.restart()
    bench = bench_on(disk, now=bench.now)
    for _ in range(5):
        bench.tick()
    assert bench.state("DEAD")["messages"] == 1


def test_a_letter_waits_until_it_is_written_that_its_message_was_given_up() -> None:
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    terminate_one(bench)
    disk.room = 0
    for _ in range(4):
        bench.tick()
    assert bench.state("DEAD")["messages"] == 0
    disk.room = None
    bench.pass_time(3 * SECOND)
    for _ in range(4):
        bench.tick()
    assert bench.state("DEAD")["messages"] == 1


def test_power_loss_does_not_bring_a_second_letter_where_syncs_are_waited_for() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(opened(disk).account("$G"), sync_always=True)
    terminate_one(bench)
    for _ in range(2):
        bench.tick()
    disk.lose_power(all_of_it=True)
    bench = ConsumerHarness(opened(disk).account("$G"), now=bench.now, sync_always=True)
    bench.pass_time(60 * SECOND)
    assert bench.pull("c", b"1").take() == []
    for _ in range(4):
        bench.tick()
    assert bench.state("DEAD")["messages"] == 1


def test_a_consumer_s_name_is_free_again_when_the_disk_refused_to_remove_its_files() -> None:
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    bench.consumer("x", inactive_threshold=SECOND)
    disk.fail_rate = 1.0
    bench.pass_time(5 * SECOND)
    disk.fail_rate = 0.0
    assert not bench.engine.streams["S"].consumers
    bench.consumer("x", durable_name="x")


def test_a_letter_that_is_there_twice_settles_its_message_once() -> None:
    disk = SimDisk(Random(1))
    bench = bench_on(disk)
    terminate_one(bench)
    created = bench.engine.streams["S"].consumers["c"].created
    letter = headers.build([(headers.MSG_ID, f"dead-letter.S.c.{created}.1")])
    bench.tick()  # gives it up
    disk.restart()  # of the letter nothing was written: the next start looks for it
    store = opened(disk).account("$G")
    dead = store.open_stream("DEAD")
    for ts in (bench.now, bench.now + 2 * SECOND):
        dead.log.append(b"dead", letter, b"s.1", ts)
    dead.write()
    dead.close()
    disk.restart()
    bench = bench_on(disk, now=bench.now + 3 * SECOND)
    bench.tick()
    assert bench.state("DEAD")["messages"] == 2
    assert not bench.engine.streams["S"].consumers["c"].dead_letters.is_busy
