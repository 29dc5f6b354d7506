"""All groups of this server: what goes to the disk, to other servers and to owners, and in which order.

    node.receive(frame); node.tick(); group.propose(payload)       # each asks for a pump by `wake`
    output = node.pump()
    send(output.frames); send(output.mails)
    run(lambda: storage.write(output.write))   # in a disk thread; here when it is brief
    node.disk_done(status, error); another pump follows

Order, and why:
- A message that promises what is on disk leaves after the write of its Ready; one write at a time, each with
  everything that came up during the one before. Others leave at once, while the disk works.
- Owners get committed entries when these are on this server's disk too (`raft`): their own files need no sync
  of their own and are never ahead of the log.
- A Ready without anything for the disk waits only if an earlier one of the same group does.
- An installed state is recorded in the log after its owner has it, and the leader learns of it after that.

Invariant: a fault in one group, whether its owner's or one that a message of a peer caused, stops this group
here (`failed_groups`), keeps its data, and touches no other.

Rejected: syncing in the event loop (it takes milliseconds); a thread per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from penstock import faults
from penstock.errors import MisuseError
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame, GroupReady, RaftHost
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import Append, Entry, HardState, Message, RaftSnapshot, ReplicaId
from penstock.raft.raft_options import MILLISECOND_NS, RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready, Role
from penstock.replication.group_port import GroupOwner
from penstock.replication.group_storage import (
    BeginGroup,
    CopyEntries,
    DiskWrite,
    GroupsKnown,
    MarkRecovered,
    RemoveGroup,
    SaveEntries,
    SaveHardState,
    StorageFindings,
    StorageStatus,
    StorageWrite,
    StoredReplica,
)
from penstock.replication.replica_group import ReplicaGroup

SECOND_NS = 1000 * MILLISECOND_NS


@dataclass(frozen=True)
class ReplicationOptions:
    """Times in ns, sizes in bytes.

    sync_always: a command is acknowledged when a majority has synced it. False: when a majority has handed
    it to its operating system; a sync follows within sync_interval_ns or after sync_bytes_max. Terms and
    votes are synced in both cases.
    checkpoint_bytes: a group with so many bytes of applied entries takes a checkpoint. keep_bytes: entries
    that stay behind it for members that lag. segments_max: so many segments of the log make the groups that
    keep the oldest take a checkpoint.
    unsaved_bytes_max: a group with more bytes of applied entries since its last checkpoint takes no
    proposals, and no entries of its leader, before the next one: they are in memory, and a start reads them
    all. With segments_full segments of the log the same holds from checkpoint_bytes on.
    pump_bytes_max: committed entries that one pump hands out, so that others get their turn.
    disk_retry_ns: between attempts to write after an error. disk_stall_ns: a write that takes longer makes
    this server hand over its leaderships.
    mark_after_ns: without work for so long, the log's mark is renewed.
    """

    raft: RaftOptions = field(default_factory=RaftOptions)
    sync_always: bool = True
    sync_interval_ns: int = 10 * SECOND_NS
    sync_bytes_max: int = 8 << 20
    checkpoint_bytes: int = 32 << 20
    keep_bytes: int = 8 << 20
    segments_max: int = 4
    unsaved_bytes_max: int = 256 << 20
    segments_full: int = 16
    pump_bytes_max: int = 1 << 20
    disk_retry_ns: int = 500 * MILLISECOND_NS
    disk_stall_ns: int = 3 * SECOND_NS
    mark_after_ns: int = SECOND_NS


class Mail(NamedTuple):
    """What a group's owner sends to its owner on another server."""

    to: ReplicaId
    group: str
    payload: bytes


class NodeOutput(NamedTuple):
    """What a pump wants done. write: at most one is in flight. has_more: pump again soon."""

    frames: list[Frame]
    mails: list[Mail]
    write: DiskWrite | None
    has_more: bool


class _WaitingReady(NamedTuple):
    """A Ready that waits for the disk."""

    group: ReplicaGroup
    ready: Ready


_Waiting: TypeAlias = _WaitingReady | Callable[[], None]


class ReplicationNode:
    """See the module.

    Args:
        findings: what the start found on disk.
        options: times and limits.
        random: returns a number from [0, 1).
        clock: returns monotonic ns.
        wake: called when a pump has something to do.
    """

    def __init__(
        self,
        findings: StorageFindings,
        options: ReplicationOptions,
        random: Callable[[], float],
        clock: Callable[[], int],
        wake: Callable[[], object],
    ) -> None:
        self.identity = findings.identity
        self.name = findings.replica_id
        self.options = options
        self.clock = clock
        self.may_lack_groups = findings.may_lack_groups
        self.failed_groups: dict[str, Exception] = {}
        self._failed_entries: dict[str, tuple[Entry, ...]] = {}
        self.disk_error: Exception | None = None
        self._random = random
        self._wake = wake
        self._stored = dict(findings.groups)
        self._lost_state = findings.lost_state
        self._host = RaftHost(self.name, findings.identity.boot, options.raft)
        self._groups: dict[str, ReplicaGroup] = {}
        self._recovering: set[str] = set()
        self._full: set[str] = set()  # groups whose next checkpoint is overdue
        self._copying: set[str] = set()  # groups without an owner whose entries are written once more
        self._peers: set[ReplicaId] = set()
        self._linked: dict[str, ReplicaId] = {}  # by server name
        self._memberships: dict[str, Membership] = {}  # by group, as last seen
        self._mails: list[Mail] = []
        self._left: set[str] = set()  # groups that leave() hands over
        self._staged: list[StorageWrite] = []
        self._waiting: list[_Waiting] = []  # for the write of what is staged
        self._in_flight: list[_Waiting] = []  # for the write in flight, or for one that failed
        self._write_began: int | None = None
        self._retry_at = 0
        self._status = StorageStatus()
        self._last_sync = self._last_write = clock()
        self._is_marked = True

    # --- groups

    @property
    def groups(self) -> dict[str, ReplicaGroup]:
        """The groups with owners."""
        return dict(self._groups)

    @property
    def unopened_groups(self) -> list[str]:
        """Groups of the log without an owner. Their data stays; they take no part in anything."""
        return sorted(self._stored)

    def open_group(self, name: str, owner: GroupOwner) -> ReplicaGroup:
        """Continues with a group of the log. The owner's `restored` is called within. Raises MisuseError for
        one that is not there."""
        found = self._stored.get(name)
        if found is None:
            raise MisuseError(f"the log has no group {name!r}, or it is open; create it")
        group = self._begin(name, owner, found.log(), found.hard_state, is_recovering=found.is_damaged)
        del self._stored[name]
        return group

    def create_group(
        self,
        name: str,
        membership: Membership,
        owner: GroupOwner,
        state: bytes = b"",
        durable: Callable[[], None] = lambda: None,
    ) -> ReplicaGroup:
        """Begins a group, with the same membership on each of its first members. An empty membership: this
        server joins a group that has it as a learner, or will. state: of a checkpoint with which a group of
        one begins, at index and term 1. durable: called when the group is on disk.

        While the log may lack groups, the group may be one that it lost. It then begins as recovering: the
        other members must bring it up to date before it votes. Raises MisuseError when the log has it."""
        if name in self._groups or name in self._stored:
            raise MisuseError(f"the log has the group {name!r} already; open it")
        is_lost = self.may_lack_groups
        if state and (is_lost or membership.voters != (self.name,)):
            raise MisuseError(
                f"the group {name!r} cannot begin with a state: its log may be lost, or elsewhere"
            )
        snapshot = RaftSnapshot(1, 1, membership, state) if state else RaftSnapshot(0, 0, membership)
        hard_state = self._lost_state if is_lost else HardState(snapshot.term)
        group = self._begin(name, owner, RaftLog(snapshot), hard_state, is_recovering=is_lost)
        self._staged.append(BeginGroup(name, snapshot, is_lost))
        if state:
            self._staged.append(SaveHardState(name, hard_state))
        self._waiting.append(lambda: faults.contain(durable, _end_failed))
        return group

    def _begin(
        self, name: str, owner: GroupOwner, log: RaftLog, state: HardState, *, is_recovering: bool
    ) -> ReplicaGroup:
        now, snapshot = self.clock(), log.snapshot
        replica = RaftReplica(
            self.name, log, state, self.options.raft, self._random, now,
            boot=self.identity.boot, is_recovering=is_recovering,
        )  # fmt: skip
        group = ReplicaGroup(name, replica, owner, self, self.options.keep_bytes)
        owner.restored(snapshot.index, snapshot.term, snapshot.data)
        self._groups[name] = group
        if is_recovering:
            self._recovering.add(name)
        self.failed_groups.pop(name, None)
        self._failed_entries.pop(name, None)
        self._host.add(name, replica)
        self._add_peers(name, log.membership)
        for member in log.membership.members:
            if self._host.is_down(member):
                self._host.touch(name).peer_down(member, now)
        self._wake()
        return group

    def close_group(self, name: str, closed: Callable[[], None] = lambda: None) -> None:
        """Ends a group on this server and keeps its part of the log; calls `closed` when everything of it is
        on disk: from then on it can be opened again or removed. Closing one that is not open does nothing
        else."""
        group = self._groups.get(name)
        if group is None:
            closed()
            return
        ready = self._host.ready_of(name, self.clock())
        if ready is not None:  # its messages stay here, and its commands are handed out after the next open
            self._stage_ready(name, ready)
        group.stop()
        self._host.remove(name)
        replica, log = group.replica, group.replica.log
        entries = log.entries_from(log.snapshot.index + 1, 1 << 62)
        found = StoredReplica(name, replica.hard_state, log.snapshot, entries, replica.is_recovering)

        def on_disk() -> None:
            if self._groups.get(name) is group:
                self._forget(name)
                self._stored[name] = found
            faults.contain(closed, _end_failed)

        self._waiting.append(on_disk)
        self._wake()

    def _forget(self, name: str) -> None:
        self._groups.pop(name, None)
        self.failed_groups.pop(name, None)
        self._failed_entries.pop(name, None)
        self._recovering.discard(name)
        self._memberships.pop(name, None)

    def remove_group(self, name: str, gone: Callable[[], None] = lambda: None) -> None:
        """Forgets a group and its part of the log, for good; calls `gone` when that is on disk. Removing one
        that is not there does nothing else."""
        group = self._groups.get(name)
        if group is not None:
            group.stop()
            self._host.remove(name)
            group.replica.log.discard()
        elif name not in self._stored and name not in self.failed_groups:
            gone()
            return
        self._stored.pop(name, None)
        self._forget(name)
        self._staged.append(RemoveGroup(name))
        self._waiting.append(lambda: faults.contain(gone, _end_failed))
        self._wake()

    def set_groups_known(self) -> None:
        """Every group that this server should have is open: one that is created from now on is new."""
        if self.may_lack_groups:
            self.may_lack_groups = False
            self._staged.append(GroupsKnown())
            self._wake()

    @property
    def led_groups(self) -> list[str]:
        """The groups that this server leads."""
        return [name for name, group in self._groups.items() if group.role is Role.LEADER]

    def leave(self) -> int:
        """Hands over all leaderships: before a clean end, and when the disk does not work. Call it again
        while it returns how many groups wait for another server to lead, and have not heard of its leader;
        groups that no other server can lead do not count."""
        waiting = 0
        for name, group in self._groups.items():
            lead = group.replica.leadership
            if group.is_stopped:
                continue
            if lead is None:
                waiting += name in self._left and group.leader is None
            elif lead.transfer_to is not None or group.step_down():
                self._left.add(name)
                waiting += 1
        return waiting

    # --- servers

    @property
    def is_refused(self) -> bool:
        """Whether another server has seen a newer start with this disk: the disk is an old copy, and must not
        be used as a member any more."""
        return self._host.is_refused

    def is_down(self, peer: ReplicaId) -> bool:
        """Whether a server is known not to answer."""
        return self._host.is_down(peer)

    def heard(self, peer: ReplicaId) -> int | None:
        """When a server was last heard of, by the node's clock; None = never."""
        return self._host.heard(peer)

    def peer_linked(self, peer: ReplicaId) -> None:
        """There is a connection to a server. The same server with another disk is gone."""
        self._linked[_server_of(peer)] = peer
        self._peers = {one for one in self._peers if self._is_present(one)} | {peer}
        self._host.set_peers(self._peers, self.clock())
        self._wake()

    def peer_unlinked(self, peer: ReplicaId) -> None:
        """The connection to a server is lost."""
        self._host.link_lost(peer, self.clock())
        self._wake()

    def _add_peers(self, group: str, membership: Membership) -> None:
        """Members without a connection count as servers, too: their silence shows that they are down."""
        if self._memberships.get(group) is membership:
            return
        self._memberships[group] = membership
        new = {one for one in membership.members if one not in self._peers and self._is_present(one)}
        if new:
            self._peers |= new
            self._host.set_peers(self._peers, self.clock())

    def _is_present(self, peer: ReplicaId) -> bool:
        return self._linked.get(_server_of(peer), peer) == peer

    # --- input

    def receive(self, frame: Frame) -> None:
        """Takes a frame of another server."""
        now = self.clock()
        if self._host.accept(frame, now):
            for name, message in frame.messages:
                self._step(name, message, now)
        self._wake()

    def _step(self, name: str, message: Message, now: int) -> None:
        if isinstance(message, Append) and message.entries:
            group = self._groups.get(name)
            if group is not None and group.is_full:
                return  # as if it were lost: the leader sends it again when it hears that it is missing
        try:
            self._host.step(name, message, now)
        except Exception as error:  # noqa: BLE001 (contained: stops this group)
            self.group_failed(name, error)

    def receive_mail(self, sender: ReplicaId, name: str, payload: bytes) -> None:
        """Takes mail of another server. Mail for a group that is not here is dropped."""
        group = self._groups.get(name)
        if group is not None:
            self._contain(group, lambda: group.owner.received(sender, payload))

    def tick(self) -> None:
        """Does what is due. Call it every 50 ms or so."""
        now = self.clock()
        self._host.tick_peers(now)
        for name in self._host.active:
            try:
                self._host.tick_group(name, now)
            except Exception as error:  # noqa: BLE001 (contained: stops this group)
                self.group_failed(name, error)
        if self._write_began is not None and now - self._write_began > self.options.disk_stall_ns:
            self.leave()
        self._look_at_full()
        self._wake()

    def _look_at_full(self) -> None:
        """A checkpoint that failed is tried again, also when the group takes nothing and does not move."""
        for name in tuple(self._full):
            group = self._groups.get(name)
            if group is not None and group.is_full:
                self._host.touch(name)
            else:
                self._full.discard(name)

    def disk_done(self, status: StorageStatus | None, error: Exception | None) -> None:
        """The write of the last output ended. With an error it is tried again; nothing that waits for it
        happens before it succeeds, and other servers take over what this one leads."""
        assert self._write_began is not None, "no write is in flight"
        now = self.clock()
        self._write_began = None
        self.disk_error = error
        if status is None:
            self._is_marked = False
            self._retry_at = now + self.options.disk_retry_ns
            self.leave()
        else:
            self._status = status
            self._last_write = now
            if not status.unsynced_bytes:
                self._last_sync = now
            done, self._in_flight = self._in_flight, []
            self._finish(done, now)
        self._wake()

    def _finish(self, done: list[_Waiting], now: int) -> None:
        for one in done:
            if isinstance(one, _WaitingReady):
                one.group.unsynced -= 1
                self._synced(one.group, one.ready, now)
            else:
                one()

    def _synced(self, group: ReplicaGroup, ready: Ready, now: int) -> None:
        if group.is_stopped:
            return
        try:
            self._host.synced([GroupReady(group.name, ready)], now)
        except Exception as error:  # noqa: BLE001 (contained: stops this group)
            self.group_failed(group.name, error)

    # --- output

    def pump(self) -> NodeOutput:
        """What there is to do. Owners get what is committed meanwhile. A refused server does nothing more."""
        if self.is_refused:
            return NodeOutput([], [], None, False)
        now = self.clock()
        left = self.options.pump_bytes_max
        looked_at: dict[str, None] = {}
        is_busy = True
        while is_busy and left > 0:
            is_busy = False
            for name in self._host.touched:
                looked_at[name] = None
                taken = self._take(name, now)
                is_busy = is_busy or taken > 0
                left -= taken
        self._note_roles(looked_at)
        self._take_checkpoints(looked_at)
        mails, self._mails = self._mails, []
        return NodeOutput(self._host.take_frames(now), mails, self._next_write(now), is_busy)

    def _take(self, name: str, now: int) -> int:
        """Does what one group wants. Returns 0 when it wanted nothing, else how much was done, in bytes."""
        try:
            ready = self._host.ready_of(name, now)
        except Exception as error:  # noqa: BLE001 (contained: stops this group)
            self.group_failed(name, error)
            return 0
        if ready is None:
            return 0
        group = self._groups[name]
        self._stage_ready(name, ready)
        if ready.needs_sync or group.unsynced:
            group.unsynced += 1
            self._waiting.append(_WaitingReady(group, ready))
        else:
            self._synced(group, ready, now)
        self._contain(group, lambda: group.take(ready))
        return 1 + sum(len(one.data) for one in ready.committed)

    def _stage_ready(self, name: str, ready: Ready) -> None:
        if ready.hard_state is not None:
            self._staged.append(SaveHardState(name, ready.hard_state))
        if ready.entries:
            self._staged.append(SaveEntries(name, ready.entries))

    def _note_roles(self, looked_at: Iterable[str]) -> None:
        """A leader that a majority does not answer steps down without any message: its owner learns it here.
        Members that are new count as servers."""
        for name in looked_at:
            group = self._groups.get(name)
            if group is not None:
                self._contain(group, group.note_role)
                self._add_peers(name, group.membership)
        for name in [one for one in self._recovering if one in self._groups]:
            if not self._groups[name].is_recovering:
                self._recovering.discard(name)
                self._staged.append(MarkRecovered(name))

    def _take_checkpoints(self, looked_at: Iterable[str]) -> None:
        keepers = self._status.keepers if self._status.segments > self.options.segments_max else ()
        for name in looked_at:
            group = self._groups.get(name)
            if group is not None and (
                group.wants_checkpoint or group.is_full or group.log_bytes >= self.options.checkpoint_bytes
            ):
                self._checkpoint(group, keeps_entries=True)
                if group.is_full:
                    self._full.add(name)
        for name in keepers:
            if name in self._groups:
                self._checkpoint(self._groups[name], keeps_entries=False)
            elif name in self._stored:
                self._copy(name, self._stored[name].entries)
            elif name in self._failed_entries:
                self._copy(name, self._failed_entries[name])

    def _copy(self, name: str, entries: tuple[Entry, ...]) -> None:
        if name not in self._copying:
            self._copying.add(name)
            self._staged.append(CopyEntries(name, entries))
            self._waiting.append(partial(self._copying.discard, name))

    def _checkpoint(self, group: ReplicaGroup, *, keeps_entries: bool) -> None:
        self._contain(group, lambda: group.take_checkpoint(keeps_entries=keeps_entries))

    def _next_write(self, now: int) -> DiskWrite | None:
        if self._write_began is not None or (self.disk_error is not None and now < self._retry_at):
            return None
        is_sync_due = self._status.unsynced_bytes > 0 and (
            now - self._last_sync >= self.options.sync_interval_ns
            or self._status.unsynced_bytes >= self.options.sync_bytes_max
        )
        if not (self._staged or self._waiting or self._in_flight or is_sync_due):
            return self._next_mark(now)
        writes, self._staged = tuple(self._staged), []
        self._in_flight += self._waiting
        self._waiting = []
        self._write_began = now
        self._is_marked = False
        # Only entries may wait for a sync: a power failure that takes votes could elect two leaders.
        is_plain = all(isinstance(one, SaveEntries) for one in writes)
        must_sync = self.options.sync_always or not is_plain or self.disk_error is not None or is_sync_due
        return DiskWrite(writes, must_sync)

    def _next_mark(self, now: int) -> DiskWrite | None:
        if self._is_marked or now - self._last_write < self.options.mark_after_ns:
            return None
        self._is_marked = True
        self._write_began = now
        return DiskWrite((), True, is_mark=True)

    # --- for groups (GroupSurroundings)

    @property
    def unsaved_bytes_max(self) -> int:
        options = self.options
        is_log_full = self._status.segments >= options.segments_full
        return options.checkpoint_bytes if is_log_full else options.unsaved_bytes_max

    def touch(self, group: ReplicaGroup) -> RaftReplica:
        if self._groups.get(group.name) is group:
            self._host.touch(group.name)
            self._wake()
        return group.replica

    def stage(self, write: StorageWrite, durable: Callable[[], None]) -> None:
        group = self._groups[write.group] if not isinstance(write, GroupsKnown) else None
        self._staged.append(write)

        def finished() -> None:
            if group is not None:
                self._contain(group, durable)

        self._waiting.append(finished)
        self._wake()

    def mail(self, group: str, to: ReplicaId, payload: bytes) -> None:
        self._mails.append(Mail(to, group, payload))
        self._wake()

    # --- faults

    def _contain(self, group: ReplicaGroup, work: Callable[[], object]) -> None:
        if group.is_stopped:
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 (contained: stops this group)
            self.group_failed(group.name, error)

    def group_failed(self, name: str, error: Exception) -> None:
        faults.note(f"replicated group {name}", error)
        self._host.remove(name)
        group = self._groups.pop(name, None)
        self.failed_groups[name] = error
        if group is not None:
            log = group.replica.log
            if log.unsaved_index > log.last_index:  # else the log of this server has other entries
                self._failed_entries[name] = log.entries_from(log.snapshot.index + 1, 1 << 62)
            group.stop()
            faults.contain(group.owner.failed, _end_failed, error)


def _end_failed(error: Exception, *_: object) -> None:
    faults.note("end of a replicated group", error)


def _server_of(peer: ReplicaId) -> str:
    """The name of a member's server; see DiskIdentity.replica_id."""
    return peer.rpartition(".")[0]
