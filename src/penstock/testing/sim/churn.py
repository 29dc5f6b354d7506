"""Creates and expires ephemeral consumers in simulated time, and checks that memory does not grow.

Each round creates a hundred ephemeral consumers on a stream, half on disk and half in memory, half pull and
half push, and lets their inactive threshold pass.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.testing.sim.simulator import SECOND_NS, Simulator
from penstock.testing.sim.stream_checks import SimPublish

ROUND = 100
GROWTH_MAX = 8 << 20  # bytes; allocators keep some; a leak of ten bytes per consumer shows in a million


class Churn(NamedTuple):
    """The result of a churn run. Sizes in bytes, `files` on the simulated disk."""

    consumers: int
    simulated_s: int
    memory_before: int
    memory_after: int
    files_before: int
    files_after: int
    left: int

    @property
    def is_flat(self) -> bool:
        grown = self.memory_after - self.memory_before
        return grown < GROWTH_MAX and self.files_after <= self.files_before + 2 and self.left == 0


def churn(consumers: int, *, tell: Callable[[str], object]) -> Churn:
    """Creates and expires consumers; measures memory after the first tenth and at the end."""
    lines: list[str] = []
    sim = Simulator(Random(1), lines.append, always=False, block_size=100_000)
    sim.api("STREAM.CREATE.A", {"name": "A", "subjects": ["A.>"], "max_msgs": 100}, ("create", "A"))
    rounds = max(consumers // ROUND, 10)
    before = files = 0
    for number in range(rounds):
        _round(sim, number)
        lines.clear()
        if number + 1 == rounds // 10:
            before, files = _memory(), len(sim.disk.files())
        if (number + 1) % max(rounds // 20, 1) == 0:
            seconds = (sim.now - 1_700_000_000 * SECOND_NS) // SECOND_NS
            tell(f"{(number + 1) * ROUND:9} consumers, {seconds} s simulated, {_memory() >> 20} MiB")
    seconds = (sim.now - 1_700_000_000 * SECOND_NS) // SECOND_NS
    left = len(sim.stream("A").consumers)
    result = Churn(rounds * ROUND, seconds, before, _memory(), files, len(sim.disk.files()), left)
    tell(f"{result}")
    return result


def _round(sim: Simulator, number: int) -> None:
    publish = SimPublish(sim.next_tag(), "A", f"A.{number % 7}")
    sim.publish(publish, b"", 20, reply=True)
    record = sim.streams["A"]
    for i in range(ROUND):
        name = f"c{number}_{i}"
        config = {"name": name, "ack_policy": "explicit", "inactive_threshold": SECOND_NS}
        config["mem_storage"] = i % 2 == 0
        if i % 4 >= 2:
            config["deliver_subject"] = f"unheard.{name}"
        sim.api(f"CONSUMER.CREATE.A.{name}", {"stream_name": "A", "config": config}, ("A", name))
        if i % 4 == 0:
            sim.pull("A", name, {"batch": 1, "no_wait": True})
            sim.tick()
    sim.pass_time(80 * SECOND_NS)
    # The simulation's own, not the server's.
    sim.disk.root.sync_all()
    record.forget_the_past()


def _memory() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
