"""Clients of a benchmark as processes that begin together.

Processes are started afresh and not forked: a fork of a process with an event loop and threads is a copy
of their locks. A barrier lets the work begin when every client is connected.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import accumulate
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any

from penstock.cli.benchmarks.bench_jobs import BenchJob, BenchTimes, run_job
from penstock.cli.framework.command_run import CommandFailed

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

START_TIMEOUT_S = 120.0

_barrier: Barrier | None = None


def shares(messages: int, clients: int) -> list[int]:
    """How many messages each client has: they differ by one at most."""
    whole, rest = divmod(messages, clients)
    return [whole + (number < rest) for number in range(clients)]


async def run_clients(job: BenchJob, clients: int, *, each: bool) -> list[BenchTimes]:
    """Run the job of each client. each: every client has all messages, not its share.

    Raises CommandFailed when a client fails, with its reason.
    """
    counts = [job.messages] * clients if each else shares(job.messages, clients)
    firsts = accumulate(counts, initial=0)
    jobs = [
        replace(job, number=number, messages=count, first=first)
        for number, (count, first) in enumerate(zip(counts, firsts, strict=False))
        if count
    ]
    if len(jobs) == 1:
        return [await run_job(jobs[0], _at_once)]
    return await asyncio.to_thread(_run_processes, jobs)


async def _at_once() -> None:
    """A single client waits for none."""


def _run_processes(jobs: list[BenchJob]) -> list[BenchTimes]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(jobs))
    with ProcessPoolExecutor(len(jobs), context, initializer=_use_barrier, initargs=(barrier,)) as pool:
        waiting = [pool.submit(_work, job) for job in jobs]
        try:
            outcomes = [one.result() for one in waiting]
        except BrokenProcessPool as error:
            raise CommandFailed(f"a process of the benchmark ended: {error}") from error
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failed:
        # Those that waited for the failed client say nothing of interest.
        raise CommandFailed(next((text for text in failed if text), "a client did not begin"))
    return [outcome for outcome in outcomes if not isinstance(outcome, str)]


def _use_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _work(job: BenchJob) -> BenchTimes | str:
    """The job of one process: its times, or why it failed. A text travels where an exception might not."""
    from penstock.errors import PenstockError

    barrier = _barrier
    assert barrier is not None

    async def ready() -> None:
        await asyncio.to_thread(barrier.wait, START_TIMEOUT_S)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(run_job(job, ready))
    except BrokenBarrierError:
        return ""
    except (PenstockError, OSError) as error:
        barrier.abort()
        return f"client {job.number + 1}: {error}"


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
