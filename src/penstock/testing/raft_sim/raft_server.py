"""One server of the simulation: a RaftHost with its groups, the disk, and their state machines.

The disk has of each group the hard state, the entries and a snapshot. What is written waits for its sync; a
power failure keeps a prefix of it. The state machine of a group hashes the commands, so that equal states
have equal histories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame, GroupReady, RaftHost
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import UNKNOWN_VOTE, Entry, HardState, RaftSnapshot
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready, Role
from penstock.testing.raft_sim.raft_history import RaftHistory


class GroupOnDisk:
    """What a server has of a group."""

    def __init__(self, membership: Membership) -> None:
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.snapshot = RaftSnapshot(0, 0, membership)
        self.is_damaged = False

    def write(self, ready: Ready) -> None:
        """Stores the hard state and the entries, which replace what follows the first of them."""
        self.hard_state = ready.hard_state or self.hard_state
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [one for one in self.entries if one.index < first] + list(ready.entries)

    def compact(self, snapshot: RaftSnapshot, keep_from: int) -> None:
        """Stores a snapshot of the state machine, and removes entries that it has."""
        self.snapshot = snapshot
        self.entries = [one for one in self.entries if one.index >= min(keep_from, snapshot.index + 1)]

    def install(self, snapshot: RaftSnapshot, *, keeps_entries: bool) -> None:
        """Stores the state that a leader sent."""
        self.snapshot = snapshot
        self.entries = [one for one in self.entries if keeps_entries and one.index > snapshot.index]


class StateMachine:
    """The number of commands, and a hash of them in their order."""

    def __init__(self, snapshot: RaftSnapshot) -> None:
        self.index = snapshot.index
        self.digest = snapshot.data

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.index + 1, "entries are applied in order"
        self.index = entry.index
        self.digest = blake2b(self.digest + b"%d " % entry.term + entry.data, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class RequestInRun:
    """A write or read of a client at its server. term: of the proposal; 0 for a read."""

    invoked: int
    index: int
    term: int
    data: bytes


class RaftServer:
    """See the module. number: its place in the run; its replicas' name changes with its disk."""

    def __init__(
        self,
        number: int,
        disk_number: int,
        groups: dict[str, Membership],
        options: RaftOptions,
        random: Random,
        histories: dict[str, RaftHistory],
        send: Callable[[Frame], None],
        call_later: Callable[[int, Callable[[], None]], None],
        clock: Callable[[], int],
    ) -> None:
        self.number = number
        self.name = f"s{number}.{disk_number}"
        self.disk = {group: GroupOnDisk(membership) for group, membership in groups.items()}
        self._options = options
        self._random = random
        self._histories = histories
        self._send = send
        self._call_later = call_later
        self._clock = clock
        self.boot = 0
        self.is_up = False
        self._sync_ns_max = 2_000_000
        self.snapshots = 0  # taken from leaders
        self.replicas: dict[str, RaftReplica] = {}
        self.machines: dict[str, StateMachine] = {}
        self._unsynced: list[list[GroupReady]] = []
        self._is_syncing = False
        self._writes: dict[str, dict[int, RequestInRun]] = {}
        self._reads: dict[str, dict[int, RequestInRun]] = {}
        self._contexts = 0
        self.host = RaftHost(self.name, 0, options)

    # --- life

    def start(self, peers: list[str], now: int) -> None:
        """Starts with what is on disk."""
        self.boot += 1
        self.is_up = True
        self._unsynced, self._is_syncing = [], False
        self.host = RaftHost(self.name, self.boot, self._options)
        self.host.set_peers(peers, now)
        for group, disk in self.disk.items():
            log = RaftLog(disk.snapshot, [one for one in disk.entries if one.index > disk.snapshot.index])
            self.replicas[group] = replica = RaftReplica(
                self.name, log, disk.hard_state, self._options, self._random.random, now,
                boot=self.boot, is_recovering=disk.is_damaged,
            )  # fmt: skip
            self.machines[group] = StateMachine(disk.snapshot)
            self._writes[group], self._reads[group] = {}, {}
            self.host.add(group, replica)

    def stop(self, *, loses_power: bool = False) -> None:
        """The process ends. What it wrote is on disk, or after a power failure the first part of it."""
        written = [one for batch in self._unsynced for one in batch]
        if loses_power:
            written = written[: self._random.randrange(len(written) + 1)]
        for group, ready in written:
            self.disk[group].write(ready)
        self._unsynced = []
        self.is_up = False

    def damage(self) -> None:
        """The end of each log is lost, and sometimes the vote. The start notices it."""
        assert not self.is_up
        for disk in self.disk.values():
            kept = self._random.randrange(len(disk.entries) + 1)
            disk.entries = disk.entries[:kept]
            disk.is_damaged = True
            if self._random.random() < 0.5:
                disk.hard_state = HardState(disk.hard_state.term, UNKNOWN_VOTE)

    def set_sync_time(self, duration_ns: int) -> None:
        """The longest time that a sync takes from now on."""
        self._sync_ns_max = duration_ns

    def forget(self, group: str) -> None:
        """The server is no member of the group any more."""
        self.host.remove(group)
        del self.replicas[group], self.disk[group]

    # --- input

    def receive(self, frame: Frame, now: int) -> None:
        self.host.receive(frame, now)
        self.pump(now)

    def tick(self, now: int) -> None:
        self.host.tick(now)
        self.pump(now)

    def write(self, group: str, data: bytes, now: int) -> bool:
        """A client's write. Returns whether this replica took it."""
        replica = self.host.touch(group)
        invoked = self._histories[group].invoked()
        index = replica.propose([data], now)
        if index:
            self._writes[group][index] = RequestInRun(invoked, index, replica.term, data)
        self.pump(now)
        return bool(index)

    def read(self, group: str, now: int) -> bool:
        """A client's read. Returns whether this replica took it."""
        replica = self.host.touch(group)
        self._contexts += 1
        invoked = self._histories[group].invoked()
        is_taken = replica.read_index(self._contexts)
        if is_taken:
            self._reads[group][self._contexts] = RequestInRun(invoked, 0, 0, b"")
        self.pump(now)
        return is_taken

    def compact(self, group: str, now: int, keep: int) -> None:
        """Takes a snapshot of the state machine, and drops all but the last entries."""
        replica, machine = self.host.touch(group), self.machines[group]
        log = replica.log
        term = log.term_at(machine.index)
        if machine.index <= log.snapshot.index or term is None:
            return
        membership = log.membership_at(machine.index)
        snapshot = RaftSnapshot(machine.index, term, membership, machine.digest)
        keep_from = max(1, machine.index + 1 - keep)
        self.disk[group].compact(snapshot, keep_from)
        replica.compact(snapshot, keep_from)
        self.pump(now)

    # --- what the replicas want

    def pump(self, now: int) -> None:
        """Does what the replicas have to do until nothing is left."""
        while work := self.host.ready(now):
            self._unsynced.append(work)
            for group, ready in work:
                self._apply(group, ready, now)
        self._begin_sync()
        for group, replica in self.replicas.items():
            if replica.role is Role.LEADER:
                self._histories[group].leads(self.name, replica.term)
            if not replica.is_recovering:
                self.disk[group].is_damaged = False
        for frame in self.host.take_frames(now):
            self._send(frame)

    def _apply(self, group: str, ready: Ready, now: int) -> None:
        history, machine = self._histories[group], self.machines[group]
        for entry in ready.committed:
            history.applied(self.name, entry)
            machine.apply(entry)
            self._answer_writes(group, entry)
        for read in ready.reads:
            history.read_answered(self._reads[group].pop(read.context).invoked, read.index)

    def _answer_writes(self, group: str, entry: Entry) -> None:
        one = self._writes[group].pop(entry.index, None)
        if one is not None and one.term == entry.term:
            self._histories[group].write_acknowledged(one.invoked, one.index, one.data)

    def _begin_sync(self) -> None:
        if self._unsynced and not self._is_syncing:
            self._is_syncing = True
            covered, boot = len(self._unsynced), self.boot
            needs_disk = any(ready.needs_sync for batch in self._unsynced for _, ready in batch)
            delay = self._random.randrange(self._sync_ns_max) if needs_disk else 0
            self._call_later(delay, lambda: self._synced(covered, boot))

    def _synced(self, count: int, boot: int) -> None:
        if not self.is_up or self.boot != boot:
            return
        self._is_syncing = False
        now = self._clock()
        done, self._unsynced = self._unsynced[:count], self._unsynced[count:]
        for batch in done:
            for group, ready in batch:
                self.disk[group].write(ready)
            self.host.synced(batch, now)
            for group, ready in batch:
                if ready.snapshot is not None:
                    self._install(group, ready.snapshot, now)
        self.pump(now)

    def _install(self, group: str, snapshot: RaftSnapshot, now: int) -> None:
        replica = self.host.touch(group)
        if self._random.random() < 0.2:
            replica.snapshot_failed(snapshot)
            return
        agrees = replica.log.term_at(snapshot.index) == snapshot.term
        self.disk[group].install(snapshot, keeps_entries=agrees)
        self.machines[group] = StateMachine(snapshot)
        replica.snapshot_installed(snapshot, now)
        self.snapshots += 1
        self._writes[group].clear()

    def state(self) -> str:
        """The roles of its replicas, for a failure's message."""
        roles = [
            f"{group}: {one.role.value} {one.term}, {one.log.commit_index}/{one.log.last_index} committed, "
            f"{one.log.membership.voters}"
            for group, one in self.replicas.items()
        ]
        return f"{self.name} {'is up' if self.is_up else 'is down'}: {'; '.join(roles)}"
