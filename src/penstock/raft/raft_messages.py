"""The values of consensus: entries, hard state, snapshots, and the messages between replicas of one group.

Every message has a sender, a receiver and a term. All are immutable: a message that is kept, sent twice
or compared is the same value. `RULES` says of each kind what the replica must do with it, as a table.

Rejected: one class for all kinds (most fields of most messages would mean nothing); named tuples (values of
different kinds with the same fields are equal).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from penstock.raft.membership import Membership

ReplicaId: TypeAlias = str
"""A server together with the disk it has: a server whose disk was wiped is another replica. See
disk_identity."""

NO_VOTE = ""
UNKNOWN_VOTE = "?"
"""The vote of a term in which the replica may have voted, but lost the record: it grants none in that
term."""


class EntryKind(IntEnum):
    """What an entry does. NOOP: nothing, a leader's first entry of its term."""

    NOOP = 0
    COMMANDS = 1
    MEMBERSHIP = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the log. Two entries with the same index and term are the same entry."""

    index: int
    term: int
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """What a replica must have on disk before it sends what depends on it."""

    term: int = 0
    vote: ReplicaId = NO_VOTE


@dataclass(frozen=True, slots=True)
class RaftSnapshot:
    """The state up to an index. `data` belongs to the state machine: the state, or where to fetch it."""

    index: int
    term: int
    membership: Membership
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class PreVote:
    """Asks whether a vote would be granted in `term`, the one after the sender's. Changes no term."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """term: the one asked for when granted, else the sender's."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    is_granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Asks for a vote. is_transfer: the leader asked the sender to take over, so its being alive is no
    objection."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    last_index: int
    last_term: int
    is_transfer: bool


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The answer to Vote."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    is_granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow the entry (prev_index, prev_term).

    commit: what the receiver has of the log up to there is committed as soon as it is on the receiver's disk.
    It may be more than what the leader knows to be committed (Leadership._commit_for).
    """

    sender: ReplicaId
    to: ReplicaId
    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """is_rejected False: the sender has on disk what the leader has up to `index`. True: it does not have the
    entry before (prev_index = `index`); (hint_index, hint_term) is where its log may agree.

    boot: the number of the sender's start. After a start that found its log damaged, older replies promise
    what is no longer there.
    """

    sender: ReplicaId
    to: ReplicaId
    term: int
    index: int
    is_rejected: bool
    hint_index: int
    hint_term: int
    boot: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """commit: the leader's commit index; the receiver may have less. round: counts up within a term; its
    replies confirm the leadership for reads. quiesce: the group is idle, and no heartbeat follows when all
    have agreed."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    commit: int
    round: int
    quiesce: bool


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """received: what agrees with the leader's log in memory; match: on disk. A difference from what was sent
    shows a lost message. is_quiesced: the sender expects no further heartbeat. is_installing: it takes a
    snapshot, and no other one has to be offered."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    round: int
    received: int
    match: int
    is_quiesced: bool
    is_installing: bool
    boot: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The entries that the receiver needs are gone: it takes the state instead."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    snapshot: RaftSnapshot


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader asks the receiver to take over at once."""

    sender: ReplicaId
    to: ReplicaId
    term: int


@dataclass(frozen=True, slots=True)
class Recover:
    """The sender lost a part of its log: the leader must forget what it acknowledged before start `boot`."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    boot: int


@dataclass(frozen=True, slots=True)
class RecoverReply:
    """The sender counts no acknowledgement from before start `boot`, and has committed up to `commit` so
    far."""

    sender: ReplicaId
    to: ReplicaId
    term: int
    commit: int
    boot: int


Message: TypeAlias = (
    PreVote | PreVoteReply | Vote | VoteReply | Append | AppendReply | Heartbeat | HeartbeatReply
    | InstallSnapshot | TimeoutNow | Recover | RecoverReply
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessageRule:
    """is_from_leader: only the leader of the message's term sends it. after_sync: it promises what is on
    disk, so it leaves after everything that the replica handed out for the disk before it."""

    is_from_leader: bool = False
    after_sync: bool = False


RULES: dict[type[Message], MessageRule] = {
    PreVote: MessageRule(),
    PreVoteReply: MessageRule(),
    Vote: MessageRule(after_sync=True),  # it promises the sender's own vote
    VoteReply: MessageRule(after_sync=True),
    Append: MessageRule(is_from_leader=True),  # the leader counts itself only after its own sync
    AppendReply: MessageRule(after_sync=True),
    Heartbeat: MessageRule(is_from_leader=True),
    HeartbeatReply: MessageRule(),  # `match` is what was synced before
    InstallSnapshot: MessageRule(is_from_leader=True),
    TimeoutNow: MessageRule(is_from_leader=True),
    Recover: MessageRule(),
    RecoverReply: MessageRule(is_from_leader=True),
}


def size_of_entries(entries: tuple[Entry, ...] | list[Entry]) -> int:
    """Bytes that entries take in flight: their data, and a little for each, so that empty ones count."""
    return sum(len(one.data) + 32 for one in entries)
