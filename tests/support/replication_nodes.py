"""Replication nodes in a test: real logs on simulated disks, and a network that delivers at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from penstock.errors import StoreError
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_options import MILLISECOND_NS
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import GroupPort, ProposalId
from penstock.replication.group_storage import DiskWrite, GroupStorage, StorageFindings
from penstock.replication.replica_group import ReplicaGroup
from penstock.replication.replication_node import ReplicationNode, ReplicationOptions
from penstock.testing.sim.sim_disk import SimDisk

DIRECTORY = Path("/replication")


class ListOwner:
    """A state machine that is the list of its commands. fails_at: raises at such a command. takes_long: these
    are not applied before end()."""

    def __init__(self, fails_at: bytes = b"-") -> None:
        self.commands: list[bytes] = []
        self.events: list[tuple[object, ...]] = []
        self.fails_at = fails_at
        self.can_install = True
        self.snapshots: list[Callable[[bytes | None], None]] = []
        self.snapshots_at_once = True
        self.takes_long: tuple[bytes, ...] = ()
        self._begun = b""

    def restored(self, index: int, term: int, data: bytes) -> None:
        self.commands = data.split(b"\n") if data else []

    def committed(self, index: int, term: int, payload: bytes) -> bool:
        assert not self._begun, "a command comes before the one before is applied"
        if payload == self.fails_at:
            raise ValueError(f"a state machine's mistake at {payload!r}")
        if payload in self.takes_long:
            self._begun = payload
            return True
        self.commands.append(payload)
        return False

    def end(self, port: GroupPort) -> None:
        """The command that takes long is applied."""
        self.commands.append(self._begun)
        self._begun = b""
        port.resume()

    def handing_over(self) -> None:
        """Everything is proposed already."""

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        self.events.append(("lost", proposal, is_certain))

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        self.events.append((role, term, leader))

    def membership_changed(self, membership: Membership) -> None:
        self.events.append(("members", membership.members))

    def read_ready(self, context: int, index: int) -> None:
        self.events.append(("read", context, list(self.commands)))

    def read_lost(self, context: int) -> None:
        self.events.append(("no read", context))

    @property
    def state(self) -> bytes:
        return b"\n".join(self.commands)

    def take_snapshot(self, done: Callable[[bytes | None], None]) -> None:
        if self.snapshots_at_once:
            done(self.state)
        else:
            self.snapshots.append(done)

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: Callable[[bool], None]
    ) -> None:
        if self.can_install:
            self.restored(index, term, data)
        self.events.append(("installed" if self.can_install else "not installed", leader))
        done(self.can_install)

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        self.events.append(("mail", sender, payload))

    def failed(self, error: Exception) -> None:
        self.events.append(("failed", str(error)))


class NodeUnderTest:
    """A server: its disk survives stop() and start()."""

    def __init__(self, name: str, nodes: NodesUnderTest, disk_id: str = "d") -> None:
        self.server = name
        self.nodes = nodes
        self.disk_id = disk_id
        self.disk = SimDisk(Random(1))
        self.is_slow = False
        self.is_up = False
        self.pending: DiskWrite | None = None
        self.owners: dict[str, ListOwner] = {}
        self.storage: GroupStorage
        self.findings: StorageFindings
        self.node: ReplicationNode

    def start(self, *, segment_bytes: int = 1 << 20) -> None:
        self.storage, self.findings = GroupStorage.open(
            self.disk, DIRECTORY, cluster_name="c", server_name=self.server, new_disk_id=self.disk_id,
            segment_bytes=segment_bytes,
        )  # fmt: skip
        self.node = ReplicationNode(
            self.findings,
            self.nodes.options,
            Random(self.server).random,
            lambda: self.nodes.now,
            lambda: None,
        )
        self.pending, self.is_up = None, True
        for name in self.node.unopened_groups:
            self.open(name)

    def open(self, group: str, membership: Membership | None = None, owner: ListOwner | None = None) -> None:
        self.owners[group] = owner = owner or ListOwner()
        if membership is None:
            self.node.open_group(group, owner)
        else:
            self.node.create_group(group, membership, owner)

    def stop(self, *, loses_power: bool = False) -> None:
        self.is_up = False
        if loses_power:
            self.disk.lose_power(all_of_it=True)
        else:
            self.disk.restart()

    def group(self, name: str = "g") -> ReplicaGroup:
        return self.node.groups[name]

    def pump(self) -> bool:
        """Returns whether something was done."""
        output = self.node.pump()
        for frame in output.frames:
            self.nodes.deliver(frame.sender, frame.to, lambda one, frame=frame: one.receive(frame))  # type: ignore[misc]
        for mail in output.mails:
            self.nodes.deliver(
                self.node.name,
                mail.to,
                lambda one, mail=mail: one.receive_mail(self.node.name, mail.group, mail.payload),  # type: ignore[misc]
            )
        if output.write is not None:
            self.pending = output.write
        if self.pending is not None and not self.is_slow:
            self.finish_write()
        return bool(output.frames or output.mails or output.write or output.has_more)

    def finish_write(self) -> None:
        write, self.pending = self.pending, None
        assert write is not None
        try:
            status = self.storage.write(write)
        except StoreError as error:
            self.node.disk_done(None, error)
        else:
            self.node.disk_done(status, None)


class NodesUnderTest:
    """Servers a, b, c; cut: pairs of servers without a connection."""

    def __init__(self, servers: str = "abc", **options: object) -> None:
        self.now = 0
        self.options = replace(ReplicationOptions(), **options)  # type: ignore[arg-type]
        self.cut: set[tuple[str, str]] = set()
        self.servers = {name: NodeUnderTest(name, self) for name in servers}
        self.all = Membership(tuple(f"{name}.d" for name in servers))

    def __getitem__(self, name: str) -> NodeUnderTest:
        return self.servers[name]

    def start(self, *groups: str) -> None:
        """Starts all servers, with these groups on each."""
        for one in self.servers.values():
            one.start()
            for name in groups:
                one.open(name, self.all)
        self.link()

    def link(self) -> None:
        for one in self.servers.values():
            for other in self.servers.values():
                if one is not other and one.is_up and other.is_up:
                    one.node.peer_linked(other.node.name)

    def deliver(self, sender: str, to: str, take: Callable[[ReplicationNode], None]) -> None:
        for one in self.servers.values():
            if one.is_up and one.node.name == to and (sender[0], to[0]) not in self.cut:
                take(one.node)

    def isolate(self, name: str) -> None:
        for other in self.servers:
            self.cut |= {(name, other), (other, name)}

    def settle(self) -> None:
        for _ in range(1000):
            pumped = [one.pump() for one in self.servers.values() if one.is_up]
            if not any(pumped):
                return
        raise AssertionError("the nodes do not settle")

    def pass_time(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.now += 50 * MILLISECOND_NS
            for one in self.servers.values():
                if one.is_up:
                    one.node.tick()
            self.settle()

    def leader(self, group: str = "g") -> NodeUnderTest:
        self.pass_time(4000)
        leaders = [
            one for one in self.servers.values()
            if one.is_up and group in one.node.groups and one.group(group).role is Role.LEADER
        ]  # fmt: skip
        newest = max(leaders, key=lambda one: one.group(group).term)
        assert newest.owners[group].events, "a leader's owner knows that it leads"
        return newest

    def followers(self, group: str = "g") -> list[NodeUnderTest]:
        leader = self.leader(group)
        return [one for one in self.servers.values() if one is not leader]
