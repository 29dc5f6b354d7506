"""Command line of the simulation of replicated streams: `--seed 7` replays a run, `--seeds 50` fresh ones."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from penstock.testing.sim.runner import fresh_seed
from penstock.testing.stream_sim.stream_run import run_stream_seed

SHOWN = (
    "entries", "acked", "refused", "deliveries", "confirmations", "reads", "409", "crashes", "power losses",
    "partitions", "pauses", "transfers", "compactions", "restored",
    "fetched", "spared", "written", "kept",
)  # fmt: skip


def main() -> int:
    """Prints each failure and the work per seed; the exit status says whether there was a failure."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.stream_sim", description=__doc__)
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
        outcome = run_stream_seed(seed)
        total += outcome.counts
        if outcome.rule or arguments.seed is not None:
            say(f"seed {seed}: {outcome.what or 'passes'} ({outcome.digest})\n")
            sys.stdout.flush()
        failed += bool(outcome.rule)
    say("per seed: " + ", ".join(f"{total[one] / len(seeds):.1f} {one}" for one in SHOWN) + "\n")
    say(f"{failed} of {len(seeds)} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
