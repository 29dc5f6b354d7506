"""One server's replica of a Raft group, without IO: messages, time and proposals go in, a `Ready` comes out.

    replica.step(message, now); replica.tick(now); replica.propose([...], now)
    ready = replica.ready(now)
    send(ready.messages)                       # at once
    append ready.hard_state and ready.entries to the write-ahead log; sync it
    replica.synced(ready, now)
    send(ready.after_sync)                     # only now: they promise what is on disk
    apply ready.committed                      # in order; each entry once

Several Readys may wait for the disk at once; their syncs end in their order. A snapshot in a Ready is to be
taken by the state machine, made durable, and reported by snapshot_installed() or snapshot_failed().

Theory of operation. A replica follows, stands for election in two steps (a pre-vote changes no term, so that
a member that was cut off cannot depose a leader that works), or leads. Within the election timeout of a
leader's last sign of life no vote is granted; a leader that a majority does not answer steps down.
TRANSITIONS has the legal changes of role, _HANDLERS the messages that each role takes.

A replica that lost a part of its log is *recovering*: it takes entries, but neither votes nor stands for
election, until it has everything up to a commit index that a leader named after it had forgotten the
replica's older acknowledgements. Without that, a majority with this replica could elect a leader that lacks
an entry which was acknowledged with its help.

A majority that is lost for good ends a group. rescue() lets fewer members decide for a while, on the word of
an operator who knows that the others do not come back: they might have elected another leader meanwhile, and
then both groups acknowledge.

Rejected: counting the followers of a quiesced group by its own heartbeats (raft_host.py knows which servers
are there); proposals on followers (their publishers find the leader by its subscriptions).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from penstock.raft.leadership import ChangeResult, ConfirmedRead, Leadership
from penstock.raft.membership import ChangeKind
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import (
    NO_VOTE,
    RULES,
    Append,
    AppendReply,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RaftSnapshot,
    Recover,
    RecoverReply,
    ReplicaId,
    TimeoutNow,
    Vote,
    VoteReply,
)
from penstock.raft.raft_options import RaftOptions


class Role(Enum):
    """What a replica is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RescueProblem(Enum):
    """Why a rescue is refused. The texts are the official server's."""

    BAD_QUORUM = "raft: rescue quorum must be between 1 and current quorum"
    LEADER_KNOWN = "raft: leader is known"
    NOT_VOTING = "raft: not a voting member"
    EMPTY_LOG = "raft: log is empty"


TRANSITIONS: dict[Role, tuple[Role, ...]] = {
    Role.FOLLOWER: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),  # to CANDIDATE: the leader hands over
    Role.PRE_CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE),
    Role.CANDIDATE: (Role.FOLLOWER, Role.PRE_CANDIDATE, Role.LEADER),
    Role.LEADER: (Role.FOLLOWER,),
}


class Ready(NamedTuple):
    """What the owner of a replica has to do; see the module. role and leader are as of now."""

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    after_sync: tuple[Message, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ConfirmedRead, ...]
    snapshot: RaftSnapshot | None
    term: int

    @property
    def needs_sync(self) -> bool:
        """Whether something has to reach the disk."""
        return self.hard_state is not None or bool(self.entries)


class RaftReplica:
    """See the module.

    boot: the number of this start of the server, larger than all before on its disk. is_recovering: the log
    that was found on disk may lack what this replica acknowledged. A hard state whose vote is UNKNOWN_VOTE
    has a term that is at least every term in which this replica acknowledged anything.
    """

    def __init__(
        self,
        name: ReplicaId,
        log: RaftLog,
        hard_state: HardState,
        options: RaftOptions,
        random: Callable[[], float],
        now: int,
        *,
        boot: int = 1,
        is_recovering: bool = False,
    ) -> None:
        assert log.last_term <= hard_state.term, "entries of a term that the hard state has not reached"
        self.name = name
        self.log = log
        self._options = options
        self._random = random
        self._boot = boot
        self.is_recovering = is_recovering
        self._recovered_index: int | None = None
        self.term = hard_state.term
        self._vote = hard_state.vote
        self._hard_state = self._handed = self._durable = hard_state
        self.role = Role.FOLLOWER
        self.leader: ReplicaId | None = None
        self._leader_heard = now
        self._matched = 0
        """The last entry that is known to agree with the leader of this term."""
        self._told = 0
        """What the leader of this term said to commit: everything up to there that is on this disk."""
        self._known_commit: int | None = None
        """The last index that the leader of this term said to be committed, an entry of this term."""
        self.is_quiesced = False
        self.lowered_quorum = 0
        """How many voters decide while a rescue is in force; 0 = a majority."""
        self._down: set[ReplicaId] = set()
        self._votes: dict[ReplicaId, bool] = {}
        self.leadership: Leadership | None = None
        self._installing: RaftSnapshot | None = None
        self._snapshot_to_hand: RaftSnapshot | None = None
        self._outbox: list[Message] = []
        self._reads: list[ConfirmedRead] = []
        self._election_at = self._jitter_ns = 0
        self._restart_election_timer(now)

    # --- state

    @property
    def hard_state(self) -> HardState:
        kept = self._hard_state
        if kept.term != self.term or kept.vote != self._vote:
            kept = self._hard_state = HardState(self.term, self._vote)
        return kept

    @property
    def known_commit(self) -> int | None:
        """The commit index, as the leader has it, when it last said so and all of it was here. None: there is
        no leader, or it has not said so yet. A replica that was away, or has just started, learns here what
        it lacks: its own commit index may be far behind.

        The leader has committed an entry of its term by then. Before, its commit index may be behind what the
        leader before it acknowledged."""
        if self.leadership is not None:
            return self.log.commit_index if self.leadership.has_committed_its_term else None
        return self._known_commit if self.leader is not None else None

    @property
    def deadline(self) -> int | None:
        """When tick() has something to do; None while the group is idle."""
        if self.leadership is not None:
            return self.leadership.deadline
        return None if self.is_quiesced else self._election_at

    @property
    def _may_campaign(self) -> bool:
        """A recovering replica may not have all it acknowledged; one that takes a snapshot does not have the
        log it claims; a learner or a removed one has no majority to ask."""
        return self.name in self.log.membership.voters and not self.is_recovering and self._installing is None

    def _hears_leader(self, now: int) -> bool:
        """Whether the leader of this term has shown itself lately, so that a vote would only disturb."""
        if self.role is Role.LEADER:
            return True
        if self.leader is None or self.leader in self._down:
            return False
        return self.is_quiesced or now < self._leader_heard + self._options.election_timeout_ns

    def _restart_election_timer(self, now: int) -> None:
        self._jitter_ns = int(self._random() * self._options.election_jitter_ns)
        self._election_at = now + self._options.election_timeout_ns + self._jitter_ns

    def _send(self, message: Message) -> None:
        assert message.to != self.name
        self._outbox.append(message)

    # --- roles

    def _become(self, role: Role) -> None:
        assert role in TRANSITIONS[self.role], f"{self.role} cannot become {role}"
        self.role = role
        self.leadership = None
        self._votes = {}

    def _follow(self, term: int, leader: ReplicaId | None, now: int) -> None:
        assert term >= self.term, "terms never fall"
        if self.role is not Role.FOLLOWER or term != self.term:
            self._restart_election_timer(now)
        self._become(Role.FOLLOWER)
        if term != self.term or leader != self.leader:
            self._matched = self._told = 0
            self._known_commit = None
            self._recovered_index = None  # it may name what an earlier leader proposed, and is lost
        if term != self.term:
            self.term, self._vote = term, NO_VOTE
        self.leader = leader
        self.is_quiesced = False

    def _campaign_first(self, now: int) -> None:
        """Asks whether an election could be won. Nothing changes for the others."""
        self._become(Role.PRE_CANDIDATE)
        self.leader = None
        self.is_quiesced = False
        self._restart_election_timer(now)
        self._note_vote(self.name, True, now)
        self._ask(lambda to, index, term: PreVote(self.name, to, self.term + 1, index, term))

    def _campaign(self, now: int, *, is_transfer: bool = False) -> None:
        """Stands for election in a new term. Its own vote counts like the others': on disk before it is
        known, for VOTE leaves after the sync, and so does what it wins by."""
        self._become(Role.CANDIDATE)
        self.term += 1
        self._vote = self.name
        self.leader = None
        self.is_quiesced = False
        self._matched = self._told = 0
        self._restart_election_timer(now)
        self._ask(lambda to, index, term: Vote(self.name, to, self.term, index, term, is_transfer))

    def _ask(self, message: Callable[[ReplicaId, int, int], Message]) -> None:
        for voter in self.log.membership.voters:
            if voter != self.name:
                self._send(message(voter, self.log.last_index, self.log.last_term))

    def _note_vote(self, voter: ReplicaId, is_granted: bool, now: int) -> None:
        self._votes.setdefault(voter, is_granted)
        membership = self.log.membership
        granting = {one for one, granted in self._votes.items() if granted}
        if membership.is_quorum(granting, self.lowered_quorum):
            if self.role is Role.PRE_CANDIDATE:
                self._campaign(now)
            else:
                self._lead(now)
        elif membership.is_quorum({one for one, granted in self._votes.items() if not granted}):
            self._follow(self.term, None, now)

    def _lead(self, now: int) -> None:
        assert self._durable == self.hard_state, "its own vote is not on disk"
        self._become(Role.LEADER)
        self.leader = self.name
        self.leadership = Leadership(
            self.name, self.term, self.log, self._options, self._send, now, self._down, self.lowered_quorum
        )

    def _campaign_if_due(self, now: int) -> None:
        if now < self._election_at:
            return
        if self._may_campaign:
            self._campaign_first(now)
        else:
            self._restart_election_timer(now)
            if self.leader is not None and not self._hears_leader(now):
                self.leader = None

    # --- input

    def step(self, message: Message, now: int) -> None:
        """Takes a message of another replica of the group."""
        assert message.to == self.name, "a message for another replica"
        if not self._accepts_term(message, now):
            return
        handler = _HANDLERS[self.role].get(type(message))
        if handler is not None:
            handler(self, message, now)

    def _accepts_term(self, message: Message, now: int) -> bool:
        """Brings the term up to the message's. Returns whether the message is of this term."""
        rule = RULES[type(message)]
        if isinstance(message, PreVote):
            return True
        if isinstance(message, PreVoteReply):
            if not message.is_granted and message.term > self.term:
                self._follow(message.term, None, now)
            return message.is_granted or message.term == self.term
        if message.term < self.term:
            self._answer_the_past(message, is_from_leader=rule.is_from_leader)
            return False
        if message.term > self.term:
            if isinstance(message, Vote) and self._hears_leader(now) and not message.is_transfer:
                return False  # the leader works: its term is not raised by a member that does not hear it
            self._follow(message.term, message.sender if rule.is_from_leader else None, now)
        return True

    def _answer_the_past(self, message: Message, *, is_from_leader: bool) -> None:
        if is_from_leader:
            # A deposed leader does not hear votes. This reply's term shows it, and lets it learn of the next.
            reply = AppendReply(
                self.name, message.sender, self.term, 0, True, self.log.last_index, 0, self._boot
            )
            self._send(reply)
        elif isinstance(message, Vote):
            self._send(VoteReply(self.name, message.sender, self.term, False))

    def tick(self, now: int) -> None:
        """Does what is due. Call it at `deadline`, or more often."""
        lead = self.leadership
        if lead is None:
            if not self.is_quiesced:
                self._campaign_if_due(now)
            return
        if now >= lead.check_quorum_at and not lead.is_quiesced:
            if not lead.has_quorum():
                self._follow(self.term, None, now)
                return
            lead.restart_quorum_check(now)
        lead.end_transfer_if_due(now)
        lead.heartbeat_if_due(now)

    def stand(self, now: int) -> None:
        """Stands for election at the next tick, unless this replica may not or hears a leader."""
        if self.leadership is None and self._may_campaign and not self._hears_leader(now):
            self.is_quiesced = False
            self._election_at = now

    def rescue(self, quorum: int, now: int) -> RescueProblem | None:
        """Lets so many voters decide until end_rescue(), and stands for election. Only for a group that has
        lost its majority for good; see the module. None: it is in force."""
        problem = self._rescue_problem(quorum)
        if problem is None:
            self.lowered_quorum = quorum
            self.stand(now)
        return problem

    def _rescue_problem(self, quorum: int) -> RescueProblem | None:
        if not 1 <= quorum <= self.quorum_needed:
            return RescueProblem.BAD_QUORUM
        if self.leader is not None:
            return RescueProblem.LEADER_KNOWN
        if not self._may_campaign:
            return RescueProblem.NOT_VOTING
        if not self.log.last_index:
            return RescueProblem.EMPTY_LOG  # those that are lost have everything
        return None

    def end_rescue(self, now: int) -> None:
        """A majority decides again."""
        self.lowered_quorum = 0
        if self.leadership is not None:
            self.leadership.require_majority(now)

    @property
    def quorum_needed(self) -> int:
        """How many voters decide."""
        return self.log.membership.quorum(self.lowered_quorum)

    def propose(self, commands: list[bytes], now: int) -> int:
        """Proposes an entry for each of the commands. Returns the index of the first one; 0 when this replica
        does not lead, hands over, or has too much that is not committed. Whether an entry commits shows when
        `committed` has one at its index: with its term, or another one in its place."""
        if self.leadership is None or not commands:
            return 0
        return self.leadership.propose(commands, now)

    def change_membership(self, kind: ChangeKind, member: ReplicaId, now: int) -> ChangeResult:
        """Proposes a change of the membership."""
        if self.leadership is None:
            return ChangeResult.NOT_LEADING
        result = self.leadership.change(kind, member, now)
        self._step_down_if_removed(now)
        return result

    def read_index(self, context: int) -> bool:
        """Requests a confirmed read (Ready.reads). Returns False when this replica does not lead. A request
        that is not confirmed when the leadership ends never will be."""
        if self.leadership is None:
            return False
        self.leadership.read(context)
        return True

    def transfer(self, to: ReplicaId, now: int) -> bool:
        """Begins to hand the leadership over. Returns False when that is impossible."""
        return self.leadership is not None and self.leadership.transfer(to, now)

    def peer_down(self, name: ReplicaId, now: int) -> None:
        """The server of a member does not answer, or it started again: it leads no more. The election
        follows at a random time, so that the groups of a server, and the members of one, do not collide."""
        self._down.add(name)
        if self.leadership is not None:
            self.leadership.peer_changed(name, is_down=True, now=now)
        elif self.leader == name:
            self._follow(self.term, None, now)
            self._election_at = now + int(self._random() * self._options.election_jitter_ns)

    def peer_up(self, name: ReplicaId, now: int) -> None:
        """The server of a member answers again."""
        self._down.discard(name)
        if self.leadership is not None:
            self.leadership.peer_changed(name, is_down=False, now=now)

    # --- votes

    def _pre_vote(self, message: PreVote, now: int) -> None:
        if message.sender == self.leader and message.term > self.term:
            # It asks for a term after the one that it led: it leads no more. A member that lost its log and
            # answered with a later term deposed it, and nothing else tells the followers of an idle group.
            self._follow(self.term, None, now)
        if self._hears_leader(now):
            if self.leadership is not None:
                self.leadership.wake(now)  # the sender does not hear the leader, which may be quiesced
            return
        granted = (
            message.term > self.term
            and not self.is_recovering
            and self.log.is_up_to_date(message.last_index, message.last_term)
        )
        term = message.term if granted else self.term
        self._send(PreVoteReply(self.name, message.sender, term, granted))

    def _pre_voted(self, message: PreVoteReply, now: int) -> None:
        if not message.is_granted or message.term == self.term + 1:
            self._note_vote(message.sender, message.is_granted, now)

    def _vote_asked(self, message: Vote, now: int) -> None:
        is_free = self._vote == message.sender or (self._vote == NO_VOTE and self.leader is None)
        granted = (
            is_free
            and not self.is_recovering
            and self.log.is_up_to_date(message.last_index, message.last_term)
        )
        if granted:
            self._vote = message.sender
            self.is_quiesced = False
            self._restart_election_timer(now)
        self._send(VoteReply(self.name, message.sender, self.term, granted))

    def _voted(self, message: VoteReply, now: int) -> None:
        self._note_vote(message.sender, message.is_granted, now)

    def _timeout_now(self, message: TimeoutNow, now: int) -> None:
        if self._may_campaign:
            self._campaign(now, is_transfer=True)

    def _note_own_vote(self, now: int) -> None:
        """Counts the own vote once it is on disk."""
        if self.role is Role.CANDIDATE and self._durable == self.hard_state and self.name not in self._votes:
            self._note_vote(self.name, True, now)

    # --- following

    def _heard_leader(self, leader: ReplicaId, now: int) -> None:
        assert self.role is not Role.LEADER, "two leaders in one term"
        if self.leader != leader or self.role is not Role.FOLLOWER:
            assert self.leader in (None, leader), "two leaders in one term"
            self._follow(self.term, leader, now)
            self._restart_election_timer(now)
        self._leader_heard = now
        self._down.discard(leader)
        self._election_at = now + self._options.election_timeout_ns + self._jitter_ns

    def _append(self, message: Append, now: int) -> None:
        self._heard_leader(message.sender, now)
        self.is_quiesced = False
        if self._installing is not None:
            return  # the log's place is given up for the snapshot's
        prev, entries, log = message.prev_index, message.entries, self.log
        if prev < log.commit_index:  # a late message, or a leader that does not know yet what is here
            entries = entries[log.commit_index - prev :]
            prev = log.commit_index
        elif log.term_at(prev) != message.prev_term:
            index, term = log.last_agreement(prev, message.prev_term)
            self._reply_append(message.sender, prev, is_rejected=True, hint=(index, term))
            return
        agreed = log.merge(prev, entries)
        self._matched = max(self._matched, agreed)
        self._told = max(self._told, min(message.commit, agreed))
        self._commit_told()
        self._reply_append(message.sender, agreed)
        self._ask_to_recover()

    def _commit_told(self) -> None:
        """Commits what the leader said, as far as it is on this disk: that is its condition (Append). A part
        of it ends with an entry of the leader's term, as older ones may be committed with such a one only."""
        log = self.log
        index = min(self._told, log.durable_index)
        if index > log.commit_index and (index == self._told or log.term_at(index) == self.term):
            log.commit(index)

    def _reply_append(
        self, to: ReplicaId, index: int, *, is_rejected: bool = False, hint: tuple[int, int] = (0, 0)
    ) -> None:
        self._send(AppendReply(self.name, to, self.term, index, is_rejected, *hint, self._boot))

    def _heartbeat(self, message: Heartbeat, now: int) -> None:
        self._heard_leader(message.sender, now)
        log = self.log
        has = max(self._matched, log.commit_index)  # in this term, or committed in an earlier one
        if message.commit <= has:
            log.commit(max(log.commit_index, message.commit))
            if log.term_at(message.commit) == self.term:
                self._known_commit = message.commit
        has_all = has == log.last_index == log.commit_index == message.commit
        self.is_quiesced = message.quiesce and has_all and not self.is_recovering
        reply = HeartbeatReply(
            self.name, message.sender, self.term, message.round, has, min(has, log.durable_index),
            self.is_quiesced, self._installing is not None, self._boot,
        )  # fmt: skip
        self._send(reply)
        self._ask_to_recover()

    def _install_snapshot(self, message: InstallSnapshot, now: int) -> None:
        self._heard_leader(message.sender, now)
        self.is_quiesced = False
        snapshot, log = message.snapshot, self.log
        if self._installing is not None:
            return
        if snapshot.index <= log.commit_index or log.term_at(snapshot.index) == snapshot.term:
            # Everything up to there is here, and agrees with the leader.
            self._matched = max(self._matched, snapshot.index, log.commit_index)
            log.commit(max(log.commit_index, snapshot.index))
            self._reply_append(message.sender, self._matched)
            return
        self._installing = self._snapshot_to_hand = snapshot

    def snapshot_installed(self, snapshot: RaftSnapshot, now: int) -> None:
        """The state machine has the state of the snapshot on disk, and so has the write-ahead log its index,
        term and membership: nothing before it is needed."""
        if snapshot != self._installing:
            return
        self._installing = None
        self.log.restore(snapshot)
        if self.leader is not None and self.role is Role.FOLLOWER:
            self._matched = max(self._matched, snapshot.index)
            self._reply_append(self.leader, snapshot.index)

    def snapshot_failed(self, snapshot: RaftSnapshot) -> None:
        """The state could not be taken. The leader offers it again when the next heartbeat is answered."""
        if snapshot == self._installing:
            self._installing = None

    # --- recovering

    def _ask_to_recover(self) -> None:
        if self.is_recovering and self._recovered_index is None and self.leader is not None:
            self._send(Recover(self.name, self.leader, self.term, self._boot))

    def _recover_replied(self, message: RecoverReply, now: int) -> None:
        if self.is_recovering and message.boot == self._boot and self._recovered_index is None:
            self._recovered_index = message.commit
            self._end_recovery()

    def _end_recovery(self) -> None:
        """Ends when all that may have been committed with this replica's help is on its disk again."""
        if self._recovered_index is not None:
            has = min(max(self._matched, self.log.commit_index), self.log.durable_index)
            if has >= self._recovered_index:
                self.is_recovering, self._recovered_index = False, None

    # --- leading

    def _append_replied(self, message: AppendReply, now: int) -> None:
        assert self.leadership is not None
        self.leadership.append_replied(message, now)
        self._step_down_if_removed(now)

    def _heartbeat_replied(self, message: HeartbeatReply, now: int) -> None:
        assert self.leadership is not None
        self.leadership.heartbeat_replied(message, now)
        self._step_down_if_removed(now)

    def _recover_asked(self, message: Recover, now: int) -> None:
        assert self.leadership is not None
        self.leadership.wake(now)
        self.leadership.recover(message)

    def _step_down_if_removed(self, now: int) -> None:
        if self.leadership is not None and self.leadership.is_removed:
            self.leadership.hand_over()
            self._follow(self.term, None, now)

    # --- output

    def ready(self, now: int) -> Ready | None:
        """What there is to do; None when nothing. What it returns counts as handed over."""
        lead = self.leadership
        if lead is not None:
            lead.heartbeat_if_due(now)
            lead.flush()
            self._reads += lead.take_reads()
        now_hard = self.hard_state
        hard_state = None if now_hard is self._handed or now_hard == self._handed else now_hard
        if hard_state is None and self._nothing_to_do():
            return None
        self._handed = now_hard
        entries = self.log.take_unsaved()
        outbox, self._outbox = self._outbox, []
        # A message shows its term: if that is not on disk yet, the message must not be seen before it is.
        is_new_term = self._durable.term != self.term
        messages: list[Message] = []
        after_sync: list[Message] = []
        for one in outbox:
            waits = is_new_term or RULES[type(one)].after_sync
            (after_sync if waits else messages).append(one)
        reads, self._reads = self._reads, []
        snapshot, self._snapshot_to_hand = self._snapshot_to_hand, None
        return Ready(
            hard_state,
            entries,
            tuple(messages),
            tuple(after_sync),
            self.log.take_committed(self._options.committed_bytes_max),
            tuple(reads),
            snapshot,
            self.term,
        )

    def _nothing_to_do(self) -> bool:
        log = self.log
        return (
            log.unsaved_index > log.last_index
            and not self._outbox
            and not self._reads
            and self._snapshot_to_hand is None
            and not log.has_committed
        )

    def synced(self, ready: Ready, now: int) -> None:
        """Everything of this Ready, and of those before it, is on disk."""
        if ready.hard_state is not None:
            assert ready.hard_state.term >= self._durable.term, "syncs end in order"
            self._durable = ready.hard_state
            self._note_own_vote(now)
        if ready.entries:
            self.log.synced(ready.entries[-1].index, ready.entries[-1].term)
            if self.leadership is not None:
                self.leadership.advance_commit()
                self._step_down_if_removed(now)
            else:
                self._commit_told()
        self._end_recovery()

    def compact(self, snapshot: RaftSnapshot, keep_from: int | None = None) -> None:
        """The state machine has the state of the snapshot on disk. Entries before `keep_from` are dropped;
        the default drops all up to the snapshot."""
        self.log.compact(snapshot, snapshot.index + 1 if keep_from is None else keep_from)


Handler = Callable[[RaftReplica, Any, int], None]

_ANY_ROLE: dict[type[Message], Handler] = {PreVote: RaftReplica._pre_vote, Vote: RaftReplica._vote_asked}
_NOT_LEADING: dict[type[Message], Handler] = {
    **_ANY_ROLE,
    Append: RaftReplica._append,
    Heartbeat: RaftReplica._heartbeat,
    InstallSnapshot: RaftReplica._install_snapshot,
}
_HANDLERS: dict[Role, dict[type[Message], Handler]] = {
    Role.FOLLOWER: {
        **_NOT_LEADING,
        TimeoutNow: RaftReplica._timeout_now,
        RecoverReply: RaftReplica._recover_replied,
    },
    Role.PRE_CANDIDATE: {**_NOT_LEADING, PreVoteReply: RaftReplica._pre_voted},
    Role.CANDIDATE: {**_NOT_LEADING, VoteReply: RaftReplica._voted},
    Role.LEADER: {
        **_ANY_ROLE,
        AppendReply: RaftReplica._append_replied,
        HeartbeatReply: RaftReplica._heartbeat_replied,
        Recover: RaftReplica._recover_asked,
    },
}
