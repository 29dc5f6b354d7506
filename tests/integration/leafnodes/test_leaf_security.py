"""Logins, TLS, permissions and compression of leaf nodes, in each pair of servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock.client
from penstock.protocol.nkeys import KeyPair
from tests.support import keys
from tests.support.certificates import Certificates, make_certificates
from tests.support.clusters import Member
from tests.support.leafs import PAIRS, Leafs, heard, linked
from tests.support.nats_servers import until
from tests.support.raw_routes import exchange

pytestmark = pytest.mark.feature("cluster.leaf-nodes")

PAIR = pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
KINDS = pytest.mark.parametrize("kind", ["penstock", pytest.param("official", marks=pytest.mark.official)])
ACCOUNTS = "accounts { A { users: [{user: a, password: a}] }, B { users: [{user: b, password: b}] } }"


async def collect(leafs: Leafs, node: Member, subject: str, **options: Any) -> list[Any]:
    """What a new client of the server receives."""
    client, found = await leafs.client(node, **options), []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, cb=note)
    await client.flush()
    return found


async def works(
    leafs: Leafs, hub: Member, leaf: Member, at_hub: dict[str, str], at_leaf: dict[str, str]
) -> None:
    """Messages arrive in both directions."""
    for near, far, here, there in ((hub, leaf, at_hub, at_leaf), (leaf, hub, at_leaf, at_hub)):
        inbox = await collect(leafs, far, "to.me", **there)
        await heard(await leafs.client(near, **here), "to.me", inbox)


# -- logins


@PAIR
async def test_the_users_of_the_block_bind_leaf_nodes_to_accounts(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    users = "{user: l, password: 'p w', account: A}, {user: m, password: q, account: B}"
    block = f"authorization {{ users: [{users}] }}"
    hub, leaf = await leafs.pair(
        kinds,
        {"top": ACCOUNTS, "block": block},
        {"user": "l:p%20w@", "top": ACCOUNTS, "remote": "account: B"},
    )
    a, b = {"user": "a", "password": "a"}, {"user": "b", "password": "b"}
    await works(leafs, hub, leaf, a, b)
    other = await collect(leafs, hub, "to.me", **b)
    publisher = await leafs.client(leaf, **b)
    await publisher.publish("to.me", b"")
    await publisher.flush()
    await asyncio.sleep(0.1)
    assert not other
    assert [one["account"] for one in await hub.leafs()] == ["A"]
    assert [one["account"] for one in await leaf.leafs()] == ["B"]
    assert [one["is_spoke"] for one in (*await hub.leafs(), *await leaf.leafs())] == [False, True]


@PAIR
async def test_a_single_user_or_those_of_the_server_let_leaf_nodes_in(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    settings = {"block": 'authorization { user: l, password: "p", account: A }', "top": ACCOUNTS}
    hub = await leafs.add(kinds[0], "hub", **settings)
    plain = await leafs.add(kinds[0], "plain", top=ACCOUNTS)
    first = await leafs.add(kinds[1], "one", to=(hub,), listens=False, user="l:p@")
    second = await leafs.add(kinds[1], "two", to=(plain,), listens=False, user="b:b@")
    await linked(hub, plain, first, second)
    await works(leafs, hub, first, {"user": "a", "password": "a"}, {})
    await works(leafs, plain, second, {"user": "b", "password": "b"}, {})


@PAIR
async def test_an_nkey_signs_the_nonce(leafs: Leafs, kinds: tuple[str, str]) -> None:
    user = keys.key("user", "leaf")
    hub = await leafs.add(kinds[0], "hub", block=f"authorization {{ nkey: {user.public} }}")
    leaf = await leafs.add(kinds[1], "leaf", to=(hub,), listens=False, remote=f"nkey: {user.seed}")
    await linked(hub, leaf)
    await works(leafs, hub, leaf, {}, {})


@PAIR
async def test_a_credentials_file_proves_a_user_of_an_operator(leafs: Leafs, kinds: tuple[str, str]) -> None:
    account = keys.key("account", "A").public
    top = (
        f"operator: {keys.operator_token()}\nsystem_account: {keys.SYSTEM.public}\nresolver: MEMORY\n"
        f"resolver_preload {{ {account}: {keys.account_token('A')}, "
        f"{keys.SYSTEM.public}: {keys.account_token('SYS')} }}"
    )
    path = leafs.directory / "leaf.creds"
    path.write_text(credentials(keys.user_token("A", "leaf"), keys.key("user", "leaf")))
    hub = await leafs.add(kinds[0], "hub", top=top)
    leaf = await leafs.add(kinds[1], "leaf", to=(hub,), listens=False, remote=f'credentials: "{path}"')
    await linked(hub, leaf)
    assert [one["account"] for one in await hub.leafs()] == [account]
    client_path = leafs.directory / "client.creds"
    client_path.write_text(credentials(keys.user_token("A", "joe"), keys.key("user", "joe")))
    async with penstock.client.connect(hub.url, credentials=str(client_path)) as client:
        subscription = await client.subscribe("to.hub")
        await client.flush()
        publisher = await leafs.client(leaf)

        async def arrives() -> bool:
            await publisher.publish("to.hub", b"")
            await publisher.flush()
            return bool(subscription.pending_messages)

        await until(arrives)


def credentials(token: str, key: KeyPair) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )


@KINDS
async def test_strangers_are_refused_with_the_official_texts(leafs: Leafs, kind: str) -> None:
    block = "authorization { user: l, password: p, timeout: 1 }"
    node = await leafs.add(kind, "hub", block=block, top='cluster { name: "here" }')
    for sent, refusal in (
        (b'CONNECT {"user":"l","pass":"x","name":"X"}\r\n', "Authorization Violation"),
        (b'CONNECT {"name":"X"}\r\n', "Authorization Violation"),
        (b"PING\r\n", "Authorization Violation"),
        (b"LS+ foo\r\n", "Authorization Violation"),
        (b"", "Authentication Timeout"),
        (b'CONNECT {"user":"l","pass":"p","lang":"go"}\r\n', "attempted to connect to leaf node port"),
        (
            b'CONNECT {"user":"l","pass":"p","name":"X","cluster":"a b"}\r\n',
            "cluster name cannot contain spaces",
        ),
        (b'CONNECT {"user":"l","pass":"p","name":"X","cluster":"_"}\r\n', "cluster name is reserved"),
        (b'CONNECT {"user":"l","pass":"p","cluster":"here"}\r\n', "remote leafnode has same cluster name"),
    ):
        got = await exchange(node.leaf_port, sent)
        assert f"-ERR '{refusal}'".encode() in got, (sent, got)


@KINDS
async def test_old_servers_can_be_refused(leafs: Leafs, kind: str) -> None:
    node = await leafs.add(kind, "hub", block='min_version: "2.10.0"')
    got = await exchange(node.leaf_port, b'CONNECT {"version":"2.9.20","name":"X"}\r\n')
    assert b"-ERR 'connection rejected since minimum version required is \"2.10.0\"'" in got


@KINDS
async def test_a_leaf_node_notices_that_it_dialled_another_port(leafs: Leafs, kind: str) -> None:
    hub = await leafs.add("penstock", "hub")
    hub.leaf_port = hub.port
    leaf = await leafs.add(kind, "leaf", to=(hub,), listens=False)
    await until(lambda: "attempted to connect to wrong port" in leaf.log())


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls_of(certificates: Certificates, more: str = "") -> str:
    return (
        f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}", '
        f'ca_file: "{certificates.ca}", timeout: 5 {more} }}'
    )


@PAIR
@pytest.mark.parametrize("first", ["", ", handshake_first: true"])
async def test_links_are_encrypted(
    leafs: Leafs, kinds: tuple[str, str], certificates: Certificates, first: str
) -> None:
    verify = ", verify: true" + first
    hub, leaf = await leafs.pair(
        kinds, {"block": tls_of(certificates, verify)}, {"remote": tls_of(certificates, first)}
    )
    await works(leafs, hub, leaf, {}, {})
    assert (await hub.page("varz"))["leaf"]["tls_required"] is True
    payload = bytes(range(256)) * 2000
    got = await collect(leafs, leaf, "large")
    publisher = await leafs.client(hub)
    await heard(publisher, "large", got)
    for _ in range(20):
        await publisher.publish("large", payload)
    await until(lambda: len(got) == 20)
    assert {one.data for one in got} == {payload}


@PAIR
async def test_the_certificate_of_a_hub_is_checked(
    leafs: Leafs, kinds: tuple[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    strange = make_certificates(tmp_path)
    hub = await leafs.add(kinds[0], "hub", block=tls_of(certificates))
    leaf = await leafs.add(
        kinds[1], "leaf", to=(hub,), listens=False, remote=f'tls {{ ca_file: "{strange.ca}" }}'
    )
    await until(lambda: "handshake" in leaf.log().lower())
    await asyncio.sleep(0.3)
    assert not await hub.leafs()
    assert not await leaf.leafs()


# -- permissions


@PAIR
async def test_the_permissions_of_the_user_hold_in_both_directions(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    """The leaf node may publish `up.>` and receive `down.>`."""
    allowed = 'publish: ["up.>", "probe"], subscribe: ["down.>", "probe"]'
    users = f"{{user: root, password: root}}, {{user: l, password: p, permissions: {{{allowed}}}}}"
    top = f"authorization {{ users: [{users}] }}"
    hub, leaf = await leafs.pair(kinds, {"top": top}, {"user": "l:p@"})
    root = {"user": "root", "password": "root"}
    await passes(leafs, hub, leaf, root, up="up.x", down="down.x")


@PAIR
async def test_deny_lists_of_a_remote_hold_in_both_directions(leafs: Leafs, kinds: tuple[str, str]) -> None:
    remote = 'deny_exports: ["down.>"], deny_imports: ["up.>"]'
    hub, leaf = await leafs.pair(kinds, {}, {"remote": remote})
    # An official leaf node applies deny_imports to what it sends, too, once the hub has wide interest.
    await passes(leafs, hub, leaf, {}, up="up.x", down="down.x", wide=kinds[1] == "penstock")


async def passes(
    leafs: Leafs, hub: Any, leaf: Any, root: dict[str, str], *, up: str, down: str, wide: bool = True
) -> None:
    """Only `up` goes from the leaf node to the hub, and only `down` the other way; also for wide interest."""
    found = {}
    for where, node, options in (("hub", hub, root), ("leaf", leaf, {})):
        found[where] = await collect(leafs, node, ">", **options) if wide else []
        for subject in (up, down):
            found[where, subject] = await collect(leafs, node, subject, **options)
    at_hub, at_leaf = await leafs.client(hub, **root), await leafs.client(leaf)
    await heard(at_hub, down, found["leaf", down])
    await heard(at_leaf, up, found["hub", up])
    found["hub"].clear()
    found["leaf"].clear()
    for client, name in ((at_hub, b"hub"), (at_leaf, b"leaf")):
        for subject in (up, down):
            await client.publish(subject, name)
        await client.flush()
    await until(lambda: b"hub" in [one.data for one in found["leaf", down]])
    await until(lambda: b"leaf" in [one.data for one in found["hub", up]])
    await asyncio.sleep(0.2)
    arrived = {
        where: {
            (one.subject, one.data)
            for name in (where, (where, up), (where, down))
            for one in found[name]
            if one.data != b"probe"
        }
        for where in ("hub", "leaf")
    }
    assert arrived["hub"] == {(up, b"hub"), (down, b"hub"), (up, b"leaf")}
    assert arrived["leaf"] == {(up, b"leaf"), (down, b"leaf"), (down, b"hub")}
    assert len(await hub.leafs()) == len(await leaf.leafs()) == 1


@KINDS
async def test_a_leaf_node_that_ignores_its_permissions_is_closed(leafs: Leafs, kind: str) -> None:
    top = "authorization { users: [ {user: l, password: p, permissions: {publish: up, subscribe: down}} ] }"
    node = await leafs.add(kind, "hub", top=top)
    connect = b'CONNECT {"user":"l","pass":"p","name":"X","headers":true}\r\n'
    for sent, refusal in (
        (b"LMSG down 2\r\nhi\r\n", b'Permissions Violation for Publish to "down"'),
        (b"LS+ up\r\n", b'Permissions Violation for Subscription to "up"'),
    ):
        got = await exchange(node.leaf_port, connect + sent)
        assert b"-ERR '" + refusal + b"'" in got
        assert b'"import":{"allow":["down"]},"export":{"allow":["up"]}' in got


# -- compression


@PAIR
@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ("s2_fast", "s2_fast", {"s2_fast"}),
        ("accept", "s2_better", {"s2_better"}),
        ("s2_best", "accept", {"s2_best"}),
        ("off", "s2_fast", {"off"}),
    ],
)
async def test_both_sides_agree_on_compression(
    leafs: Leafs, kinds: tuple[str, str], ours: str, theirs: str, shown: set[str]
) -> None:
    hub, leaf = await leafs.pair(
        kinds, {"block": f"compression: {ours}"}, {"remote": f"compression: {theirs}"}
    )
    for node in (hub, leaf):
        assert {one["compression"] for one in await node.leafs()} == shown
    await works(leafs, hub, leaf, {}, {})


# -- before the login


@pytest.mark.parametrize(
    "flood",
    [
        b"x" * 1000,
        b"CONNECT {" + b"x" * 1000,
        b"INFO {" + b"x" * 1000,
        b"INFO {}\r\n",
        b"PING\r\n",
        b"LS+ " + b"a" * 1000,
        b"LMSG a 60000000\r\n" + b"x" * 1000,
        b'CONNECT {"lang":"go"}\r\n',
    ],
    ids=["junk", "connect", "info", "infos", "pings", "interest", "message", "client"],
)
@pytest.mark.parametrize("only_first", [True, False], ids=["endless-line", "repeated"])
async def test_a_peer_that_has_not_logged_in_makes_the_server_hold_little(
    leafs: Leafs, flood: bytes, only_first: bool
) -> None:
    """64 KiB of input and output, whatever it sends; nearly all of it ends the connection."""
    hub = await leafs.add("penstock", "hub")
    links = hub.server.links.leafs
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.leaf_port)
    await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
    rest = b"y" * len(flood) if only_first else flood
    (session,) = links._sessions.values()
    most = 0
    try:
        for number in range(400):
            writer.write(flood if number == 0 else rest)
            await asyncio.wait_for(writer.drain(), 10)
            most = max(most, session.ingress.parser.held_bytes + session.connection.pending_bytes())
            if writer.is_closing() or (number > 3 and not links._sessions):
                break
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    writer.close()
    assert most <= 64 << 10
    assert most or session.connection.close_reason is not None  # a connection that has ended holds nothing
    assert not links.sessions
