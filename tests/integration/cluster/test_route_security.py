"""Authorization, TLS, permissions and compression of routes, with the official server in both roles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates, make_certificates
from tests.support.clusters import Cluster, Member, connected, heard
from tests.support.nats_servers import until
from tests.support.raw_routes import exchange

pytestmark = pytest.mark.feature("cluster.route-security")

P, O = "penstock", "official"  # noqa: E741


async def collect(cluster: Cluster, member: Member, subject: str, **options: Any) -> list[Any]:
    """What a new client of the member receives."""
    client, found = await cluster.client(member, **options), []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, cb=note)
    await client.flush()
    return found


async def works(cluster: Cluster, first: Member, second: Member) -> None:
    """Messages arrive in both directions."""
    for near, far in ((first, second), (second, first)):
        inbox = await collect(cluster, far, "to.me")
        await heard(await cluster.client(near), "to.me", inbox)


async def test_the_right_password_lets_a_server_in(cluster: Cluster, kinds: tuple[str, str]) -> None:
    settings = {"cluster": 'authorization { user: "member", password: "se cret", timeout: 1 }'}
    first = await cluster.add(kinds[0], "A", **settings)
    second = await cluster.add(kinds[1], "B", routes=[first], user="member:se%20cret@", **settings)
    await connected(first, second)
    third = await cluster.add(P, "C", routes=[second], user="member:se%20cret@", **settings)
    await connected(first, second, third)  # the address of the first one came by gossip, without a password
    await works(cluster, first, third)


@pytest.mark.parametrize("kind", [P, pytest.param(O, marks=pytest.mark.official)])
async def test_a_wrong_password_is_refused(cluster: Cluster, kind: str) -> None:
    member = await cluster.add(kind, "A", cluster='authorization { user: "m", password: "p", timeout: 1 }')
    for connect in (
        b'CONNECT {"user":"m","pass":"x","name":"X","cluster":"c"}\r\n',
        b'CONNECT {"name":"X","cluster":"c"}\r\n',
        b"",  # the time limit
    ):
        got = await exchange(member.route_port, connect)
        refusal = b"-ERR 'Authorization Violation'" if connect else b"-ERR 'Authentication Timeout'"
        assert refusal in got


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_of(certificates: Certificates, more: str = "") -> str:
    return (
        f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}", '
        f'ca_file: "{certificates.ca}", timeout: 5 {more} }}'
    )


async def test_routes_are_encrypted(
    cluster: Cluster, kinds: tuple[str, str], certificates: Certificates
) -> None:
    first, second = await cluster.pair(kinds, cluster=tls_of(certificates))
    third = await cluster.add(P, "C", routes=[second], cluster=tls_of(certificates))
    await connected(first, second, third)
    await works(cluster, first, second)
    await works(cluster, first, third)
    assert (await first.page("varz"))["cluster"]["tls_required"] is True


async def test_a_server_without_a_certificate_of_the_authority_is_refused(
    cluster: Cluster, kinds: tuple[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    """Both sides check: the stranger trusts nothing but itself, or everything."""
    strange = make_certificates(tmp_path)
    first = await cluster.add(kinds[0], "A", cluster=tls_of(certificates))
    second = await cluster.add(kinds[1], "B", routes=[first], cluster=tls_of(strange))
    third = await cluster.add(kinds[1], "C", routes=[first], cluster=tls_of(strange, ", insecure: true"))
    await until(lambda: "handshake" in first.log() and "handshake" in second.log() + third.log())
    await asyncio.sleep(0.3)
    assert [await one.num_routes() for one in (first, second, third)] == [0, 0, 0]


# -- permissions


async def test_import_and_export_limit_what_crosses_the_route(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    """The first server asks for `a.>` only (import) and gives `b.>` only (export)."""
    limits = 'permissions { import: { allow: ["a.>", "probe"] }, export: { allow: ["b.>", "probe"] } }'
    first = await cluster.add(kinds[0], "A", cluster=limits)
    second = await cluster.add(kinds[1], "B", routes=[first])
    await connected(first, second)
    at_first = await collect(cluster, first, "*.x")  # covered by no allowed filter
    at_first_a, at_first_b = [await collect(cluster, first, name) for name in ("a.x", "b.x")]
    at_second_a, at_second_b = [await collect(cluster, second, name) for name in ("a.x", "b.x")]
    for near, far in ((first, second), (second, first)):
        await heard(await cluster.client(near), "probe", await collect(cluster, far, "probe"))
    here, there = await cluster.client(first), await cluster.client(second)
    for publisher in (here, there):
        for subject in ("a.x", "b.x"):
            await publisher.publish(subject, b"from " + (b"A" if publisher is here else b"B"))
        await publisher.flush()
    await until(lambda: len(at_first_a) == 2 and len(at_second_b) == 2)
    await asyncio.sleep(0.1)
    assert [one.data for one in at_first_b] == [b"from A"]
    assert [one.data for one in at_second_a] == [b"from B"]
    assert sorted({one.data for one in at_first}) in ([b"from A"], [b"from A", b"from B"])


# -- compression


@pytest.mark.feature("cluster.route-pool")
@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("s2_fast", "s2_fast", {"s2_fast"}),
        ("accept", "s2_better", {"s2_better"}),
        ("s2_best", "accept", {"s2_best"}),
        ("s2_better", "s2_auto", {"s2_uncompressed", "s2_fast", "s2_better", "s2_best"}),
        ("off", "s2_fast", {"off"}),
        ("not supported", "s2_fast", {"not supported"}),
        ('{mode: s2_auto, rtt_thresholds: ["0s", "5s", "6s"]}', "accept", {"s2_fast"}),
    ],
)
async def test_servers_agree_on_compression(
    cluster: Cluster, kinds: tuple[str, str], ours: str, theirs: str, shown: set[str]
) -> None:
    first = await cluster.add(kinds[0], "A", cluster=f"compression: {ours if ours[0] == '{' else repr(ours)}")
    second = await cluster.add(kinds[1], "B", routes=[first], cluster=f"compression: {theirs}")
    await connected(first, second)
    for member in (first, second):
        modes = {one["compression"] for one in (await member.page("routez"))["routes"]}
        assert modes <= shown | {"off", "not supported"} if "off" in shown | {ours} else modes <= shown
    for near, far in ((first, second), (second, first)):
        inbox = await collect(cluster, far, "data")
        publisher = await cluster.client(near)
        await heard(publisher, "data", inbox)
        payloads = [bytes(range(256)) * 2000, b"x" * 900_000, b"", bytes(i * 7 % 251 for i in range(70_000))]
        for payload in payloads * 3:
            await publisher.publish("data", payload)
        await publisher.flush()
        await until(lambda inbox=inbox: len(inbox) == 12)
        assert [one.data for one in inbox] == payloads * 3
