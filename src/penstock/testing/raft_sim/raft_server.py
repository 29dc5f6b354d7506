"""One server of the simulation, whose groups are hashes of their commands, and its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Role
from penstock.replication.replication_node import Mail, ReplicationOptions
from penstock.testing.raft_sim.hashing_owner import HashingOwner, RequestInRun
from penstock.testing.raft_sim.node_server import NodeServer
from penstock.testing.raft_sim.raft_history import RaftHistory


def _no_mail(sender: str, mail: Mail) -> None:
    raise AssertionError(f"{sender} sends mail: {mail}")


class RaftServer(NodeServer):
    """See the module. groups: their first members."""

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
        segment_bytes = random.choice((1500, 20_000))
        of_node = replace(
            ReplicationOptions(),
            raft=options,
            checkpoint_bytes=random.choice((1500, 1 << 20)),
            keep_bytes=random.choice((0, 400)),
            segments_max=2,
            unsaved_bytes_max=random.choice((2000, 256 << 20)),
            segments_full=random.choice((3, 16)),
        )
        super().__init__(
            number, disk_number, of_node, segment_bytes, random, send, _no_mail, call_later, clock
        )
        self._groups = dict(groups)
        self._histories = histories
        self.damaged: set[str] = set()
        """Groups that may lack what they acknowledged."""
        self.owners: dict[str, HashingOwner] = {}
        self._installed = 0
        self._contexts = 0

    @property
    def replicas(self) -> dict[str, RaftReplica]:
        """Its replicas, also when it is down."""
        return {name: group.replica for name, group in self.node.groups.items()}

    @property
    def snapshots(self) -> int:
        """How many states it took from leaders."""
        return self._installed + sum(one.snapshots for one in self.owners.values())

    def start(self, peers: list[str], now: int) -> None:
        self._installed = self.snapshots
        super().start(peers, now)
        self.damaged = {name for name, group in self.node.groups.items() if group.is_recovering}

    def _open_groups(self) -> None:
        self.owners = {}
        for group, membership in self._groups.items():
            owner = HashingOwner(self.name, self._histories[group], self._random, self._later)
            self.owners[group] = owner
            if group in self.node.unopened_groups:
                self.node.open_group(group, owner)
            else:
                self.node.create_group(group, membership, owner)

    def forget(self, group: str) -> None:
        """The server is no member of the group any more."""
        self.node.remove_group(group)
        del self.owners[group], self._groups[group]
        self.pump(self.clock())

    # --- input

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
        super().pump(now)
        for owner in self.owners.values():
            if owner.failure is not None:
                raise owner.failure
        for name, group in self.node.groups.items():
            if group.role is Role.LEADER:
                self._histories[name].leads(self.name, group.term)
            if not group.is_recovering:
                self.damaged.discard(name)
