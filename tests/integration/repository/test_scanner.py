"""The scanner finds what it is there for: long work, what escapes or was contained, and servers that end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from penstock import faults
from penstock.server.server import Server
from tests.support.scan import resumed, run_shard, shard_of
from tests.support.scanner import Probe, Scanner, Session, Setup

BOUND_MS = 50.0
tasks: list[asyncio.Future[None]] = []
SETUPS = {"plain": Setup(lambda directory: "", lambda session: None)}


def found(
    work: Callable[[Server], None], bound: Callable[[], float] = lambda: BOUND_MS
) -> list[tuple[str, str]]:
    """(what, step) of what is found when the server's loop does this."""
    reported: list[str] = []
    scanner = Scanner(SETUPS, bound, reported.append)

    def run(session: Session) -> None:
        session.server.call(work)
        session.step("work", 1.0)

    try:
        scanner.run(Probe("test", "harmless", "plain", lambda session: session.publish("a", b"x")))
        assert not scanner.findings
        scanner.run(Probe("test", "work", "plain", run))
    finally:
        scanner.close()
    assert scanner.counts["test"] == 2
    assert len(reported) == len(scanner.findings)
    return [(finding.what, finding.step) for finding in scanner.findings]


def busy(server: Server) -> None:
    end = time.thread_time_ns() + 3 * int(BOUND_MS * 1e6)
    while time.thread_time_ns() < end:
        pass


def escapes() -> None:
    raise ZeroDivisionError


async def busy_in_parts(server: Server) -> None:
    for _ in range(30):
        end = time.thread_time_ns() + int(BOUND_MS * 1e5)
        while time.thread_time_ns() < end:
            pass
        await asyncio.sleep(0)


def test_work_without_a_turn_for_others_is_found() -> None:
    assert found(busy) == [("slow", "work")]


def test_as_much_work_with_turns_is_not() -> None:
    assert found(lambda server: tasks.append(asyncio.ensure_future(busy_in_parts(server)))) == []


def test_work_that_is_long_once_is_not_the_inputs() -> None:
    times: list[int] = []

    def slow_once(server: Server) -> None:
        times.append(1)
        if len(times) == 1:
            busy(server)

    assert found(slow_once) == []
    assert len(times) > 1


def test_work_that_is_long_because_the_machine_became_slow_is_not_the_inputs() -> None:
    bounds = [BOUND_MS]

    def bound() -> float:
        return bounds.pop() if bounds else 10 * BOUND_MS

    assert found(busy, bound) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.9])
def test_what_escapes_to_the_loop_is_found_also_later(delay_s: float) -> None:
    work = lambda server: asyncio.get_running_loop().call_later(delay_s, escapes)  # noqa: E731
    assert found(work) == [("escaped", "work")]


def test_what_was_contained_is_found(noted_faults: list[BaseException]) -> None:
    def work(server: Server) -> None:
        faults.contain(escapes, lambda error: faults.note("test", error))

    assert found(work) == [("escaped", "work")]
    assert noted_faults.pop().__class__ is ZeroDivisionError


def test_a_server_that_ended_is_found() -> None:
    def stop(server: Server) -> None:
        server.failed = True

    assert ("gone", "end") in found(stop)


def numbered(count: int) -> list[Probe]:
    return [Probe("api", str(n), "accounts", lambda session: None) for n in range(count)]


def test_the_shards_of_a_seed_have_each_probe_once_in_an_order_of_its_own() -> None:
    probes = numbered(100)
    shards = [shard_of(probes, f"{n}/3", 7) for n in range(3)]
    assert sorted((one for shard in shards for one in shard), key=probes.index) == probes
    assert shards[0] == shard_of(probes, "0/3", 7) != shard_of(probes, "0/3", 8)


def test_a_shard_goes_on_behind_what_its_file_says(tmp_path: Path) -> None:
    class Ended(Exception):
        pass

    class Seen:
        def __init__(self, most: int) -> None:
            self.findings: list[str] = []
            self.shapes: list[str] = []
            self.most = most

        def run(self, probe: Probe) -> None:
            if len(self.shapes) == self.most:
                raise Ended
            self.shapes.append(probe.shape)
            self.findings += [probe.shape] * (probe.shape == "5")

    path, probes = tmp_path / "done", numbered(250)
    first, second = Seen(130), Seen(1000)
    with pytest.raises(Ended):
        run_shard(cast("Scanner", first), probes, resumed(path, 3, "0/1"), path)
    done = resumed(path, 99, "0/1")
    assert (done.seed, done.count, done.findings) == (3, 130, ["5"])
    run_shard(cast("Scanner", second), probes, done, path)
    assert first.shapes + second.shapes == [one.shape for one in probes]
    with pytest.raises(ValueError, match="is of shard 0/1, not 1/2"):
        resumed(path, 3, "1/2")
