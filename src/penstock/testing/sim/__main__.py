"""Command line of the simulation: `python -m penstock.testing.sim --seed 7`, or `--seeds 1000`; see
--help."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.testing.sim.churn import churn
from penstock.testing.sim.runner import SeedOutcome, Work, fresh_seed, run_seed, shrink

CHUNK = 20


class Chunk(NamedTuple):
    """The results of a range of seeds: their work, and the failed ones (without logs)."""

    work: list[Work]
    failed: list[SeedOutcome]


def run_chunk(first: int, last: int) -> Chunk:
    """Runs a range of seeds."""
    outcomes = [run_seed(seed) for seed in range(first, last)]
    failed = [one._replace(events=[], failure=None, digest=one.summary) for one in outcomes if one.failure]
    return Chunk([one.work for one in outcomes], failed)


def run_one(seed: int, console: Console) -> int:
    """Replays a seed with its event log; shrinks it if it fails."""
    outcome = run_seed(seed)
    for event in outcome.events:
        style = "bold" if event.startswith("[") else "red" if event.startswith("FAILED") else None
        console.print(event, style=style, markup=False, highlight=False, soft_wrap=True)
    if outcome.failure is None:
        console.print(
            f"seed {seed} passes: {outcome.work}, events {outcome.digest[:12]}",
            style="green",
            highlight=False,
        )
        return 0
    console.print(f"seed {seed} fails: {outcome.summary}", style="red", markup=False)
    tell_shrunk(outcome, console)
    return 1


def tell_shrunk(outcome: SeedOutcome, console: Console) -> None:
    """Prints the same failure with fewer steps."""
    smaller, skipped = shrink(outcome)
    console.print(f"the same with {len(skipped)} steps left out:", style="bold")
    for event in smaller.events:
        console.print(event, markup=False, highlight=False, soft_wrap=True)


def run_many(first: int, count: int, jobs: int, console: Console) -> int:
    """Runs seeds on all cores; prints the work per seed, the failed seeds, and the first of them shrunk."""
    console.print(f"{count} seeds from {first}", highlight=False)
    began = time.monotonic()
    work: list[Work] = []
    failed: list[SeedOutcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        task = progress.add_task("seeds", total=count)
        chunks = [
            pool.submit(run_chunk, at, min(at + CHUNK, first + count))
            for at in range(first, first + count, CHUNK)
        ]
        for chunk in as_completed(chunks):
            result = chunk.result()
            work += result.work
            failed += result.failed
            for one in result.failed:  # at once: a long run may be ended early
                console.print(f"seed {one.seed}: {one.digest[:400]}", style="red", markup=False)
            progress.update(task, advance=len(result.work), description=f"seeds, {len(failed)} fail")
    took = time.monotonic() - began
    failed.sort()
    sums = {name: sum(getattr(one, name) for one in work) for name in Work._fields}
    per_seed = ", ".join(f"{total / count:.1f} {name.replace('_', ' ')}" for name, total in sums.items())
    console.print(f"per seed: {per_seed}", highlight=False, soft_wrap=True)
    style = "red" if failed else "green"
    console.print(f"{count} seeds from {first} in {took:.1f} s, {len(failed)} fail", style=style)
    if failed:
        tell_shrunk(run_seed(failed[0].seed), console)
    return bool(failed)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with its event log")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run (default 200)")
    parser.add_argument(
        "--first", type=int, default=fresh_seed(), help="the first of them (default: by the clock)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--churn", type=int, help="instead, make and expire so many ephemeral consumers")
    args = parser.parse_args()
    console = Console()
    if args.churn:
        result = churn(args.churn, tell=lambda text: console.print(text, highlight=False))
        return 0 if result.is_flat else 1
    if args.seed is not None:
        return run_one(args.seed, console)
    return run_many(args.first, args.seeds, args.jobs, console)


if __name__ == "__main__":
    sys.exit(main())
