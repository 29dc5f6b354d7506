"""Bugs planted in the consensus core, by patching it while a test runs.

EXPLORED: the bug, the configuration of the exploration that finds it, and the invariants that may show it.
SIMULATED: the bug, and a seed of the simulation that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.raft import raft_messages
from penstock.raft.leadership import ChangeResult, ConfirmedRead, Leadership
from penstock.raft.membership import Membership
from penstock.raft.peer_progress import PeerProgress
from penstock.raft.raft_host import RaftHost
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import (
    NO_VOTE,
    RULES,
    Append,
    AppendReply,
    Entry,
    HardState,
    MessageRule,
    Recover,
    RecoverReply,
    Vote,
    VoteReply,
)
from penstock.raft.raft_replica import RaftReplica, Ready, Role

Plant = Callable[[pytest.MonkeyPatch], None]


def votes_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    init = RaftReplica.__init__

    def forgets(
        self: RaftReplica, name: str, log: RaftLog, hard_state: HardState, *more: Any, **named: Any
    ) -> None:
        init(self, name, log, replace(hard_state, vote=NO_VOTE), *more, **named)

    patch.setattr(RaftReplica, "__init__", forgets)


def votes_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(RULES, VoteReply, MessageRule())
    patch.setitem(RULES, Vote, MessageRule())
    ready = RaftReplica.ready

    def early(self: RaftReplica, now: int) -> Ready | None:
        found = ready(self, now)
        if found is None:
            return None
        votes = tuple(one for one in found.after_sync if isinstance(one, VoteReply))
        others = tuple(one for one in found.after_sync if not isinstance(one, VoteReply))
        return found._replace(messages=found.messages + votes, after_sync=others)

    patch.setattr(RaftReplica, "ready", early)


def acknowledged_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(RULES, AppendReply, MessageRule())


def the_leader_counts_itself_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    synced = RaftLog.synced
    advance = Leadership.advance_commit

    def early(self: Leadership) -> bool:
        synced(self._log, self._log.last_index, self._log.last_term)
        self._log.durable_index = self._log.last_index
        return advance(self)

    patch.setattr(Leadership, "advance_commit", early)


def two_votes_a_term(patch: pytest.MonkeyPatch) -> None:
    original = RaftReplica._vote_asked

    def asked(self: RaftReplica, message: Vote, now: int) -> None:
        if self.role is Role.FOLLOWER:
            self._vote = NO_VOTE
        original(self, message, now)

    patch.setattr("penstock.raft.raft_replica._HANDLERS", _handlers_with(Vote, asked))


def _handlers_with(kind: type[Any], handler: Any) -> Any:
    from penstock.raft import raft_replica

    return {
        role: {one: handler if one is kind else known for one, known in table.items()}
        for role, table in raft_replica._HANDLERS.items()
    }


def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftLog, "is_up_to_date", lambda self, index, term: True)


def votes_by_length_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftLog, "is_up_to_date", lambda self, index, term: index >= self.last_index)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    def is_quorum(self: Membership, names: Collection[str], lowered: int = 0) -> bool:
        return 2 * sum(voter in names for voter in self.voters) >= len(self.voters)

    patch.setattr(Membership, "is_quorum", is_quorum)


def commits_what_one_has(patch: pytest.MonkeyPatch) -> None:
    def quorum_value(self: Membership, values: Mapping[str, int], lowered: int = 0) -> int:
        return max(values.get(one, 0) for one in self.voters)

    patch.setattr(Membership, "quorum_value", quorum_value)


def commits_older_terms_by_count(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Leadership) -> bool:
        match = {name: peer.match for name, peer in self.peers.items()}
        match[self._name] = self._log.durable_index
        index = self._log.membership.quorum_value(match)
        return self._log.commit(index) if index > self._log.commit_index else False

    patch.setattr(Leadership, "advance_commit", advance)


def entries_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A follower takes entries whose predecessor it does not have."""
    term_at = RaftLog.term_at
    original = RaftReplica._append

    def append(self: RaftReplica, message: Append, now: int) -> None:
        if message.prev_index <= self.log.last_index:
            known = term_at(self.log, message.prev_index) or 0
            message = replace(message, prev_term=known)
        original(self, message, now)

    patch.setattr("penstock.raft.raft_replica._HANDLERS", _handlers_with(Append, append))


def a_late_append_removes_what_followed(patch: pytest.MonkeyPatch) -> None:
    merge = RaftLog.merge

    def always_truncates(self: RaftLog, prev_index: int, entries: Sequence[Entry]) -> int:
        if entries and entries[-1].index < self.last_index and entries[-1].index >= self.commit_index:
            self._truncate(entries[-1].index + 1)
        return merge(self, prev_index, entries)

    patch.setattr(RaftLog, "merge", always_truncates)


def conflicts_stay(patch: pytest.MonkeyPatch) -> None:
    merge = RaftLog.merge

    def keeps(self: RaftLog, prev_index: int, entries: Sequence[Entry]) -> int:
        missing = [one for one in entries if one.index > self.last_index]
        return merge(self, self.last_index, missing) if missing else prev_index + len(entries)

    patch.setattr(RaftLog, "merge", keeps)


def changes_before_an_entry_of_its_term(patch: pytest.MonkeyPatch) -> None:
    """The bug of the thesis that its erratum of 2015 names."""
    patch.setattr(Leadership, "_change_refusal", _refusal_without_term)


def _refusal_without_term(self: Leadership, kind: Any, member: str) -> ChangeResult | None:
    if self._log.membership_index > max(self._log.commit_index, self.first_index - 1):
        return ChangeResult.CHANGE_PENDING
    return None


def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_change_refusal", lambda self, kind, member: None)


def reads_need_no_round(patch: pytest.MonkeyPatch) -> None:
    def read(self: Leadership, context: int) -> None:
        self._confirmed_reads.append(ConfirmedRead(context, self._log.commit_index))

    patch.setattr(Leadership, "read", read)


def reads_before_an_entry_of_its_term(patch: pytest.MonkeyPatch) -> None:
    original = Leadership.read

    def read(self: Leadership, context: int) -> None:
        first, self.first_index = self.first_index, 0
        original(self, context)
        self.first_index = first

    patch.setattr(Leadership, "read", read)


def a_damaged_log_votes(patch: pytest.MonkeyPatch) -> None:
    init = RaftReplica.__init__

    def trusts(self: RaftReplica, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **{**named, "is_recovering": False})

    patch.setattr(RaftReplica, "__init__", trusts)


def old_terms_are_obeyed(patch: pytest.MonkeyPatch) -> None:
    original = RaftReplica._accepts_term

    def accepts(self: RaftReplica, message: raft_messages.Message, now: int) -> bool:
        if isinstance(message, Append) and message.term < self.term and self.role is Role.FOLLOWER:
            return True
        return original(self, message, now)

    patch.setattr(RaftReplica, "_accepts_term", accepts)
    patch.setattr(
        RaftReplica, "_heard_leader", lambda self, leader, now: self._follow(self.term, leader, now)
    )


def the_leader_forgets_nothing(patch: pytest.MonkeyPatch) -> None:
    """Acknowledgements from before a damage count."""

    def recover(self: Leadership, message: Recover) -> None:
        commit = self._log.commit_index
        self._send(RecoverReply(self._name, message.sender, self._term, commit, message.boot))

    patch.setattr(Leadership, "recover", recover)


def servers_that_left_lead_idle_groups(patch: pytest.MonkeyPatch) -> None:
    original = RaftHost.set_peers

    def set_peers(self: RaftHost, names: Iterable[str], now: int) -> None:
        patch.setattr(RaftReplica, "peer_down", lambda self, name, now: None)
        original(self, names, now)
        patch.setattr(RaftReplica, "peer_down", peer_down)

    peer_down = RaftReplica.peer_down
    patch.setattr(RaftHost, "set_peers", set_peers)


def lost_appends_are_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeerProgress, "lost", lambda self: None)


def promises_what_the_leader_has_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_commit_for", lambda self, name, last: self._log.last_index)


def told_commits_do_not_wait_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    def commit_told(self: RaftReplica) -> None:
        self.log.commit(max(self.log.commit_index, self._told))

    patch.setattr(RaftReplica, "_commit_told", commit_told)


def recovering_members_do_not_hear_of_promises(patch: pytest.MonkeyPatch) -> None:
    original = Leadership.recover

    def recover(self: Leadership, message: Recover) -> None:
        self._promised = 0
        original(self, message)

    patch.setattr(Leadership, "recover", recover)


def reads_do_not_wait_for_promises(patch: pytest.MonkeyPatch) -> None:
    original = Leadership.read

    def read(self: Leadership, context: int) -> None:
        self._promised = 0
        original(self, context)

    patch.setattr(Leadership, "read", read)


def promises_cover_older_terms(patch: pytest.MonkeyPatch) -> None:
    original = Leadership._commit_for

    def commit_for(self: Leadership, name: str, last: int) -> int:
        return original(self, name, self._log.last_index)

    patch.setattr(Leadership, "_commit_for", commit_for)


SAFETY = {"leader completeness", "state machine safety"}

EXPLORED: list[tuple[Plant, str, set[str]]] = [
    (votes_are_not_kept, "three members, crash", {"election safety"}),
    (votes_leave_before_the_sync, "slow votes", {"election safety"}),
    (acknowledged_before_the_sync, "slow disks and power loss", {"durability"}),
    (the_leader_counts_itself_before_its_sync, "slow disks and power loss", {"durability"}),
    (two_votes_a_term, "three members", {"election safety"}),
    (votes_for_shorter_logs, "three members", {"leader completeness", "state machine safety"}),
    (votes_by_length_alone, "three terms", {"leader completeness", "state machine safety"}),
    (half_is_a_majority, "two members", {"election safety"}),
    (commits_what_one_has, "three members", {"durability"}),
    (commits_older_terms_by_count, "older terms", {"leader completeness", "state machine safety"}),
    (entries_are_not_compared, "older terms", {"log matching", "state machine safety", "assertion"}),
    (a_late_append_removes_what_followed, "slow disks and power loss", {"durability"}),
    (conflicts_stay, "older terms", {"durability", "log matching", "state machine safety", "assertion"}),
    (changes_before_an_entry_of_its_term, "shrinking from four", {"election safety", "leader completeness"}),
    (two_changes_at_once, "shrinking", {"election safety", "leader completeness", "state machine safety"}),
    (reads_need_no_round, "reads", {"reads"}),
    (reads_before_an_entry_of_its_term, "early reads", {"reads"}),
    (a_damaged_log_votes, "damaged log, lost vote", {"leader completeness", "election safety"}),
    (old_terms_are_obeyed, "late messages", {"log matching", "state machine safety", "durability"}),
    (promises_what_the_leader_has_not_written, "slow disks and power loss", {"durability"}),
    (promises_cover_older_terms, "older terms", SAFETY),
    (told_commits_do_not_wait_for_the_disk, "written first, power loss", {"durability"}),
    (recovering_members_do_not_hear_of_promises, "written first, damaged log", SAFETY),
    (reads_do_not_wait_for_promises, "written first, reads", {"reads"}),
]  # fmt: skip

SIMULATED: list[tuple[Plant, int]] = [
    (the_leader_forgets_nothing, 177),
    (servers_that_left_lead_idle_groups, 608),
    (lost_appends_are_not_sent_again, 3),
    (commits_what_one_has, 2),
    (half_is_a_majority, 2),
]
