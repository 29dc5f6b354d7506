"""What the simulation found, each told as briefly as it can be."""

from __future__ import annotations

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
