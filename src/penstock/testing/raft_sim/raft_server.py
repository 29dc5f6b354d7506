"""One server of the simulation: the node and the write-ahead log of a real server, on a simulated disk.

A write takes some time, as in the thread of a real server: a killed process has done it, a part of it, or
nothing, and a power failure takes of it what the simulated disk decides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from penstock.errors import StoreError
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Role
from penstock.replication.group_storage import DiskWrite, GroupStorage
from penstock.replication.replication_node import ReplicationNode, ReplicationOptions
from penstock.testing.raft_sim.hashing_owner import HashingOwner, RequestInRun
from penstock.testing.raft_sim.raft_history import RaftHistory
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.wal.wal_mark import read_mark
from penstock.wal.wal_reading import proven_end, read_pieces

DIRECTORY = Path("/replication")


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
        self._disk_id = str(disk_number)
        self._groups = dict(groups)
        self._random = random
        self._disk = SimDisk(random)
        self._segment_bytes = random.choice((1500, 20_000))
        self._options = replace(
            ReplicationOptions(),
            raft=options,
            checkpoint_bytes=random.choice((1500, 1 << 20)),
            keep_bytes=random.choice((0, 400)),
            segments_max=2,
        )
        self._histories = histories
        self._send = send
        self._call_later = call_later
        self._clock = clock
        self.boot = 0
        self.is_up = False
        self.damaged: set[str] = set()
        """Groups that may lack what they acknowledged."""
        self.owners: dict[str, HashingOwner] = {}
        self._sync_ns_max = 2_000_000
        self._installed = 0
        self._write: DiskWrite | None = None  # in flight
        self._contexts = 0
        self._storage: GroupStorage
        self.node: ReplicationNode

    @property
    def replicas(self) -> dict[str, RaftReplica]:
        """Its replicas, also when it is down."""
        return {name: group.replica for name, group in self.node.groups.items()}

    @property
    def snapshots(self) -> int:
        """How many states it took from leaders."""
        return self._installed + sum(one.snapshots for one in self.owners.values())

    # --- life

    def start(self, peers: list[str], now: int) -> None:
        """Starts with what is on disk."""
        self.boot += 1
        self.is_up = True
        self._write = None
        self._installed = self.snapshots
        self._storage, findings = GroupStorage.open(
            self._disk, DIRECTORY, cluster_name="sim", server_name=f"s{self.number}",
            new_disk_id=self._disk_id, segment_bytes=self._segment_bytes,
        )  # fmt: skip
        assert findings.replica_id == self.name
        self.node = ReplicationNode(
            findings, self._options, self._random.random, self._clock, wake=lambda: None
        )
        for name in peers:
            if name != self.name:
                self.node.peer_linked(name)
        self.owners = {}
        for group, membership in self._groups.items():
            owner = HashingOwner(self.name, self._histories[group], self._random, self._later)
            self.owners[group] = owner
            if group in self.node.unopened_groups:
                self.node.open_group(group, owner)
            else:
                self.node.create_group(group, membership, owner)
        self.node.set_groups_known()
        self.damaged = {name for name, group in self.node.groups.items() if group.is_recovering}

    def _later(self, delay_ns: int, work: Callable[[], None]) -> None:
        boot = self.boot

        def run() -> None:
            if self.is_up and self.boot == boot:
                work()
                self.pump(self._clock())

        self._call_later(delay_ns, run)

    def stop(self, *, loses_power: bool = False) -> None:
        """The process ends, perhaps in a write."""
        if self._write is not None and self._random.random() < 0.8:
            if self._random.random() < 0.5:
                self._disk.kill_at = self._disk.ops + self._random.randrange(1, 4)
            with suppress(Killed, StoreError):
                self._storage.write(self._write)
        self.is_up = False
        if loses_power:
            self._disk.lose_power()
        else:
            self._disk.restart()

    def damage(self) -> None:
        """A part of the log that was synced becomes unreadable. The start notices it."""
        assert not self.is_up
        mark = read_mark(self._disk, DIRECTORY)
        segments = [(path, file) for path, file in self._disk.files() if path.endswith(".wal")]
        path, file = self._random.choice(segments)
        number = int(Path(path).stem)
        is_marked = mark is not None and mark.segment == number
        pieces = read_pieces(bytes(file.data), number)
        proven = proven_end(pieces, mark.offset if mark is not None and is_marked else 0)
        if not proven:
            return
        begin = self._random.randrange(proven)
        end = min(proven, begin + self._random.choice((1, 30, 300, 3000)))
        file.data[begin:end] = bytes(end - begin)
        file.sync_all()

    def set_sync_time(self, duration_ns: int) -> None:
        """The longest time that a write takes from now on."""
        self._sync_ns_max = duration_ns

    def set_fail_rate(self, rate: float) -> None:
        """The probability that an operation of its disk fails from now on."""
        self._disk.fail_rate = rate

    def forget(self, group: str) -> None:
        """The server is no member of the group any more."""
        self.node.remove_group(group)
        del self.owners[group], self._groups[group]
        self.pump(self._clock())

    # --- input

    def receive(self, frame: Frame, now: int) -> None:
        self.node.receive(frame)
        self.pump(now)

    def tick(self, now: int) -> None:
        self.node.tick()
        self.pump(now)

    def write(self, group: str, data: bytes, now: int) -> bool:
        """A client's write. Returns whether this replica took it."""
        invoked = self._histories[group].invoked()
        proposal = self.node.groups[group].propose(data)
        if proposal is not None:
            self.owners[group].write_began(proposal, RequestInRun(invoked, data))
        self.pump(now)
        return proposal is not None

    def read(self, group: str, now: int) -> bool:
        """A client's read. Returns whether this replica took it."""
        self._contexts += 1
        invoked = self._histories[group].invoked()
        is_taken = self.node.groups[group].read_index(self._contexts)
        if is_taken:
            self.owners[group].read_began(self._contexts, RequestInRun(invoked, b""))
        self.pump(now)
        return is_taken

    def compact(self, group: str, now: int) -> None:
        """Asks for a checkpoint."""
        self.node.groups[group].checkpoint()
        self.pump(now)

    # --- what the node wants

    def pump(self, now: int) -> None:
        """Does what the node has to do until nothing is left."""
        has_more = True
        while has_more:
            output = self.node.pump()
            has_more = output.has_more
            for frame in output.frames:
                self._send(frame)
            if output.write is not None:
                self._begin_write(output.write)
        for owner in self.owners.values():
            if owner.failure is not None:
                raise owner.failure
        for name, group in self.node.groups.items():
            if group.role is Role.LEADER:
                self._histories[name].leads(self.name, group.term)
            if not group.is_recovering:
                self.damaged.discard(name)

    def _begin_write(self, write: DiskWrite) -> None:
        assert self._write is None, "one write at a time"
        self._write = write
        self._later(self._random.randrange(self._sync_ns_max), self._end_write)

    def _end_write(self) -> None:
        write, self._write = self._write, None
        assert write is not None
        try:
            status = self._storage.write(write)
        except StoreError as error:
            self.node.disk_done(None, error)
        else:
            self.node.disk_done(status, None)

    def state(self) -> str:
        """The roles of its replicas, for a failure's message."""
        roles = [
            f"{group}: {one.role.value} {one.term}, {one.log.commit_index}/{one.log.last_index} committed, "
            f"{one.log.membership.voters}"
            for group, one in self.replicas.items()
        ]
        return f"{self.name} {'is up' if self.is_up else 'is down'}: {'; '.join(roles)}"
