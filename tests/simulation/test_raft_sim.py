"""Raft groups in simulation: the first seeds, those that failed once, fresh ones, and planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing.raft_sim.raft_run import run_raft_seed
from tests.simulation.node_bugs import PLANTED
from tests.simulation.raft_bugs import SIMULATED, Plant

CHUNK = 20
FAILED_ONCE = (
    5,  # proposals at indexes that no later leader filled were never answered
    1795939318825,  # a group whose checkpoint failed while it was full did not ask for another one
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


@pytest.mark.feature("cluster.power-loss")
def test_fresh_seeds_of_raft_groups_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + CHUNK):
        check_seed(seed)


ALL_PLANTED = [*SIMULATED, *PLANTED]


@pytest.mark.share(3)
@pytest.mark.parametrize(("plant", "hint"), ALL_PLANTED, ids=[plant.__name__ for plant, _ in ALL_PLANTED])
def test_a_bug_planted_in_the_core_or_the_node_fails_a_seed(
    plant: Plant, hint: int, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    for seed in (hint, *range(1, 60)):
        with monkeypatch.context() as patch:
            plant(patch)
            if run_raft_seed(seed).rule and not run_raft_seed_without(patch, seed):
                noted_faults.clear()  # the group's, of the bug
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
