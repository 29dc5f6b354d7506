"""The simulation of routes: fresh seeds pass, runs repeat, and planted bugs are found by their checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from penstock.cluster import mesh
from penstock.cluster.announcements import ClusterInterest
from penstock.cluster.mesh import Mesh
from penstock.cluster.peer_link import Address, LinkState
from penstock.cluster.route_link import Dial, RouteLink
from penstock.testing.cluster_sim.cluster_run import run_cluster_seed
from penstock.testing.cluster_sim.sim_member import SimMember, SimSettings
from penstock.testing.cluster_sim.sim_network import SimNetwork

FIXED = range(1, 13)
FRESH = 12
SEEDS_MAX = 200
HINTS = (98600163, 98612738)  # find what one in hundreds of seeds does

pytestmark = pytest.mark.feature("cluster.routes")


@pytest.mark.parametrize("seed", FIXED)
def test_a_seed_passes(seed: int) -> None:
    assert run_cluster_seed(seed).what == ""


# Members that stayed apart, or without a dedicated link: gossip lost with its link, its dialler restarted, or
# one came while two others were apart, or two came together through different members.
@pytest.mark.parametrize(
    "seed",
    [1082, 1140, 500023, 500126, 500306, 500344, 500345, 500377, 98600163, 98600894, 98601882, 98612738],
)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    assert run_cluster_seed(seed).what == ""


def test_fresh_seeds_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + FRESH):
        what = run_cluster_seed(seed).what
        assert what == "", f"python -m penstock.testing.cluster_sim --seed {seed} replays it: {what}"


def test_a_seed_gives_the_same_run_again() -> None:
    assert run_cluster_seed(7) == run_cluster_seed(7)


def links_soon_after_servers_dialled_each_other(seed: int, compares_ids: bool) -> list[int]:
    """The numbers of registered links of two servers, 0.5 s after both have started."""
    network = SimNetwork(Random(seed))
    members: dict[int, SimMember] = {}
    for number in range(2):
        settings = SimSettings(routes=(Address(f"host-{1 - number}", 1),))
        members[number] = SimMember(network, number, 1, settings, members.get, "c", compares_ids=compares_ids)
    network.run_for(0.5)
    return [sum(link.state is LinkState.REGISTERED for link in one.mesh.links) for one in members.values()]


def test_servers_that_dial_each_other_have_all_links_without_dialling_again() -> None:
    """Otherwise each may close the link that the other one keeps, as official servers do."""
    first = int(os.environ["SIM_FIRST"])
    print(f"seeds {first} to {first + 99}")
    seeds = range(first, first + 100)
    assert {tuple(links_soon_after_servers_dialled_each_other(seed, True)) for seed in seeds} == {(4, 4)}
    others = [tuple(links_soon_after_servers_dialled_each_other(seed, False)) for seed in seeds]
    assert any(one != (4, 4) for one in others)


Plant = Callable[[pytest.MonkeyPatch], None]


def interest_of_lost_links_stays(patch: pytest.MonkeyPatch) -> None:
    def closed(self: RouteLink, reason: Any) -> None:
        self.state = mesh.LinkState.CLOSED
        self.mesh.link_closed(self, reason)

    patch.setattr(RouteLink, "closed", closed)


def interest_goes_over_every_link(patch: pytest.MonkeyPatch) -> None:
    def carriers(self: Mesh, account: str) -> Iterator[RouteLink]:
        yield from (link for link in self.links if link.account in ("", account))

    patch.setattr(Mesh, "carriers", carriers)


def late_links_learn_nothing(patch: pytest.MonkeyPatch) -> None:
    def update(self: ClusterInterest, name: str) -> None:
        if name in self._local and not self._fed[name]:
            original(self, name)

    original = ClusterInterest.update
    patch.setattr(ClusterInterest, "update", update)


def peers_are_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "_forward", lambda self, link, info: None)


def announced_peers_are_not_dialled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "heard_of", lambda self, info, link: None)


def lost_links_are_not_dialled_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "_dial_again", lambda self, link: None)


def pools_stay_at_their_first_link(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "ponged", lambda self, link: None)


def the_lesser_name_wins(patch: pytest.MonkeyPatch) -> None:
    original = Mesh.agree_on_name

    def agree(self: Mesh, name: str, *, is_dynamic: bool, remote_id: str) -> bool:
        if is_dynamic and self.is_dynamic and name != self.cluster_name and name > self.cluster_name:
            return False
        return original(self, name, is_dynamic=False, remote_id=remote_id)

    patch.setattr(Mesh, "agree_on_name", agree)


def duplicates_are_registered(patch: pytest.MonkeyPatch) -> None:
    def pooled(self: Mesh, link: RouteLink, info: Any, size: int) -> None:
        pool = self._pools.get(info.server_id)
        if pool is not None and not link.did_solicit and info.route_pool_idx < len(pool):
            pool[info.route_pool_idx] = None
        original(self, link, info, size)

    original = Mesh._register_pooled
    patch.setattr(Mesh, "_register_pooled", pooled)


def the_last_link_leaves_its_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "_last_link", lambda self, link: None)


def gossip_stays_quiet_after_a_partition(patch: pytest.MonkeyPatch) -> None:
    original = Mesh._dial

    def dial_again(self: Mesh, dial: Dial) -> None:
        if not dial.is_explicit:
            dial.gossip_mode = mesh.GOSSIP_DEFAULT
        original(self, dial)

    patch.setattr(Mesh, "_dial", dial_again)
    recent_peers_are_not_introduced(patch)  # which repairs it wherever these seeds meet it


def recent_peers_are_not_introduced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mesh, "_introduce_late", lambda self, remote_id: None)


PLANTED: list[tuple[Plant, set[str]]] = [
    (interest_of_lost_links_stays, {"interest", "group lost"}),
    (interest_goes_over_every_link, {"twice", "group twice", "interest"}),
    (late_links_learn_nothing, {"interest", "lost"}),
    (peers_are_not_announced, {"mesh"}),
    (announced_peers_are_not_dialled, {"mesh"}),
    (lost_links_are_not_dialled_again, {"mesh", "pool"}),
    (pools_stay_at_their_first_link, {"pool", "interest"}),
    (the_lesser_name_wins, {"mesh", "name", "pool"}),
    (duplicates_are_registered, {"twice", "group twice", "pool", "interest"}),
    (gossip_stays_quiet_after_a_partition, {"mesh"}),
    (the_last_link_leaves_its_peer, {"mesh"}),
    (recent_peers_are_not_introduced, {"mesh"}),
]


@pytest.mark.parametrize(("plant", "rules"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(
    plant: Plant, rules: set[str], monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    for seed in (*HINTS, *range(1, SEEDS_MAX + 1)):
        with monkeypatch.context() as patch:
            plant(patch)
            outcome = run_cluster_seed(seed)
        noted_faults.clear()
        if outcome.rule in rules:
            return
    pytest.fail(f"{plant.__name__} is not found by {SEEDS_MAX} seeds")
