"""Command line of the simulation of the meta state: `--seed 7` replays a run, `--seeds 1000` runs fresh
ones."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from penstock.testing.meta_sim.meta_run import MetaRun
from penstock.testing.sim import Violation
from penstock.testing.sim.runner import fresh_seed

SHOWN = (
    "CreateStream", "UpdateStream", "DeleteStream", "CreateConsumer", "stops", "wiped disks", "joins",
    "membership changes", "SettleMembers", "removals",
)  # fmt: skip


def main() -> int:
    """Prints each failure and the work per seed; the exit status says whether there was a failure."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.meta_sim", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int)
    arguments = parser.parse_args()
    first = fresh_seed() if arguments.first is None else arguments.first
    seeds = [arguments.seed] if arguments.seed is not None else range(first, first + arguments.seeds)
    sys.stdout.write(f"{len(seeds)} seeds from {seeds[0]}\n")
    failed = 0
    total: Counter[str] = Counter()
    for seed in seeds:
        try:
            total += MetaRun(seed).run()
        except Violation as violation:
            failed += 1
            sys.stdout.write(f"seed {seed}: {violation}\n")
            sys.stdout.flush()
    shown = ", ".join(f"{total[one] / len(seeds):.1f} {one}" for one in SHOWN)
    sys.stdout.write(f"per seed: {shown}\n{failed} of {len(seeds)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
