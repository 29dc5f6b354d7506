"""Failures of the disk, and actions that need a full one.

Each action draws its details from its Random and runs in a simulator (workload.py)."""

from __future__ import annotations

from random import Random

from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.testing.sim.batchwork import any_stream_with, new_publish
from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_work import TOKENS, any_open_stream, publish_one


def fail_disk(sim: Simulator, random: Random) -> None:
    """Makes the disk full, makes it fail at times, or repairs it."""
    disk = sim.disk
    if disk.room is not None or disk.fail_rate:
        heal_disk(sim)
    elif random.random() < 0.6:
        disk.room = random.choice([0, 10, 300])
        sim.say(f"the disk has room for {disk.room} bytes")
    else:
        disk.fail_rate = random.choice([0.05, 0.3])
        sim.say(f"the disk fails, {disk.fail_rate}")


def fill_disk(sim: Simulator, random: Random) -> None:
    """The disk is full, or has room again."""
    disk = sim.disk
    if disk.room is not None:
        heal_disk(sim)
    else:
        disk.room = random.choice([0, 10, 300])
        sim.say(f"the disk has room for {disk.room} bytes")


def schedule_on_a_full_disk(sim: Simulator, random: Random) -> None:
    """Schedules come due together when the disk is full, and the stream holds nothing else."""
    record = any_stream_with(sim, random, "allow_msg_schedules")
    if record is None:
        return
    heal_disk(sim)
    if record.name not in sim.streams:
        return
    record.asked.append(("purge", ("", 0)))
    sim.api(f"STREAM.PURGE.{record.name}", {})
    for token in random.sample(TOKENS, 3):
        publish = new_publish(sim, record, f"s.{token}")
        publish.plain, publish.rollup = False, "sub"
        pairs = [
            (headers.SCHEDULE, f"@at {format_time(sim.now + SECOND_NS)}"),
            (headers.SCHEDULE_TARGET, f"{record.name}.{random.choice('xy')}"),
        ]
        sim.publish(publish, headers.build(pairs), 5, reply=True)
    sim.tick(whole=True)
    fill_disk(sim, random)
    sim.pass_time(random.choice([1, 3]) * SECOND_NS)


def purge_on_a_full_disk(sim: Simulator, random: Random) -> None:
    """A stream is purged when the disk is full, and a sync of it may be in flight."""
    record = any_open_stream(sim, random)
    if record is None:
        return
    heal_disk(sim)
    if record.name not in sim.streams:
        return
    for left in reversed(range(random.randrange(2, 6))):
        publish_one(sim, random, record)
        sim.tick(whole=left > 0)
    fill_disk(sim, random)
    record.asked.append(("purge", ("", 0)))
    sim.api(f"STREAM.PURGE.{record.name}", {})


def heal_disk(sim: Simulator) -> None:
    """Repairs the disk, and waits for the server's retry."""
    if sim.disk.room is not None or sim.disk.fail_rate:
        sim.disk.room, sim.disk.fail_rate = None, 0.0
        sim.say("the disk works")
        sim.pass_time(2 * SECOND_NS)
        sim.removals.ask_again(sim)


def heal_majority(sim: Simulator) -> None:
    """Lets every commit of a majority succeed from now on, and waits for the server's retry."""
    sim.minority_rate = 0.0
    if sim.engine.commit.has_failing:
        sim.pass_time(2 * SECOND_NS)
