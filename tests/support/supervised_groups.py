"""The meta state and the stream groups of one server, for what supervises them: reads of the meta state are
current when the test says so, and groups are opened and closed in a list. Supervised has a supervisor of
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.desired_state import StoredStream
from penstock.jetstream.meta.meta_commands import MetaCommand
from penstock.jetstream.meta.meta_effects import AssetAction, StreamEffect
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.standalone import StandaloneStream
from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.server.logging.logs import Log
from penstock.server.replicated.stream_supervisor import StreamSupervisor
from tests.support.meta_groups import MetaGroup

ACCOUNT = "$G"
CLUSTER_ID = "id"
Call = tuple[str, str]


class KnownMeta:
    """As MetaReplica: machine has the state. takes: whether a read or a command is taken. submitted: the
    commands. reads: what waits to be current. was_current: whether the state was since the start."""

    def __init__(self, machine: MetaMachine, own_peer: str) -> None:
        self.own_peer = own_peer
        self.group: object | None = object()
        self.takes = True
        self.was_current = True
        self.submitted: list[MetaCommand] = []
        self.reads: list[Callable[[], object]] = []
        self._machine = machine

    @property
    def tables(self) -> MetaTables:
        return self._machine.tables

    def submit(self, command: MetaCommand) -> bool:
        self.submitted.append(command)
        return self.takes

    def confirm(self, done: Callable[[], object]) -> bool:
        if self.takes:
            self.reads.append(done)
        return self.takes

    def answer_reads(self) -> int:
        """The meta state is current now. Returns how many waited for it."""
        reads, self.reads = self.reads, []
        self.was_current = self.was_current or bool(reads)
        for done in reads:
            done()
        return len(reads)


class ListedPort:
    """As GroupPort: the membership is set, the changes are listed."""

    def __init__(self, *voters: str, learners: tuple[str, ...] = ()) -> None:
        self.membership = Membership(voters, learners)
        self.changes: list[tuple[ChangeKind, str]] = []
        self.heirs: list[str] = []

    def change_members(self, kind: ChangeKind, member: str) -> ChangeResult:
        self.changes.append((kind, member))
        return ChangeResult.PROPOSED

    def step_down(self, member: str) -> bool:
        self.heirs.append(member)
        return True


class ListedGroup:
    """As StreamGroup. replica: in an engine, when the test has one."""

    def __init__(self, assignment: StreamAssignment, replica: Any = None) -> None:
        self.assignment = assignment
        self.replica = replica
        self.is_serving = False
        self.leader: str | None = None
        self.lags: dict[str, int] = {}
        self.port = ListedPort()

    @property
    def key(self) -> tuple[str, str]:
        return self.assignment.account, self.assignment.name

    def reassign(self, assignment: StreamAssignment) -> None:
        self.assignment = assignment

    def serve(self, *voters: str, learners: tuple[str, ...] = (), **lags: int) -> None:
        """This server leads it, with these members."""
        self.is_serving, self.leader = True, voters[0] if voters else "a.d"
        self.port = ListedPort(*voters, learners=learners)
        self.lags = {f"{name}.d": lag for name, lag in lags.items()}

    def follow(self, leader: str | None) -> None:
        """Another server leads it, or none."""
        self.is_serving, self.leader = False, leader


class ListedGroups:
    """As StreamGroups. calls: what was asked for. errors: with which the streams of these names are not
    opened. ends: what waits for a group to be closed, or for files to be gone."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], ListedGroup] = {}
        self.unclaimed: list[StoredStream] = []
        self.calls: list[tuple[Any, ...]] = []
        self.errors: dict[str, Exception] = {}
        self.ends: list[Callable[[], None]] = []
        self.adopting: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self.prepared: set[str] = set()
        self.members: dict[str, list[str]] = {}
        self.ticks = 0

    def add(self, group: ListedGroup) -> None:
        self.groups[group.key] = group

    def find(self, account: str, stream: str) -> ListedGroup | None:
        return self.groups.get((account, stream))

    @property
    def stored(self) -> list[StoredStream]:
        return [stored_as(one.assignment) for one in self.groups.values()] + self.unclaimed

    def open(self, assignment: StreamAssignment, member_of: Callable[[str], str]) -> ListedGroup:
        self.calls.append(("open", assignment.name))
        if assignment.name in self.errors:
            raise self.errors[assignment.name]
        self.members[assignment.name] = [member_of(one) for one in assignment.group.peers]
        group = self.find(assignment.account, assignment.name) or ListedGroup(assignment)
        group.reassign(assignment)
        self.unclaimed = [
            one
            for one in self.unclaimed
            if (one.name, one.incarnation) != (assignment.name, assignment.incarnation)
        ]
        self.add(group)
        return group

    def close(
        self, account: str, stream: str, *, remove: bool, gone: Callable[[], None] = lambda: None
    ) -> None:
        self.calls.append(("close and remove" if remove else "close", stream))
        group = self.groups.pop((account, stream))
        if not remove:
            self.unclaimed.append(stored_as(group.assignment, group=""))
        self.ends.append(gone)

    def remove_unclaimed(self, stored: StoredStream, gone: Callable[[], None]) -> None:
        self.calls.append(("remove", stored.name))
        self.unclaimed.remove(stored)
        self.ends.append(gone)

    def adopt(
        self, assignment: StreamAssignment, done: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self.calls.append(("adopt", assignment.name))
        self.adopting.append((done, failed))

    def is_prepared(self, assignment: StreamAssignment) -> bool:
        return assignment.name in self.prepared

    def tick(self) -> None:
        self.ticks += 1

    def end(self) -> None:
        """Everything that was closed or removed is gone."""
        ends, self.ends = self.ends, []
        for gone in ends:
            gone()

    def taken_calls(self) -> list[tuple[Any, ...]]:
        """Removes and returns the calls."""
        calls, self.calls = self.calls, []
        return calls


def stored_as(assignment: StreamAssignment, **fields: Any) -> StoredStream:
    """A stream on the disk of a server that has it as assigned."""
    known = {
        "account": assignment.account, "name": assignment.name, "cluster_id": CLUSTER_ID,
        "incarnation": assignment.incarnation, "group": assignment.group.name,
    }  # fmt: skip
    return StoredStream(**{**known, **fields})


class Offline:
    """As an engine: which streams it has offline, and those that were stored without a cluster."""

    def __init__(self) -> None:
        self.offline: dict[str, str] = {}
        self.standalone: dict[str, StandaloneStream] = {}
        self.open: set[str] = set()

    @property
    def replicated(self) -> Offline:
        return self

    @property
    def table(self) -> Offline:
        return self

    def find(self, stream: str) -> object | None:
        return stream if stream in self.open else None


class Supervised:
    """A supervisor on server A, of a cluster that the test commands."""

    def __init__(self, servers: int = 1, *, machine: MetaMachine | None = None) -> None:
        self.cluster = MetaGroup(servers)
        self.meta = KnownMeta(machine or self.cluster.machine, "A")
        self.groups = ListedGroups()
        self.engine = Offline()
        self.online = {"a.d", "b.d", "c.d", "d.d"}
        self.now = 10**12
        self.lines: list[tuple[str, str]] = []
        ports: dict[str, Any] = {"groups": self.groups, "meta": self.meta}
        self.supervisor = StreamSupervisor(
            **ports,
            engine_of=lambda account: self.engine,  # type: ignore[arg-type, return-value]
            node_name="a.d",
            online=lambda: self.online,
            monotonic=lambda: self.now,
            log=Log(lambda label, text: self.lines.append((label, text)), debug=True),
        )

    def tick(self, later_ns: int = 0) -> list[Call]:
        """Lets time pass. Returns what the groups were asked for."""
        self.now += later_ns
        self.supervisor.tick()
        return self.groups.taken_calls()

    def create(self, name: str, replicas: int = 1, **fields: Any) -> StreamAssignment:
        """Creates a stream; the supervisor does not hear of it."""
        self.cluster.create(name, replicas, **fields)
        return self.cluster.stream(name)

    def hear(self, name: str, action: AssetAction = AssetAction.CREATED) -> None:
        """The command that changed a stream is applied."""
        self.supervisor.stream_changed(StreamEffect(action, ACCOUNT, name, 1))

    def errors(self) -> list[str]:
        """Removes and returns the lines that were logged as errors."""
        found = [text for label, text in self.lines if label == "ERR"]
        self.lines.clear()
        return found

    def delete(self, name: str) -> None:
        self.cluster.apply(commands.DeleteStream(ACCOUNT, name))

    def move_away(self, name: str) -> None:
        """The stream goes from this server to another one, which is done."""
        self.cluster.apply(commands.RemoveFromStream(ACCOUNT, name, "a"))
        assert "A" not in self.cluster.stream(name).target
        self.cluster.settle(name)

    def led(self, name: str, *voters: str, learners: tuple[str, ...] = (), **lags: int) -> ListedGroup:
        """The group of a stream, which this server leads."""
        group = self.groups.find(ACCOUNT, name)
        if group is None:
            group = ListedGroup(self.cluster.stream(name))
            self.groups.add(group)
        group.serve(*voters, learners=learners, **lags)
        self.change(group)
        return group

    def change(self, group: Any) -> None:
        """The leader or the members of a group changed."""
        self.supervisor.group_changed(group)
