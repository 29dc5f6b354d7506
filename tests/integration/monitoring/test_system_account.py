"""The system account: its requests and events, and what other accounts may ask; on both servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

import penstock
from penstock.server.config.server_options import User
from tests.support.conf_servers import official_with
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.system-account")

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
        self.own: penstock.Server | None = None  # when it is ours

    @property
    def server(self) -> penstock.Server:
        assert self.own is not None
        return self.own

    @property
    def is_embedded(self) -> bool:
        return self.own is not None

    @property
    def server_id(self) -> str:
        return str(self.system._server_info["server_id"])

    async def ask(self, subject: str, body: object = None, client: Client | None = None) -> Any:
        payload = b"" if body is None else json.dumps(body).encode()
        subject = subject.replace("<id>", self.server_id).replace("<acc>", self.account)
        answer = await (client or self.system).request(f"$SYS.REQ.{subject}", payload, timeout=2)
        return json.loads(answer.data)


async def settle(client: Client) -> None:
    """The server knows of every subscription so far. (This client's `flush` sends its PING ahead of them.)"""
    await client.request("$SYS.REQ.USER.INFO", timeout=20)


async def site(url: str, account: str) -> Site:
    system = await nats.connect(url, user="sys", password="sys", name="system")
    plain = await nats.connect(url, user="a", password="a", name="plain")
    await plain.subscribe("x.*")
    await settle(plain)
    return Site(url, account, system, plain)


@pytest.fixture
async def ours() -> AsyncIterator[Site]:
    async with penstock.Server(jetstream=True, users=USERS) as server:
        found = await site(server.url, "$G")
        found.own = server
        yield found
        await found.system.close()
        await found.plain.close()


@pytest.fixture
async def official(tmp_path: Path) -> AsyncIterator[Site]:
    config = tmp_path / "nats.conf"
    config.write_text(CONFIG)
    running = official_with(config)
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
    ("SERVER.<id>.CONNZ", {"LIMIT": "x"}), ("SERVER.PING.CONNZ", {"Sort": "zz"}),
    ("SERVER.<id>.CONNZ", {"limit": "x"}), ("SERVER.<id>.CONNZ", {"sort": "zz"}),
    ("SERVER.<id>.JSZ", {"accounts": True}), ("SERVER.<id>.HEALTHZ", {"stream": "X"}),
    ("SERVER.<id>.ACCOUNTZ", None), ("SERVER.<id>.ACCOUNTZ", {"account": "nobody"}),
    ("SERVER.<id>.ROUTEZ", None), ("SERVER.<id>.LEAFZ", None), ("SERVER.<id>.GATEWAYZ", None),
    ("ACCOUNT.<acc>.SUBSZ", None), ("ACCOUNT.<acc>.CONNZ", None), ("ACCOUNT.<acc>.LEAFZ", None),
    ("ACCOUNT.<acc>.INFO", None), ("ACCOUNT.<acc>.STATZ", None),
    ("ACCOUNT.<acc>.CONNS", None), ("ACCOUNT.nobody.INFO", None), ("ACCOUNT.PING.STATZ", None),
    ("SERVER.<id>.KICK", {"cid": 12345}), ("SERVER.<id>.LDM", {"cid": 12345}),
    ("SERVER.PING.PROFILEZ", None), ("SERVER.PING.RAFTZ", None),
    *((f"SERVER.PING.{page}", None) for page in (
        "VARZ", "SUBSZ", "CONNZ", "JSZ", "ACCOUNTZ", "ROUTEZ", "LEAFZ", "GATEWAYZ",
    )),
]  # fmt: skip


@pytest.fixture
def either(request: pytest.FixtureRequest) -> Site:
    """The site of the kind that the test is parametrised with."""
    found: Site = request.getfixturevalue("ours" if request.param == "penstock" else "official")
    return found


@pytest.mark.official
async def test_answers_have_the_official_keys(ours: Site, official: Site) -> None:
    for subject, body in REQUESTS:
        mine, theirs = await ours.ask(subject, body), await official.ask(subject, body)
        more, less = keys(mine) - keys(theirs), keys(theirs) - keys(mine)
        assert not more - {"data.is_system", "data.penstock_version"}, (subject, more)
        assert not less - {"server.feature_flags", "data", "error.data"}, (subject, less)
        assert mine.get("error", {}).get("code") == theirs.get("error", {}).get("code"), subject


def keys(answer: dict[str, Any]) -> set[str]:
    """Keys of the envelope, of the server's description, of the error; of data those every server has."""
    implementation = {
        "feature_flags", "disk_io_wait_stats", "imports", "exports", "reserved_memory", "reserved_storage",
        "connect_urls",
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


async def test_clients_that_come_and_go_are_events(ours: Site) -> None:
    events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def note(message: Any) -> None:
        await events.put((message.subject, json.loads(message.data)))

    await ours.system.subscribe("$SYS.ACCOUNT.*.*", cb=note)
    await settle(ours.system)
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
        await settle(client)
    while not client.is_closed:
        await asyncio.sleep(0)
    ((subject, event),) = heard
    assert subject == f"$SYS.SERVER.{server.server_id}.SHUTDOWN"
    assert event["id"] == server.server_id


# -- beside the official server


both = pytest.mark.parametrize("either", KINDS, indirect=True)


async def listened(site: Site, subject: str) -> asyncio.Queue[Any]:
    """Events of this subject from now on."""
    events: asyncio.Queue[Any] = asyncio.Queue()

    async def put(message: Msg) -> None:
        events.put_nowait(json.loads(message.data))

    await site.system.subscribe(f"$SYS.{subject.replace('<id>', site.server_id)}", cb=put)
    await settle(site.system)
    return events


async def next_of(events: asyncio.Queue[Any]) -> Any:
    return await asyncio.wait_for(events.get(), 10)


@both
async def test_statistics_are_published_while_a_client_listens(either: Site) -> None:
    event = await next_of(await listened(either, "SERVER.<id>.STATSZ"))
    assert event["server"]["id"] == either.server_id
    assert {"start", "mem", "cores", "connections", "sent", "received", "slow_consumers"} <= event[
        "statsz"
    ].keys()
    assert event["statsz"]["connections"] == 2


@both
async def test_connections_of_an_account_are_counted_as_they_come_and_go(either: Site) -> None:
    events = await listened(either, f"ACCOUNT.{either.account}.SERVER.CONNS")
    another = await nats.connect(either.url, user="a", password="a")
    event = await next_of(events)
    while event["conns"] != 2:  # the official server tells of the first one later
        event = await next_of(events)
    assert event["type"] == "io.nats.server.advisory.v1.account_connections"
    assert (event["acc"], event["total_conns"]) == (either.account, 2)
    await another.close()
    assert (await next_of(events))["conns"] == 1


@both
async def test_a_refused_login_is_an_event(either: Site) -> None:
    events = await listened(either, "SERVER.<id>.CLIENT.AUTH.ERR")
    with pytest.raises(nats.errors.Error):
        await nats.connect(
            either.url, user="a", password="wrong", allow_reconnect=False, max_reconnect_attempts=0
        )
    event = await next_of(events)
    assert event["type"] == "io.nats.server.advisory.v1.client_disconnect"
    assert event["reason"] == "Authentication Failure"
    assert (event["client"]["user"], event["client"]["acc"]) == ("a", "$G")


@pytest.mark.feature("core.lame-duck")
async def test_lame_duck_mode_is_an_event(ours: Site) -> None:
    events = await listened(ours, "SERVER.<id>.LAMEDUCK")
    patient = replace(ours.server.options, lame_duck_grace_period_ns=3_600_000_000_000)
    ours.server.context.use_options(patient)
    leaving = asyncio.ensure_future(ours.server.lame_duck())
    assert (await next_of(events))["id"] == ours.server_id
    leaving.cancel()


@pytest.mark.feature("core.lame-duck")
@both
async def test_one_client_may_be_told_to_go(either: Site) -> None:
    """By INFO with `ldm`, to that client alone."""

    async def ask(cid: object) -> Any:
        return await either.ask("SERVER.<id>.LDM", {"cid": cid})

    reader, writer = await asyncio.open_connection(*either.url.removeprefix("nats://").split(":"))
    info = json.loads((await reader.readline()).split(b" ", 1)[1])
    writer.write(b'CONNECT {"user":"a","pass":"a","verbose":false,"pedantic":false,"protocol":1}\r\nPING\r\n')
    while not (await reader.readline()).startswith(b"PONG"):
        pass
    assert "error" not in await ask(info["client_id"])
    line = b""
    while b'"ldm":true' not in line:
        line = await asyncio.wait_for(reader.readline(), 10)
    assert line.startswith(b"INFO ")
    assert (await ask(999))["error"]["description"] == "no such client id"
    writer.close()


@both
async def test_subscriptions_that_get_a_subject_are_counted(either: Site) -> None:
    for subject, queue in (("x.1", ""), ("x.1", "q"), ("x.2", "q")):
        await either.plain.subscribe(subject, queue=queue)
    await settle(either.plain)

    async def ask(subject: str, **more: object) -> Any:
        return await either.ask("ACCOUNT.NSUBS", {"acc": either.account, "subject": subject, **more})

    assert await ask("x.1") == 3
    assert await ask("x.1", queue="cQ==") == 1
    assert await ask("x.*") == 4
    assert await ask("y") == 0
    with pytest.raises(nats.errors.TimeoutError):
        await ask("x.1", acc="nobody")


@pytest.mark.feature("operations.reload")
@both
async def test_a_server_without_changes_reloads(either: Site) -> None:
    answer = await either.ask("SERVER.<id>.RELOAD")
    if either.is_embedded:
        assert answer["error"]["description"].startswith("no configuration to reload")
    else:
        assert "error" not in answer


@pytest.mark.feature("operations.reload")
@pytest.mark.parametrize("kind", KINDS)
def test_a_reload_is_refused_in_the_answer(kind: str, tmp_path: Path) -> None:
    """What the answer says is what the log says."""
    conf = "accounts { SYS: { users: [ {user: s, password: s} ] } }\nsystem_account: SYS\n"
    with served(kind, tmp_path, conf) as server:
        client = RawNats(server.port, user="s", **{"pass": "s"})
        subject = f"$SYS.REQ.SERVER.{client.info['server_id']}.RELOAD"
        (tmp_path / "nats.conf").write_text(conf + "max_payload: 77\n")
        assert client.request(subject).keys() == {"server"}
        assert RawNats(server.port, user="s", **{"pass": "s"}).info["max_payload"] == 77
        (tmp_path / "nats.conf").write_text(conf + "colour: 1\n")
        error = client.request(subject)["error"]
        assert error["code"] == 500
        assert f'{tmp_path}/nats.conf:3:1: unknown field "colour"' in error["description"]
        client.close()
