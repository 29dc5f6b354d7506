"""Links for replicated groups between servers of one process, and peers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import ServerError
from penstock.raft.disk_identity import DiskIdentity
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame
from penstock.replication.replication_frames import ReplicationKind, frame_bytes
from penstock.replication.replication_link import (
    Greeting,
    LinkEvent,
    LinkOpened,
    LinkRefused,
    ReplicationLink,
    greeting_of,
)
from penstock.replication.replication_messages import GroupMail
from penstock.server.config.directives import load
from penstock.server.links import replication_session
from penstock.server.links.replication_service import ReplicationService, ReplicationSetup
from penstock.server.logging import logs
from penstock.server.server import Server
from tests.support.certificates import make_certificates
from tests.support.clusters import Cluster, PenstockMember, connected
from tests.support.nats_servers import until
from tests.support.raw_routes import exchange
from tests.support.replication_nodes import ListOwner

pytestmark = pytest.mark.feature("cluster.raft")


class ReplicatedMember(PenstockMember):
    """A server with replicated groups, which the test opens."""

    async def start(self) -> None:
        setup = ReplicationSetup(self.conf_path.with_suffix(".data"), self._opened)
        log = logs.Log(self._note, debug=True)
        self.server = Server(options=load(str(self.conf_path)), log=log, replication=setup)
        await self.server.start()

    def _opened(self, service: ReplicationService) -> None:
        self.service = service
        service.node.set_groups_known()


@asynccontextmanager
async def members(
    directory: Path, *names: str, user: str = "", **settings: Any
) -> AsyncIterator[list[ReplicatedMember]]:
    """Replicated members, each of which dials those before it."""
    made: list[ReplicatedMember] = []
    try:
        for name in names:
            member = ReplicatedMember(directory, name, routes=tuple(made), user=user, **settings)
            await member.start()
            made.append(member)
        yield made
    finally:
        for member in made:
            await member.stop()


async def linked(made: list[ReplicatedMember]) -> None:
    await until(lambda: all(len(one.service.linked) == len(made) - 1 for one in made))


class RawLink:
    """Another server by hand."""

    def __init__(self, name: str, **changes: Any) -> None:
        greeting = greeting_of(DiskIdentity("c", name, "1", 1), "9.9")
        self.link = ReplicationLink(msgspec.structs.replace(greeting, **changes))
        self.events: list[LinkEvent] = []
        self.is_open = True

    async def open(self, port: int, connect: str = '"name":"X","cluster":"c","replication":"1"') -> RawLink:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        await self.reader.readuntil(b"\r\n")
        self.writer.write(b"CONNECT {" + connect.encode() + b"}\r\n")
        self._task = asyncio.create_task(self._read())
        return self

    async def greet(self) -> RawLink:
        self.writer.write(self.link.opening())
        await until(lambda: bool(self.events))
        return self

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(65536):
                self.events += self.link.receive(data)
        except OSError:
            pass
        self.is_open = False

    def pause(self) -> None:
        self._task.cancel()

    @property
    def server(self) -> Greeting:
        assert isinstance(self.events[0], LinkOpened)
        return self.events[0].greeting

    def close(self) -> None:
        self.writer.close()


async def test_servers_link_with_the_tls_and_the_authorization_of_routes(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    security = (
        f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}", '
        f'ca_file: "{certificates.ca}" }}\nauthorization {{ user: "m", password: "p" }}'
    )
    async with members(tmp_path, "B", "A", "C", user="m:p@", cluster=security) as made:
        await linked(made)
        voters = Membership(tuple(sorted(one.service.node.name for one in made)))
        owners = [ListOwner() for _ in made]
        groups = [
            one.service.node.create_group("g", voters, owner) for one, owner in zip(made, owners, strict=True)
        ]
        await until(lambda: any(one.propose(b"1") for one in groups))
        await until(lambda: all(one.commands[-1:] == [b"1"] for one in owners))
        groups[0].send(made[1].service.node.name, b"block")
        await until(lambda: owners[1].events[-1][0] == "mail")
        leader = next(one for one, group in zip(made, groups, strict=True) if group.role.value == "leader")
        await leader.server.stop()
        assert leader.service.node.led_groups == [], "a server that ends hands over"


async def test_a_peer_is_understood_wherever_its_stream_is_split(tmp_path: Path) -> None:
    async with members(tmp_path, "A") as [member]:
        owner = ListOwner()
        member.service.node.create_group("g", Membership(()), owner)
        peer = await RawLink("B").open(member.route_port)
        data = peer.link.opening()
        peer.link.receive(b"")
        other = ReplicationLink(greeting_of(DiskIdentity("c", "A", "1", 1), ""))
        list(peer.link.receive(other.opening()))
        data += peer.link.mail_bytes("g", b"one") + peer.link.mail_bytes("g", b"two")
        for i in range(len(data)):
            peer.writer.write(data[i : i + 1])
            await peer.writer.drain()
        await until(lambda: [one[2] for one in owner.events if one[0] == "mail"] == [b"one", b"two"])
        assert member.service.linked == ["B.1"]
        peer.close()
        await until(lambda: member.service.linked == [])


@pytest.mark.parametrize(
    ("connect", "answer"),
    [
        ('"name":"X","cluster":"c","user":"m","pass":"x","replication":"1"', b"Authorization Violation"),
        ('"name":"X","cluster":"d","user":"m","pass":"p","replication":"1"', b"does not match"),
    ],
)
async def test_a_connection_needs_what_a_route_needs(tmp_path: Path, connect: str, answer: bytes) -> None:
    async with members(tmp_path, "A", cluster='authorization { user: "m", password: "p" }') as [member]:
        assert answer in await exchange(member.route_port, b"CONNECT {" + connect.encode() + b"}\r\n")
        assert member.service.linked == []


async def test_a_server_without_replicated_groups_says_so(tmp_path: Path) -> None:
    member = PenstockMember(tmp_path, "A")
    await member.start()
    try:
        got = await exchange(
            member.route_port, b'CONNECT {"name":"X","cluster":"c","replication":"1"}\r\nanything'
        )
        assert b"-ERR 'this server has no replicated groups'" in got
        assert b'"replication"' not in got
    finally:
        await member.stop()


async def test_a_required_feature_that_is_unknown_is_refused_by_name(tmp_path: Path) -> None:
    async with members(tmp_path, "A") as [member]:
        peer = await RawLink("B", required=("mail", "blocks")).open(member.route_port)
        await peer.greet()
        await until(lambda: not peer.is_open)
        refused = peer.events[-1]
        assert isinstance(refused, LinkRefused)
        assert refused.text.startswith("server 'B' (9.9) requires blocks, which server 'A'")
        assert "requires blocks" in member.log()
        assert member.service.linked == []


@pytest.mark.parametrize("data", [b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 13])
async def test_garbage_costs_its_own_connection_only(tmp_path: Path, data: bytes) -> None:
    async with members(tmp_path, "A", "B") as made:
        await linked(made)
        peer = await RawLink("C").open(made[0].route_port)
        await peer.greet()
        peer.writer.write(data)
        await until(lambda: not peer.is_open)
        stranger = await RawLink("D").open(made[0].route_port)
        stranger.writer.write(data)
        await until(lambda: not stranger.is_open)
        assert made[0].service.linked == [made[1].service.node.name]


async def test_a_newer_connection_of_a_server_replaces_the_older_one(tmp_path: Path) -> None:
    async with members(tmp_path, "A") as [member]:
        first = await (await RawLink("B").open(member.route_port)).greet()
        second = await (await RawLink("B", replica_id="B.2").open(member.route_port)).greet()
        await until(lambda: not first.is_open)
        assert member.service.linked == ["B.2"]
        assert second.is_open


async def test_a_peer_that_reads_nothing_loses_frames_and_then_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication_session, "PENDING_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(replication_session, "PENDING_TIME_NS", 500_000_000)
    async with members(tmp_path, "A", "B") as made:
        await linked(made)
        member = made[0]
        slow = await (await RawLink("C").open(member.route_port)).greet()
        slow.pause()
        group = member.service.node.create_group("g", Membership(()), ListOwner())
        for _ in range(40):
            group.send("C.1", bytes(1 << 19))
            await asyncio.sleep(0)
        [session] = [one for one in member.service._sessions if one.link.replica_id == "C.1"]
        assert session.connection.pending_bytes() < 1 << 22
        await until(lambda: member.service.linked == [made[1].service.node.name])
        assert "Replication link is stale" in member.log()


async def test_a_peer_that_says_another_name_than_the_one_dialled_is_refused() -> None:
    link = ReplicationLink(greeting_of(DiskIdentity("c", "a", "1", 1), ""), "b")
    [refused] = link.receive(RawLink("z").link.opening())
    assert isinstance(refused, LinkRefused)
    assert refused.text == "dialled server 'b' and reached 'z'"


async def test_messages_of_consensus_from_a_stranger_to_a_group_change_nothing(tmp_path: Path) -> None:
    async with members(tmp_path, "A") as [member]:
        peer = await (await RawLink("B").open(member.route_port)).greet()
        parts = peer.link.frame_parts(Frame("B.1", peer.server.replica_id, 1, ()))
        peer.writer.write(b"".join(parts) + frame_bytes(ReplicationKind.MAIL, b"\xc1"))
        await until(lambda: not peer.is_open)
        assert isinstance(peer.events[-1], LinkRefused)
        assert GroupMail("g", b"") not in peer.events


@pytest.mark.official
async def test_routes_to_an_official_server_are_as_before(cluster: Cluster, tmp_path: Path) -> None:
    official = await cluster.add("official", "A")
    member = ReplicatedMember(tmp_path, "B", routes=[official])
    await member.start()
    try:
        await connected(official, member)
        await asyncio.sleep(0.3)
        assert member.service.linked == []
        assert "unknown" not in official.log().lower()
    finally:
        await member.stop()


async def test_groups_need_names_that_stay(tmp_path: Path) -> None:
    member = ReplicatedMember(tmp_path, "A", cluster_name="")
    with pytest.raises(ServerError, match="set server_name and cluster"):
        await member.start()
