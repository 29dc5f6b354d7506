"""The simulation finds three bugs that are planted on purpose (bugs.py), each within 200 seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.sim.runner import run_seed
from tests.simulation.bugs import PLANTED

SEEDS = 200


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(1, SEEDS + 1):
        with monkeypatch.context() as patch:
            plant(patch)
            outcome = run_seed(seed)
        if outcome.failure is not None and run_seed(seed).failure is None:
            print(f"{plant.__name__}: found by seed {seed}, {outcome.summary[:200]}")
            return
    pytest.fail(f"{plant.__name__} is not found by {SEEDS} seeds")
