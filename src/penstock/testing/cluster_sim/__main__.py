"""Command line of the cluster simulation: `--seed 7` replays one run, `--seeds 1000` runs fresh ones."""

from __future__ import annotations

import sys

from penstock.testing.cluster_sim.cluster_run import run_cluster_seed
from penstock.testing.seed_command import SeedReport, run_seeds


def report(seed: int) -> SeedReport:
    """One run."""
    outcome = run_cluster_seed(seed)
    return SeedReport(outcome.what if outcome.rule else "", f" ({outcome.digest})")


if __name__ == "__main__":
    sys.exit(run_seeds("cluster_sim", __doc__, report))
