"""Limits of accounts in a cluster hold for all servers together: on penstock and the official server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.replicated_clusters import replicated_cluster

pytestmark = pytest.mark.feature("security.account-limits")

MESSAGE = 100_000
LIMIT = 3_000_000  # ten messages with three replicas, but for what each has besides
SOFT_S = 1.5  # until a server knows what others report

FLAT = f"""
accounts {{
    $SYS {{ users: [{{user: sys, password: sys}}] }}
    APP {{ jetstream: {{max_file: {LIMIT}, max_mem: {LIMIT}}}, users: [{{user: app, password: app}}] }}
}}
no_auth_user: app
"""


@pytest.fixture(scope="module", params=KINDS)
def flat(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    directory = tmp_path_factory.mktemp("flat")
    with replicated_cluster(request.param, directory, config=lambda _: FLAT) as made:
        yield made


@pytest.fixture
def kind(flat: SyncProcessCluster, request: pytest.FixtureRequest) -> str:
    found: str = request.node.callspec.params["flat"]
    return found


def port_of(made: SyncProcessCluster, server: int) -> int:
    return int(made.servers[server].url.rpartition(":")[2])


def create(client: RawNats, name: str, **fields: Any) -> int:
    body = {"name": name, "subjects": [f"{name}.>"], **fields}
    return code_of(client.request(f"$JS.API.STREAM.CREATE.{name}", body))


def code_of(answer: dict[str, Any]) -> int:
    code: int = answer.get("error", {}).get("err_code", 0)
    return code


def filled(client: RawNats, subject: str, most: int = 40) -> tuple[int, int]:
    """Publishes until the account is full. Returns how many were stored, and the error's code."""
    for number in range(most):
        if number % 5 == 4:
            time.sleep(SOFT_S)  # what other servers store is reported in real time
        code = code_of(client.request(subject, "x" * MESSAGE))
        if code:
            return number, code
    return most, 0


def emptied(client: RawNats) -> None:
    """The account has no streams, and every server knows that it uses nothing."""
    for _ in range(200):
        for name in client.request("$JS.API.STREAM.NAMES", {}).get("streams") or []:
            client.request(f"$JS.API.STREAM.DELETE.{name}", {})
        info = client.request("$JS.API.INFO", {})
        if not (info["memory"] or info["storage"] or info["streams"]):
            time.sleep(SOFT_S)
            return
        time.sleep(0.1)  # servers report in real time
    raise AssertionError(info)


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_an_account_without_tiers_pays_for_each_replica(
    flat: SyncProcessCluster, kind: str, storage: str
) -> None:
    client = RawNats(port_of(flat, 0))
    emptied(client)
    assert create(client, "S", num_replicas=3, storage=storage) == 0
    stored, code = filled(client, "S.a")
    # The official server hears late what others use when it is busy.
    assert (code, 7 <= stored <= (9 if kind == "penstock" else 20)) == (10002, True), stored
    if kind == "official":
        return
    assert create(client, "T", num_replicas=1, storage=storage) == 0
    refused = filled(client, "T.a")
    assert refused[1] == 10002 and refused[0] <= 5, "the rest is no room for three replicas, but for one"
    client.request("$JS.API.STREAM.PURGE.S", {})
    time.sleep(SOFT_S)
    assert code_of(client.request("T.a", "x" * MESSAGE)) == 0
