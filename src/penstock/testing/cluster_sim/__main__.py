"""Command line of the cluster simulation: `--seed 7` replays one run, `--seeds 1000` runs fresh ones."""

from __future__ import annotations

import argparse
import sys

from penstock.testing.cluster_sim.cluster_run import run_cluster_seed
from penstock.testing.sim.runner import fresh_seed


def main() -> int:
    """Prints each failure; the exit status says whether there was one."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.cluster_sim")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int)
    arguments = parser.parse_args()
    first = fresh_seed() if arguments.first is None else arguments.first
    seeds = [arguments.seed] if arguments.seed is not None else range(first, first + arguments.seeds)
    say = sys.stdout.write
    say(f"{len(seeds)} seeds from {seeds[0]}\n")
    failed = 0
    for seed in seeds:
        outcome = run_cluster_seed(seed)
        if outcome.rule or arguments.seed is not None:
            say(f"seed {seed}: {outcome.what or 'passes'} ({outcome.digest})\n")
        failed += bool(outcome.rule)
    say(f"{failed} of {len(seeds)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
