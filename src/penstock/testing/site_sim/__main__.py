"""Command line of the simulation of sites: `--seed 7` replays one run, `--seeds 1000` runs fresh ones."""

from __future__ import annotations

import sys

from penstock.testing.seed_command import SeedReport, run_seeds
from penstock.testing.site_sim.site_run import run_site_seed


def report(seed: int) -> SeedReport:
    """One run."""
    outcome = run_site_seed(seed)
    return SeedReport(outcome.what if outcome.rule else "", f" ({outcome.digest})")


if __name__ == "__main__":
    sys.exit(run_seeds("site_sim", __doc__, report))
