"""JetStream limits by tiers of replicas, in the tokens of accounts; ours and the official server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.claims import JetStreamLimits
from tests.integration.auth.test_operators import conf, system_login, updated
from tests.support.conf_servers import running_conf
from tests.support.keys import account_token, key, token_login, user_token
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.account-limits")

R1 = JetStreamLimits(
    mem_storage=4000, disk_storage=2**20, streams=2, consumer=3, max_ack_pending=7, disk_max_stream_bytes=5000
)
R3 = JetStreamLimits(mem_storage=5000, disk_storage=2**21, streams=9, consumer=4)
NOTHING = {
    "max_memory": 0, "max_storage": 0, "max_streams": 0, "max_consumers": 0, "max_ack_pending": 0,
    "memory_max_stream_bytes": 0, "storage_max_stream_bytes": 0, "max_bytes_required": False,
}  # fmt: skip


def token(**tiers: JetStreamLimits) -> str:
    return account_token("T", limits={"tiered_limits": tiers})


class Account:
    """Asks one server in the account T."""

    def __init__(self, port: int) -> None:
        self.client: RawNats = token_login(port, "joe", user_token("T", "joe"))

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.request("$JS.API." + subject, body)
        return answer

    def stream(self, name: str, verb: str = "CREATE", **config: object) -> int:
        body = {"name": name, "subjects": [name.lower()], **config}
        return error_of(self.api(f"STREAM.{verb}.{name}", body))

    def consumer(self, name: str, **config: object) -> int:
        body = {"stream_name": "S", "config": {"name": name, "ack_policy": "explicit", **config}}
        return error_of(self.api(f"CONSUMER.CREATE.S.{name}", body))


def error_of(answer: dict[str, Any]) -> int:
    code: int = answer.get("error", {}).get("err_code", 0)
    return code


@pytest.mark.parametrize("kind", KINDS)
def test_the_tier_of_a_streams_replicas_holds(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, conf({"SYS": account_token("SYS"), "T": token(R1=R1, R3=R3)}), tmp_path) as port:
        t = Account(port)
        assert t.stream("S", num_replicas=2) == 10120
        assert t.stream("S", num_replicas=3) == 10074, "there is a tier, and no cluster"
        assert [t.stream("S"), t.stream("M", storage="memory", max_bytes=100), t.stream("N")] == [0, 0, 10027]
        assert t.stream("S", "UPDATE", num_replicas=3) == 10074
        assert t.stream("S", "UPDATE", max_bytes=6000) == 10122
        assert (t.consumer("C", max_ack_pending=8), t.consumer("C")) == (10121, 0)
        assert t.client.request("m", "x")["seq"] == 1
        info = t.api("INFO")
        assert info["limits"] == NOTHING
        assert (info["streams"], info["consumers"], info["reserved_memory"]) == (2, 1, 100)
        own, other = info["tiers"]["R1"], info["tiers"]["R3"]
        assert own["memory"] == info["memory"] > 0
        assert (own["streams"], own["consumers"], own["reserved_memory"]) == (2, 1, 100)
        assert own["limits"] == {
            "max_memory": 4000, "max_storage": 2**20, "max_streams": 2, "max_consumers": 3,
            "max_ack_pending": 7, "memory_max_stream_bytes": -1, "storage_max_stream_bytes": 5000,
            "max_bytes_required": False,
        }  # fmt: skip
        assert (other["streams"], other["limits"]["max_streams"]) == (0, 9)
        for i in range(2):
            assert t.consumer(f"D{i}") == 0
        assert t.consumer("E") == 10026
        t.client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_tier_nothing_is_made_and_nothing_is_stored(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, conf({"SYS": account_token("SYS"), "T": token(R1=R1)}), tmp_path) as port:
        t, system = Account(port), system_login(port)
        assert (t.stream("S"), t.consumer("C"), t.client.request("s", "x")["seq"]) == (0, 0, 1)
        time.sleep(1.1)  # a newer token is one of a later second
        assert updated(system, "T", token(R3=R3))["code"] == 200
        refused = t.client.request("s", "x")
        assert refused["error"] == {
            "code": 400, "err_code": 10120,
            "description": "no JetStream default or applicable tiered limit present",
        }  # fmt: skip
        assert (t.stream("P"), t.stream("S", "UPDATE", max_msgs=5), t.consumer("D")) == (10120,) * 3
        assert t.api("STREAM.INFO.S")["state"]["messages"] == 1
        own = t.api("INFO")["tiers"]["R1"]
        assert (own["streams"], own["consumers"], own["limits"]) == (1, 1, NOTHING)
        time.sleep(1.1)
        untiered = {"mem_storage": 10000, "disk_storage": 10000, "streams": 4, "consumer": -1}
        assert updated(system, "T", account_token("T", limits=untiered))["code"] == 200
        info = t.api("INFO")
        assert ("tiers" in info, info["limits"]["max_memory"], info["streams"]) == (False, 10000, 1)
        assert (t.stream("P"), t.client.request("p", "x")["seq"]) == (0, 1)
        page = system.request("$SYS.REQ.SERVER.PING.JSZ", {"accounts": True})["data"]
        (detail,) = page["account_details"]
        assert (detail["name"], detail["id"]) == ("T", key("account", "T").public)
        assert (detail["reserved_memory"], detail["reserved_storage"]) == (10000, 10000)
        for client in (t.client, system):
            client.close()
