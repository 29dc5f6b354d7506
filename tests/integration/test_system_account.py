"""The system account: what it may ask, what it is told, what others may ask. Beside the official server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

import penstock
from penstock.server.options import User
from tests.support.nats_servers import OfficialServer, find_official_server

USERS = (
    User(name="a", password="a"),
    User(name="sys", password="sys", account="$SYS"),
)
SERVER_KEYS = {"name", "host", "id", "ver", "jetstream", "flags", "seq", "time"}
CONFIG = """accounts {
    $SYS { users [{user: sys, password: sys}] }
    A { users [{user: a, password: a}], jetstream: enabled }
}"""


class Site:
    """A system client and a plain one."""

    def __init__(self, url: str, account: str, system: Client, plain: Client) -> None:
        self.url, self.account, self.system, self.plain = url, account, system, plain

    @property
    def server_id(self) -> str:
        return str(self.system._server_info["server_id"])

    async def ask(self, subject: str, body: object = None, client: Client | None = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        subject = subject.replace("<id>", self.server_id).replace("<acc>", self.account)
        answer = await (client or self.system).request(f"$SYS.REQ.{subject}", payload, timeout=2)
        return json.loads(answer.data)


async def site(url: str, account: str) -> Site:
    system = await nats.connect(url, user="sys", password="sys", name="system")
    plain = await nats.connect(url, user="a", password="a", name="plain")
    await plain.subscribe("x.*")
    await plain.flush()
    return Site(url, account, system, plain)


@pytest.fixture
async def ours() -> AsyncIterator[Site]:
    async with penstock.Server(jetstream=True, users=USERS) as server:
        found = await site(server.url, "$G")
        yield found
        await found.system.close()
        await found.plain.close()


@pytest.fixture
async def official(tmp_path: Path) -> AsyncIterator[Site]:
    binary = find_official_server()
    if binary is None:
        pytest.skip("no official nats-server")
    config = tmp_path / "nats.conf"
    config.write_text(CONFIG)
    running = OfficialServer(binary, tmp_path, ("-c", str(config)))
    running.start()
    found = await site(running.url, "A")
    yield found
    await found.system.close()
    await found.plain.close()
    running.stop()


REQUESTS: list[tuple[str, object]] = [
    ("SERVER.PING", None), ("SERVER.PING.IDZ", None), ("SERVER.PING.STATSZ", {"server_name": ""}),
    ("SERVER.PING.HEALTHZ", None), ("SERVER.<id>.VARZ", None), ("SERVER.<id>.SUBSZ", {"subscriptions": True}),
    ("SERVER.<id>.CONNZ", {"subscriptions": True, "auth": True}), ("SERVER.<id>.CONNZ", {"state": 2}),
    ("SERVER.<id>.CONNZ", {"limit": "x"}), ("SERVER.<id>.CONNZ", {"sort": "zz"}),
    ("SERVER.<id>.JSZ", {"accounts": True}), ("SERVER.<id>.HEALTHZ", {"stream": "X"}),
    ("SERVER.<id>.ACCOUNTZ", None), ("SERVER.<id>.ACCOUNTZ", {"account": "nobody"}),
    ("SERVER.<id>.ROUTEZ", None), ("SERVER.<id>.LEAFZ", None), ("SERVER.<id>.GATEWAYZ", None),
    ("ACCOUNT.<acc>.SUBSZ", None), ("ACCOUNT.<acc>.CONNZ", None), ("ACCOUNT.<acc>.LEAFZ", None),
    ("ACCOUNT.<acc>.INFO", None), ("ACCOUNT.<acc>.STATZ", None),
    ("ACCOUNT.<acc>.CONNS", None), ("ACCOUNT.nobody.INFO", None), ("ACCOUNT.PING.STATZ", None),
    ("SERVER.<id>.KICK", {"cid": 12345}),
]  # fmt: skip


@pytest.mark.official
async def test_answers_have_the_official_keys(ours: Site, official: Site) -> None:
    for subject, body in REQUESTS:
        mine, theirs = await ours.ask(subject, body), await official.ask(subject, body)
        more, less = keys(mine) - keys(theirs), keys(theirs) - keys(mine)
        assert not more - {"data.is_system"}, (subject, more)
        assert not less - {"server.feature_flags", "data", "error.data"}, (subject, less)
        assert mine.get("error", {}).get("code") == theirs.get("error", {}).get("code"), subject


def keys(answer: dict[str, Any]) -> set[str]:
    """Keys of the envelope, of the server's description, of the error; of data those every server has."""
    implementation = {
        "feature_flags", "disk_io_wait_stats", "imports", "exports", "reserved_memory", "reserved_storage",
        "num_cache", "num_matches", "cache_hit_rate", "max_fanout", "avg_fanout", "connect_urls",
    }  # fmt: skip
    found = set(answer)
    for part in ("server", "data", "statsz", "error"):
        if isinstance(answer.get(part), dict):
            found |= {
                f"{part}.{key}" for key in answer[part] if part == "server" or key not in implementation
            }
    return found


async def test_a_page_comes_in_an_envelope_with_its_options(ours: Site) -> None:
    answer = await ours.ask("SERVER.<id>.CONNZ", {"user": "a", "subscriptions": True})
    assert answer["server"].keys() >= SERVER_KEYS
    (entry,) = answer["data"]["connections"]
    assert entry["name"] == "plain"
    assert "x.*" in entry["subscriptions_list"]


async def test_a_ping_is_answered_by_the_servers_it_names(ours: Site) -> None:
    name = (await ours.ask("SERVER.PING.VARZ", {"exact_match": False}))["data"]["server_name"]
    assert (await ours.ask("SERVER.PING.VARZ", {"server_name": name[:9]}))["data"]["server_name"] == name
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ours.ask("SERVER.PING.VARZ", {"server_name": "elsewhere"}), 0.2)


async def test_what_is_not_there_has_no_responders(ours: Site) -> None:
    for subject in ("SERVER.PING.NOPE", "SERVER.<id>.NOPE", "ACCOUNT.<acc>.NOPE"):
        with pytest.raises(NoRespondersError):
            await ours.ask(subject)


async def test_other_accounts_ask_about_themselves_only(ours: Site) -> None:
    for subject in ("SERVER.PING.CONNZ", "ACCOUNT.PING.CONNZ"):
        answer = await ours.ask(subject, {"acc": "$SYS"}, ours.plain)
        assert [entry["name"] for entry in answer["data"]["connections"]] == ["plain"]
    answer = await ours.ask("ACCOUNT.PING.STATZ", {"accounts": ["$SYS"]}, ours.plain)
    assert [entry["acc"] for entry in answer["data"]["account_statz"]] == ["$G"]
    for subject in ("SERVER.PING", "SERVER.<id>.VARZ", "SERVER.<id>.KICK", "ACCOUNT.$SYS.CONNZ"):
        with pytest.raises(NoRespondersError):
            await ours.ask(subject, None, ours.plain)


async def test_clients_that_come_and_go_are_told(ours: Site) -> None:
    events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def note(message: Any) -> None:
        await events.put((message.subject, json.loads(message.data)))

    await ours.system.subscribe("$SYS.ACCOUNT.*.*", cb=note)
    await ours.system.flush()
    third = await nats.connect(ours.url, user="a", password="a", name="third")
    subject, event = await asyncio.wait_for(events.get(), 5)
    assert subject == "$SYS.ACCOUNT.$G.CONNECT"
    assert event["type"] == "io.nats.server.advisory.v1.client_connect"
    assert (event["client"]["name"], event["client"]["user"]) == ("third", "a")
    cid = third.client_id
    await third.close()
    subject, event = await asyncio.wait_for(events.get(), 5)
    assert subject == "$SYS.ACCOUNT.$G.DISCONNECT"
    assert event["client"]["id"] == cid
    assert event.keys() >= {"sent", "received", "reason"}


async def test_a_kicked_client_is_gone(ours: Site) -> None:
    reasons: asyncio.Queue[Any] = asyncio.Queue()

    async def note(message: Any) -> None:
        await reasons.put(json.loads(message.data)["reason"])

    third = await nats.connect(ours.url, user="a", password="a", allow_reconnect=False)
    await ours.system.subscribe("$SYS.ACCOUNT.*.DISCONNECT", cb=note)
    answer = await ours.ask("SERVER.<id>.KICK", {"cid": third.client_id})
    assert answer.keys() == {"server"}
    assert await asyncio.wait_for(reasons.get(), 5) == "Kicked"


async def test_a_server_tells_that_it_shuts_down() -> None:
    heard: list[Any] = []

    async def note(message: Any) -> None:
        heard.append((message.subject, json.loads(message.data)))

    async with penstock.Server(users=USERS) as server:
        client = await nats.connect(server.url, user="sys", password="sys", allow_reconnect=False)
        await client.subscribe("$SYS.SERVER.*.SHUTDOWN", cb=note)
        await client.flush()
    while not client.is_closed:
        await asyncio.sleep(0)
    ((subject, event),) = heard
    assert subject == f"$SYS.SERVER.{server.server_id}.SHUTDOWN"
    assert event["id"] == server.server_id
