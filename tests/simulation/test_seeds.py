"""Seeds of the simulation: a fixed number of them, and one of the commit's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.sim.churn import churn
from penstock.testing.sim.runner import run_seed, shrink

CHUNK = 20
FIXED = range(1, 41, CHUNK)


def hold(seed: int) -> None:
    outcome = run_seed(seed)
    if outcome.failure is not None:
        smaller, _ = shrink(outcome)
        log = "\n".join(smaller.events)
        pytest.fail(f"make sim SEED={seed} replays it: {outcome.summary}\n{log}", pytrace=False)


@pytest.mark.parametrize("first", FIXED)
def test_seeds_pass(first: int) -> None:
    for seed in range(first, first + CHUNK):
        hold(seed)


def test_the_seed_of_the_commit_passes() -> None:
    root = Path(__file__).parents[2]
    shown = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, check=False)
    if shown.returncode != 0:
        pytest.skip("not a git checkout")
    hold(int(shown.stdout[:8], 16))


def test_a_seed_gives_the_same_events_in_every_process() -> None:
    program = (
        "from penstock.testing.sim.runner import run_seed; print([run_seed(n).digest for n in range(1, 6)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True, check=True,
        ).stdout
        for hash_seed in (1, 2)
    }  # fmt: skip
    assert len(digests) == 1


def test_consumers_that_come_and_go_leave_nothing_behind() -> None:
    result = churn(1000, tell=lambda text: None)
    assert result.is_flat, result
