"""Every state of small Raft groups keeps the invariants, and bugs planted in the core are found by them.

`make explore` prints what each configuration has; `pytest -m exhaustive` runs those left out by default.
"""

from __future__ import annotations

import pytest

from penstock.testing.raft_explore.exploration import BrokenInvariant, Exploration, Explored, ExploredGroup
from penstock.testing.raft_explore.raft_configurations import CONFIGURATIONS, LARGE, LARGE_STATES
from tests.simulation.raft_bugs import EXPLORED, Plant

MANY_STATES = ("slow disks and power loss", "slow votes", "damaged log, lost vote", "reads")
NAMES = [
    pytest.param(one, marks=pytest.mark.exhaustive) if one in MANY_STATES else one for one in CONFIGURATIONS
]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_state_of_a_small_group_keeps_the_invariants(name: str) -> None:
    found = explore(CONFIGURATIONS[name])
    assert found.is_complete
    assert found.leaders > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LARGE)
def test_the_nearest_states_of_a_larger_group_keep_the_invariants(name: str) -> None:
    assert explore(LARGE[name], states_max=LARGE_STATES).states >= LARGE_STATES


def explore(group: ExploredGroup, **options: int) -> Explored:
    try:
        return Exploration(group, **options).run()
    except BrokenInvariant as violation:
        pytest.fail("\n".join([str(violation), *violation.trace]), pytrace=False)


@pytest.mark.parametrize(("plant", "name", "rules"), EXPLORED, ids=[one[0].__name__ for one in EXPLORED])
def test_a_bug_planted_in_the_core_is_found(
    plant: Plant, name: str, rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(BrokenInvariant) as caught:
        Exploration((CONFIGURATIONS | LARGE)[name], states_max=LARGE_STATES).run(with_trace=False)
    assert caught.value.rule in rules, caught.value
