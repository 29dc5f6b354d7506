"""The web page of a server in a cluster: members, routes, replicated groups, replicas of streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock.sync
from penstock.testing import SyncProcessCluster, sync_cluster
from tests.support.web_visits import WebVisit
from tests.support.wire import wait_until

pytestmark = [pytest.mark.feature("monitoring.web"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncProcessCluster]:
    with sync_cluster(3, config="web: true") as found:
        with penstock.sync.connect(found.urls) as client:
            client.jetstream().create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
            client.jetstream().publish("orders.1", b"x")
        yield found


@pytest.fixture
def visit(cluster: SyncProcessCluster) -> WebVisit:
    found = WebVisit(cluster.servers[0].http_port)
    assert found.log_in("", "").status == 200
    return found


def test_members_routes_and_groups_are_those_of_the_cluster(
    cluster: SyncProcessCluster, visit: WebVisit
) -> None:
    names = {server.name for server in cluster.servers}
    found = visit.view("cluster")
    meta = found["meta"]
    assert {meta["leader"], found["server"], *(one["name"] for one in meta["replicas"])} == names
    assert {route["remote_name"] for route in found["routes"]} == names - {found["server"]}
    groups = {row["group"]: row for row in found["groups"]}
    assert found["total"] == len(groups) == 2
    for row in groups.values():
        assert row["leader"] in names
        assert row["state"] in ("LEADER", "FOLLOWER")
        assert row["committed"] >= row["applied"] > 0
    assert visit.view("cluster?filter=no-such-group")["groups"] == []


def test_a_stream_shows_its_leader_and_replicas(cluster: SyncProcessCluster, visit: WebVisit) -> None:
    def shown() -> set[str]:
        placed = visit.view("stream?stream=ORDERS")["stream"]["cluster"]
        return {placed["leader"], *(one["name"] for one in placed["replicas"] if one["current"])}

    names = {server.name for server in cluster.servers}
    wait_until(lambda: shown() == names, "all replicas are current", 20)
