"""The members of the meta group: who begins it, who joins, who is removed; and what the meta state knows of
the servers.

A server begins or joins the group as `founding` decides. The meta leader adds servers that are present one at
a time, first as learners; a server that has lost its disk is another member, and replaces the one that it
was. Removing a server on request takes it out of the group, then out of the state. It may join again five
minutes later: every server notes the removal, because another one may lead by then.

Every server proposes its own record (SetPeer); the leader what it sees of the others (ObservePeers).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.meta.assignments import PeerRecord, PeerStatus
from penstock.jetstream.meta.meta_commands import (
    FoundCluster,
    Heal,
    MetaCommand,
    ObservePeers,
    PeerGone,
    PeerSight,
    Reassign,
    SetPeer,
)
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.peer_assigning import WORK
from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.server.replicated.founding import Presence, decide
from penstock.server.replicated.meta_replica import META_GROUP, MetaReplica
from penstock.server.replicated.peer_watch import PeerWatch

if TYPE_CHECKING:
    from penstock.replication.replication_node import ReplicationNode
    from penstock.server.logging.logs import Log

SETTLED_NS = 400_000_000  # before a new cluster begins without some of its servers
AGAIN_NS = 500_000_000  # between two proposals of the same
GONE_NS = 2_000_000_000  # without a link before a server counts as offline; it counts as lagging at once
STAND_NS = 1_000_000_000  # how long the first server asks again to be elected
REFUSED_NS = 300_000_000_000  # before a removed server may join again


class MetaMembers:
    """See the module. removed: called with the peer and member that have left the group on request."""

    def __init__(
        self,
        node: ReplicationNode,
        replica: MetaReplica,
        watch: PeerWatch,
        own: Callable[[], Presence],
        log: Log,
        removed: Callable[[str, str], object],
    ) -> None:
        self._node = node
        self._replica = replica
        self._watch = watch
        self._own = own
        self._log = log
        self._removed = removed
        self._is_new = False
        self._stand_until = 0
        self._proposed_at = 0
        self._removed_at = 0
        self._changed_at = 0
        self._absent_since: dict[str, int] = {}
        self._refused_until: dict[str, int] = {}
        self._removing: dict[str, str] = {}  # peer -> member, as of the last tick
        self._strangers: set[str] = set()
        self._leads = False
        self.founders: tuple[str, ...] = ()

    def open(self) -> None:
        """Continues with the group that is on disk, if there is one."""
        if META_GROUP in self._node.unopened_groups:
            self._replica.use(self._node.open_group(META_GROUP, self._replica))
            self.founders = tuple(self._replica.group.membership.voters if self._replica.group else ())

    def tick(self) -> None:
        """Does what is due. Call it every 50 ms or so."""
        replica = self._replica
        self._note_removals()
        if replica.group is None:
            self._begin()
        elif replica.is_serving:
            self._lead()
        else:
            self._leads = False
            if self._is_new and replica.leader is None and self._node.clock() < self._stand_until:
                replica.group.stand()
            self._propose_own_record()
        self._warn_of_strangers()

    def _begin(self) -> None:
        found = decide(self._own(), self._watch.others, is_settled=self._watch.settled_ns() >= SETTLED_NS)
        if found is None:
            return
        self.founders = found.founders
        group = self._node.create_group(META_GROUP, Membership(found.founders), self._replica)
        self._replica.use(group)
        if found.founders:
            self._log.info(f"JetStream cluster begins with {', '.join(found.founders)}")
        else:
            self._log.info("JetStream waits to be added to the cluster")
        self._is_new = bool(found.founders) and min(found.founders) == self._node.name
        self._stand_until = self._node.clock() + STAND_NS
        if self._is_new:
            group.stand()

    def _note_removals(self) -> None:
        """Refuses servers that were being removed at the last tick and are out of the state now."""
        peers, now = self._replica.tables.peers, self._node.clock()
        for peer, member in self._removing.items():
            if peer not in peers and self._refused_until.get(member, 0) <= now:
                self._refused_until[member] = now + REFUSED_NS
        self._removing = {one.peer: one.member for one in peers.values() if one.status is PeerStatus.REMOVING}

    def _warn_of_strangers(self) -> None:
        own = self._replica.tables.cluster_id
        for one in self._watch.others:
            is_stranger = bool(own and one.cluster_id and one.cluster_id != own)
            if is_stranger and one.member not in self._strangers:
                self._strangers.add(one.member)
                self._log.error(
                    f"JetStream of server {one.name!r} belongs to another cluster, {one.cluster_id}: this "
                    f"one is {own}; it is not added. Move its store away to let it join as a new server"
                )

    # --- own record -----------------------------------------------------------------------------

    def _propose_own_record(self) -> None:
        if self._is_due():
            command = self._own_record()
            if command is not None and self._replica.submit(command):
                self._proposed_at = self._node.clock()

    def _is_due(self) -> bool:
        return self._node.clock() - self._proposed_at >= AGAIN_NS

    def _own_record(self) -> SetPeer | None:
        return set_peer_of(self._replica.tables, self._own())

    # --- leading --------------------------------------------------------------------------------

    def _lead(self) -> None:
        replica, tables = self._replica, self._replica.tables
        if not self._leads:
            self._leads = True
            self._proposed_at = self._removed_at = 0
            self._absent_since.clear()
        if self._is_due():
            for command in self._wanted_commands(tables):
                if replica.propose(command):
                    self._proposed_at = self._node.clock()
        self._change_members()

    def _wanted_commands(self, tables: MetaTables) -> list[MetaCommand]:
        if not tables.cluster_id:
            return [FoundCluster(os.urandom(8).hex())]
        wanted: list[MetaCommand] = []
        for one in (self._own(), *self._watch.others):
            record = set_peer_of(tables, one) if self._may_join(one) else None
            if record is not None:
                wanted.append(record)
        sights = self._sights(tables)
        if sights:
            wanted.append(ObservePeers(tuple(sights)))
        return wanted

    def resume_work(self) -> list[MetaCommand]:
        """What an earlier leader may have left undone."""
        tables = self._replica.tables
        work: list[MetaCommand] = []
        if any(tables.streams_on(peer) for peer in tables.retired_peers()):
            work.append(Reassign(WORK))
        if tables.short:
            work.append(Heal(WORK))
        return work

    def _sights(self, tables: MetaTables) -> list[PeerSight]:
        """What the leader sees of servers where the state says otherwise."""
        now = self._node.clock()
        present = {one.member: one for one in (*self._watch.others, self._own())}
        sights: list[PeerSight] = []
        for record in tables.peers.values():
            one = present.get(record.member)
            if one is not None:
                self._absent_since.pop(record.peer, None)
                online = True
            else:
                since = self._absent_since.setdefault(record.peer, now)
                online = record.online and now - since < GONE_NS
            # Placement prefers servers that are current: a new stream does not wait for one that has died.
            sight = _sight_of(record, one, online=online, current=one is not None)
            if sight is not None:
                sights.append(sight)
        return sights

    def _change_members(self) -> None:
        now = self._node.clock()
        group = self._replica.group
        assert group is not None
        if now - self._changed_at < AGAIN_NS // 5:
            return
        change = self._next_change(group.membership)
        if change is None:
            return
        kind, member = change
        self._changed_at = now
        if member == self._node.name:
            group.step_down()
            return
        result = group.change_members(kind, member)
        if result is ChangeResult.PROPOSED:
            self._log.info(f"JetStream cluster: {kind.value}: {member}")

    def _next_change(self, membership: Membership) -> tuple[ChangeKind, str] | None:
        tables = self._replica.tables
        removing = {one.member for one in tables.peers.values() if one.status is PeerStatus.REMOVING}
        for member in membership.members:
            if member in removing:
                return ChangeKind.REMOVE, member
        self._finish_removals(membership)
        present = {one.member for one in self._watch.others if self._may_join(one)} - removing
        servers = {_server_of(member): member for member in (*present, self._node.name)}
        for member in membership.learners:
            if member in present and self._is_caught_up(member):
                return ChangeKind.PROMOTE, member
        for member in sorted(present):
            if member not in membership.members:
                return ChangeKind.ADD_LEARNER, member
        for member in membership.members:
            other = servers.get(_server_of(member), member)
            if other != member and other in membership.voters:
                return ChangeKind.REMOVE, member  # its disk is gone
        return None

    def _may_join(self, one: Presence) -> bool:
        own = self._replica.tables.cluster_id
        if one.cluster_id and one.cluster_id != own:
            return False
        return one.has_meta and self._refused_until.get(one.member, 0) <= self._node.clock()

    def _finish_removals(self, membership: Membership) -> None:
        """Tells the state of servers that are out of the group. This waits for nothing that servers report,
        which they may do without a pause."""
        now = self._node.clock()
        if now - self._removed_at < AGAIN_NS:
            return
        for record in list(self._replica.tables.peers.values()):
            is_out = record.status is PeerStatus.REMOVING and record.member not in membership.members
            if is_out and self._replica.propose(PeerGone(record.peer)):
                self._removed_at = now
                self._refused_until[record.member] = now + REFUSED_NS
                self._removed(record.peer, record.member)

    def _is_caught_up(self, member: str) -> bool:
        group = self._replica.group
        lead = group.replica.leadership if group is not None else None
        if group is None or lead is None or member not in lead.peers:
            return False
        return lead.peers[member].match >= group.applied_index


def set_peer_of(tables: MetaTables, own: Presence) -> SetPeer | None:
    """The command that makes the state know this server as it is; None when it does."""
    command = SetPeer(
        own.peer, own.name, own.cluster, own.tags, own.domain, own.member.rpartition(".")[2], own.boot,
        own.max_memory, own.max_storage,
    )  # fmt: skip
    record = tables.peers.get(own.peer)
    if record is not None and all(
        getattr(record, name) == getattr(command, name) for name in SetPeer.__struct_fields__
    ):
        return None
    return command


def _sight_of(record: PeerRecord, one: Presence | None, *, online: bool, current: bool) -> PeerSight | None:
    """What differs from the record; None for nothing that matters. Use of storage counts in steps of a
    64th of the limit, or of 64 MiB."""
    used_memory = one.used_memory if one is not None else record.used_memory
    used_storage = one.used_storage if one is not None else record.used_storage
    is_same = (record.online, record.current) == (online, current)
    for used, before, limit in (
        (used_memory, record.used_memory, record.max_memory),
        (used_storage, record.used_storage, record.max_storage),
    ):
        is_same = is_same and abs(used - before) < (limit // 64 if limit > 0 else 64 << 20)
    return None if is_same else PeerSight(record.peer, online, current, used_memory, used_storage)


def _server_of(member: str) -> str:
    return member.rpartition(".")[0]
