"""Raft groups in simulation: the first seeds, those that failed once, fresh ones, and planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing.raft_sim.raft_run import run_raft_seed
from tests.simulation.raft_bugs import SIMULATED, Plant

CHUNK = 20
FAILED_ONCE = (
    28,  # an idle group whose leader's disk was wiped got no other leader
    30,
    303,
    1065,  # a leader and a member that conflicts with its snapshot's last entry repeated the same messages
)


def check_seed(seed: int) -> None:
    outcome = run_raft_seed(seed)
    if outcome.rule:
        pytest.fail(f"make raft-sim SEED={seed} replays it: {outcome.what}", pytrace=False)


def test_the_first_seeds_pass() -> None:
    for seed in range(1, 1 + CHUNK):
        check_seed(seed)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_of_raft_groups_that_failed_once_passes(seed: int) -> None:
    check_seed(seed)


def test_fresh_seeds_of_raft_groups_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + CHUNK):
        check_seed(seed)


@pytest.mark.parametrize(("plant", "hint"), SIMULATED, ids=[plant.__name__ for plant, _ in SIMULATED])
def test_a_bug_planted_in_the_core_fails_a_seed(
    plant: Plant, hint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (hint, *range(1, 60)):
        with monkeypatch.context() as patch:
            plant(patch)
            if run_raft_seed(seed).rule and not run_raft_seed_without(patch, seed):
                return
    pytest.fail(f"{plant.__name__} is not found by 60 seeds")


def run_raft_seed_without(patch: pytest.MonkeyPatch, seed: int) -> str:
    """The rule that the seed breaks without the bug."""
    patch.undo()
    return run_raft_seed(seed).rule


def test_a_seed_of_raft_groups_gives_the_same_events_in_every_process() -> None:
    program = (
        "from penstock.testing.raft_sim.raft_run import run_raft_seed; "
        "print([run_raft_seed(n).digest for n in (1, 2, 3)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, check=True,
        ).stdout
        for hash_seed in ("1", "3")
    }  # fmt: skip
    assert len(digests) == 1
