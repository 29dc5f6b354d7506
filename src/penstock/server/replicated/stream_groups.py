"""All stream groups of this server, of all accounts.

A group is known to consensus by a name that its stream keeps as long as it exists, whatever its assignment
calls the group (that changes when the stream is scaled): cluster, incarnation, account and stream. So a
server that starts can say what it has on disk before it knows any assignment.

Invariant: only close(remove=True) removes anything. Groups of the log that are not open do nothing, and
keep their data (`unclaimed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from penstock.errors import MisuseError, ServerError
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.desired_state import StoredStream
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.replica_state import CHUNK_SEQS
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role
from penstock.replication.replication_node import ReplicationNode
from penstock.server.replicated.state_files import StateFiles
from penstock.server.replicated.stream_catch_up import OUTSTANDING_MAX, CatchUpBudget
from penstock.server.replicated.stream_checkpoints import CheckpointRecord, StreamCheckpoints
from penstock.server.replicated.stream_group_owner import GroupWatcher, OwnerPorts, StreamGroup
from penstock.server.replicated.work_turns import CallLater, WorkJob, WorkTurns
from penstock.store.disk import Disk
from penstock.store.executor import DiskExecutor
from penstock.store.files import make_directory, names_in, quote_name

_PREFIX = "S"
STAND_NS = 1_000_000_000
"""So long the preferred member of a new group stands for election at each tick: the others may not have
opened the group yet."""
STAND_AGAIN_NS = 3_000_000
"""So long after the first time it stands again, then after twice as long, and so on until a tick does it: the
others usually learn of the group a few milliseconds later, and who creates a stream waits for its leader."""
STAND_AGAIN_MAX_NS = 24_000_000

StreamKey = tuple[str, str]
"""Account and name of a stream."""


@dataclass(frozen=True, slots=True)
class StreamGroupPorts:
    """What the stream groups use of their server.

    engine_of: the engine of an account. cluster_id: of the meta state, "" while there is none. directory: for
    the states of all groups; it is created, its parent exists. executor: runs work on these files; not the
    one that writes the log, for a checkpoint may take seconds. call_later: calls in the event loop after so
    many nanoseconds. outstanding_catchup_max: bytes that may be requested of other servers and not received.
    chunk_seqs: for tests; the same on all servers. applied: called after each entry of a stream.
    """

    node: ReplicationNode
    engine_of: Callable[[str], JetStreamEngine]
    cluster_id: Callable[[], str]
    directory: Path
    disk: Disk
    executor: DiskExecutor
    call_later: CallLater
    outstanding_catchup_max: int = OUTSTANDING_MAX
    chunk_seqs: int = CHUNK_SEQS
    applied: Callable[[ReplicatedStream], None] | None = None


class StreamGroups:
    """See the module. watcher: learns of roles, members and failures. Raises StoreError: the directory cannot
    be made."""

    def __init__(self, ports: StreamGroupPorts, watcher: GroupWatcher) -> None:
        self._ports = ports
        self._watcher = watcher
        self._groups: dict[StreamKey, StreamGroup] = {}
        self._closing: set[str] = set()  # names of groups whose last changes are not on disk yet
        self._standing: dict[StreamKey, int] = {}  # until when a preferred member stands for election
        self._adopting: dict[StreamKey, WorkJob] = {}
        self._adopted: dict[str, tuple[OwnerPorts, CheckpointRecord]] = {}  # by the name of the group
        self._turns = WorkTurns(ports.call_later, ports.node.clock)
        self._budget = CatchUpBudget(ports.outstanding_catchup_max)
        make_directory(ports.disk, ports.directory)
        self._remove_leftover_states()

    # --- what there is ---------------------------------------------------------------------------

    @property
    def groups(self) -> Mapping[StreamKey, StreamGroup]:
        """The open groups by account and stream, those that have failed here among them."""
        return MappingProxyType(self._groups)

    def find(self, account: str, stream: str) -> StreamGroup | None:
        """The open group of a stream."""
        return self._groups.get((account, stream))

    @property
    def unclaimed(self) -> list[StoredStream]:
        """Streams whose groups are on this server's disk and not open. Their `group` is ""."""
        found = (stored_of(name) for name in self._ports.node.unopened_groups)
        return [one for one in found if one is not None]

    @property
    def stored(self) -> list[StoredStream]:
        """All streams on this server's disk: the open ones, and the unclaimed."""
        return [_stored(one) for one in self._groups.values()] + self.unclaimed

    # --- opening and closing ---------------------------------------------------------------------

    def open(self, assignment: StreamAssignment, member_of: Callable[[str], ReplicaId]) -> StreamGroup:
        """Opens the group of a stream that this server is to have: continues with what is on disk, else
        begins it (this server is a founder), else joins it with an empty state. A group that is open gets the
        assignment.

        Args:
            member_of: a peer's id to its name as a member.

        Raises MisuseError while another stream of this name is open here (close it first), or while the group
        is being closed.
        """
        key = (assignment.account, assignment.name)
        name = group_name(self._ports.cluster_id(), assignment)
        present = self._groups.get(key)
        if name in self._closing:
            raise MisuseError(f"group {name!r} is being closed")
        if present is not None:
            if present.name != name:
                raise MisuseError(f"stream {assignment.name!r} is open as {present.name!r}; close it first")
            present.reassign(assignment)
            return present
        return self._open(key, name, assignment, member_of)

    def _open(
        self,
        key: StreamKey,
        name: str,
        assignment: StreamAssignment,
        member_of: Callable[[str], ReplicaId],
    ) -> StreamGroup:
        node = self._ports.node
        if name in self._adopted:
            return self._begin_adopted(key, name, assignment, *self._adopted.pop(name))
        group = StreamGroup(name, assignment, self._owner_ports(name, assignment.account))
        self._groups[key] = group
        founders = assignment.group.founders if node.name in assignment.group.founders else ()
        is_new = name not in node.unopened_groups
        try:
            if is_new:
                group.begin(node.create_group(name, Membership(tuple(sorted(founders))), group))
            else:
                group.begin(node.open_group(name, group))
        except Exception as error:  # noqa: BLE001  # costs this group
            group.failed(error)
            return group
        if group.port.membership.voters == (node.name,):
            group.port.stand()  # alone: there is nothing to wait for
        preferred = assignment.group.preferred or next(iter(assignment.group.peers), "")
        if is_new and founders and preferred and member_of(preferred) == node.name:
            group.port.stand()
            self._standing[key] = node.clock() + STAND_NS
            self._stand_later(key, group, STAND_AGAIN_NS)
        return group

    def _stand_later(self, key: StreamKey, group: StreamGroup, delay_ns: int) -> None:
        def stand() -> None:
            if self._groups.get(key) is not group or not self._still_stands(key, group):
                return
            if group.port.role is not Role.CANDIDATE:
                group.port.stand()
            if delay_ns < STAND_AGAIN_MAX_NS:
                self._stand_later(key, group, 2 * delay_ns)

        self._ports.call_later(delay_ns, stand)

    def _still_stands(self, key: StreamKey, group: StreamGroup) -> bool:
        """Whether the group still has no leader, as far as this server knows, and still has time."""
        until = self._standing.get(key, 0)
        return self._ports.node.clock() < until and not group.failure and group.port.leader is None

    # --- streams that were stored without a cluster -------------------------------------------------

    def adopt(
        self, assignment: StreamAssignment, done: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        """Makes the state with which the group of such a stream begins; then calls `done`, and open() begins
        the group with it. Does nothing while it is at it. failed: called with what prevents it."""
        key = (assignment.account, assignment.name)
        if key in self._adopting:
            return
        name = group_name(self._ports.cluster_id(), assignment)
        ports = self._owner_ports(name, assignment.account)
        source = ports.engine.replicated.standalone_source(assignment.config)

        def taken(record: CheckpointRecord) -> None:
            self._adopting.pop(key, None)
            self._adopted[name] = ports, record
            done()

        def not_taken(error: Exception) -> None:
            self._adopting.pop(key, None)
            failed(error)

        def wake() -> None:
            if key in self._adopting:
                self._adopting[key].wake()

        self._adopting[key] = self._turns.start(ports.checkpoints.take(source, wake), taken, not_taken)

    def is_prepared(self, assignment: StreamAssignment) -> bool:
        """Whether the stream has a group on this server's disk, or adopt() has made its first state."""
        name = group_name(self._ports.cluster_id(), assignment)
        return name in self._adopted or name in self._ports.node.unopened_groups

    def _begin_adopted(
        self,
        key: StreamKey,
        name: str,
        assignment: StreamAssignment,
        ports: OwnerPorts,
        record: CheckpointRecord,
    ) -> StreamGroup:
        node = self._ports.node
        group = self._groups[key] = StreamGroup(name, assignment, ports, is_on_disk=False)
        membership = Membership((node.name,))
        try:
            group.begin(node.create_group(name, membership, group, record.encode(), group.founded))
            group.port.stand()
        except Exception as error:  # noqa: BLE001  # costs this group
            group.failed(error)
        return group

    def _owner_ports(self, name: str, account: str) -> OwnerPorts:
        ports = self._ports
        files = self._files(name)
        checkpoints = StreamCheckpoints(files, ports.node.clock, ports.chunk_seqs)
        return OwnerPorts(
            ports.engine_of(account), checkpoints, self._turns, self._budget, self._watcher, ports.node.clock,
            ports.call_later, ports.node.name, ports.applied,
        )  # fmt: skip

    def _files(self, name: str) -> StateFiles:
        ports = self._ports
        return StateFiles(ports.disk, ports.executor, ports.directory / quote_name(name))

    def close(
        self,
        account: str,
        stream: str,
        *,
        remove: bool,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Ends a stream's group on this server. remove: its part of the log and its files go, too, and `gone`
        is called when they are gone for good. Without remove they stay, unclaimed; `gone` is called when the
        group may be opened again or removed. Closing one that is not open does nothing but call `gone`."""
        key = (account, stream)
        group = self._groups.pop(key, None)
        self._standing.pop(key, None)
        if group is None:
            gone()
            return
        group.close(ended=remove)
        if remove:
            # First the log: what it names must be there.
            self._ports.node.remove_group(group.name, lambda: group.remove_files(gone))
        else:
            self._closing.add(group.name)

            def closed() -> None:
                self._closing.discard(group.name)
                gone()

            self._ports.node.close_group(group.name, closed)

    def remove_unclaimed(self, stored: StoredStream, gone: Callable[[], None]) -> None:
        """Removes an unclaimed stream for good."""
        name = stored_name(stored)

        def removed() -> None:
            with contextlib.suppress(ServerError):  # the account has no JetStream here: remove_leftovers()
                self._ports.engine_of(stored.account).replicated.discard(stored.name)
            gone()

        self._ports.node.remove_group(name, lambda: self._files(name).remove_all(removed))

    # --- what a crash left ---------------------------------------------------------------------------

    @property
    def _logged(self) -> set[str]:
        """Names of the groups that the log may have, and of those that are open."""
        node = self._ports.node
        open_names = {one.name for one in self._groups.values()}
        return {*node.unopened_groups, *node.failed_groups, *self._closing, *open_names}

    def _remove_leftover_states(self) -> None:
        """Removes the states of groups that are not in the log: the server ended after it had removed such
        a group, and before it had removed its files; or before a stream that it adopted had its group."""
        ports = self._ports
        if ports.node.may_lack_groups:
            return
        kept = {quote_name(name) for name in self._logged}
        for name in names_in(ports.disk, ports.directory):
            if name not in kept:
                ports.disk.remove_tree(ports.directory / name)

    def remove_leftovers(self, account: str) -> None:
        """Removes the files of replicas in an account's engine whose groups are not in the log, for the same
        reason. Raises ServerError when the account has no JetStream here."""
        ports = self._ports
        replicated = ports.engine_of(account).replicated
        if ports.node.may_lack_groups:
            return
        found = (stored_of(name) for name in self._logged)
        kept = {one.name for one in found if one is not None and one.account == account}
        for name in replicated.unopened - kept:
            replicated.discard(name)

    def stop(self) -> None:
        """Ends all work on states before the server ends; what is on disk stays."""
        for job in self._adopting.values():
            job.cancel()
        for group in self._groups.values():
            group.stop()

    # --- time --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Does what is due. Call it every 50 ms or so."""
        for check in list(self._budget.due.values()):
            check()
        for key in list(self._standing):
            group = self._groups[key]
            if self._still_stands(key, group):
                group.port.stand()
            else:
                del self._standing[key]


def group_name(cluster_id: str, assignment: StreamAssignment) -> str:
    """The name under which the members of a stream's group know it. A stream that was adopted keeps the one
    that it had."""
    cluster, incarnation = cluster_id, assignment.incarnation
    if assignment.adopted is not None and assignment.adopted[0]:
        cluster, incarnation = assignment.adopted
    return f"{_PREFIX}/{cluster}/{incarnation}/{assignment.account}/{assignment.name}"


def stored_of(name: str) -> StoredStream | None:
    """The stream of a group with this name; None for a group of another kind."""
    parts = name.split("/", 3)
    if len(parts) != 4 or parts[0] != _PREFIX or not parts[2].isdecimal():
        return None
    account, _, stream = parts[3].rpartition("/")
    return StoredStream(
        account=account, name=stream, cluster_id=parts[1], incarnation=int(parts[2]), group=""
    )


def stored_name(stored: StoredStream) -> str:
    """The name of the group of a stored stream."""
    return f"{_PREFIX}/{stored.cluster_id}/{stored.incarnation}/{stored.account}/{stored.name}"


def _stored(group: StreamGroup) -> StoredStream:
    about = stored_of(group.name)
    assert about is not None
    return StoredStream(
        account=about.account, name=about.name, cluster_id=about.cluster_id, incarnation=about.incarnation,
        group=group.assignment.group.name,
    )  # fmt: skip
