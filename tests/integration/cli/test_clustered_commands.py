"""Commands for clusters with JetStream, on four servers of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.testing import SyncProcessCluster
from tests.support.command_runs import CommandShell
from tests.support.nats_servers import KINDS
from tests.support.replicated_clusters import REPAIRED_S, replicated_cluster

pytestmark = pytest.mark.feature("cli.server")


class Users(NamedTuple):
    """Shells of two users of a cluster. kind: of its servers."""

    kind: str
    cluster: SyncProcessCluster
    admin: CommandShell
    app: CommandShell


@pytest.fixture(scope="module", params=KINDS)
def users(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    home = tmp_path_factory.mktemp("home")
    with replicated_cluster(request.param, tmp_path_factory.mktemp("cluster"), servers=4) as made:
        urls = ",".join(made.urls)
        admin = CommandShell(home, urls, ("--user", "sys", "--password", "sys"))
        yield Users(request.param, made, admin, CommandShell(home, urls))


@pytest.fixture
def stream(users: Users) -> Iterator[str]:
    """A stream S of three replicas with a consumer C, which have leaders and are current."""
    app = users.app
    app.ok("stream", "add", "S", "--subjects", "s.>", "--replicas", "3", "--storage", "memory", "--defaults")
    app.ok("consumer", "add", "S", "C", "--pull", "--defaults")
    until(lambda: is_whole(page_of(app, "stream", "info", "S")))
    until(lambda: is_whole(page_of(app, "consumer", "info", "S", "C")))
    yield "S"
    for name in app.json("stream", "ls", "--names", "--all"):
        app.ok("stream", "rm", name, "--force")


def until(holds: Callable[[], bool], timeout_s: float = REPAIRED_S) -> None:
    """Wait until something holds that servers agree on in their own time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it does not hold"
        time.sleep(0.1)  # servers elect and copy in real time


def page_of(app: CommandShell, *words: str) -> dict[str, Any]:
    """What an info command says, or {} while there is no leader: elections take their time."""
    ran = app.run(*words, "--json")
    if ran.status != 0 and "err_code 10008" in ran.err:
        return {}
    assert ran.status == 0, f"penstock {' '.join(words)} ended with {ran.status}: {ran.err}{ran.text}"
    page: dict[str, Any] = ran.json
    return page


def is_whole(page: dict[str, Any]) -> bool:
    """Whether all replicas of a stream or a consumer are there and current."""
    cluster = page.get("cluster") or {}
    replicas = cluster.get("replicas") or []
    return bool(cluster.get("leader")) and len(replicas) == 2 and all(one.get("current") for one in replicas)


def peers(page: dict[str, Any]) -> set[str]:
    """Names of the servers that have a stream or a consumer."""
    cluster = page["cluster"]
    return {cluster.get("leader", ""), *(one["name"] for one in cluster.get("replicas") or [])} - {""}


def leader(page: dict[str, Any]) -> str:
    return str((page.get("cluster") or {}).get("leader", ""))


def test_leaders_step_down_for_the_preferred_server(users: Users, stream: str) -> None:
    app = users.app
    for info, words in (
        (("stream", "info", stream), ("stream", "cluster", "step-down", stream)),
        (("consumer", "info", stream, "C"), ("consumer", "cluster", "step-down", stream, "C")),
    ):
        page = app.json(*info)
        preferred = min(peers(page) - {leader(page)})
        app.ok(*words, "--preferred", preferred, "--force")
        assert leader(app.json(*info)) == preferred  # it waits for the election


def test_replicas_move_to_another_server(users: Users, stream: str) -> None:
    app = users.app
    page = app.json("stream", "info", stream)
    (free,) = {one.name for one in users.cluster.servers} - peers(page)
    first = min(peers(page) - {leader(page)})
    app.ok("stream", "cluster", "peer-remove", stream, first, "--force")
    until(lambda: is_whole(found := page_of(app, "stream", "info", stream)) and free in peers(found))
    moved = app.json("stream", "cluster", "evacuate", stream, free, "--force")
    assert free not in peers(moved)
    until(lambda: is_whole(page_of(app, "stream", "info", stream)))
    still = app.run("stream", "cluster", "cancel-move", stream, "--force")
    assert (still.status, "Traceback" in still.err) == (1, False), still.err
    wrong = app.run("stream", "cluster", "peer-remove", stream, "other")
    assert (wrong.status, "'other' is no replica" in wrong.err) == (1, True), wrong.err


def test_the_only_replica_of_a_consumer_moves_where_the_server_can_do_it(users: Users, stream: str) -> None:
    app = users.app
    app.ok("consumer", "add", stream, "ALONE", "--pull", "--replicas", "1", "--defaults")
    before = leader(app.json("consumer", "info", stream, "ALONE"))
    ran = app.run("consumer", "cluster", "peer-remove", stream, "ALONE", before, "--force")
    if users.kind == "official":
        assert ran.status == 0, ran.err
        until(lambda: leader(page_of(app, "consumer", "info", stream, "ALONE")) not in ("", before))
    else:  # its consumers stay with the stream
        assert (ran.status, "peer remap failed" in ran.err) == (1, True), ran.err


def test_leaders_are_balanced(users: Users, stream: str) -> None:
    app = users.app
    first = leader(app.json("stream", "info", stream))
    for number in range(3):
        app.ok(
            "stream", "add", f"T{number}", "--subjects", f"t{number}", "--replicas", "3",
            "--storage", "memory", "--defaults",
        )  # fmt: skip
        until(lambda number=number: is_whole(page_of(app, "stream", "info", f"T{number}")))
        if first in peers(page := app.json("stream", "info", f"T{number}")) and leader(page) != first:
            app.ok("stream", "cluster", "step-down", f"T{number}", "--preferred", first, "--force")
            until(lambda number=number: leader(page_of(app, "stream", "info", f"T{number}")) == first)
    leaders = [leader(one) for one in app.json("stream", "find")]
    moves = app.json("stream", "cluster", "balance", "--force")
    assert bool(moves) == (max(map(leaders.count, leaders)) > 2)
    for move in moves:
        until(lambda move=move: leader(page_of(app, "stream", "info", move["stream"])) == move["to"])
    assert app.json("stream", "cluster", "balance", "--force") == []
    assert app.json("consumer", "cluster", "balance", stream, "--force") == []


def test_a_server_is_evacuated(users: Users, stream: str) -> None:
    page = users.app.json("stream", "info", stream)
    name = min(peers(page) - {leader(page)})
    done = users.admin.json("server", "cluster", "evacuate", name, "--force")
    assert done == {"success": True, "peer": name}
    assert name not in peers(users.app.json("stream", "info", stream))
    refused = users.admin.run("server", "cluster", "evacuate", name)
    assert (refused.status, "give --force" in refused.err) == (2, True)


def test_connections_move_from_busy_servers(users: Users) -> None:
    urls = users.cluster.urls
    subscribers = [
        CommandShell(users.app.home, urls[0]).start("sub", "balanced", "--count", "1") for _ in range(4)
    ]
    words = ("server", "report", "connections", "--account", "APP", "--subject", "balanced")
    try:
        until(lambda: len(users.admin.json(*words)) == 4)
        before = [one["server_name"] for one in users.admin.json(*words)]
        assert len(set(before)) == 1
        kicked = users.admin.json("server", "cluster", "balance", "100ms", *words[3:], "--force")
        assert len(kicked["kicked"]) == 3
        assert {one["server"] for one in kicked["kicked"]} == set(before)
    finally:
        for one in subscribers:
            one.kill()
            one.communicate()


def test_a_server_reloads_its_configuration(users: Users) -> None:
    for words in (("server", "reload"), ("server", "config", "reload")):
        assert "error" not in users.admin.json(*words, "a")


def test_an_account_is_purged(users: Users, stream: str) -> None:
    assert users.app.json("stream", "ls", "--names") == [stream]
    users.admin.ok("server", "account", "purge", "APP", "--force")
    until(lambda: users.app.json("stream", "ls", "--names") == [])


def test_the_leader_of_jetstream_steps_down_and_a_server_is_removed(users: Users) -> None:
    admin = users.admin

    def meta() -> dict[str, Any]:
        pages = admin.json("server", "report", "jetstream")
        found = [one["data"].get("meta_cluster") or {} for one in pages]
        return next((one for one in found if one.get("replicas")), {})

    before = meta()["leader"]
    admin.ok("server", "cluster", "step-down", "--force")
    until(lambda: meta().get("leader") not in (None, "", before))
    name = min({one.name for one in users.cluster.servers} - {meta()["leader"]})
    users.cluster.stop(name)
    admin.ok("server", "cluster", "peer-remove", name, "--force")
    until(lambda: name not in [one["name"] for one in meta().get("replicas") or []])
