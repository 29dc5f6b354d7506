"""One stream of this server between consensus and its engine.

The group hands over what is committed, and the engine's replica applies it; what the replica's leader wants
to change is proposed to the group. `StreamGroup` is the owner of the one (replication.group_port.GroupOwner)
and the port of the other (jetstream.group_commands.StreamGroupPort).

Invariants:
- Entries reach the replica in the order of the log, each once, and only while the replica is open.
- A read is answered by `read_ready` or forgotten by `read_lost`; a request whose read is forgotten gets no
  answer, because its publisher asks the next leader.
- A replica that cannot apply an entry stops its group on this server (`on_failed`). Its files stay, and no
  other group notices.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Protocol

from penstock import faults
from penstock.errors import ServerError
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import PROPOSAL_BYTES_MAX, GroupPort, ProposalId

log = logging.getLogger("penstock.jetstream")


class GroupWatcher(Protocol):
    """What supervises the stream groups of a server. The calls come from within a pump of the node."""

    def on_role(self, group: StreamGroup) -> None:
        """Its role, its term or its leader is another one, or it has begun to serve."""

    def on_membership(self, group: StreamGroup) -> None:
        """A change of its members is committed."""

    def on_failed(self, group: StreamGroup, text: str) -> None:
        """It has stopped on this server, for the reason that `text` gives."""


class StreamGroup:
    """See the module.

    Args:
        assignment: of the stream. reassign() gives it a newer one.
        engine: of the stream's account.
        watcher: learns of roles, members and failures.

    name: of the consensus group. failure: why it has stopped here; "" while it works.
    """

    def __init__(
        self, name: str, assignment: StreamAssignment, engine: JetStreamEngine, watcher: GroupWatcher
    ) -> None:
        self.name = name
        self.assignment = assignment
        self.failure = ""
        self._engine = engine
        self._watcher = watcher
        self._port: GroupPort | None = None
        self._replica: ReplicatedStream | None = None
        self._role = Role.FOLLOWER
        self._term = 0
        self._reads: dict[int, Callable[[], object]] = {}
        self._contexts = itertools.count(1)

    # --- for the server ------------------------------------------------------------------------

    def begin(self, port: GroupPort) -> None:
        """The node has opened the group. Called once."""
        assert self._port is None
        self._port = port

    def reassign(self, assignment: StreamAssignment) -> None:
        """Takes a newer assignment of the same stream."""
        self.assignment = assignment

    @property
    def port(self) -> GroupPort:
        """The group as its owner sees it. Raises ServerError while the node opens it."""
        if self._port is None:
            raise ServerError(f"group {self.name!r} is not open yet")
        return self._port

    @property
    def key(self) -> tuple[str, str]:
        """Account and name of the stream."""
        return self.assignment.account, self.assignment.name

    @property
    def replica(self) -> ReplicatedStream | None:
        """The stream in its engine; None while its state is read, and after a failure."""
        return self._replica

    @property
    def is_serving(self) -> bool:
        """Whether this server leads the stream and takes requests and publishes."""
        return self._replica is not None and self._replica.is_serving

    @property
    def leader(self) -> ReplicaId | None:
        """The member that leads, as far as this server knows; this one only when it serves."""
        if self._port is None or self.failure:
            return None
        leader = self._port.leader
        return leader if self._role is Role.LEADER or self._port.role is not Role.LEADER else None

    @property
    def is_current(self) -> bool:
        """Whether this replica has applied everything of which it knows that it is committed, and knows a
        leader."""
        if self._port is None or self._replica is None or self.failure:
            return False
        return self.leader is not None and self._port.applied_index >= self._port.commit_index

    @property
    def lags(self) -> dict[ReplicaId, int]:
        """Entries that each other member lacks on its disk, as the leader knows; empty elsewhere."""
        return {} if self._port is None or self.failure else self._port.lags()

    def close(self) -> None:
        """The node has closed the group: the stream ends on this server, without its group."""
        self._reads.clear()
        if self._replica is not None:
            self._replica = None
            self._engine.replicated.close(self.assignment.name)

    # --- for the engine (StreamGroupPort) --------------------------------------------------------

    def propose(self, data: bytes) -> int:
        """Returns the entry's index, 0 when it is not taken. An entry above PROPOSAL_BYTES_MAX is not taken:
        its commands come again in smaller entries."""
        if self._port is None or self.failure or len(data) > PROPOSAL_BYTES_MAX:
            return 0
        proposal = self._port.propose(data)
        return 0 if proposal is None else proposal.index

    def read_index(self, done: Callable[[], object]) -> bool:
        """See StreamGroupPort."""
        if self._port is None or self.failure:
            return False
        context = next(self._contexts)
        self._reads[context] = done
        if not self._port.read_index(context):
            del self._reads[context]
            return False
        return True

    # --- from the group (GroupOwner) -------------------------------------------------------------

    def restored(self, index: int, term: int, data: bytes) -> None:
        """Opens the stream in its engine. Raises StoreError, MalformedCommandError."""
        assignment = self.assignment
        self._replica = self._engine.replicated.open(assignment.config, assignment.created, self)

    def committed(self, index: int, term: int, payload: bytes) -> None:
        """Applies an entry. Raises ServerError when the replica cannot apply it, or was set aside before."""
        replica = self._replica
        assert replica is not None, "an entry before the state"
        replica.committed(index, term, payload)
        if replica.failure:
            raise ServerError(replica.failure)
        if self._engine.streams.get(replica.stream.name) is not replica.stream:
            why = self._engine.offline.get(replica.stream.name, "it is closed")
            raise ServerError(f"stream {replica.stream.name} is set aside on this server: {why}")

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        """The replica forgot it when the leadership of its term ended."""
        assert not (self.is_serving and proposal.term == self._term), "lost in the term of its leadership"

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        """Begins or ends to serve."""
        self._role, self._term = role, term
        self._tell_role()
        self._watcher.on_role(self)

    def _tell_role(self) -> None:
        if self._replica is not None:
            self._replica.role_changed(leads=self._role is Role.LEADER, term=self._term)

    def membership_changed(self, membership: Membership) -> None:
        """Tells the watcher."""
        self._watcher.on_membership(self)

    def read_ready(self, context: int, index: int) -> None:
        """Calls what waits for the read."""
        done = self._reads.pop(context, None)
        if done is not None:
            done()

    def read_lost(self, context: int) -> None:
        """Forgets what waits for the read."""
        self._reads.pop(context, None)

    def take_snapshot(self, done: Callable[[bytes | None], None]) -> None:
        """See GroupOwner."""
        done(None)

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: Callable[[bool], None]
    ) -> None:
        """See GroupOwner."""
        done(False)

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        """Mail of the stream's group on another server."""

    def failed(self, error: Exception) -> None:
        """The group has stopped on this server: its stream is offline here."""
        self.failure = (
            str(error)
            if isinstance(error, ServerError)
            else faults.describe(faults.note(f"group of stream {self.assignment.name}", error))
        )
        log.error("the group of stream %s stops on this server: %s", self.assignment.name, self.failure)
        self._reads.clear()
        if self._replica is not None:
            self._replica.close()
        self._watcher.on_failed(self, self.failure)
