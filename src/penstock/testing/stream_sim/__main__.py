"""Command line of the simulation of replicated streams: `--seed 7` replays a run, `--seeds 50` fresh ones."""

from __future__ import annotations

import sys

from penstock.testing.seed_command import SeedReport, run_seeds
from penstock.testing.stream_sim.stream_run import run_stream_seed

SHOWN = (
    "entries", "acked", "refused", "deliveries", "confirmations", "reads", "409", "crashes", "power losses",
    "partitions", "pauses", "transfers", "compactions", "checkpoints", "installed", "mails", "timed",
)  # fmt: skip


def report(seed: int) -> SeedReport:
    """One run."""
    outcome = run_stream_seed(seed)
    return SeedReport(outcome.what if outcome.rule else "", f" ({outcome.digest})", outcome.counts)


if __name__ == "__main__":
    sys.exit(run_seeds("stream_sim", __doc__, report, SHOWN))
