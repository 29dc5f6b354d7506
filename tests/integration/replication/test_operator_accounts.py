"""Accounts of operators in a cluster: servers look up the tokens of accounts whose clients are elsewhere. On
penstock and the official server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.protocol.claims import JetStreamLimits
from penstock.testing import SyncProcessCluster
from tests.integration.auth.test_operators import conf
from tests.integration.replication.test_account_limits import (
    LIMIT,
    MESSAGE,
    create,
    emptied,
    filled,
    port_of,
)
from tests.support.keys import account_token, key, token_login, user_token
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.replicated_clusters import replicated_cluster

TOKENS = {
    "SYS": account_token("SYS"),
    "READY": account_token("READY", limits={"disk_storage": -1, "mem_storage": -1}),
    "ONE": account_token("ONE", limits={"disk_storage": -1, "mem_storage": -1}),
    "TIERS": account_token(
        "TIERS",
        limits={"tiered_limits": {"R3": JetStreamLimits(disk_storage=LIMIT, streams=9, consumer=9)}},
    ),
}


def config(_: int) -> str:
    """Clients without a token, which ask whether a server is ready, are those of account READY."""
    anyone = user_token("READY", "bearer", bearer_token=True)
    return conf(TOKENS, extra=f"system_account: {key('account', 'SYS').public}\ndefault_sentinel: {anyone}")


@pytest.fixture(scope="module", params=KINDS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    with replicated_cluster(request.param, tmp_path_factory.mktemp("operators"), config=config) as cluster:
        yield cluster


def login(made: SyncProcessCluster, account: str, server: int) -> RawNats:
    return token_login(port_of(made, server), "joe", user_token(account, "joe"))


def whole(client: RawNats, stream: str) -> dict[str, Any]:
    """The info of a stream when all its replicas are current."""
    for _ in range(200):
        info: dict[str, Any] = client.request(f"$JS.API.STREAM.INFO.{stream}", {})
        replicas = (info.get("cluster") or {}).get("replicas") or []
        if len(replicas) == 2 and all(one["current"] for one in replicas):
            return info
        time.sleep(0.1)  # servers catch up in real time
    raise AssertionError(info)


@pytest.mark.feature("security.operators")
def test_jetstream_answers_where_no_client_of_the_account_is(made: SyncProcessCluster) -> None:
    client = login(made, "ONE", 1)
    time.sleep(0.5)  # the others look the account up
    assert create(client, "S", num_replicas=3) == 0
    sequences = [client.request("S.a", "x")["seq"] for _ in range(5)]
    assert whole(client, "S")["state"]["last_seq"] == sequences[-1]


@pytest.mark.feature("security.operators")
def test_streams_go_on_at_servers_that_restart_without_clients_of_the_account(
    made: SyncProcessCluster,
) -> None:
    client = login(made, "ONE", 1)
    assert create(client, "T", num_replicas=3) == 0
    before = client.request("T.a", "x")["seq"]
    for server in (0, 2):
        made.restart(server)
        made.wait_ready()
        assert whole(client, "T")["state"]["last_seq"] == before
    assert client.request("T.a", "x")["seq"] == before + 1


@pytest.mark.feature("security.account-limits")
def test_a_tier_holds_for_its_streams_and_pays_once(made: SyncProcessCluster) -> None:
    client = login(made, "TIERS", 1)
    time.sleep(0.5)  # the others look the account up
    emptied(client)
    assert create(client, "ALONE", num_replicas=1) == 10120
    assert create(client, "S", num_replicas=3) == 0
    stored, code = filled(client, "S.a")
    assert (code, 25 <= stored <= 30) == (10002, True), stored
    tier = client.request("$JS.API.INFO", {})["tiers"]["R3"]
    assert (tier["streams"], tier["consumers"], tier["limits"]["max_storage"]) == (1, 0, LIMIT)
    assert tier["storage"] >= 3 * stored * MESSAGE
