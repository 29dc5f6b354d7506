"""Command line of the simulation of the meta state: `--seed 7` replays a run, `--seeds 1000` runs fresh
ones."""

from __future__ import annotations

import sys

from penstock.testing.meta_sim.meta_run import MetaRun
from penstock.testing.seed_command import SeedReport, run_seeds
from penstock.testing.sim import Violation

SHOWN = (
    "CreateStream", "UpdateStream", "DeleteStream", "CreateConsumer", "stops", "wiped disks", "joins",
    "membership changes", "SettleMembers", "removals",
)  # fmt: skip


def report(seed: int) -> SeedReport:
    """One run."""
    try:
        return SeedReport("", counts=MetaRun(seed).run())
    except Violation as violation:
        return SeedReport(str(violation))


if __name__ == "__main__":
    sys.exit(run_seeds("meta_sim", __doc__, report, SHOWN))
