"""Command line of the simulation of Raft groups: `--seed 7` replays a run, `--seeds 1000` runs fresh ones."""

from __future__ import annotations

import sys

from penstock.testing.raft_sim.raft_run import run_raft_seed
from penstock.testing.seed_command import SeedReport, run_seeds

SHOWN = (
    "commands", "acknowledged", "reads", "elections", "crashes", "power losses", "partitions", "damages",
    "disk failures", "wipes", "changes", "transfers", "snapshots",
)  # fmt: skip


def report(seed: int) -> SeedReport:
    """One run."""
    outcome = run_raft_seed(seed)
    return SeedReport(outcome.what if outcome.rule else "", f" ({outcome.digest})", outcome.counts)


if __name__ == "__main__":
    sys.exit(run_seeds("raft_sim", __doc__, report, SHOWN))
