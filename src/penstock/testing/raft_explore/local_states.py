"""The states of single replicas in an exploration, each with a number, and what every input does to them.

Time is not part of a state: elections begin when the explorer says so, by the message with which a leader
hands over, which every voter obeys. That allows more than the timeouts of the product would.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import (
    NO_VOTE,
    RULES,
    UNKNOWN_VOTE,
    Entry,
    EntryKind,
    HardState,
    Message,
    RaftSnapshot,
    TimeoutNow,
)
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready, Role

OPTIONS = RaftOptions(quiesce_after_ns=0)
SMALL_APPENDS = RaftOptions(quiesce_after_ns=0, append_bytes_max=1)
WRITE_FIRST = RaftOptions(quiesce_after_ns=0, write_first_bytes_max=1000)
_LATER = 1 << 60
_NOT_STATE = frozenset((
    # times
    "_leader_heard", "_election_at", "_transfer_end", "heartbeat_at", "check_quorum_at", "_last_work",
    "_send", "_random", "_options", "_down", "_jitter_ns",
    "_hard_state",  # made when it is asked for
    "is_active",  # only the check of the quorum reads it, which takes time
))  # fmt: skip


def no_jitter() -> float:
    return 0.0


class ExploredMember:
    """A replica, its disk, and the Readys that wait for it. has_instant_sync: they do not wait. entry_terms:
    the term of each entry that is on disk at first, a digit each."""

    def __init__(
        self,
        name: str,
        membership: Membership,
        *,
        has_instant_sync: bool,
        first_term: int = 0,
        entry_terms: str = "",
        options: RaftOptions = OPTIONS,
    ) -> None:
        self.name = name
        self._options = options
        self.has_instant_sync = has_instant_sync
        self.snapshot = RaftSnapshot(0, 0, membership)
        self.hard_state = HardState(first_term)
        self.entries = tuple(
            Entry(i + 1, int(term), EntryKind.COMMANDS, b"%s%d" % (term.encode(), i))
            for i, term in enumerate(entry_terms)
        )
        self.waiting: list[Ready] = []
        self.boot = 0
        self.out: list[Message] = []
        self.reads: list[tuple[int, int]] = []
        self._start()

    def _start(self, *, is_recovering: bool = False) -> None:
        self.boot += 1
        self.waiting = []
        log = RaftLog(self.snapshot, self.entries)
        self.replica = RaftReplica(
            self.name,
            log,
            self.hard_state,
            self._options,
            no_jitter,
            0,
            boot=self.boot,
            is_recovering=is_recovering,
        )

    def _collect(self) -> None:
        while (ready := self.replica.ready(0)) is not None:
            self.out += ready.messages
            self.reads += [(one.context, one.index) for one in ready.reads]
            if ready.snapshot is not None:
                self._install(ready.snapshot)
            if ready.needs_sync or ready.after_sync:
                self.waiting.append(ready)
            if self.has_instant_sync or not any(one.needs_sync for one in self.waiting):
                self.sync(len(self.waiting))

    def _install(self, snapshot: RaftSnapshot) -> None:
        self.sync(len(self.waiting))  # the log writes in order
        self.snapshot = snapshot
        self.replica.snapshot_installed(snapshot, 0)
        self.entries = tuple(one for one in self.entries if one.index > snapshot.index)
        if self.replica.log.last_index == snapshot.index:
            self.entries = ()

    def sync(self, count: int) -> None:
        """The first Readys reach the disk."""
        done, self.waiting = self.waiting[:count], self.waiting[count:]
        for ready in done:
            self._store(ready)
            self.replica.synced(ready, 0)
            self.out += ready.after_sync

    def _store(self, ready: Ready) -> None:
        self.hard_state = ready.hard_state or self.hard_state
        if ready.entries:
            first = ready.entries[0].index
            self.entries = (*(one for one in self.entries if one.index < first), *ready.entries)

    # --- actions

    def deliver(self, message: Message) -> None:
        self.replica.step(message, 0)
        self._collect()

    def campaign(self) -> None:
        """Begins an election, like a follower whose leader hands over."""
        self.replica.step(TimeoutNow("?", self.name, self.replica.term), 0)
        self._collect()

    def time_out(self) -> None:
        """Begins an election with a pre-vote, or as leader misses the quorum."""
        self.replica.tick(_LATER)
        self._collect()

    def propose(self, data: bytes) -> None:
        self.replica.propose([data], 0)
        self._collect()

    def read(self, context: int) -> None:
        self.replica.read_index(context)
        self._collect()

    def change(self, kind: ChangeKind, member: str) -> None:
        self.replica.change_membership(kind, member, 0)
        self._collect()

    def compact(self) -> None:
        log = self.replica.log
        term = log.term_at(log.applied_index)
        assert term is not None
        self.snapshot = RaftSnapshot(log.applied_index, term, log.membership_at(log.applied_index))
        self.entries = tuple(one for one in self.entries if one.index > log.applied_index)
        self.replica.compact(self.snapshot)
        self._collect()

    def crash(self, kept: int) -> None:
        """Starts again with the disk and the first `kept` of the Readys that waited for it."""
        for ready in self.waiting[:kept]:
            self._store(ready)
        self._start()
        self._collect()

    def damage_known(self, kept: int) -> None:
        """Starts again with a part of the log that was on disk."""
        self.entries = self.entries[:kept]
        self._start(is_recovering=True)
        self._collect()

    def damage_unknown(self, kept: int) -> None:
        """The same, and the vote is lost."""
        self.hard_state = HardState(self.hard_state.term, UNKNOWN_VOTE)
        self.damage_known(kept)


def freeze(value: Any) -> Any:
    """A hashable value that is equal for equal states."""
    if value is None or isinstance(value, (int, str, bytes, Enum)):
        return value
    if isinstance(value, (tuple, list, deque)):
        return tuple(freeze(one) for one in value)
    if isinstance(value, dict):
        return tuple(sorted((name, freeze(one)) for name, one in value.items()))
    if dataclasses.is_dataclass(value):
        return type(value), value
    return type(value).__name__, tuple(
        (name, freeze(one)) for name, one in vars(value).items() if name not in _NOT_STATE
    )


class LocalFacts(NamedTuple):
    """What the search and the invariants need of a replica's state. disk_term: the term on disk. log: (term,
    data) of each entry after base; durable_end: the last index on disk that agrees with the log."""

    role: Role
    term: int
    has_voted: bool
    disk_term: int
    base: int
    log: tuple[tuple[int, bytes], ...]
    commit: int
    durable_end: int
    waiting: int
    applied: int
    disk_entries: int


class LocalResult(NamedTuple):
    """What an input does: the next state, the messages that leave (a set of bits), the confirmed reads."""

    state: int
    out: int
    reads: tuple[tuple[int, int], ...]


Input: TypeAlias = tuple[Any, ...]
"""The name of an action of ExploredMember and its arguments."""


class BrokenLocally(Exception):
    """An assertion of the core failed."""


@dataclass(frozen=True)
class SentMessage:
    """A message and what the search asks of it. leads: (term, sender) when only a leader sends it."""

    message: Message
    to: str
    leads: tuple[int, str] | None


class LocalStates:
    """The numbers of states and messages, and the transitions that were computed."""

    def __init__(self, ignored: tuple[type[Message], ...]) -> None:
        self._ignored = ignored
        self._numbers: dict[Any, int] = {}
        self._frozen: list[bytes] = []
        self.facts: list[LocalFacts] = []
        self.messages: list[SentMessage] = []
        self._message_bits: dict[Message, int] = {}
        self._results: dict[tuple[int, Input], LocalResult] = {}
        self.on_message: Callable[[int, SentMessage], None] = lambda bit, message: None

    @property
    def count(self) -> int:
        return len(self._frozen)

    def add(self, member: ExploredMember) -> LocalResult:
        """The number of the state, and what left in reaching it."""
        out, member.out = member.out, []
        reads, member.reads = tuple(member.reads), []
        key = freeze(member)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._frozen)
            self._frozen.append(pickle.dumps(member, pickle.HIGHEST_PROTOCOL))
            self.facts.append(_facts_of(member))
        return LocalResult(number, self._bits_of(out), reads)

    def _bits_of(self, messages: list[Message]) -> int:
        bits = 0
        for one in messages:
            if isinstance(one, self._ignored):
                continue
            at = self._message_bits.get(one)
            if at is None:
                at = self._message_bits[one] = len(self.messages)
                leads = (one.term, one.sender) if RULES[type(one)].is_from_leader else None
                self.messages.append(SentMessage(one, one.to, leads))
                self.on_message(at, self.messages[at])
            bits |= 1 << at
        return bits

    def member(self, state: int) -> ExploredMember:
        """A copy of the member in that state."""
        member = pickle.loads(self._frozen[state])  # noqa: S301  # from add()
        assert isinstance(member, ExploredMember)
        return member

    def result(self, state: int, action: Input) -> LocalResult:
        """What an action does in a state. Raises BrokenLocally."""
        found = self._results.get((state, action))
        if found is None:
            member = self.member(state)
            arguments = action[1:]
            if action[0] == "deliver":
                arguments = (self.messages[action[1]].message,)
            try:
                getattr(member, action[0])(*arguments)
            except AssertionError as error:
                raise BrokenLocally(str(error) or "assertion") from error
            found = self._results[state, action] = self.add(member)
        return found


def _facts_of(member: ExploredMember) -> LocalFacts:
    replica, log = member.replica, member.replica.log
    entries = log.entries_from(log.base_index + 1, 1 << 60) if log.last_index > log.base_index else ()
    on_disk = {one.index: one.term for one in member.entries}
    end = member.snapshot.index
    while end < log.last_index and on_disk.get(end + 1) == log.term_at(end + 1):
        end += 1
    return LocalFacts(
        replica.role,
        replica.term,
        replica.hard_state.vote != NO_VOTE,
        member.hard_state.term,
        log.base_index,
        tuple((one.term, one.data) for one in entries),
        log.commit_index,
        end,
        len(member.waiting),
        log.applied_index,
        len(member.entries),
    )
