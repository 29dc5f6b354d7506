"""A server's replica of the meta group: proposals, forwarding, and reads that are current."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.jetstream.meta.meta_commands import FoundCluster, decode_command, encode_command
from penstock.jetstream.meta.meta_effects import MetaEffect
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import ProposalId
from penstock.server.replicated.meta_replica import QUESTION_NS, MetaReplica

SECOND = 1_000_000_000


class Listener:
    """Keeps what the replica reports."""

    def __init__(self) -> None:
        self.effects: list[MetaEffect] = []
        self.replaced = 0
        self.leads: list[bool] = []
        self.failures: list[str] = []

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool) -> None:
        self.effects += effects

    def meta_replaced(self) -> None:
        self.replaced += 1

    def meta_role_changed(self, *, leads: bool) -> None:
        self.leads.append(leads)

    def meta_failed(self, why: str) -> None:
        self.failures.append(why)


class OwnName:
    name = "a.1"


class FakeGroup:
    """The group as the replica uses it."""

    def __init__(self) -> None:
        self.replica = OwnName()
        self.proposed: list[bytes] = []
        self.sent: list[tuple[str, bytes]] = []
        self.reads: list[int] = []
        self.takes = True

    def propose(self, payload: bytes) -> ProposalId | None:
        if not self.takes:
            return None
        self.proposed.append(payload)
        return ProposalId(len(self.proposed), 1)

    def send(self, to: str, payload: bytes) -> None:
        self.sent.append((to, payload))

    def read_index(self, context: int) -> bool:
        self.reads.append(context)
        return self.takes


class Server:
    """A replica with a group and clocks that the test sets."""

    def __init__(self, name: str = "A") -> None:
        self.now = 1_800_000_000 * SECOND
        self.monotonic = SECOND
        self.listener = Listener()
        self.meta = MetaReplica(self.listener, name, lambda: self.now, lambda: self.monotonic)
        self.group = FakeGroup()
        group: Any = self.group
        self.meta.use(group)

    def lead(self) -> None:
        self.meta.role_changed(Role.LEADER, 1, "a.1")

    def follow(self, leader: str | None = "b.1") -> None:
        self.meta.role_changed(Role.FOLLOWER, 1, leader)


COMMAND = FoundCluster("id")


def test_a_leader_proposes_with_its_own_time() -> None:
    server = Server()
    server.lead()
    assert server.meta.submit(COMMAND)
    assert decode_command(server.group.proposed[0]) == (COMMAND, server.now)


def test_a_follower_forwards_and_the_leader_gives_the_time() -> None:
    follower, leader = Server(), Server("B")
    follower.follow()
    leader.lead()
    leader.now += 5 * SECOND
    assert follower.meta.submit(COMMAND)
    [(to, mail)] = follower.group.sent
    assert to == "b.1"
    leader.meta.received("a.1", mail)
    assert decode_command(leader.group.proposed[0]) == (COMMAND, leader.now)


def test_without_a_leader_nothing_is_submitted() -> None:
    server = Server()
    server.follow(None)
    assert not server.meta.submit(COMMAND)
    assert not server.meta.confirm(lambda: None)


def test_a_leader_reads_when_the_group_has_confirmed_it() -> None:
    server = Server()
    server.lead()
    done: list[int] = []
    assert server.meta.confirm(lambda: done.append(1))
    assert not done
    server.meta.read_ready(server.group.reads[0], 0)
    assert done == [1]


def test_a_lost_read_is_never_done() -> None:
    server = Server()
    server.lead()
    done: list[int] = []
    server.meta.confirm(lambda: done.append(1))
    server.meta.read_lost(server.group.reads[0])
    server.meta.read_ready(server.group.reads[0], 0)
    assert not done


def test_a_follower_reads_when_it_has_applied_what_the_leader_had() -> None:
    follower, leader = Server(), Server("B")
    follower.follow()
    leader.lead()
    leader.meta.committed(1, 1, encode_command(COMMAND, leader.now))
    done: list[int] = []
    assert follower.meta.confirm(lambda: done.append(1))
    leader.meta.received("a.1", follower.group.sent[0][1])
    leader.meta.read_ready(leader.group.reads[0], 1)
    follower.meta.received("b.1", leader.group.sent[0][1])
    assert not done, "entry 1 is not applied here"
    follower.meta.committed(1, 1, encode_command(COMMAND, leader.now))
    assert done == [1]


def test_a_question_without_an_answer_is_forgotten() -> None:
    server = Server()
    server.follow()
    for _ in range(256):
        assert server.meta.confirm(lambda: None)
    assert not server.meta.confirm(lambda: None), "the questions that wait are bounded"
    server.monotonic += QUESTION_NS + 1
    assert server.meta.confirm(lambda: None)


def test_a_snapshot_makes_the_same_state_elsewhere() -> None:
    server, other = Server(), Server("B")
    server.meta.committed(1, 1, encode_command(COMMAND, server.now))
    taken: list[bytes | None] = []
    server.meta.take_snapshot(taken.append)
    assert taken[0] is not None
    installed: list[bool] = []
    other.meta.install_snapshot(1, 1, taken[0], "a.1", installed.append)
    assert installed == [True]
    assert (other.meta.tables.cluster_id, other.meta.applied_index) == ("id", 1)
    assert other.listener.replaced == 1


def test_the_time_without_a_leader_is_known() -> None:
    server = Server()
    server.follow()
    assert server.meta.leaderless_ns() == 0
    server.follow(None)
    server.monotonic += 3 * SECOND
    assert server.meta.leaderless_ns() == 3 * SECOND


def test_a_replica_that_failed_takes_nothing() -> None:
    server = Server()
    server.lead()
    server.meta.failed(ValueError("entry 7"))
    assert server.listener.failures == ["entry 7"]
    assert not server.meta.submit(COMMAND)
    assert not server.meta.confirm(lambda: None)


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_proposal_that_the_group_refuses_is_reported(*, is_taken: bool) -> None:
    server = Server()
    server.lead()
    server.group.takes = is_taken
    assert server.meta.propose(COMMAND) is is_taken
