"""The state machine of a group in the simulation: a hash of the commands, so that equal states have equal
histories. Its state is in its checkpoints and nowhere else, which shows whether the log has the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_options import MILLISECOND_NS
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import ProposalId
from penstock.testing.raft_sim.raft_history import RaftHistory


@dataclass(frozen=True, slots=True)
class RequestInRun:
    """A write or read of a client at its server."""

    invoked: int
    data: bytes


class HashingOwner:
    """Implements group_port.GroupOwner. call_later: runs something after a delay, if this start of the server
    still runs, and then pumps."""

    def __init__(
        self,
        name: str,
        history: RaftHistory,
        random: Random,
        call_later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._name = name
        self._history = history
        self._random = random
        self._call_later = call_later
        self.index = 0
        self.digest = b""
        self.snapshots = 0  # taken from leaders
        self.failure: Exception | None = None
        self._writes: dict[ProposalId, RequestInRun] = {}
        self._reads: dict[int, RequestInRun] = {}

    # --- for the server

    def write_began(self, proposal: ProposalId, request: RequestInRun) -> None:
        self._writes[proposal] = request

    def read_began(self, context: int, request: RequestInRun) -> None:
        self._reads[context] = request

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._writes) + len(self._reads)

    # --- from the group

    def restored(self, index: int, term: int, data: bytes) -> None:
        self._take_state(data)

    def _take_state(self, data: bytes) -> None:
        number, _, self.digest = data.partition(b" ")
        self.index = int(number or 0)

    def committed(self, index: int, term: int, payload: bytes) -> None:
        self._history.applied(self._name, self.index, index, term, payload)
        self.index = index
        self.digest = blake2b(self.digest + b"%d " % term + payload, digest_size=16).digest()
        request = self._writes.pop(ProposalId(index, term), None)
        if request is not None:
            self._history.write_acknowledged(request.invoked, index, request.data)

    def handing_over(self) -> None:
        """Everything is proposed already."""

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        request = self._writes.pop(proposal)
        if is_certain:
            self._history.write_lost(proposal.index, proposal.term, request.data)

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        if role is Role.LEADER:
            self._history.serves(self._name, term, self.index)

    def membership_changed(self, membership: Membership) -> None:
        pass

    def read_ready(self, context: int, index: int) -> None:
        self._history.read_answered(self._reads.pop(context).invoked, self.index)

    def read_lost(self, context: int) -> None:
        del self._reads[context]

    def take_snapshot(self, done: Callable[[bytes | None], None]) -> None:
        data = b"%d %b" % (self.index, self.digest)
        self._soon(lambda: done(None if self._random.random() < 0.1 else data))

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: Callable[[bool], None]
    ) -> None:
        def install() -> None:
            if self._random.random() < 0.2:
                done(False)
                return
            self._take_state(data)
            self.snapshots += 1
            done(True)

        self._soon(install)

    def _soon(self, work: Callable[[], None]) -> None:
        """At once, or after a while."""
        if self._random.random() < 0.5:
            work()
        else:
            self._call_later(self._random.randrange(100 * MILLISECOND_NS), work)

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        pass

    def failed(self, error: Exception) -> None:
        self.failure = error
