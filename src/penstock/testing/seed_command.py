"""The command line that simulations of clusters share: `--seed 7` replays a run, `--seeds 100` fresh ones."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.testing.sim.runner import fresh_seed


class SeedReport(NamedTuple):
    """What a seed came to. failure: "" = it passed. detail: printed behind it. counts: its work, by name."""

    failure: str
    detail: str = ""
    counts: Counter[str] = Counter()


def run_seeds(
    name: str, about: str | None, run: Callable[[int], SeedReport], shown: Sequence[str] = ()
) -> int:
    """Runs the seeds that the command line asks for; prints each failure and the work per seed.

    name: of the package below penstock.testing. about: the help text. shown: the counts to print. Returns
    the exit status: 1 when a seed failed.
    """
    parser = argparse.ArgumentParser(prog=f"python -m penstock.testing.{name}", description=about)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int)
    arguments = parser.parse_args()
    first = fresh_seed() if arguments.first is None else arguments.first
    seeds = [arguments.seed] if arguments.seed is not None else range(first, first + arguments.seeds)
    say = sys.stdout.write
    say(f"{len(seeds)} seeds from {seeds[0]}\n")
    failed = 0
    total: Counter[str] = Counter()
    for seed in seeds:
        report = run(seed)
        total += report.counts
        if report.failure or arguments.seed is not None:
            say(f"seed {seed}: {report.failure or 'passes'}{report.detail}\n")
            sys.stdout.flush()
        failed += bool(report.failure)
    if shown:
        say("per seed: " + ", ".join(f"{total[one] / len(seeds):.1f} {one}" for one in shown) + "\n")
    say(f"{failed} of {len(seeds)} failed\n")
    return 1 if failed else 0
