"""The system account, account limits, monitoring, reloads and slow members of a cluster."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoRespondersError

from penstock.server.config.directives import load
from tests.support.clusters import Cluster, Member, connected, heard
from tests.support.nats_servers import until
from tests.support.raw_routes import RawRoute

pytestmark = pytest.mark.feature("cluster.routes")

ACCOUNTS = """
    accounts {
        S { users: [{user: s, password: s}] }
        A { users: [{user: a, password: a}], limits: {max_connections: 2} }
    }
    system_account: S
    no_auth_user: a
"""
SYSTEM = {"user": "s", "password": "s"}


async def collect(cluster: Cluster, member: Member, subject: str, **options: Any) -> list[Any]:
    """What a new client of the member receives."""
    client, found = await cluster.client(member, **options), []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, cb=note)
    await client.flush()
    return found


async def names_that_answer(cluster: Cluster, member: Member, subject: str) -> set[str]:
    """The servers that answer a request of the system account."""
    client = await cluster.client(member, **SYSTEM)
    inbox: list[Any] = []

    async def note(message: Any) -> None:
        inbox.append(json.loads(message.data))

    await client.subscribe("answers", cb=note)
    await client.publish(subject, b"", reply="answers")
    await client.flush()
    await asyncio.sleep(0.2)
    names = [one["server"]["name"] for one in inbox]
    assert len(names) == len(set(names))
    return set(names)


async def test_every_server_answers_a_ping_of_the_system_account_once(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    members = await cluster.pair(kinds, top=ACCOUNTS)
    for member in members:

        async def all_answer(member: Member = member) -> bool:
            return await names_that_answer(cluster, member, "$SYS.REQ.SERVER.PING") == {"A", "B"}

        await until(all_answer)
        assert await names_that_answer(cluster, member, "$SYS.REQ.SERVER.PING.VARZ") == {"A", "B"}


async def test_events_of_one_server_reach_the_other(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first, second = await cluster.pair(kinds, top=ACCOUNTS)
    for near, far in ((first, second), (second, first)):
        events = await collect(cluster, near, "$SYS.ACCOUNT.A.CONNECT", **SYSTEM)

        async def arrives(far: Member = far, events: list[Any] = events) -> bool:
            client = await cluster.client(far, user="a", password="a")
            await client.close()
            await asyncio.sleep(0.01)
            return bool(events)

        await until(arrives)
        assert json.loads(events[0].data)["server"]["name"] == far.name
        assert json.loads(events[0].data)["server"]["cluster"] == "c"


async def test_the_connection_limit_of_an_account_holds_in_the_cluster(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first, second = await cluster.pair(kinds, top=ACCOUNTS)
    at_first = await cluster.client(first, user="a", password="a")
    at_second = await cluster.client(second, user="a", password="a")
    await at_first.flush()
    await at_second.flush()

    async def is_refused() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", second.port)
        writer.write(b'CONNECT {"user":"a","pass":"a","verbose":false}\r\nPING\r\n')
        answer = b""
        while b"PONG" not in answer and (data := await reader.read(4096)):
            answer += data
        writer.close()
        return b"maximum account active connections exceeded" in answer

    await until(is_refused)
    assert at_first.is_connected
    assert at_second.is_connected


# -- monitoring


async def test_routez_and_varz_show_what_the_official_server_shows(cluster: Cluster) -> None:
    """Each shows its half of the same routes: the same fields, and the same values where they must agree."""
    first, second = await cluster.pair(("penstock", "official"))
    ours, theirs = await first.page("routez?subs=detail"), await second.page("routez?subs=detail")
    added = {"dropped_msgs"}
    assert set(ours) - added == set(theirs)
    assert {name for one in ours["routes"] for name in one} - added == {
        name for one in theirs["routes"] for name in one
    }
    for page, name in ((ours, "B"), (theirs, "A")):
        assert {one["remote_name"] for one in page["routes"]} == {name}
        assert sorted(one.get("account", "") for one in page["routes"]) == ["", "", "", "$SYS"]
    assert {one["did_solicit"] for one in ours["routes"]} == {False}
    details = [one for route in ours["routes"] for one in route.get("subscriptions_list_detail", ())]
    for one in details:
        assert {"subject", "sid", "msgs", "cid"} <= set(one)
    mine, other = (await first.page("varz"))["cluster"], (await second.page("varz"))["cluster"]
    assert set(mine) == set(other) - {"urls"}
    for field in ("name", "addr", "auth_timeout", "tls_timeout", "pool_size"):
        assert mine[field] == other[field], field


# -- reload


async def until_routes(count: int, *members: Member) -> None:
    async def have() -> bool:
        return all([await member.num_routes() == count for member in members])

    await until(have)


async def test_a_reload_gives_an_account_a_connection_of_its_own(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first, second = await cluster.pair(kinds, top=ACCOUNTS)
    login = {"user": "a", "password": "a"}
    inbox = await collect(cluster, second, "to.me", **login)
    publisher = await cluster.client(first, **login)
    await heard(publisher, "to.me", inbox)
    for member in (first, second):
        member.configure(top=ACCOUNTS, cluster="accounts: [A]")
        await member.reload()
    await until_routes(5, first, second)
    await heard(publisher, "to.me", inbox)
    for i in range(20):
        await publisher.publish("to.me", str(i).encode())
    await publisher.flush()
    await until(lambda: len(inbox) >= 20)
    await asyncio.sleep(0.1)
    assert [int(one.data) for one in inbox] == list(range(20))


@pytest.mark.feature("cluster.route-pool")
async def test_a_reload_changes_pool_and_compression(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first, second = await cluster.pair(kinds)
    changed = first if first.kind == "penstock" else second
    changed.configure(cluster="pool_size: 5, compression: s2_fast")
    await changed.reload()
    await until_routes(6, first, second)
    inbox = await collect(cluster, second, "to.me")
    await heard(await cluster.client(first), "to.me", inbox)
    modes = {one["compression"] for one in (await changed.page("routez"))["routes"]}
    assert modes == {"s2_fast"}


async def test_a_reload_adds_and_removes_routes(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first = await cluster.add(kinds[0], "A")
    second = await cluster.add("penstock", "B")
    second._routes = [f'"nats://127.0.0.1:{first.route_port}"']
    second.configure()
    await second.reload()
    await connected(first, second)
    second._routes = []
    second.configure()
    await second.reload()
    await until_routes(0, first, second)


@pytest.mark.feature("cluster.route-security")
async def test_a_reload_of_permissions_announces_the_difference(cluster: Cluster) -> None:
    member = await cluster.add("penstock", "A")
    raw = await RawRoute.open(member.route_port, "R")
    try:
        client = await cluster.client(member)
        for subject in ("a.x", "b.x"):
            await client.subscribe(subject)
        await client.flush()
        await until(raw.has(b"RS+ $G b.x\r\n"))
        raw.take()
        member.configure(cluster='permissions { import: "b.>", export: "c.>" }')
        await member.reload()
        await until(raw.has(b'"import":{"allow":["b.>"]}'))
        assert re.findall(rb"RS. [$]G .*", raw.take()) == [b"RS- $G a.x\r"]
        await raw.send(b"RS+ $G c.x\r\nRS+ $G d.x\r\nPING\r\n")
        await until(raw.has(b"PONG"))
        subjects = [one["subject"] for one in _details(await member.page("routez?subs=detail"))]
        assert subjects == ["c.x"]
        raw.take()
        member.configure()
        await member.reload()
        await until(raw.has(b"RS+ $G a.x\r\n"))
    finally:
        await raw.close()


@pytest.mark.feature("cluster.route-security")
async def test_interest_that_permissions_held_back_arrives_when_they_change(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    """The receiving server dropped what it did not export; the other one announces it again."""
    first, second = await cluster.pair(kinds)
    ours = first if first.kind == "penstock" else second
    other = second if ours is first else first
    inbox = await collect(cluster, other, "a.x")
    publisher = await cluster.client(ours)
    await heard(publisher, "a.x", inbox)
    ours.configure(cluster='permissions { export: { allow: ["b.>"] } }')
    await ours.reload()

    async def is_dropped() -> bool:
        return "a.x" not in [one["subject"] for one in _details(await ours.page("routez?subs=detail"))]

    await until(is_dropped)
    inbox.clear()
    await publisher.publish("a.x", b"held back")
    await publisher.flush()
    await asyncio.sleep(0.1)
    assert inbox == []
    ours.configure()
    await ours.reload()
    await heard(publisher, "a.x", inbox)


# -- accounts

SHARING = """
    accounts {
        A {
            users: [{user: a, password: a}]
            exports: [{service: "svc.*"}, {stream: "st.>"}]
        }
        B {
            users: [{user: b, password: b}]
            imports: [
                {service: {account: A, subject: "svc.one"}, to: "ask"}
                {stream: {account: A, subject: "st.>"}, prefix: "from"}
            ]
        }
    }
"""


async def test_imports_work_when_the_exporting_clients_are_at_another_server(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first, second = await cluster.pair(kinds, top=SHARING)
    for near, far in ((first, second), (second, first)):
        serving = await cluster.client(far, user="a", password="a")

        async def answer(message: Any, serving: Any = serving) -> None:
            await serving.publish(message.reply, b"re: " + message.data)

        subscription = await serving.subscribe("svc.one", cb=answer)
        await serving.flush()
        asking = await cluster.client(near, user="b", password="b")

        async def is_answered(asking: Any = asking) -> bool:
            try:
                return (await asking.request("ask", b"hi", timeout=0.5)).data == b"re: hi"
            except (NoRespondersError, TimeoutError):
                return False

        await until(is_answered)
        inbox = await collect(cluster, near, "from.st.x", user="b", password="b")
        await heard(serving, "st.x", inbox)
        for i in range(5):
            await serving.publish("st.x", str(i).encode())
        await serving.flush()
        await until(lambda inbox=inbox: len(inbox) >= 5)
        await asyncio.sleep(0.05)
        assert [(one.subject, one.data) for one in inbox] == [("from.st.x", b"%d" % i) for i in range(5)]
        await subscription.unsubscribe()
        await serving.flush()


def _details(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for route in page["routes"] for one in route.get("subscriptions_list_detail", ())]


async def test_a_reload_cannot_move_the_listener(cluster: Cluster) -> None:
    member = await cluster.add("penstock", "A")
    text = member.conf_path.read_text()
    member.conf_path.write_text(text.replace(f":{member.route_port}", f":{member.http_port}"))
    with pytest.raises(Exception, match=r"config reload not supported for cluster.port: old=\d+, new=\d+"):
        await member.reload()


# -- slow members


@pytest.mark.feature("cluster.slow-peers")
async def test_a_member_that_takes_nothing_costs_its_own_link_only(cluster: Cluster) -> None:
    """The other receivers get everything, memory stays bounded, and what is dropped is counted."""
    bound = 1024 * 1024
    member = await cluster.add("penstock", "A", top=f"max_pending: {bound}\nmax_payload: 65536")
    raw = await RawRoute.open(member.route_port, "slow")
    inbox = await collect(cluster, member, "data")
    await raw.send(b"RS+ $G data\r\nRS+ $G probe\r\nPING\r\n")
    await until(raw.has(b"PONG"))
    await raw.pause()
    publisher = await cluster.client(member)
    sent = 400
    for i in range(sent):
        await publisher.publish("data", b"%05d" % i + b"x" * 60_000)
        if i % 20 == 0:
            await publisher.flush()
    await publisher.flush()
    await until(lambda: len(inbox) == sent)
    assert [int(one.data[:5]) for one in inbox] == list(range(sent))
    [route] = (await member.page("routez"))["routes"]
    assert 0 < route["dropped_msgs"] < sent
    assert route["pending_size"] <= bound
    assert "messages (" in member.log()
    await raw.resume()
    await until(lambda: raw.data.count(b"RMSG $G data") == sent - route["dropped_msgs"])
    await publisher.publish("probe", b"still here")
    await until(raw.has(b"RMSG $G probe 10\r\nstill here\r\n"))
    await raw.close()


async def test_an_idle_connection_to_the_route_port_ends(cluster: Cluster) -> None:
    member = await cluster.add("penstock", "A", cluster="authorization {user: a, password: a, timeout: 0.1}")
    with socket.create_connection(("127.0.0.1", member.route_port)) as sock:
        sock.settimeout(5)
        got = await asyncio.to_thread(_read_to_end, sock)
    assert got.endswith(b"-ERR 'Authentication Timeout'\r\n")


def _read_to_end(sock: socket.socket) -> bytes:
    got = b""
    while data := sock.recv(4096):
        got += data
    return got


async def test_a_request_without_interest_in_the_cluster_fails_at_once(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    _, second = await cluster.pair(kinds)
    with pytest.raises(NoRespondersError):
        await (await cluster.client(second)).request("no.receiver", b"", timeout=5)


async def test_an_official_member_may_have_jetstream(cluster: Cluster, tmp_path: Path) -> None:
    """Core messages pass; its streams are no business of the member without JetStream."""
    first = await cluster.add("penstock", "A")
    streams = f'jetstream {{ store_dir: "{tmp_path}" }}'
    second = await cluster.add("official", "B", routes=[first], top=streams)
    await connected(first, second)
    for near, far in ((first, second), (second, first)):
        inbox = await collect(cluster, far, "to.me")
        await heard(await cluster.client(near), "to.me", inbox)


# -- the document for operators


def test_the_configurations_of_the_document_are_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/topology.md").read_text()
    blocks = re.findall(r"^```\n(# .*?)^```", text, re.M | re.S)
    assert len(blocks) == 7
    for i, block in enumerate(blocks):
        path = tmp_path / f"{i}.conf"
        path.write_text(block)
        options = load(str(path))
        assert [name for name in ("leafnodes", "gateway", "cluster") if getattr(options, name) is not None]


async def test_the_two_servers_of_the_document_form_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    text = (Path(__file__).parents[3] / "docs/topology.md").read_text()
    one, two = re.findall(r"^```\n(# (?:one|two)\.conf.*?)^```", text, re.M | re.S)
    first, second = await cluster.add("penstock", "A"), await cluster.add("penstock", "B")
    ports = {
        "4222": first.port, "6222": first.route_port, "4223": second.port, "6223": second.route_port
    }  # fmt: skip
    for member, block in ((first, one), (second, two)):
        await member.stop()
        member.conf_path.write_text(re.sub(r"(?<=:)\d{4}\b", lambda found: str(ports[found[0]]), block))
        await member.start()
    await until_routes(4, first, second)
    inbox = await collect(cluster, second, "hello")
    await heard(await cluster.client(first), "hello", inbox)
