"""The simulation finds bugs that are planted on purpose (bugs.py and its neighbours), each within 200 seeds,
and by the checker whose business it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.sim.runner import run_seed
from tests.simulation.bugs import PLANTED
from tests.simulation.copy_bugs import COPY_BUGS
from tests.simulation.effect_bugs import EFFECT_BUGS
from tests.simulation.group_bugs import GROUP_BUGS
from tests.simulation.recovery_bugs import RECOVERY_BUGS
from tests.simulation.replica_bugs import REPLICA_BUGS
from tests.simulation.stream_bugs import STREAM_BUGS

SEEDS = 200


ALL = PLANTED + COPY_BUGS + EFFECT_BUGS + GROUP_BUGS + RECOVERY_BUGS + STREAM_BUGS + REPLICA_BUGS


@pytest.mark.parametrize(("plant", "rule", "hint"), ALL, ids=[plant.__name__ for plant, _, _ in ALL])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    hint: int,
    monkeypatch: pytest.MonkeyPatch,
    noted_faults: list[BaseException],
) -> None:
    by: dict[str, list[int]] = {}
    for seed in dict.fromkeys([hint, *range(1, SEEDS + 1)]):
        with monkeypatch.context() as patch:
            plant(patch)
            outcome = run_seed(seed)
        noted_faults.clear()  # the planted bug may raise them
        if outcome.failure is not None and run_seed(seed).failure is None:
            by.setdefault(outcome.rule, []).append(seed)
            if outcome.rule == rule:
                noted_faults.clear()  # a planted bug may raise, which the product contains
                print(f"{plant.__name__}: found by {by}, {outcome.summary[:160]}")
                return
    pytest.fail(f"{plant.__name__} is not found as {rule!r} by {SEEDS} seeds, but as {by}")
