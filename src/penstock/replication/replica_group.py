"""One group on this server: hands its owner what is committed, and knows what its owner waits for.

Invariants: `applied_index` never falls, and each entry is handed over once; a proposal or read that was taken
is answered once (`committed`, `proposal_lost`, `read_ready`, `read_lost`), unless the group stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.errors import MisuseError
from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import Entry, EntryKind, RaftSnapshot, ReplicaId
from penstock.raft.raft_replica import RaftReplica, Ready, RescueProblem, Role
from penstock.replication.group_port import (
    CHECKPOINT_BYTES_MAX,
    MAIL_BYTES_MAX,
    PROPOSAL_BYTES_MAX,
    GroupOwner,
    ProposalId,
)
from penstock.replication.group_storage import SaveCheckpoint, SaveInstalled, StorageWrite

CHECKPOINT_RETRY_NS = 5_000_000_000


def _nothing() -> None:
    """No part waits for this write."""


class GroupSurroundings(Protocol):
    """What a group uses of its node."""

    def clock(self) -> int:
        """Monotonic ns."""

    @property
    def unsaved_bytes_max(self) -> int:
        """See ReplicationOptions; less when the log of all groups is large."""

    def touch(self, group: ReplicaGroup) -> RaftReplica:
        """The replica, to be changed; a pump follows."""

    def stage(self, write: StorageWrite, durable: Callable[[], None]) -> None:
        """Writes with the next write; `durable` is called when it is on disk."""

    def mail(self, group: str, to: ReplicaId, payload: bytes) -> None:
        """Sends mail with the next output."""

    def group_failed(self, name: str, error: Exception) -> None:
        """Stops a group on this server."""


class ReplicaGroup:
    """Implements group_port.GroupPort. unsynced: Readys that wait for the disk."""

    def __init__(
        self, name: str, replica: RaftReplica, owner: GroupOwner, node: GroupSurroundings, keep_bytes: int
    ) -> None:
        self.name = name
        self.replica = replica
        self.owner = owner
        self._node = node
        self._keep_bytes = keep_bytes
        self.applied_index = replica.log.snapshot.index
        self.unsynced = 0
        self.is_stopped = False
        self.wants_checkpoint = False
        self.log_bytes = 0
        """Bytes of entries that were applied since the last checkpoint."""
        self.leader_since: int | None = None
        self._released_index = -1  # of the checkpoint in the log that keeps no entries
        self._next_checkpoint = 0  # not before, after one that failed
        self._told: tuple[Role, int, ReplicaId | None] = (Role.FOLLOWER, replica.term, None)
        self._applied_term = replica.log.snapshot.term
        self._proposals: dict[int, int] = {}  # term by index
        self._reads: dict[int, int] = {}  # term by context: not confirmed
        self._confirmed: deque[tuple[int, int]] = deque()  # (index, context): not applied
        self._taking: RaftSnapshot | None = None  # the checkpoint that the owner takes
        self._taken_bytes = 0  # of log_bytes: what it will have
        self._installing: RaftSnapshot | None = None
        self._unfinished: Entry | None = None  # the owner is still applying it
        self._held: deque[Entry] = deque()  # committed entries behind it
        self._held_bytes = 0
        self._held_snapshot: RaftSnapshot | None = None  # to be installed after them

    # --- state

    @property
    def role(self) -> Role:
        return self.replica.role

    @property
    def leader(self) -> ReplicaId | None:
        return self.replica.leader

    @property
    def term(self) -> int:
        return self.replica.term

    @property
    def commit_index(self) -> int:
        return self.replica.log.commit_index

    @property
    def is_current(self) -> bool:
        # The commit index of this member is at least the one that the leader named.
        return self.replica.known_commit is not None and self._finished_index >= self.commit_index

    @property
    def _finished_index(self) -> int:
        """The last entry that the owner has applied."""
        return self.applied_index - (self._unfinished is not None)

    @property
    def membership(self) -> Membership:
        return self.replica.log.membership

    @property
    def is_handing_over(self) -> bool:
        lead = self.replica.leadership
        return lead is not None and lead.transfer_to is not None

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken before the next checkpoint: much was applied since the last one, or
        waits behind an entry that takes long."""
        return self.log_bytes + self._held_bytes > self._node.unsaved_bytes_max

    @property
    def is_recovering(self) -> bool:
        return self.replica.is_recovering

    @property
    def is_installing(self) -> bool:
        """Whether the owner is taking a state of another server."""
        return self._installing is not None

    # --- for the owner

    def propose(self, payload: bytes) -> ProposalId | None:
        if len(payload) > PROPOSAL_BYTES_MAX:
            raise MisuseError(
                f"a command of group {self.name!r} has {len(payload)} bytes, more than {PROPOSAL_BYTES_MAX}; "
                "propose it in parts"
            )
        if self.is_stopped:
            return None
        replica = self._node.touch(self)
        if self.is_full:
            return None
        index = replica.propose([payload], self._node.clock())
        if not index:
            return None
        before = self._proposals.get(index)
        self._proposals[index] = replica.term
        if before is not None:  # another leader removed it, and nothing was committed in its place yet
            self.owner.proposal_lost(ProposalId(index, before), is_certain=True)
        return ProposalId(index, replica.term)

    def read_index(self, context: int) -> bool:
        if self.is_stopped or not self._node.touch(self).read_index(context):
            return False
        self._reads[context] = self.replica.term
        return True

    def step_down(self, to: ReplicaId | None = None) -> bool:
        lead = self.replica.leadership
        if self.is_stopped or lead is None:
            return False
        if to is None:
            voters = [one for one in self.membership.voters if one in lead.peers]
            up = [one for one in voters if not lead.peers[one].is_down]
            if not up:
                return False
            to = max(up, key=lambda one: lead.peers[one].match)
        if lead.transfer_to is None:
            self.owner.handing_over()
        return self._node.touch(self).transfer(to, self._node.clock())

    def stand(self) -> None:
        if self.is_stopped:
            return
        replica, now = self._node.touch(self), self._node.clock()
        replica.stand(now)
        if replica.role is not Role.CANDIDATE:  # else votes may be coming, which a new campaign would lose
            replica.tick(now)

    def rescue(self, quorum: int) -> RescueProblem | None:
        """See RaftReplica.rescue()."""
        if self.is_stopped:
            return RescueProblem.NOT_VOTING
        return self._node.touch(self).rescue(quorum, self._node.clock())

    def end_rescue(self) -> None:
        """See RaftReplica.end_rescue()."""
        if not self.is_stopped:
            self._node.touch(self).end_rescue(self._node.clock())

    def lags(self) -> dict[ReplicaId, int]:
        lead = self.replica.leadership
        if self.is_stopped or lead is None:
            return {}
        last = self.replica.log.last_index
        return {name: last - peer.match for name, peer in lead.peers.items()}

    def change_members(self, kind: ChangeKind, member: ReplicaId) -> ChangeResult:
        if self.is_stopped:
            return ChangeResult.NOT_LEADING
        return self._node.touch(self).change_membership(kind, member, self._node.clock())

    def send(self, to: ReplicaId, payload: bytes) -> None:
        if len(payload) > MAIL_BYTES_MAX:
            raise MisuseError(
                f"mail of group {self.name!r} has {len(payload)} bytes, more than {MAIL_BYTES_MAX}; send it "
                "in parts"
            )
        if not self.is_stopped:
            self._node.mail(self.name, to, payload)

    def give_up(self, error: Exception) -> None:
        if not self.is_stopped:
            self._node.group_failed(self.name, error)

    def checkpoint(self) -> None:
        self.wants_checkpoint = True
        self._node.touch(self)

    # --- from the node

    def take(self, ready: Ready) -> None:
        """Hands the owner what a Ready has for it. The disk and the network are the node's part."""
        self.note_role()
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            if self._reads.pop(read.context, None) is not None:
                self._confirmed.append((read.index, read.context))
        self._answer_reads()
        if ready.snapshot is not None:
            if self._unfinished is None:
                self._install(ready.snapshot)
            else:
                self._held_snapshot = ready.snapshot
        self.note_role()

    def _answer_reads(self) -> None:
        while self._confirmed and self._confirmed[0][0] <= self._finished_index:
            index, context = self._confirmed.popleft()
            self.owner.read_ready(context, index)

    def resume(self) -> None:
        """See GroupPort."""
        if self.is_stopped or self._unfinished is None:
            return
        entry, self._unfinished = self._unfinished, None
        self._node.touch(self)
        try:
            self._finish(entry)
            while self._held and self._unfinished is None:
                entry = self._held.popleft()
                self._held_bytes -= len(entry.data)
                self._apply(entry)
            self._answer_reads()
            if self._held_snapshot is not None and self._unfinished is None:
                snapshot, self._held_snapshot = self._held_snapshot, None
                self._install(snapshot)
            self.note_role()
        except Exception as error:  # noqa: BLE001 (contained: stops this group)
            self._node.group_failed(self.name, error)

    def _apply(self, entry: Entry) -> None:
        if self._unfinished is not None:
            self._held.append(entry)
            self._held_bytes += len(entry.data)
            return
        if entry.index <= self.applied_index:
            return  # part of a state that was installed
        self.applied_index = entry.index
        self.log_bytes += len(entry.data) + 32
        if entry.kind is EntryKind.COMMANDS:
            if self.owner.committed(entry.index, entry.term, entry.data):
                self._unfinished = entry
                return
        elif entry.kind is EntryKind.MEMBERSHIP:
            self.owner.membership_changed(Membership.decode(entry.data))
        self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        """The owner has applied an entry."""
        if self._proposals.get(entry.index) == entry.term:
            del self._proposals[entry.index]
        if entry.term != self._applied_term:
            self._applied_term = entry.term
            self._give_up_proposals(entry.term)

    def _give_up_proposals(self, term: int) -> None:
        """An entry of this term is committed. Terms never fall along a log, so that nothing proposed in an
        older one can be committed behind it."""
        for index in [index for index, proposed in self._proposals.items() if proposed < term]:
            self.owner.proposal_lost(ProposalId(index, self._proposals.pop(index)), is_certain=True)

    def note_role(self) -> None:
        """Tells the owner of a change of role, term or leader, and of reads that end with a leadership."""
        replica, lead = self.replica, self.replica.leadership
        if self._reads:
            lead_term = replica.term if lead is not None else -1
            for context in [one for one, term in self._reads.items() if term != lead_term]:
                del self._reads[context]
                self.owner.read_lost(context)
        role, leader = replica.role, replica.leader
        if lead is not None and self._finished_index < lead.first_index:
            role, leader = Role.CANDIDATE, None  # elected, but not up to date: it cannot serve yet
        now_is = (role, replica.term, leader)
        if now_is != self._told:
            if leader != self._told[2]:
                self.leader_since = None if leader is None else self._node.clock()
            self._told = now_is
            self.owner.role_changed(*now_is)

    # --- checkpoints

    def take_checkpoint(self, *, keeps_entries: bool) -> None:
        """Asks the owner for its state, unless it is at it. keeps_entries: some stay in the log for members
        that lag a little."""
        if self._unfinished is not None:
            return  # asked for again after resume()
        self.wants_checkpoint = False
        log = self.replica.log
        if self._taking is not None or self.is_installing or self._node.clock() < self._next_checkpoint:
            return
        index = self.applied_index
        if index <= log.snapshot.index:
            if not keeps_entries and self._released_index != log.snapshot.index:
                self._save(log.snapshot, log.snapshot.index + 1)
            return
        term = log.term_at(index)
        assert term is not None, "an applied entry after the snapshot is in the log"
        snapshot = RaftSnapshot(index, term, log.membership_at(index))
        self._taking, self._taken_bytes = snapshot, self.log_bytes
        self.owner.take_snapshot(partial(self._on_snapshot, snapshot, keeps_entries))

    def _on_snapshot(
        self,
        state: RaftSnapshot,
        keeps_entries: bool,
        data: bytes | None,
        durable: Callable[[], None] = _nothing,
    ) -> None:
        if self._taking is not state:
            return
        self._taking = None
        log = self.replica.log
        if data is None:
            self._next_checkpoint = self._node.clock() + CHECKPOINT_RETRY_NS
            return
        if self.is_stopped or self.is_installing or log.snapshot.index >= state.index:
            return
        if len(data) > CHECKPOINT_BYTES_MAX:
            raise MisuseError(
                f"a checkpoint of group {self.name!r} has {len(data)} bytes, more than "
                f"{CHECKPOINT_BYTES_MAX}; keep the state in files and say in the checkpoint where"
            )
        snapshot = RaftSnapshot(state.index, state.term, state.membership, data)
        keep_from = self._kept_from(state.index) if keeps_entries else state.index + 1
        self._save(snapshot, keep_from, durable)
        self.log_bytes -= self._taken_bytes

    def _save(self, snapshot: RaftSnapshot, keep_from: int, durable: Callable[[], None] = _nothing) -> None:
        if keep_from > snapshot.index:
            self._released_index = snapshot.index
        self._node.touch(self).compact(snapshot, keep_from)
        self._node.stage(SaveCheckpoint(self.name, snapshot, keep_from), durable)

    def _kept_from(self, index: int) -> int:
        """The first of the last entries that together have up to keep_bytes."""
        log = self.replica.log
        at, size = index, 0
        while at > log.base_index:
            [entry] = log.entries_from(at, 0, at)
            size += len(entry.data) + 32
            if size > self._keep_bytes:
                break
            at -= 1
        return at + 1

    # --- a state of another server

    def _install(self, snapshot: RaftSnapshot) -> None:
        self._installing = snapshot
        self._taking = None  # the owner may give it up, and says nothing then
        leader = self.replica.leader or ""
        self.owner.install_snapshot(
            snapshot.index, snapshot.term, snapshot.data, leader, partial(self._on_installed, snapshot)
        )

    def _on_installed(
        self, snapshot: RaftSnapshot, is_done: bool, durable: Callable[[], None] = _nothing
    ) -> None:
        if self._installing is not snapshot or self.is_stopped:
            return
        replica = self._node.touch(self)
        if not is_done:
            self._installing = None
            replica.snapshot_failed(snapshot)
            return
        assert replica.log.term_at(snapshot.index) != snapshot.term, "the log had the state's entries"
        self.applied_index, self._applied_term = snapshot.index, snapshot.term
        self._node.stage(
            SaveInstalled(self.name, snapshot), partial(self._on_install_durable, snapshot, durable)
        )

    def _on_install_durable(self, snapshot: RaftSnapshot, durable: Callable[[], None]) -> None:
        if self._installing is not snapshot or self.is_stopped:
            return
        self._installing = None
        self.log_bytes = 0
        self._node.touch(self).snapshot_installed(snapshot, self._node.clock())
        self.owner.membership_changed(snapshot.membership)
        for index in [one for one in self._proposals if one <= snapshot.index]:
            self.owner.proposal_lost(ProposalId(index, self._proposals.pop(index)), is_certain=False)
        self._give_up_proposals(snapshot.term)
        durable()

    # --- end

    def stop(self) -> None:
        """The group is gone from this server: nothing is handed out any more."""
        self.is_stopped = True
