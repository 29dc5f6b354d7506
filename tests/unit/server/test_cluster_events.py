"""Advisories about leaders and quorums of a cluster."""

from __future__ import annotations

import itertools
import json
from typing import Any

from penstock.jetstream.advisories import Advisories
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.cluster_infos import GroupSight, MemberSight
from penstock.routing.account import Account
from penstock.server.replicated.cluster_events import ClusterEvents
from tests.support.meta_groups import START_NS, MetaGroup, no_limits, stream_config_of


class Room:
    """The system account and account A, and what subscribers of advisories get there."""

    def __init__(self, replicas: int = 3) -> None:
        self.got: list[tuple[str, str, dict[str, Any]]] = []
        numbers = itertools.count()
        made = {}
        for name in ("$SYS", "A"):
            account = Account(name)
            account.subscribe_service(b"$JS.EVENT.ADVISORY.>", self._taker(name))
            made[name] = Advisories(
                account.index, clock=lambda: START_NS, new_id=lambda: f"id{next(numbers)}"
            )
        self.events = ClusterEvents(made["$SYS"], made.get, "c", lambda: START_NS)
        group = MetaGroup()
        rules = commands.PlacementRules(("c",))
        group.apply(commands.CreateStream("A", stream_config_of("S", replicas), no_limits(), rules))
        self.tables = group.machine.tables

    def _taker(self, name: str) -> Any:
        def take(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: object) -> None:
            self.got.append((name, subject.decode(), json.loads(payload)))

        return take

    @property
    def stream(self) -> StreamAssignment:
        return self.tables.stream("A", "S")

    def sight(self) -> GroupSight:
        peers = self.stream.hosts
        return GroupSight(own=peers[0], leader=peers[0], members={peer: MemberSight() for peer in peers})


def test_a_new_leader_is_reported_to_its_account_and_to_the_system_account() -> None:
    room = Room()
    room.events.stream_led(room.tables, "A", "S", room.sight())
    assert [(account, subject) for account, subject, _ in room.got] == [
        ("A", "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S"),
        ("$SYS", "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S"),
    ]
    assert "account" not in room.got[0][2]
    assert room.got[1][2]["account"] == "A"
    assert len(room.got[0][2]["replicas"]) == 3


def test_a_stream_with_one_replica_has_no_elections() -> None:
    room = Room(replicas=1)
    room.events.stream_led(room.tables, "A", "S", room.sight())
    assert room.got == []


def test_a_lost_quorum_is_reported() -> None:
    room = Room()
    room.events.quorum_lost(room.tables, "A", "S", room.sight())
    assert {subject for _, subject, _ in room.got} == {"$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.S"}


def test_the_meta_leader_is_reported_by_its_peer_id_to_the_system_account_alone() -> None:
    room = Room()
    room.events.meta_led(room.tables, room.sight())
    [(account, subject, body)] = room.got
    assert (account, subject) == ("$SYS", "$JS.EVENT.ADVISORY.DOMAIN.LEADER_ELECTED")
    assert body["leader"] == room.sight().own
