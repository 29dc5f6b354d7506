"""Security, monitoring, reload and leaf nodes of gateways, with the official server in both roles."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.server.config.directives import load
from penstock.server.monitoring.pages.varz import VarzOptions, statsz, varz
from tests.support.certificates import Certificates, make_certificates
from tests.support.clusters import heard
from tests.support.gateway_servers import SuperCluster, joined
from tests.support.leafs import PenstockNode
from tests.support.nats_servers import until
from tests.support.raw_routes import exchange

pytestmark = pytest.mark.feature("cluster.super-clusters")

P, O = "penstock", "official"  # noqa: E741
KIND = pytest.mark.parametrize("kind", [P, pytest.param(O, marks=pytest.mark.official)])
ABOUT = b'"server_id":"X","server_name":"x","host":"127.0.0.1","port":1,"gateway_iom":true'


async def works(clusters: SuperCluster, *members: Any) -> None:
    """Messages arrive from each server at every other one."""
    for far in members:
        subscriber, found = await clusters.client(far), []

        async def note(message: Any, found: list[Any] = found) -> None:
            found.append(message)

        await subscriber.subscribe("to.me", cb=note)
        await subscriber.flush()
        for near in members:
            if near is not far:
                await heard(await clusters.client(near), "to.me", found)
        await subscriber.close()


# -- security


@KIND
async def test_others_are_refused_at_the_gateway_port(clusters: SuperCluster, kind: str) -> None:
    settings = {"gateway": 'authorization { user: "g", password: "p", timeout: 1 }'}
    member = await clusters.add(kind, "A1", "A", **settings)
    for line, refusal in (
        (
            b'CONNECT {"lang":"go","name":"X"}\r\n',
            b"Authorization Violation|attempted to connect to gateway port",
        ),
        (b'CONNECT {"name":"X","gateway":"B","user":"g","pass":"x"}\r\n', b"Authorization Violation"),
        (b"SUB a 1\r\n", b"Authorization Violation"),
        (b"", b"Authentication Timeout"),
    ):
        got = await exchange(member.gateway_port, line)
        assert re.search(b"-ERR '(%s)" % refusal, got), (line, got)


@KIND
async def test_an_unknown_cluster_can_be_refused(clusters: SuperCluster, kind: str) -> None:
    member = await clusters.add(kind, "A1", "A", gateway="reject_unknown_cluster: true")
    got = await exchange(member.gateway_port, b'CONNECT {"name":"X","gateway":"B"}\r\n')
    assert b"""-ERR 'Connection to gateway "A" rejected'""" in got


async def test_a_cluster_with_another_name_is_refused(clusters: SuperCluster, kinds: tuple[str, str]) -> None:
    first = await clusters.add(kinds[0], "A1", "A")
    first.cluster_name = "other"
    second = await clusters.add(kinds[1], "B1", "B", to=[first])
    text = 'Failing connection to gateway "other", remote gateway name is "A"'
    await until(lambda: text in second.log())
    assert await second.outbound() == {}


async def test_the_right_password_lets_a_cluster_in(clusters: SuperCluster, kinds: tuple[str, str]) -> None:
    settings = {"gateway": 'authorization { user: "g", password: "se cret", timeout: 1 }'}
    first, second = await clusters.pair(kinds, user="g:se%20cret@", **settings)
    third = await clusters.add(P, "C1", "C", to=[second], user="g:se%20cret@", **settings)
    await joined(first, second, third)  # the address of the first one came by gossip, without a password
    await works(clusters, first, third)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def test_gateways_are_encrypted(
    clusters: SuperCluster, kinds: tuple[str, str], certificates: Certificates
) -> None:
    tls = (
        f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}", '
        f'ca_file: "{certificates.ca}", timeout: 5 }}'
    )
    first, second = await clusters.pair(kinds, gateway=tls)
    await works(clusters, first, second)


async def test_a_cluster_without_tls_is_dialled_until_it_has_it(
    clusters: SuperCluster, certificates: Certificates
) -> None:
    tls = (
        f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}", '
        f'ca_file: "{certificates.ca}", timeout: 1 }}'
    )
    first = await clusters.add(P, "A1", "A")
    second = await clusters.add(P, "B1", "B", to=[first], gateway=tls)
    await until(lambda: first.log().count("Gateway connection closed") >= 2)
    assert await second.outbound() == {}
    await first.stop()
    first.write(gateway=tls)
    await first.start()
    await joined(first, second)


# -- monitoring


async def test_pages_show_the_other_cluster(clusters: SuperCluster, kinds: tuple[str, str]) -> None:
    first, second = await clusters.pair(kinds)
    await works(clusters, first, second)
    pages = [await one.page("gatewayz?accs=1") for one in (first, second)]
    for page, other, configured in ((pages[0], "B", False), (pages[1], "A", True)):
        outbound = page["outbound_gateways"][other]
        assert outbound["configured"] is configured
        assert outbound["connection"]["out_msgs"] > 0
        modes = {one["name"]: one["interest_mode"] for one in outbound["accounts"]}
        assert modes["$G"] == "Interest-Only"
        [inbound] = page["inbound_gateways"][other]
        assert inbound["connection"]["in_msgs"] > 0
    for member, page in ((first, pages[0]), (second, pages[1])):
        assert (page["name"], page["port"]) == (member.cluster_name, member.gateway_port)
        if member.kind == P:
            shown = varz(member.server, VarzOptions(), {})["gateway"]
            assert (shown["name"], shown["port"]) == (member.cluster_name, member.gateway_port)
            [stat] = statsz(member.server)["gateways"]
            assert stat["inbound_connections"] == 1
            assert stat["sent"]["msgs"] > 0 < stat["received"]["msgs"]


async def test_all_servers_answer_a_ping_of_the_system(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    top = "accounts { $SYS { users: [ { user: s, password: s } ] } }"
    members = await clusters.pair(kinds, top=top)
    client, names = await clusters.client(members[0], user="s", password="s"), set()

    async def note(message: Any) -> None:
        names.update(re.findall(rb'"name":"(\w+)"', message.data[:200]))

    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=note)

    async def is_answered() -> bool:
        await client.publish("$SYS.REQ.SERVER.PING", b"", reply=inbox)
        await asyncio.sleep(0.05)
        return names >= {b"A1", b"B1"}

    await until(is_answered)


# -- reload


async def test_a_reload_adds_and_removes_clusters(clusters: SuperCluster) -> None:
    first, second = await clusters.add(P, "A1", "A"), await clusters.add(P, "B1", "B")
    second._to.append(first)
    second.write()
    await second.reload()
    await joined(first, second)
    second._to.clear()
    second.write(gateway="reject_unknown_cluster: true")
    await second.reload()
    await until(lambda: not second.server.links.gateways.gateways.outbound)


# -- leaf nodes


@pytest.mark.parametrize("hub_kind", [P, pytest.param(O, marks=pytest.mark.official)])
async def test_a_leaf_node_answers_requests_of_another_cluster(
    clusters: SuperCluster, tmp_path: Path, hub_kind: str
) -> None:
    first = await clusters.add(P, "A1", "A")
    second = await clusters.add(hub_kind, "B1", "B", to=[first])
    await second.stop()
    # The official server accepts leaf nodes beside a gateway only with a configured system account.
    accounts = "accounts { SYS {} }\nsystem_account: SYS\n"
    second.write(top=f'{accounts}leafnodes {{ listen: "127.0.0.1:{second.leaf_port}" }}')
    await second.start()
    await joined(first, second)
    leaf = PenstockNode(tmp_path, "leaf", to=(second,), listens=False)
    await leaf.start()
    try:
        service = await clusters.client(leaf)

        async def respond(message: Any) -> None:
            await message.respond(message.reply.encode()[:6])

        await service.subscribe("svc", cb=respond)
        await service.flush()
        probe, box = await clusters.client(first), []

        async def note(message: Any) -> None:
            box.append(message)

        await probe.subscribe("probe.answer", cb=note)
        await probe.flush()

        async def is_answered() -> bool:
            await probe.publish("svc", b"", reply="probe.answer")
            await asyncio.sleep(0.02)
            return bool(box)

        await until(is_answered)
        for _ in range(10):  # new inboxes, whose replies are routed by name
            client = await clusters.client(first)
            assert (await client.request("svc", b"", timeout=2)).data == b"_INBOX"
            await client.close()
        await service.close()
    finally:
        await leaf.stop()


async def test_other_clusters_reach_a_server_in_lame_duck_mode(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    top = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "20s"'
    first, second = await clusters.pair(kinds, top=top)
    subscriber, found = await clusters.client(first), []

    async def note(message: Any) -> None:
        found.append(message)

    await subscriber.subscribe("to.me", cb=note)
    await subscriber.flush()
    publisher = await clusters.client(second)
    await heard(publisher, "to.me", found)
    await first.lame_duck()
    await until(lambda: "lame duck mode" in first.log())
    await publisher.publish("to.me", b"1")
    await until(lambda: len(found) == 1)
    await second.stop()
    await second.start()
    await joined(first, second)
    await heard(await clusters.client(second), "to.me", found)


# -- the document for operators


async def test_the_two_servers_of_the_document_form_one_subject_space(clusters: SuperCluster) -> None:
    text = (Path(__file__).parents[3] / "docs/topology.md").read_text()
    east, west = re.findall(r"^```\n(# (?:east|west)\.conf.*?)^```", text, re.M | re.S)
    first, second = await clusters.add(P, "A1", "east"), await clusters.add(P, "B1", "west")
    ports = {
        "4222": first.port, "7222": first.gateway_port, "4223": second.port, "7223": second.gateway_port
    }  # fmt: skip
    for member, block in ((first, east), (second, west)):
        await member.stop()
        member.conf_path.write_text(re.sub(r"(?<=:)\d{4}\b", lambda found: str(ports[found[0]]), block))
        assert load(str(member.conf_path)).gateway is not None
        await member.start()
    await joined(first, second)
    await works(clusters, first, second)
