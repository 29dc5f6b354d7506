"""A server's replica of the meta group: proposals, forwarding, and reads that are current."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock.jetstream.meta.meta_commands import (
    DeleteStream,
    FoundCluster,
    MetaCommand,
    decode_command,
    encode_command,
)
from penstock.jetstream.meta.meta_effects import MetaEffect
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import ProposalId
from penstock.server.replicated.meta_replica import HOLD_NS, LATE_NS, QUESTION_NS, MetaReplica

SECOND = 1_000_000_000


class Listener:
    """Keeps what the replica reports."""

    def __init__(self) -> None:
        self.effects: list[MetaEffect] = []
        self.replaced = 0
        self.leads: list[bool] = []
        self.failures: list[str] = []
        self.own: list[bool] = []
        self.requests: list[bytes] = []
        self.given_up: list[MetaCommand] = []

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool, is_own: bool) -> None:
        self.effects += effects
        self.own.append(is_own)

    def meta_request(self, request: bytes) -> None:
        self.requests.append(request)

    def meta_gave_up(self, command: MetaCommand) -> None:
        self.given_up.append(command)

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
        self.is_handing_over = False

    def propose(self, payload: bytes) -> ProposalId | None:
        if not self.takes or self.is_handing_over:
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
    assert server.meta.was_current, "it has what earlier leaders committed"
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
    assert not follower.meta.was_current
    follower.meta.committed(1, 1, encode_command(COMMAND, leader.now))
    assert done == [1]
    assert follower.meta.was_current


def test_a_question_without_an_answer_is_lost() -> None:
    server = Server()
    server.follow()
    lost: list[int] = []
    for number in range(256):
        assert server.meta.confirm(lambda: None, partial(lost.append, number))
    assert not server.meta.confirm(lambda: None), "the questions that wait are bounded"
    server.monotonic += QUESTION_NS
    server.meta.tick()
    assert lost == []
    server.monotonic += 1
    server.meta.tick()
    assert lost == list(range(256))
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


# --- nothing that waits is lost when a leader hands over

DELETE = DeleteStream("A", "S", ticket=b"t")


def commands(group: FakeGroup) -> list[MetaCommand]:
    return [decode_command(one)[0] for one in group.proposed]


def test_a_request_during_a_hand_over_goes_to_the_next_leader_and_is_proposed_once() -> None:
    old, new = Server(), Server("B")
    new.group.replica = OwnName()
    old.lead()
    old.group.is_handing_over = True
    assert old.meta.request(DELETE)
    old.meta.tick()
    assert old.group.proposed == [] == old.group.sent
    old.group.is_handing_over = False
    old.follow(None)
    assert old.group.sent == []
    old.follow()
    [(to, mail)] = old.group.sent
    assert to == "b.1"
    new.follow(None)
    new.meta.received("a.1", mail)  # it is elected, and not ready to serve
    assert new.group.proposed == []
    new.lead()
    new.meta.tick()
    assert commands(new.group) == [DELETE]
    old.meta.tick()
    assert len(old.group.sent) == 1


def test_a_request_goes_on_when_the_hand_over_fails() -> None:
    server = Server()
    server.lead()
    server.group.is_handing_over = True
    server.meta.request(DELETE)
    server.group.is_handing_over = False
    server.meta.tick()
    assert commands(server.group) == [DELETE]


def test_a_request_without_a_next_leader_is_given_up() -> None:
    server = Server()
    server.lead()
    server.group.is_handing_over = True
    server.meta.request(DELETE)
    server.follow(None)
    server.monotonic += HOLD_NS
    server.meta.tick()
    assert server.listener.given_up == [DELETE]
    server.follow()
    assert server.group.sent == []


def test_who_proposed_a_command_answers_it_when_it_leads_no_more() -> None:
    old, new = Server(), Server("B")
    old.lead()
    old.meta.request(DELETE)
    old.follow()
    new.follow()
    for one in (old, new):
        one.meta.committed(1, 1, old.group.proposed[0])
    assert (old.listener.own, new.listener.own) == ([True], [False])


def test_a_lost_proposal_of_a_request_goes_to_the_next_leader() -> None:
    server = Server()
    server.lead()
    server.meta.request(DELETE)
    server.meta.propose(COMMAND)
    server.follow(None)
    server.meta.proposal_lost(ProposalId(1, 1), is_certain=True)
    server.meta.proposal_lost(ProposalId(2, 1), is_certain=True)
    server.follow()
    assert len(server.group.sent) == 1, "no request waits for the other command"


def test_a_lost_proposal_that_may_be_done_is_not_repeated() -> None:
    server = Server()
    server.lead()
    server.meta.request(DELETE)
    server.follow(None)
    server.meta.proposal_lost(ProposalId(1, 1), is_certain=False)
    server.follow()
    assert server.group.sent == []


def test_a_request_that_came_without_a_leader_is_served_by_the_next_one() -> None:
    held, leader = Server(), Server("B")
    held.follow(None)
    leader.follow(None)
    assert held.meta.awaits_leader
    assert held.meta.defer_request(b"from a client")
    assert leader.meta.defer_request(b"another")
    held.follow()
    leader.lead()
    leader.meta.received("a.1", held.group.sent[0][1])
    assert leader.listener.requests == [b"another", b"from a client"]


def test_a_lost_read_says_so() -> None:
    server = Server()
    server.lead()
    lost: list[int] = []
    assert server.meta.confirm(lambda: None, lambda: lost.append(1))
    server.meta.read_lost(server.group.reads[0])
    assert lost == [1]


def test_a_former_leader_passes_on_requests_that_it_gets_late() -> None:
    server = Server()
    server.lead()
    server.follow()
    assert server.meta.awaits_leader
    server.monotonic += LATE_NS
    assert not server.meta.awaits_leader
