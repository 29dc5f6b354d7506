"""The members of the meta group on one server: how the group begins here, what the server proposes about
itself, and what the leader proposes about the servers and does with the members."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from penstock.jetstream.meta.assignments import PeerStatus
from penstock.jetstream.meta.meta_commands import (
    EvacuateServer,
    FoundCluster,
    Heal,
    MetaCommand,
    ObservePeers,
    PeerGone,
    PeerSight,
    Reassign,
    RemoveServer,
    SetPeer,
    decode_command,
    encode_command,
)
from penstock.jetstream.meta.meta_effects import MetaEffect
from penstock.jetstream.meta.peer_assigning import WORK
from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import ProposalId
from penstock.server.logging.logs import Log
from penstock.server.replicated.founding import Presence
from penstock.server.replicated.meta_members import (
    AGAIN_NS,
    GONE_NS,
    REFUSED_NS,
    SETTLED_NS,
    STAND_NS,
    MetaMembers,
    set_peer_of,
)
from penstock.server.replicated.meta_replica import META_GROUP, MetaReplica
from tests.support.meta_groups import MetaGroup

START = 60_000_000_000
CLUSTER_TIME = 1_800_000_000_000_000_000
CHANGES_NS = AGAIN_NS // 5  # between two changes of the membership
MIB = 1 << 20


def presence(name: str, disk: str = "1", **fields: Any) -> Presence:
    """What server a says: its peer id is A, its member a.1."""
    settings = {"cluster": "c", "boot": 1, "routes": 2, "peers": 2, "replicating": 2, **fields}
    return Presence(name=name, peer=name.upper(), member=f"{name}.{disk}", **settings)


class IgnoredMetaEvents:
    """What the cluster's part of the server would hear."""

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool, is_own: bool) -> None: ...
    def meta_request(self, request: bytes) -> None: ...
    def meta_gave_up(self, command: MetaCommand) -> None: ...
    def meta_replaced(self) -> None: ...
    def meta_role_changed(self, *, leads: bool) -> None: ...
    def meta_failed(self, why: str) -> None: ...


class MemberGroup:
    """The meta group as the members' part uses it. done: what it was asked to do. match: up to which entry
    the other members have the log."""

    def __init__(self, own: str, membership: Membership) -> None:
        self.membership = membership
        self.match: dict[str, int] = {}
        self.applied_index = 0
        self.takes = True
        self.is_handing_over = False
        self.result = ChangeResult.PROPOSED
        self.proposed: list[bytes] = []
        self.sent: list[tuple[str, bytes]] = []
        self.done: list[tuple[str, ...]] = []
        self._own = own

    @property
    def replica(self) -> Any:
        peers = {name: SimpleNamespace(match=match) for name, match in self.match.items()}
        return SimpleNamespace(name=self._own, leadership=SimpleNamespace(peers=peers))

    def propose(self, payload: bytes) -> ProposalId | None:
        if not self.takes:
            return None
        self.proposed.append(payload)
        return ProposalId(self.applied_index + len(self.proposed), 1)

    def send(self, to: str, payload: bytes) -> None:
        self.sent.append((to, payload))

    def stand(self) -> None:
        self.done.append(("stand",))

    def step_down(self) -> bool:
        self.done.append(("step down",))
        return True

    def change_members(self, kind: ChangeKind, member: str) -> ChangeResult:
        self.done.append((kind.name, member))
        changed = self.membership.changed(kind, member)
        if self.result is ChangeResult.PROPOSED and changed is not None:
            self.membership = changed
        return self.result


class MemberServer:
    """A server with what the members' part works on. others: the servers that it sees. own: what it says.
    It is the node and the watch of its members' part, too."""

    def __init__(self, name: str = "a", *others: str, on_disk: Sequence[str] = ()) -> None:
        self.now = START
        self.name = f"{name}.1"
        self.own = presence(name)
        self.others = [presence(one) for one in others]
        self.settled = 0
        self.lines: list[tuple[str, str]] = []
        self.removed: list[tuple[str, str]] = []
        self.created: list[Membership] = []
        self.unopened_groups = [META_GROUP] if on_disk else []
        self._on_disk = Membership(tuple(on_disk))
        self.replica = MetaReplica(
            IgnoredMetaEvents(), name.upper(), lambda: CLUSTER_TIME + self.now, self.clock
        )
        node: Any = self
        self.members = MetaMembers(
            node,
            self.replica,
            node,
            lambda: self.own,
            Log(lambda label, text: self.lines.append((label, text))),
            lambda peer, member: self.removed.append((peer, member)),
        )

    # --- as the node, and as the watch

    def clock(self) -> int:
        return self.now

    def settled_ns(self) -> int:
        return self.settled

    def open_group(self, name: str, owner: object) -> MemberGroup:
        assert (name, owner) == (META_GROUP, self.replica)
        return MemberGroup(self.name, self._on_disk)

    def create_group(self, name: str, membership: Membership, owner: object) -> MemberGroup:
        assert (name, owner) == (META_GROUP, self.replica)
        self.created.append(membership)
        return MemberGroup(self.name, membership)

    # --- for the tests

    @property
    def group(self) -> MemberGroup:
        group: Any = self.replica.group
        assert group is not None
        return group  # type: ignore[no-any-return]

    def role(self, role: Role, leader: str | None) -> None:
        self.replica.role_changed(role, 1, leader)

    def apply(self, *commands: MetaCommand) -> None:
        """The group commits these."""
        for command in commands:
            self.group.applied_index += 1
            data = encode_command(command, CLUSTER_TIME + self.now)
            self.replica.committed(self.group.applied_index, 1, data)

    def tick(self, after_ns: int = 0) -> list[MetaCommand]:
        """A tick after so long; returns the commands that it proposed, which are committed behind it."""
        self.now += after_ns
        self.members.tick()
        if self.replica.group is None:
            return []
        proposed, self.group.proposed = self.group.proposed, []
        commands = [decode_command(one)[0] for one in proposed]
        self.apply(*commands)
        return commands

    def mailed(self) -> int:
        """How many commands went to the leader since the last call."""
        sent, self.group.sent = self.group.sent, []
        return len(sent)


def leader(name: str, *others: str, voters: Sequence[str] | None = None) -> MemberServer:
    """A server that leads the group of itself and these others, whose records are in the state."""
    everyone = (name, *others)
    server = MemberServer(name, on_disk=voters or tuple(f"{one}.1" for one in everyone))
    server.others = [presence(one, has_meta=True, cluster_id="id") for one in others]
    server.own = structs.replace(server.own, has_meta=True, cluster_id="id")
    server.members.open()
    server.apply(FoundCluster("id"))
    for one in (server.own, *server.others):
        record = set_peer_of(server.replica.tables, one)
        assert record is not None
        server.apply(record)
    server.role(Role.LEADER, server.name)
    return server


def changes(server: MemberServer, ticks: int = 1) -> list[tuple[str, ...]]:
    """What the leader asks of the group in so many ticks, each after the pause between two changes."""
    server.group.done.clear()
    for _ in range(ticks):
        server.tick(CHANGES_NS)
    return list(server.group.done)


# --- how the group begins here


def test_a_group_on_disk_goes_on_with_its_voters_as_founders() -> None:
    server = MemberServer("b", on_disk=("a.1", "b.1", "c.1"))
    server.members.open()
    assert server.members.founders == ("a.1", "b.1", "c.1")
    server.tick(STAND_NS)
    assert server.created == []
    assert server.group.done == [], "only the first server of a new group stands at once"


def test_without_a_group_on_disk_opening_begins_none() -> None:
    server = MemberServer("a", "b", "c")
    server.members.open()
    assert server.replica.group is None
    assert server.members.founders == ()


def test_a_server_that_sees_too_few_others_waits() -> None:
    server = MemberServer("a", "b")
    server.settled = SETTLED_NS - 1
    server.tick()
    assert server.replica.group is None
    server.settled = SETTLED_NS
    server.tick()
    assert server.created == [Membership(("a.1", "b.1"))]


def test_the_first_server_begins_the_group_with_all_that_it_sees_and_stands() -> None:
    server = MemberServer("a", "c", "b")
    server.tick()
    assert server.created == [Membership(("a.1", "b.1", "c.1"))]
    assert server.members.founders == ("a.1", "b.1", "c.1")
    assert server.group.done == [("stand",)]
    assert server.lines == [("INF", "JetStream cluster begins with a.1, b.1, c.1")]
    server.tick()
    assert len(server.created) == 1, "a server begins one group"


def test_the_first_server_stands_at_each_tick_of_the_first_second_until_there_is_a_leader() -> None:
    server = MemberServer("a", "b", "c")
    server.tick()
    server.tick(STAND_NS // 2)
    assert server.group.done == [("stand",)] * 2
    server.role(Role.FOLLOWER, "b.1")
    server.tick()
    assert server.group.done == [("stand",)] * 2
    server.role(Role.FOLLOWER, None)
    server.tick()
    assert server.group.done == [("stand",)] * 3
    server.tick(STAND_NS // 2)
    assert server.group.done == [("stand",)] * 3


def test_another_founder_begins_the_same_group_and_lets_the_first_one_stand() -> None:
    server = MemberServer("b")
    founders = ("a.1", "b.1", "c.1")
    server.others = [presence("a", has_meta=True, founders=founders), presence("c")]
    server.tick()
    server.tick()
    assert server.created == [Membership(founders)]
    assert server.members.founders == founders
    assert server.group.done == []


def test_a_server_that_is_no_founder_waits_to_be_added() -> None:
    server = MemberServer("a", "c")
    server.others.append(presence("b", has_meta=True, founders=("b.1", "c.1")))
    server.tick()
    server.tick()
    assert server.created == [Membership(())]
    assert server.members.founders == ()
    assert server.group.done == []
    assert server.lines == [("INF", "JetStream waits to be added to the cluster")]


# --- what a server proposes about itself


def test_a_follower_tells_the_leader_its_record_until_the_state_has_it() -> None:
    server = MemberServer("b", on_disk=("a.1", "b.1", "c.1"))
    server.members.open()
    server.role(Role.FOLLOWER, "a.1")
    server.tick()
    assert server.mailed() == 1
    server.tick(AGAIN_NS - 1)
    assert server.mailed() == 0, "the first one may be in flight"
    server.tick(1)
    assert server.mailed() == 1, "the first one may be lost"
    record = set_peer_of(server.replica.tables, server.own)
    assert record is not None
    server.apply(record)
    server.tick(AGAIN_NS)
    assert server.mailed() == 0
    server.own = structs.replace(server.own, boot=2)
    server.tick()
    assert server.mailed() == 1


def test_a_record_that_has_no_leader_to_go_to_does_not_delay_the_next() -> None:
    server = MemberServer("b", on_disk=("a.1", "b.1", "c.1"))
    server.members.open()
    server.tick()
    server.role(Role.FOLLOWER, "a.1")
    server.tick()
    assert server.mailed() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster", "d"),
        ("tags", ("az:1",)),
        ("domain", "hub"),
        ("member", "a.2"),
        ("boot", 2),
        ("max_memory", 1),
        ("max_storage", 1),
    ],
)
def test_each_setting_of_a_server_that_changed_makes_a_new_record(field: str, value: Any) -> None:
    group = MetaGroup(0)
    own = presence("a")
    first = set_peer_of(group.machine.tables, own)
    assert first is not None
    assert first == SetPeer("A", "a", "c", disk="1", boot=1)
    group.apply(first)
    assert set_peer_of(group.machine.tables, own) is None
    assert set_peer_of(group.machine.tables, structs.replace(own, used_storage=1, applied=9)) is None
    changed = set_peer_of(group.machine.tables, structs.replace(own, **{field: value}))
    expected = {"disk": "2"} if field == "member" else {field: value}
    assert changed == structs.replace(first, **expected)


# --- what the leader proposes


def test_the_first_leader_founds_the_cluster_before_anything_else() -> None:
    server = MemberServer("a", "b", "c")
    server.tick()
    server.role(Role.LEADER, "a.1")
    [founded] = server.tick()
    assert isinstance(founded, FoundCluster)
    assert len(founded.cluster_id) == 16
    assert server.tick(AGAIN_NS - 1) == []
    server.others = [structs.replace(one, has_meta=True) for one in server.others]
    server.own = structs.replace(server.own, has_meta=True)
    proposed = server.tick(1)
    assert [one.name for one in proposed if isinstance(one, SetPeer)] == ["a", "b", "c"]
    assert server.replica.tables.cluster_id == founded.cluster_id


def test_a_leader_of_a_state_that_is_right_proposes_nothing() -> None:
    server = leader("a", "b", "c")
    assert [server.tick(AGAIN_NS) for _ in range(3)] == [[], [], []]
    assert server.group.done == []
    assert server.lines == []


def test_a_proposal_that_the_group_does_not_take_is_made_again_at_the_next_tick() -> None:
    server = leader("a", "b", "c")
    server.others[0] = structs.replace(server.others[0], boot=2)
    server.group.takes = False
    assert server.tick() == []
    server.group.takes = True
    assert server.tick() == [SetPeer("B", "b", "c", disk="1", boot=2)]


def test_a_new_leader_does_not_wait_after_what_it_proposed_before() -> None:
    server = leader("a", "b", "c")
    server.others[0] = structs.replace(server.others[0], boot=2)
    assert len(server.tick()) == 1
    server.role(Role.FOLLOWER, "b.1")
    server.tick()
    server.role(Role.LEADER, "a.1")
    server.others[0] = structs.replace(server.others[0], boot=3)
    assert len(server.tick()) == 1


def test_the_leader_reports_a_server_lagging_that_is_away_and_offline_after_two_seconds() -> None:
    server = leader("a", "b", "c")
    gone = server.others.pop()
    assert server.tick() == [ObservePeers((PeerSight("C", True, False),))]
    assert server.tick(GONE_NS - 1) == []
    assert server.tick(1) == [ObservePeers((PeerSight("C", False, False),))]
    assert server.tick(AGAIN_NS) == []
    server.others.append(gone)
    assert server.tick(AGAIN_NS) == [ObservePeers((PeerSight("C", True, True),))]


def test_a_server_that_came_back_in_time_begins_a_new_absence() -> None:
    server = leader("a", "b", "c")
    gone = server.others.pop()
    server.tick()
    server.tick(GONE_NS - 1)
    server.others.append(gone)
    assert server.tick(AGAIN_NS) == [ObservePeers((PeerSight("C", True, True),))]
    server.others.pop()
    assert server.tick(AGAIN_NS) == [ObservePeers((PeerSight("C", True, False),))]
    assert server.tick(GONE_NS - 1) == []
    assert server.tick(1) == [ObservePeers((PeerSight("C", False, False),))]


def test_a_new_leader_counts_absences_from_its_own_beginning() -> None:
    server = leader("a", "b", "c")
    server.others.pop()
    server.tick()
    server.role(Role.FOLLOWER, "b.1")
    server.tick(GONE_NS)
    server.role(Role.LEADER, "a.1")
    assert server.tick() == []
    assert len(server.tick(GONE_NS)) == 1


def test_a_server_with_another_disk_is_another_member_of_the_same_peer() -> None:
    server = leader("a", "b", "c")
    server.others[1] = presence("c", "2", has_meta=True)
    assert SetPeer("C", "c", "c", disk="2", boot=1) in server.tick()
    assert server.replica.tables.peers["C"].member == "c.2"


@pytest.mark.parametrize("kind", ["memory", "storage"])
@pytest.mark.parametrize(("limit", "little", "much"), [(-1, 64 * MIB - 1, 64 * MIB), (1600, 24, 100)])
def test_the_leader_reports_the_use_of_storage_in_steps(
    kind: str, limit: int, little: int, much: int
) -> None:
    server = leader("a", "b", "c")
    server.others[0] = structs.replace(server.others[0], **{f"max_{kind}": limit})
    server.tick()
    server.others[0] = structs.replace(server.others[0], **{f"used_{kind}": little})
    assert server.tick(AGAIN_NS) == []
    server.others[0] = structs.replace(server.others[0], **{f"used_{kind}": much})
    expected = PeerSight("B", True, True, **{f"used_{kind}": much})
    assert server.tick(AGAIN_NS) == [ObservePeers((expected,))]


def test_a_leader_goes_on_with_streams_of_retired_servers_and_with_short_ones() -> None:
    server = leader("a", "b", "c")
    assert server.members.resume_work() == []
    commands = MetaGroup(0)
    for name in "ABC":
        commands.join(name)
    commands.create("S")
    server.apply(*(decode_command(one)[0] for one in commands.log[-1:]))
    assert server.members.resume_work() == []
    server.apply(EvacuateServer("B"))
    assert server.members.resume_work() == [Reassign(WORK)]
    server.apply(RemoveServer("C"), PeerGone("C"), Reassign(WORK))
    assert server.members.resume_work() == [Reassign(WORK), Heal(WORK)]


# --- who joins


def test_a_server_joins_as_a_learner_and_votes_when_it_has_the_log() -> None:
    server = leader("a", "b", voters=("a.1",))
    assert changes(server) == [("ADD_LEARNER", "b.1")]
    assert changes(server) == [], "the group does not know it yet"
    server.group.match["b.1"] = server.group.applied_index - 1
    assert changes(server) == [], "it lacks an entry"
    server.group.match["b.1"] = server.group.applied_index
    assert changes(server) == [("PROMOTE", "b.1")]
    assert server.group.membership == Membership(("a.1", "b.1"))
    assert changes(server, 3) == []
    assert [text for _, text in server.lines] == [
        "JetStream cluster: add a learner: b.1",
        "JetStream cluster: make a learner a voter: b.1",
    ]


def test_a_learner_that_is_away_is_not_promoted() -> None:
    server = leader("a", "b", voters=("a.1",))
    changes(server)
    server.group.match["b.1"] = server.group.applied_index
    server.others.clear()
    assert changes(server, 3) == []


def test_servers_join_one_at_a_time_in_the_order_of_their_names() -> None:
    server = leader("a", "d", "b", voters=("a.1",))
    server.group.done.clear()
    server.tick(CHANGES_NS)
    server.tick(CHANGES_NS - 1)
    assert server.group.done == [("ADD_LEARNER", "b.1")]
    server.tick(1)
    assert server.group.done == [("ADD_LEARNER", "b.1"), ("ADD_LEARNER", "d.1")]


def test_a_change_that_the_group_refuses_is_asked_for_again_and_not_reported() -> None:
    server = leader("a", "b", voters=("a.1",))
    server.group.result = ChangeResult.CHANGE_PENDING
    assert changes(server, 2) == [("ADD_LEARNER", "b.1")] * 2
    assert server.lines == []


def test_a_server_that_has_not_begun_the_group_is_not_added() -> None:
    server = leader("a", "b", voters=("a.1",))
    server.others[0] = structs.replace(server.others[0], has_meta=False)
    assert changes(server, 3) == []
    server.others[0] = structs.replace(server.others[0], has_meta=True)
    assert changes(server) == [("ADD_LEARNER", "b.1")]


def test_a_server_of_another_cluster_is_never_added_and_an_error_says_so_once() -> None:
    server = leader("a", "b", voters=("a.1", "b.1"))
    server.others.append(presence("x", has_meta=True, cluster_id="other"))
    assert changes(server, 3) == []
    assert "X" not in server.replica.tables.peers
    text = (
        "JetStream of server 'x' belongs to another cluster, other: this one is id; it is not added. "
        "Move its store away to let it join as a new server"
    )
    assert server.lines == [("ERR", text)]


def test_a_follower_warns_of_a_server_of_another_cluster_too() -> None:
    server = MemberServer("b", on_disk=("a.1", "b.1"))
    server.members.open()
    server.others = [presence("x", has_meta=True, cluster_id="other")]
    server.tick()
    assert server.lines == [], "it does not know its own cluster yet"
    server.apply(FoundCluster("id"))
    server.tick()
    server.tick()
    assert [label for label, _ in server.lines] == ["ERR"]


def test_a_server_that_lost_its_disk_replaces_the_member_that_it_was() -> None:
    server = leader("a", "b", "c")
    server.others[1] = presence("c", "2", has_meta=True)
    assert changes(server) == [("ADD_LEARNER", "c.2")]
    assert changes(server) == [], "the old member stays until the new one votes"
    server.group.match["c.2"] = 1_000
    assert changes(server, 3) == [("PROMOTE", "c.2"), ("REMOVE", "c.1")]
    assert server.group.membership == Membership(("a.1", "b.1", "c.2"))


def test_a_member_that_is_away_stays_a_member() -> None:
    server = leader("a", "b", "c")
    server.others.clear()
    assert changes(server, 30) == []


# --- who is removed


def test_a_removed_server_leaves_the_group_before_the_state() -> None:
    server = leader("a", "b", "c")
    server.apply(RemoveServer("C"))
    assert changes(server) == [("REMOVE", "c.1")]
    assert server.replica.tables.peers["C"].status is PeerStatus.REMOVING
    assert server.removed == []
    assert PeerGone("C") in server.tick(AGAIN_NS)
    assert server.removed == [("C", "c.1")]
    assert "C" not in server.replica.tables.peers
    assert changes(server, 10) == []
    assert server.removed == [("C", "c.1")]


def test_a_removal_does_not_wait_for_servers_whose_storage_grows_without_a_pause() -> None:
    server = leader("a", "b", "c")
    for n in range(100):
        server.others[0] = structs.replace(server.others[0], used_storage=n * 20 * MIB)
        server.tick(AGAIN_NS // 10)
        if n == 40:
            server.apply(RemoveServer("C"))
    assert server.removed == [("C", "c.1")]


def test_a_removed_server_is_out_of_the_state_only_when_the_command_was_taken() -> None:
    server = leader("a", "b", "c")
    server.apply(RemoveServer("C"))
    changes(server)
    server.group.takes = False
    assert server.tick(AGAIN_NS) == []
    assert server.removed == []
    server.group.takes = True
    for _ in range(3):
        server.members.tick()
        server.now += CHANGES_NS
    assert len(server.group.proposed) == 1, "it is not repeated before it can be committed"
    assert server.removed == [("C", "c.1")]


def test_a_removed_server_is_refused_for_five_minutes() -> None:
    server = leader("a", "b", "c")
    server.apply(RemoveServer("C"))
    changes(server)
    server.tick(AGAIN_NS)
    removed_at = server.now
    server.now = removed_at + REFUSED_NS - 2 * CHANGES_NS
    assert changes(server) == []
    assert "C" not in server.replica.tables.peers
    assert changes(server) == [("ADD_LEARNER", "c.1")]
    server.tick(AGAIN_NS)
    assert server.replica.tables.peers["C"].status is PeerStatus.MEMBER


def test_a_server_that_was_removed_by_an_earlier_leader_is_refused_as_long() -> None:
    server = leader("a", "b", "c")
    server.role(Role.FOLLOWER, "b.1")
    server.apply(RemoveServer("C"))
    server.tick()
    server.group.membership = Membership(("a.1", "b.1"))
    server.apply(PeerGone("C"))
    server.tick(CHANGES_NS)
    removed_at = server.now
    server.role(Role.LEADER, "a.1")
    assert changes(server, 3) == []
    server.now = removed_at + REFUSED_NS - 2 * CHANGES_NS
    assert changes(server) == []
    assert "C" not in server.replica.tables.peers
    assert changes(server) == [("ADD_LEARNER", "c.1")]
    server.tick(AGAIN_NS)
    assert server.replica.tables.peers["C"].status is PeerStatus.MEMBER


def test_the_leader_that_is_to_be_removed_hands_over_first() -> None:
    server = leader("a", "b", "c")
    server.apply(RemoveServer("A"))
    assert changes(server) == [("step down",)]
    assert server.group.membership.members == ("a.1", "b.1", "c.1")
    server.role(Role.FOLLOWER, "b.1")
    assert changes(server, 3) == []


def test_a_server_that_is_removed_and_away_leaves_as_well() -> None:
    server = leader("a", "b", "c")
    server.others.pop()
    server.apply(RemoveServer("C"))
    assert changes(server) == [("REMOVE", "c.1")]
    server.tick(AGAIN_NS)
    assert server.removed == [("C", "c.1")]


def test_a_removal_comes_before_a_server_that_waits_to_join() -> None:
    server = leader("a", "b", "c")
    server.others.append(presence("d", has_meta=True))
    server.apply(RemoveServer("C"))
    assert changes(server, 2) == [("REMOVE", "c.1"), ("ADD_LEARNER", "d.1")]
