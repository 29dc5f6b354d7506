"""How servers find and recognize each other, with the official server in each position."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.clusters import PAIRS, Cluster, Member, connected, heard
from tests.support.nats_servers import until
from tests.support.raw_routes import RawRoute, exchange

pytestmark = pytest.mark.feature("cluster.discovery")

P, O = "penstock", "official"  # noqa: E741
TRIPLES = [(P, P, P), (O, P, P), (P, O, P), (P, P, O), (O, O, P), (O, P, O), (P, O, O)]


@pytest.mark.parametrize("triple", TRIPLES, ids=["-".join(one) for one in TRIPLES])
async def test_a_full_mesh_forms_from_one_seed(cluster: Cluster, triple: tuple[str, str, str]) -> None:
    seed = await cluster.add(triple[0], "A")
    second = await cluster.add(triple[1], "B", routes=[seed])
    third = await cluster.add(triple[2], "C", routes=[seed])
    await connected(seed, second, third)
    for member in (seed, second, third):
        assert await member.peers() == {"A", "B", "C"} - {member.name}
    clients = [await cluster.client(one) for one in (seed, second, third)]
    boxes: list[list[Any]] = []
    for client in clients:
        box: list[Any] = []

        async def note(message: Any, box: list[Any] = box) -> None:
            box.append(message)

        await client.subscribe("all", cb=note)
        await client.flush()
        boxes.append(box)
    for publisher in clients:
        for box in boxes:
            await heard(publisher, "all", box)
    await asyncio.sleep(0.05)
    for box in boxes:
        box.clear()
    for publisher in clients:
        await publisher.publish("all", b"x")
        await publisher.flush()
    await until(lambda: all(len(box) == 3 for box in boxes))
    await asyncio.sleep(0.1)
    assert [len(box) for box in boxes] == [3, 3, 3]


async def test_servers_that_dial_each_other_share_one_pool(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first = await cluster.add(kinds[0], "A")
    second = await cluster.add(kinds[1], "B", routes=[first])
    await connected(first, second)
    await first.stop()
    first._routes = [f'"nats://127.0.0.1:{second.route_port}"', f'"nats://127.0.0.1:{first.route_port}"']
    first.configure()
    await first.start()
    await connected(first, second)

    async def pool() -> set[int]:
        return {one["rid"] for one in (await first.page("routez"))["routes"]}

    # Where both dial at once, one of two links goes, and on a busy machine not before now. Then all stay:
    # longer than the pause before a configured route is dialled again.
    last: set[int] = set()

    async def is_stable() -> bool:
        nonlocal last
        last = await pool()
        await asyncio.sleep(1.5)
        return await pool() == last

    await until(is_stable)
    await asyncio.sleep(1.5)
    await connected(first, second)
    assert await pool() == last


async def test_a_lost_server_is_dialled_again(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first, second = await cluster.pair(kinds)
    await first.stop()

    async def is_alone() -> bool:
        return await second.num_routes() == 0

    await until(is_alone)
    await first.start()
    await connected(first, second)


@pytest.mark.feature("cluster.route-pool")
async def test_a_negative_pool_size_makes_one_connection(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first = await cluster.add(kinds[0], "A", cluster="pool_size: -1")
    second = await cluster.add(kinds[1], "B", routes=[first], cluster="pool_size: -1")

    async def is_connected() -> bool:
        return await first.num_routes() == 1 == await second.num_routes()

    await until(is_connected)
    await _exchange(cluster, first, second)


@pytest.mark.feature("cluster.route-pool")
async def test_servers_with_different_pools_understand_each_other(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    accounts = "accounts { A { users: [{user: a, password: a}] }, B { users: [{user: b, password: b}] } }"
    first = await cluster.add(kinds[0], "A", cluster="pool_size: 5", top=accounts)
    second = await cluster.add(kinds[1], "B", routes=[first], cluster="pool_size: 2", top=accounts)

    async def is_connected() -> bool:
        return await first.num_routes() == 6 == await second.num_routes()

    await until(is_connected)
    for user in ("a", "b"):
        await _exchange(cluster, first, second, user=user, password=user)


@pytest.mark.feature("cluster.route-pool")
async def test_a_server_without_a_pool_gets_everything_on_one_connection(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first = await cluster.add(kinds[0], "A", cluster="pool_size: -1")
    second = await cluster.add(kinds[1], "B", routes=[first])

    async def is_connected() -> bool:
        return await first.num_routes() == 1 == await second.num_routes()

    await until(is_connected)
    await _exchange(cluster, first, second)


@pytest.mark.feature("cluster.route-pool")
async def test_a_pinned_account_has_a_connection_of_its_own(cluster: Cluster, kinds: tuple[str, str]) -> None:
    settings = {
        "top": "accounts { A { users: [{user: a, password: a}] } }",
        "cluster": "accounts: [A]",
    }
    first = await cluster.add(kinds[0], "A", **settings)
    second = await cluster.add(kinds[1], "B", routes=[first], **settings)

    async def is_connected() -> bool:
        return await first.num_routes() == 5 == await second.num_routes()

    await until(is_connected)
    accounts = {one.get("account", "") for one in (await first.page("routez"))["routes"]}
    assert accounts == {"", "A", "$SYS"}
    await _exchange(cluster, first, second, user="a", password="a")
    for member in (first, second):
        by_account = {one.get("account"): one for one in (await member.page("routez"))["routes"]}
        assert by_account["A"]["in_msgs"] > 0


async def _exchange(cluster: Cluster, first: Member, second: Member, **options: Any) -> None:
    """Messages arrive in both directions."""
    for near, far in ((first, second), (second, first)):
        publisher, subscriber = await cluster.client(near, **options), await cluster.client(far, **options)
        box: list[Any] = []

        async def note(message: Any, box: list[Any] = box) -> None:
            box.append(message)

        await subscriber.subscribe("to.me", cb=note)
        await subscriber.flush()
        await heard(publisher, "to.me", box)


# -- names


async def test_a_generated_cluster_name_gives_way_to_a_configured_one(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first = await cluster.add(kinds[0], "A", cluster_name="named")
    second = await cluster.add(kinds[1], "B", routes=[first], cluster_name="")
    await connected(first, second)
    assert (await second.page("varz"))["cluster"]["name"] == "named"


@pytest.mark.parametrize("kind", [P, pytest.param(O, marks=pytest.mark.official)])
async def test_what_does_not_belong_on_the_route_port_is_refused(cluster: Cluster, kind: str) -> None:
    member = await cluster.add(kind, "A")
    refusals = [
        (b'CONNECT {"lang":"python","verbose":false}\r\n', b"-ERR 'attempted to connect to route port'\r\n"),
        (
            b'CONNECT {"gateway":"G","name":"X","cluster":"c"}\r\n',
            b"-ERR 'Rejecting connection from gateway \"G\" on the Route port'\r\n",
        ),
        (
            b'CONNECT {"name":"X","cluster":"other"}\r\n',
            b'-ERR \'Rejecting connection, cluster name "other" does not match "c"\'\r\n',
        ),
        (
            b'CONNECT {"name":"X","cluster":"_"}\r\n',
            b"-ERR 'Rejecting connection, cluster name \"_\" is reserved'\r\n",
        ),
        (b"PING\r\n", b"-ERR 'Authorization Violation'\r\n"),
        (b"RMSG $G foo 3\r\nabc\r\n", b"-ERR 'Authorization Violation'\r\n"),
    ]
    for sent, wanted in refusals:
        got = await exchange(member.route_port, sent)
        assert got.startswith(b"INFO {"), sent
        assert got.split(b"\r\n", 1)[0].endswith(b"} ")
        assert got.split(b"\r\n", 1)[1] == wanted, sent


@pytest.mark.parametrize("kind", [P, pytest.param(O, marks=pytest.mark.official)])
async def test_a_server_with_the_same_name_is_refused(cluster: Cluster, kind: str) -> None:
    member = await cluster.add(kind, "A")
    connect = b'CONNECT {"name":"ID","cluster":"c"}\r\n'
    info = b'INFO {"server_id":"ID","server_name":"A","cluster":"c","host":"h","port":1} \r\n'
    got = await exchange(member.route_port, connect + info)
    assert got.count(b"\r\n") == 1  # INFO alone, no -ERR
    await until(lambda: 'Remote server has a duplicate name: "A"' in member.log())


@pytest.mark.parametrize("kind", [P, pytest.param(O, marks=pytest.mark.official)])
async def test_places_in_a_pool_are_checked(cluster: Cluster, kind: str) -> None:
    member = await cluster.add(kind, "A")
    connect = b'CONNECT {"name":"ID","cluster":"c"}\r\n'
    about = {
        "server_id": "ID",
        "server_name": "X",
        "cluster": "c",
        "host": "h",
        "port": 1,
        "route_pool_size": 3,
    }
    refusals = [
        ({"route_pool_idx": 3}, b"Invalid route pool index: 3 - pool size is 3"),
        ({"route_pool_idx": -1}, b"Invalid route pool index: -1 - pool size is 3"),
        ({"route_account": "$G"}, b'No route for account "$G"'),
        (
            {"route_account": "$SYS", "route_pool_size": 0},
            b'Not possible to have a dedicated route for account "$SYS" between those servers',
        ),
    ]
    for fields, wanted in refusals:
        info = b"INFO " + json.dumps(about | fields).encode() + b" \r\n"
        got = await exchange(member.route_port, connect + info)
        assert b"-ERR '" + wanted + b"'\r\n" in got, fields


# -- clients


@pytest.mark.feature("core.any-server")
@pytest.mark.parametrize("kinds", PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_clients_learn_of_servers_that_come_and_go(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first = await cluster.add(kinds[0], "A")
    client = await cluster.client(first, allow_reconnect=True, ping_interval=1)
    await client.flush()
    alone = {url.netloc for url in client.servers}
    second = await cluster.add(kinds[1], "B", routes=[first])
    both = {f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"}
    assert alone == {f"127.0.0.1:{first.port}"}
    await until(lambda: {url.netloc for url in client.servers} == both)
    infos = await _infos(first)
    await until(lambda: bool(infos.lines) and set(infos.last()["connect_urls"]) == both)
    await second.stop()
    await until(lambda: infos.last().get("connect_urls") in (None, [f"127.0.0.1:{first.port}"]))
    await infos.close()


@pytest.mark.parametrize("kinds", PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_a_server_in_lame_duck_mode_sends_clients_to_the_others(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    top = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "2s"'
    first, second = await cluster.pair(kinds, top=top)
    here, there = await _infos(first), await _infos(second)
    await first.lame_duck()
    await until(lambda: here.last().get("ldm") is True)
    assert here.last()["connect_urls"] == [f"127.0.0.1:{second.port}"]
    await until(lambda: there.last().get("connect_urls") == [f"127.0.0.1:{second.port}"])
    await here.close()
    await there.close()


async def test_no_advertise_keeps_urls_from_clients(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first = await cluster.add(kinds[0], "A", cluster="no_advertise: true")
    second = await cluster.add(kinds[1], "B", routes=[first])
    await connected(first, second)
    for member in (first, second):
        infos = await _infos(member)
        urls = infos.last().get("connect_urls") or [f"127.0.0.1:{member.port}"]
        assert urls == [f"127.0.0.1:{member.port}"]
        await infos.close()


class _Infos:
    """A client of protocol 1 that reads INFO only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.lines: list[dict[str, Any]] = []
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while line := await self._reader.readline():
            if line.startswith(b"INFO "):
                self.lines.append(json.loads(line[5:]))
            elif line == b"PING\r\n":
                self._writer.write(b"PONG\r\n")

    def last(self) -> dict[str, Any]:
        return self.lines[-1] if self.lines else {}

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()


async def _infos(member: Member) -> _Infos:
    reader, writer = await asyncio.open_connection("127.0.0.1", member.port)
    infos = _Infos(reader, writer)
    writer.write(b'CONNECT {"protocol":1,"verbose":false}\r\nPING\r\n')
    await until(lambda: len(infos.lines) >= 2)
    return infos


async def test_gossip_is_passed_on_with_the_address_of_the_connection(cluster: Cluster) -> None:
    """What penstock tells a peer about a third server, beside what the official server tells."""
    reported: list[dict[str, Any]] = []
    for kind in (P, O):
        member = await cluster.add(kind, f"M-{kind}", cluster_name="g")
        first = await RawRoute.open(member.route_port, "one", cluster="g", gossip_mode=0)
        second = await RawRoute.open(member.route_port, "two", cluster="g", gossip_mode=0)
        await until(first.has(b'"server_name":"two"'))
        lines = [line for line in first.data.split(b"\r\n") if b'"server_name":"two"' in line]
        reported.append(json.loads(lines[0].removeprefix(b"INFO ")))
        await first.close()
        await second.close()
    ours, theirs = reported
    for name in ("server_id", "server_name", "ip", "host", "port", "gossip_mode", "cluster"):
        assert ours.get(name) == theirs.get(name), name
    assert "nonce" not in ours
