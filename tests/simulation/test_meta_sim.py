"""The meta state of a cluster in simulation: first seeds, fresh ones, and planted bugs."""

from __future__ import annotations

import os

import pytest

from penstock.testing.meta_sim.meta_run import MetaRun
from penstock.testing.sim import Violation
from tests.simulation.meta_bugs import PLANTED, Plant

pytestmark = pytest.mark.feature("cluster.administration")
FIRST, FRESH = 10, 10
FAILED_ONCE = (
    1795451298411,  # a cancelled move went back to a server that had been removed
    1795451298560,  # a stream was to move to a server that was removed, when there was no other one yet
)


def check_seed(seed: int) -> None:
    try:
        MetaRun(seed).run()
    except Violation as violation:
        pytest.fail(f"make meta-sim SEED={seed} replays it: {violation}", pytrace=False)


def test_the_first_seeds_of_the_meta_state_pass() -> None:
    for seed in range(1, 1 + FIRST):
        check_seed(seed)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_of_the_meta_state_that_failed_once_passes(seed: int) -> None:
    check_seed(seed)


def test_fresh_seeds_of_the_meta_state_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + FRESH):
        check_seed(seed)


@pytest.mark.parametrize(("plant", "hint", "rules"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
def test_a_bug_planted_in_the_meta_state_fails_a_seed(
    plant: Plant,
    hint: int,
    rules: set[str],
    monkeypatch: pytest.MonkeyPatch,
    noted_faults: list[BaseException],
) -> None:
    for seed in (hint, *range(1, 60)):
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                MetaRun(seed).run()
            except Violation as violation:
                if violation.rule not in rules:
                    pytest.fail(f"seed {seed} breaks another rule: {violation}")
                noted_faults.clear()
                return
    pytest.fail(f"{plant.__name__} is not found by 60 seeds")


def test_the_same_seed_makes_the_same_run() -> None:
    assert MetaRun(3).run() == MetaRun(3).run()
