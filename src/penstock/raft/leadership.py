"""What a replica knows and does while it leads: replication, commit, membership, reads, transfer, quiescence.

The object lives for one term: elected, it begins with nothing known of the others; deposed, it is dropped
with all that depends on having led, so nothing of an older term can leak into a later one.

Rules kept here, with their reasons:
- Only an entry of this term commits by count (Raft paper, 5.4.2): an older one on a majority can still be
  replaced by a leader that does not have it. What precedes a committed entry is committed with it.
- The leader counts itself for what its own disk has, like any other voter.
- A read is confirmed by a majority's answers to a heartbeat that left after the read came in, and only
  after an entry of this term is committed: before, the commit index may be behind what an earlier leader
  acknowledged (thesis, 6.4).
- A membership changes only after the one before is committed and an entry of this term is (thesis, erratum).
- A member that lost its log counts again only from zero: `recover()` forgets its acknowledgements before it
  answers with the commit index.
- Where the leader and one member are a majority, an entry of this term on the leader's disk is committed once
  it is on the member's disk, too. The leader says so with the entry (`_commit_for`), and no further message
  about the commit has to follow. The promise relies on the leader's own disk only: what another member
  acknowledged may be forgotten again. The member may act on it before the leader knows, so reads and
  `recover()` take everything that was promised for committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from penstock.raft.membership import ChangeKind
from penstock.raft.peer_progress import PeerProgress, ProgressState
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Recover,
    RecoverReply,
    ReplicaId,
    TimeoutNow,
    size_of_entries,
)
from penstock.raft.raft_options import RaftOptions


class ChangeResult(Enum):
    """The answer to a change of the membership. Only PROPOSED did anything."""

    PROPOSED = "proposed"
    NOT_LEADING = "this replica does not lead, or is handing over"
    TERM_NOT_COMMITTED = "the leader has not yet committed an entry of its term"
    CHANGE_PENDING = "another change is not committed yet"
    NOT_CAUGHT_UP = "the learner does not have the log yet"
    IMPOSSIBLE = "the members do not allow it"


@dataclass(frozen=True, slots=True)
class ConfirmedRead:
    """A read may run when `index` is applied. It sees everything acknowledged before it was requested."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class PendingRead:
    """Waits for a majority's answers to heartbeat `round`."""

    context: int
    index: int
    round: int


class Leadership:
    """See the module. `send` takes the messages."""

    def __init__(
        self,
        name: ReplicaId,
        term: int,
        log: RaftLog,
        options: RaftOptions,
        send: Callable[[Message], None],
        now: int,
        down: Collection[ReplicaId] = (),
        lowered_quorum: int = 0,
    ) -> None:
        self._name = name
        self._term = term
        self._log = log
        self._options = options
        self._send = send
        self._down = down
        self._lowered_quorum = lowered_quorum
        self.peers: dict[ReplicaId, PeerProgress] = {}
        self._round = 0
        self._pending_reads: list[PendingRead] = []
        self._early_reads: list[int] = []  # before an entry of this term is committed
        self._confirmed_reads: list[ConfirmedRead] = []
        self.transfer_to: ReplicaId | None = None
        self._transfer_end = 0
        self._has_transferred = False
        self._awaits_own_disk = True
        self._disk_wait_end = 0
        self._promised = log.commit_index
        """The most that a member was told to commit."""
        self._released = 0
        """Entries up to there leave whether they are on this disk or not."""
        self.heartbeat_at = now
        self.check_quorum_at = now + options.election_timeout_ns
        self._last_work = now
        self.is_quiesced = False
        self.first_index = log.last_index + 1
        """The first entry of this term."""
        log.append([Entry(self.first_index, term, EntryKind.NOOP, b"")])
        self._uncommitted_bytes = size_of_entries(self._entries(log.commit_index + 1, log.last_index))
        self._sync_peers()

    def _entries(self, first: int, last: int) -> tuple[Entry, ...]:
        return self._log.entries_from(first, 1 << 62, last) if first <= last else ()

    def _sync_peers(self) -> None:
        """Applies the membership in force."""
        others = [one for one in self._log.membership.members if one != self._name]
        for name in others:
            if name not in self.peers:
                self.peers[name] = PeerProgress(self._log.last_index, is_down=name in self._down)
        for name in self.peers.keys() - set(others):
            del self.peers[name]

    @property
    def has_committed_its_term(self) -> bool:
        """Whether the commit index is one of this leadership."""
        return self._log.commit_index >= self.first_index

    # --- proposals

    def propose(self, commands: list[bytes], now: int) -> int:
        """Appends an entry for each of the commands. Returns the index of the first; 0 when refused."""
        if self.transfer_to is not None or self._uncommitted_bytes > self._options.uncommitted_bytes_max:
            return 0
        first = self._log.last_index + 1
        entries = [Entry(first + i, self._term, EntryKind.COMMANDS, one) for i, one in enumerate(commands)]
        self._append(entries, now)
        return first

    def _append(self, entries: list[Entry], now: int) -> None:
        self._log.append(entries)
        self._uncommitted_bytes += size_of_entries(entries)
        self.wake(now)

    def change(self, kind: ChangeKind, member: ReplicaId, now: int) -> ChangeResult:
        """Proposes a change of the membership. It is in force as soon as it is in the log."""
        refusal = self._change_refusal(kind, member)
        if refusal is not None:
            return refusal
        changed = self._log.membership.changed(kind, member)
        if changed is None:
            return ChangeResult.IMPOSSIBLE
        entry = Entry(self._log.last_index + 1, self._term, EntryKind.MEMBERSHIP, changed.encode())
        self._append([entry], now)
        self._sync_peers()
        self.advance_commit()
        return ChangeResult.PROPOSED

    def _change_refusal(self, kind: ChangeKind, member: ReplicaId) -> ChangeResult | None:
        if self.transfer_to is not None:
            return ChangeResult.NOT_LEADING
        if not self.has_committed_its_term:
            return ChangeResult.TERM_NOT_COMMITTED
        if self._log.membership_index > self._log.commit_index:
            return ChangeResult.CHANGE_PENDING
        is_learner = kind is ChangeKind.PROMOTE and member in self._log.membership.learners
        if is_learner and self.peers[member].match < self._log.commit_index:
            return ChangeResult.NOT_CAUGHT_UP  # as a voter it would delay commits by its whole catch-up
        return None

    # --- replication

    def flush(self) -> None:
        """Sends what the members lack: once a Ready, so that the entries of a tick share a message."""
        last = self._last_to_send()
        for name, peer in self.peers.items():
            if peer.next <= last or peer.commit_sent < self._log.commit_index or not peer.is_replicating:
                self._replicate(name, peer, last)
        if self.transfer_to is not None:
            self._transfer_if_ready()

    def _last_to_send(self) -> int:
        """The last entry that may leave now. A few bytes wait for this disk, but not while it may be broken:
        until the next heartbeat, and not at all when this leader hands over."""
        log = self._log
        last, durable, bytes_max = log.last_index, log.durable_index, self._options.write_first_bytes_max
        if durable >= last or not bytes_max or self.transfer_to is not None:
            return last
        entries = log.entries_from(durable + 1, bytes_max)
        is_few = entries[-1].index == last and size_of_entries(entries) <= bytes_max
        return max(durable, self._released) if is_few else last

    def _replicate(self, name: ReplicaId, peer: PeerProgress, last: int) -> None:
        log = self._log
        while peer.state is not ProgressState.SNAPSHOT and not peer.is_paused:
            prev_term = log.term_at(peer.next - 1)
            if prev_term is None:
                self._offer_snapshot(name, peer)
                return
            if peer.state is ProgressState.PROBE:
                has_more = peer.next <= log.last_index
            else:
                has_more = peer.next <= last and peer.bytes_in_flight < self._options.inflight_bytes_max
                if not has_more and peer.commit_sent >= log.commit_index:
                    return
            entries: tuple[Entry, ...] = ()
            if has_more:
                entries = log.entries_from(peer.next, self._options.append_bytes_max)
            commit = self._commit_for(name, peer.next - 1 + len(entries))
            self._send(Append(self._name, name, self._term, peer.next - 1, prev_term, entries, commit))
            peer.sent(entries, commit)

    def _commit_for(self, name: ReplicaId, last: int) -> int:
        """Up to where a member whose log goes up to `last` may commit what it has on disk; see the module."""
        log = self._log
        durable = log.durable_index
        if (
            durable <= log.commit_index
            or min(durable, last) < self.first_index  # entries of older terms do not commit by count
            or self._lowered_quorum  # the other side of a rescue may have committed something else
            or not log.membership.is_quorum((self._name, name))
        ):
            return log.commit_index
        self._promised = max(self._promised, durable)
        return durable

    def _offer_snapshot(self, name: ReplicaId, peer: PeerProgress) -> None:
        if peer.is_active:  # else the offer would be lost, and every heartbeat's answer finds out soon enough
            self._send(InstallSnapshot(self._name, name, self._term, self._log.snapshot))
            peer.snapshot_sent(self._log.snapshot.index)

    def append_replied(self, reply: AppendReply, now: int) -> None:
        """Handles a member's answer to appended entries."""
        peer = self.peers.get(reply.sender)
        if peer is None or reply.boot < peer.boot:
            return
        peer.note_active()
        if reply.is_rejected:
            index, _ = self._log.last_agreement(reply.hint_index, reply.hint_term)
            peer.rejected(reply.index, index + 1)
        else:
            assert reply.index <= self._log.last_index, "a member has more than its leader sent"
            if peer.acknowledged(reply.index):
                self._last_work = now
                if reply.index > self._log.commit_index:
                    self.advance_commit()

    def snapshot_refused(self, name: ReplicaId) -> None:
        """Handles a failed snapshot: the answer to the next heartbeat starts again."""
        peer = self.peers.get(name)
        if peer is not None and peer.state is ProgressState.SNAPSHOT:
            peer.lost()

    def advance_commit(self) -> bool:
        """Commits what a majority has on disk. Returns whether the commit index moved."""
        match = {name: peer.match for name, peer in self.peers.items()}
        match[self._name] = self._log.durable_index
        index = self._log.membership.quorum_value(match, self._lowered_quorum)
        if index <= self._log.commit_index or self._log.term_at(index) != self._term:
            return False
        self._uncommitted_bytes -= size_of_entries(self._entries(self._log.commit_index + 1, index))
        is_first = not self.has_committed_its_term
        self._log.commit(index)
        if is_first:
            self.heartbeat_at = 0  # at once: members serve reads when they know the commit index
        if self._pending_reads:
            self._confirm_reads()
        if is_first:
            early, self._early_reads = self._early_reads, []
            for context in early:
                self.read(context)
        return True

    @property
    def is_removed(self) -> bool:
        """Whether a committed change removed this replica: it leads until then, and not after."""
        log = self._log
        return self._name not in log.membership.voters and log.membership_index <= log.commit_index

    # --- heartbeats and reads

    def read(self, context: int) -> None:
        """Requests that a read be confirmed. Reads that come in before the next heartbeat share its round."""
        if not self.has_committed_its_term:
            self._early_reads.append(context)
        elif self._log.membership.is_quorum((self._name,), self._lowered_quorum):
            self._confirmed_reads.append(ConfirmedRead(context, self._log.commit_index))
        else:
            index = max(self._log.commit_index, self._promised)
            self._pending_reads.append(PendingRead(context, index, self._round + 1))

    def heartbeat_if_due(self, now: int) -> None:
        """Sends heartbeats when they are due, or when reads wait for them."""
        if self._pending_reads and self._pending_reads[-1].round > self._round:
            self.wake(now)
        elif self.is_quiesced or now < self.heartbeat_at:
            return
        self.heartbeat_at = now + self._options.heartbeat_interval_ns
        self._released = self._log.last_index
        self._round += 1
        quiesce = self._may_quiesce(now)
        commit = self._log.commit_index
        for name, peer in self.peers.items():
            peer.heartbeat_sent()
            self._send(Heartbeat(self._name, name, self._term, commit, self._round, quiesce))

    def heartbeat_replied(self, reply: HeartbeatReply, now: int) -> None:
        """Handles a member's answer to a heartbeat."""
        peer = self.peers.get(reply.sender)
        if peer is None or reply.boot < peer.boot:
            return
        peer.answered(reply.round)
        peer.set_quiesced(reply.is_quiesced)
        if reply.match > peer.match:
            self._last_work = now
            peer.acknowledged(reply.match)  # the reply to an append was lost
            self.advance_commit()
        elif reply.received < peer.expected and reply.round == self._round and not reply.is_installing:
            peer.lost()
        self._confirm_reads()
        if self._may_quiesce(now) and all(one.is_quiesced or one.is_down for one in self.peers.values()):
            self.is_quiesced = True

    def _confirm_reads(self) -> None:
        answered = {name: peer.round for name, peer in self.peers.items()} | {self._name: self._round}
        confirmed = self._log.membership.quorum_value(answered, self._lowered_quorum)
        commit, pending = self._log.commit_index, self._pending_reads
        while pending and pending[0].round <= confirmed and pending[0].index <= commit:
            one = pending.pop(0)
            self._confirmed_reads.append(ConfirmedRead(one.context, one.index))

    def take_reads(self) -> list[ConfirmedRead]:
        """The reads that were confirmed since the last call."""
        reads, self._confirmed_reads = self._confirmed_reads, []
        return reads

    def require_majority(self, now: int) -> None:
        """Ends a rescue. A leader that no majority answers steps down after an election timeout."""
        self._lowered_quorum = 0
        self.wake(now)

    def restart_quorum_check(self, now: int) -> None:
        """Records that a majority answered, and sets the next check one election timeout later."""
        self.check_quorum_at = now + self._options.election_timeout_ns

    def has_quorum(self) -> bool:
        """Whether a majority answered since the last call: without one, another leader may exist."""
        active = {name for name, peer in self.peers.items() if peer.take_active()} | {self._name}
        return self._log.membership.is_quorum(active, self._lowered_quorum)

    # --- quiescence

    def _may_quiesce(self, now: int) -> bool:
        """Whether nothing happened for a while, and every member whose server is there has everything."""
        last = self._log.last_index
        return (
            0 < self._options.quiesce_after_ns <= now - self._last_work
            and self._log.applied_index == last
            and self.transfer_to is None
            and not self._pending_reads
            and all(peer.match == last or peer.is_down for peer in self.peers.values())
        )

    def wake(self, now: int) -> None:
        """Resumes heartbeats, because there is work. The check of the quorum starts a new interval."""
        if self.is_quiesced:
            self.is_quiesced = False
            self.heartbeat_at = now
            self.restart_quorum_check(now)
        self._last_work = now

    def peer_changed(self, name: ReplicaId, *, is_down: bool, now: int) -> None:
        """Handles that a member's server is down, or up again."""
        if name in self.peers:
            self.peers[name].set_down(is_down)
            self.wake(now)

    # --- members that lost their log

    def recover(self, message: Recover) -> None:
        """Drops what a member acknowledged before it lost a part of its log, then sends it the commit index.
        Later commits count only what the member acknowledges from then on."""
        peer = self.peers.get(message.sender)
        if peer is None or message.boot < peer.boot:
            return
        if message.boot > peer.boot:
            peer.reset(message.boot, self._log.last_index + 1)
        if self.has_committed_its_term:  # before, the commit index may be too low; the member asks again
            commit = max(self._log.commit_index, self._promised)
            self._send(RecoverReply(self._name, message.sender, self._term, commit, message.boot))

    # --- transfer

    def transfer(self, to: ReplicaId, now: int) -> bool:
        """Begins to hand over to a voter. Proposals are refused until it leads or the time is over."""
        if to not in self.peers or to not in self._log.membership.voters:
            return False
        self.wake(now)
        self.transfer_to, self._has_transferred = to, False
        self._awaits_own_disk = True
        self._disk_wait_end = now + self._options.election_timeout_ns // 4
        self._transfer_end = now + self._options.election_timeout_ns
        return True

    def _transfer_if_ready(self) -> None:
        to = self.transfer_to
        if to is None or self._has_transferred or to not in self.peers:
            return
        # Everything is committed and handed out here: what this leader proposed, no other one answers.
        last = self._log.last_index
        is_handed_out = self._log.durable_index == last or not self._awaits_own_disk
        if self.peers[to].match == last == self._log.commit_index and is_handed_out:
            self._has_transferred = True
            self._send(TimeoutNow(self._name, to, self._term))

    def end_transfer_if_due(self, now: int) -> None:
        """Gives up a transfer that did not succeed in time: the group would refuse proposals for ever."""
        if self.transfer_to is not None and now >= self._disk_wait_end:
            self._awaits_own_disk = False  # it may not work, and be why this leader hands over
        if self.transfer_to is not None and now >= self._transfer_end:
            self.transfer_to = None

    def hand_over(self) -> None:
        """Asks the voter with the longest log to take over from this leader, which was removed: no timeout
        has to pass."""
        self.flush()
        voters = [one for one in self._log.membership.voters if one in self.peers]
        if voters:
            best = max(voters, key=lambda one: self.peers[one].match)
            self._send(TimeoutNow(self._name, best, self._term))

    @property
    def deadline(self) -> int | None:
        """When tick() has something to do; None while quiesced."""
        if self.is_quiesced:
            return None
        ends = [self._transfer_end] if self.transfer_to is not None else []
        return min(self.heartbeat_at, self.check_quorum_at, *ends)
