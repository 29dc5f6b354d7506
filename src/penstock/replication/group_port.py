"""What the owner of a replicated group and the group expect of each other.

The owner is a deterministic state machine. It gets every committed command exactly once per start, in order,
beginning behind the checkpoint in `restored`. An owner whose own files may be ahead of that
checkpoint (they survive a crash that the newest checkpoint record does not) must ignore commands that it
already has, by their index.

All callbacks come from within `ReplicationNode.pump()` or a call of its owner, in the thread of the event
loop, and must not block. An exception in a callback stops this group on this server (`failed`), and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role

PROPOSAL_BYTES_MAX = 64 << 20
"""A command may have so many bytes."""
CHECKPOINT_BYTES_MAX = 16 << 20
"""The data of a checkpoint may have so many bytes: every segment of the log repeats it."""
MAIL_BYTES_MAX = 8 << 20
"""A piece of mail may have so many bytes."""


@dataclass(frozen=True, slots=True)
class ProposalId:
    """A proposal. It is committed exactly if `committed` comes with this index and term."""

    index: int
    term: int


class SnapshotDone(Protocol):
    """How an owner answers `take_snapshot`."""

    def __call__(self, data: bytes | None, durable: Callable[[], None] = ..., /) -> None:
        """data: see take_snapshot. durable: called when the log has the checkpoint on disk, so that no start
        begins with an earlier one; never, if the checkpoint has become superfluous meanwhile."""


class InstallDone(Protocol):
    """How an owner answers `install_snapshot`."""

    def __call__(self, is_done: bool, durable: Callable[[], None] = ..., /) -> None:
        """is_done: see install_snapshot. durable: as in SnapshotDone."""


class GroupOwner(Protocol):
    """The state machine of a group on one server."""

    def restored(self, index: int, term: int, data: bytes) -> None:
        """The group begins with this checkpoint; index 0 and no data: from nothing."""

    def committed(self, index: int, term: int, payload: bytes) -> bool | None:
        """A command is committed and on this server's disk. Indexes ascend, with gaps where the group itself
        used one. Returns True when it is not applied yet: the group hands nothing more out, takes no
        snapshot, and tells of no leadership, before the owner calls resume()."""

    def handing_over(self) -> None:
        """This server is about to hand the leadership over: it takes proposals now, and then no more."""

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        """A proposal of this server is not committed at its index. is_certain False: it may be part of a
        state that was installed meanwhile."""

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        """Role.LEADER comes when everything that earlier leaders committed has been handed to `committed`:
        from then on this server may serve. Any other role comes at once."""

    def membership_changed(self, membership: Membership) -> None:
        """A change of the members is committed."""

    def read_ready(self, context: int, index: int) -> None:
        """A read may be answered from the state as it is now: it has everything that was acknowledged before
        `read_index(context)`, up to `index` at least."""

    def read_lost(self, context: int) -> None:
        """A read was not confirmed, and never will be: the leadership ended."""

    def take_snapshot(self, done: SnapshotDone) -> None:
        """Makes the state durable as it is now, after the last `committed`, or as it is later, then calls
        done(data) from the event loop, at once or later. `data` is what `restored` or, on another server,
        `install_snapshot` needs: a small state itself, or where it is. None: it failed, and is asked for
        again later. The owner of a later state ignores the entries that it has, by their index. Proposals
        that were refused, for much was applied since the checkpoint before, may be made again after
        done(data)."""

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: InstallDone
    ) -> None:
        """Replaces the state by one of another server, at `index` or later, and calls done(True) when it is
        durable, done(False) when it could not be had; it is offered again then. Mail (`received`) may fetch
        what `data` only names."""

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        """Mail of the group's owner on another server. It may be lost, and come late or from one that is no
        member any more; it never comes twice."""

    def failed(self, error: Exception) -> None:
        """The group has stopped on this server because of an exception. The last call."""


class GroupPort(Protocol):
    """A group as its owner sees it. Every call is cheap; its effects follow with the next pump()."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role:
        """As consensus has it; see `GroupOwner.role_changed` for when to serve."""

    @property
    def leader(self) -> ReplicaId | None: ...
    @property
    def term(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def is_current(self) -> bool:
        """Whether there is a leader, and the owner was handed everything that it has said to be committed."""

    @property
    def applied_index(self) -> int:
        """The last entry that was handed to the owner, which may be applying it."""

    @property
    def membership(self) -> Membership:
        """The membership in force, committed or not."""

    @property
    def is_handing_over(self) -> bool:
        """Whether this server leads and hands over: it takes no proposals and confirms no reads meanwhile."""

    @property
    def is_recovering(self) -> bool:
        """Whether the log lost a part, so that this server does not vote yet."""

    def propose(self, payload: bytes) -> ProposalId | None:
        """Proposes a command. None: this server does not lead or hands over, or too much waits for a commit.
        Raises MisuseError above PROPOSAL_BYTES_MAX."""

    def read_index(self, context: int) -> bool:
        """Requests a linearizable read: `read_ready` or `read_lost` follows. False: not leading."""

    def step_down(self, to: ReplicaId | None = None) -> bool:
        """Hands the leadership to a voter, by default the one with the longest log. False: impossible."""

    def stand(self) -> None:
        """Stands for election now instead of after an election timeout, if this server may and hears no
        leader: for the preferred member of a new group."""

    def lags(self) -> dict[ReplicaId, int]:
        """Entries that each other member lacks on its disk, as far as the leader knows. Empty when this
        server does not lead."""

    def change_members(self, kind: ChangeKind, member: ReplicaId) -> ChangeResult:
        """Changes one member; see `penstock.raft.membership`."""

    def send(self, to: ReplicaId, payload: bytes) -> None:
        """Sends mail to the group's owner on another server. It may be lost. Raises MisuseError above
        MAIL_BYTES_MAX."""

    def resume(self) -> None:
        """The owner has applied the command for which `committed` returned True."""

    def give_up(self, error: Exception) -> None:
        """Stops the group on this server, as an exception in a callback would: `failed` follows."""

    def checkpoint(self) -> None:
        """Asks the owner for a snapshot now; otherwise the node asks when the log is long."""
