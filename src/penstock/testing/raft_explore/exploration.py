"""The search through all states of a configuration, and the invariants that each must keep.

- election safety: one leader a term;
- log matching: entries with the same index and term are equal, and so is all before them;
- state machine safety: what is committed anywhere is a prefix of one history;
- leader completeness: a leader has everything that was committed in earlier terms;
- durability: what is committed is on the disks of a majority, and stays there;
- reads: a confirmed read sees everything that was committed when it was requested.

Messages that can never do anything again are removed from a state, so that states which differ only in them
are one: those of a term that the receiver has left for good, replies to a candidacy or leadership that is
over, and, while nothing on disk is lost, acknowledged appends and counted acknowledgements. The configuration
"late messages" removes none of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    Vote,
    VoteReply,
)
from penstock.raft.raft_replica import Role
from penstock.testing.raft_explore.local_states import (
    OPTIONS,
    SMALL_APPENDS,
    WRITE_FIRST,
    BrokenLocally,
    ExploredMember,
    Input,
    LocalFacts,
    LocalResult,
    LocalStates,
    SentMessage,
)

SYNCS_IN_FLIGHT_MAX = 2


@dataclass(frozen=True)
class ExploredGroup:
    """A configuration: who takes part, and how often what may happen.

    others: servers that may join. terms: the last term in which an election begins. logs: the terms of the
    entries that each voter's log starts with; nothing of them is committed. is_settled: the search begins
    with a leader of term 1 whose messages have all arrived, and do not arrive again. campaigners: who stands
    for election; "" = everybody. has_instant_sync: what a replica writes is on disk at once. knows_vote: a
    damage leaves the vote. has_small_appends: each
    entry has its own message. writes_first: entries leave after the leader's own disk has them.
    removes_dead_messages: see the module; False checks that they are dead.
    """

    name: str
    membership: Membership
    others: tuple[str, ...] = ()
    terms: int = 2
    proposals: int = 1
    crashes: int = 0
    damages: int = 0
    knows_vote: bool = True
    reads: int = 0
    compactions: int = 0
    changes: tuple[tuple[ChangeKind, str], ...] = ()
    timeouts: int = 0
    has_instant_sync: bool = True
    with_heartbeats: bool = False
    campaigners: str = ""
    logs: tuple[str, ...] = ()
    is_settled: bool = False
    has_small_appends: bool = False
    writes_first: bool = False
    removes_dead_messages: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.membership.members, *self.others)


class Budget(NamedTuple):
    """How often something happened."""

    proposals: int = 0
    crashes: int = 0
    damages: int = 0
    reads: int = 0
    compactions: int = 0
    changes: int = 0
    timeouts: int = 0


class GlobalState(NamedTuple):
    """The number of each replica's state, the messages that may arrive (bits), what happened, what was
    committed (a number), the leader of each term."""

    members: tuple[int, ...]
    sent: int
    spent: Budget
    history: int
    leaders: tuple[str, ...]


Committed: TypeAlias = tuple[tuple[int, bytes, int], ...]
"""(term, data, term in which it was committed) of each entry from index 1 on."""
Step: TypeAlias = tuple[str, Input]


class BrokenInvariant(Exception):
    """An invariant does not hold. trace: the shortest way there."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.trace: list[str] = []


class Explored(NamedTuple):
    """What a configuration has. is_complete: no bound on the number of states stopped the search."""

    states: int
    transitions: int
    local_states: int
    messages: int
    committed_max: int
    leaders: int
    is_complete: bool


class Exploration:
    """One search."""

    def __init__(self, group: ExploredGroup, *, states_max: int = 3_000_000) -> None:
        self.group = group
        self.names = group.names
        self._states_max = states_max
        ignored: tuple[type[Message], ...] = () if group.with_heartbeats else (Heartbeat, HeartbeatReply)
        self.local = LocalStates(ignored)
        self.local.on_message = self._note_message
        self._to = [0] * len(self.names)  # the messages to each member
        self._before: list[list[int]] = [[0] * (group.terms + 3) for _ in self.names]
        """Of each member and term: the messages to it of earlier terms."""
        self._replies: list[list[int]] = [[0] * (group.terms + 3) for _ in self.names]
        """Of each member and term: the replies to it of that term, but those to a pre-vote."""
        self._leads: dict[int, tuple[int, str]] = {}  # term and sender of messages that only a leader sends
        self._idle: dict[int, int] = {}  # messages that do nothing in a state
        self._dead: dict[int, int] = {}  # those of them that never will again
        self._histories: list[Committed] = [()]
        self._history_numbers: dict[Committed, int] = {(): 0}
        self._agree: set[tuple[int, int]] = set()
        self._requests = 0  # appends and votes
        self._answers: dict[tuple[int, int], int] = {}
        self._verdicts: dict[tuple[int, int], int] = {}
        self._on_disk: dict[tuple[int, int], int] = {}
        self._first: tuple[int, ...] = ()
        self._transitions = 0
        self._leaders: set[int] = set()

    def _note_message(self, bit: int, message: SentMessage) -> None:
        at, term = self.names.index(message.to), message.message.term
        self._to[at] |= 1 << bit
        for later in range(term + 1, len(self._before[at])):
            self._before[at][later] |= 1 << bit
        if isinstance(message.message, (VoteReply, AppendReply, HeartbeatReply)):
            self._replies[at][term] |= 1 << bit
        if isinstance(message.message, (Append, Vote)):
            self._requests |= 1 << bit
        if message.leads is not None:
            self._leads[bit] = message.leads

    def start(self) -> GlobalState:
        """The first state."""
        logs = self.group.logs or ("",) * len(self.names)
        results = [
            self.local.add(self._member(name, log)) for name, log in zip(self.names, logs, strict=True)
        ]
        self._first = tuple(one.state for one in results)
        leaders = ("",) * (self.group.terms + 3)
        first = GlobalState(tuple(one.state for one in results), 0, Budget(), 0, leaders)
        return self._settled(first) if self.group.is_settled else first

    def _member(self, name: str, log: str) -> ExploredMember:
        group = self.group
        options = SMALL_APPENDS if group.has_small_appends else OPTIONS
        if group.writes_first:
            options = WRITE_FIRST
        return ExploredMember(
            name, group.membership, has_instant_sync=group.has_instant_sync,
            first_term=max(map(int, "".join(group.logs)), default=0), entry_terms=log,
            options=options,
        )  # fmt: skip

    def _settled(self, state: GlobalState) -> GlobalState:
        """The first server leads, and every message has arrived."""
        state = self._after(
            state, 0, ("campaign",), self._result("a", state.members[0], ("campaign",)), Budget()
        )
        arrived = True
        while arrived:
            new = next((new for step, new in self._successors(state) if step[1][0] == "deliver"), None)
            state, arrived = new or state, new is not None
        self._first = ()  # the members are not alike any more
        return state._replace(sent=0)

    def run(self, *, with_trace: bool = True) -> Explored:
        """Visits every state. Raises BrokenInvariant, by default with the shortest trace, which takes another
        search: the parents of millions of states do not fit in memory."""
        was_enabled = gc.isenabled()
        gc.disable()  # millions of tuples without cycles: collecting them takes half of the time
        try:
            return self._search(None)
        except BrokenInvariant:
            if not with_trace:
                raise
            parents: dict[GlobalState, tuple[GlobalState, Step]] = {}
            Exploration(self.group, states_max=self._states_max)._search(parents)
            raise
        finally:
            if was_enabled:
                gc.enable()

    def _search(self, parents: dict[GlobalState, tuple[GlobalState, Step]] | None) -> Explored:
        start = self.start()
        seen, frontier = {start}, [start]
        while frontier and len(seen) < self._states_max:
            next_frontier: list[GlobalState] = []
            for state in frontier:
                try:
                    for step, new in self._successors(state):
                        self._transitions += 1
                        if new not in seen:
                            seen.add(new)
                            next_frontier.append(new)
                            if parents is not None:
                                parents[new] = (state, step)
                except BrokenInvariant as violation:
                    if parents is not None:
                        violation.trace[:0] = self._trace(parents, state)
                    raise
            frontier = next_frontier
        committed = max(len(one) for one in self._histories)
        counts = (len(seen), self._transitions, self.local.count, len(self.local.messages))
        return Explored(*counts, committed, len(self._leaders), not frontier)

    def _trace(self, parents: dict[GlobalState, tuple[GlobalState, Step]], state: GlobalState) -> list[str]:
        steps: list[str] = []
        while state in parents:
            state, step = parents[state]
            steps.append(self.describe(step))
        return steps[::-1]

    def describe(self, step: Step) -> str:
        """A step as text."""
        name, action = step
        what = [str(one) for one in action]
        if action[0] == "deliver":
            what = ["gets", str(self.local.messages[action[1]].message)]
        return f"{name} {' '.join(what)}"

    # --- what may happen

    def _successors(self, state: GlobalState) -> Iterator[tuple[Step, GlobalState]]:
        for at, name in enumerate(self.names):
            local = state.members[at]
            facts = self.local.facts[local]
            for action, spent in self._actions(state, name, facts):
                result = self._result(name, local, action)
                yield (name, action), self._after(state, at, action, result, spent)
            if facts.waiting >= SYNCS_IN_FLIGHT_MAX:
                continue  # else a message that arrives again and again would add a sync each time
            arriving = state.sent & self._to[at] & ~self._idle.get(local, 0)
            while arriving:
                bit = arriving & -arriving
                arriving ^= bit
                action = ("deliver", bit.bit_length() - 1)
                result = self._result(name, local, action)
                if result.state == local and not result.out and not result.reads:
                    self._note_idle(local, bit)
                elif result.state != local or result.out & ~state.sent or result.reads:
                    yield (name, action), self._after(state, at, action, result, state.spent)

    def _note_idle(self, local: int, bit: int) -> None:
        """A message changes nothing and is not answered. An acknowledgement that a leader has counted does
        nothing for the rest of the leadership."""
        self._idle[local] = self._idle.get(local, 0) | bit
        message = self.local.messages[bit.bit_length() - 1].message
        facts = self.local.facts[local]
        is_counted = isinstance(message, AppendReply) and not message.is_rejected
        if is_counted and facts.role is Role.LEADER and not self.group.damages:
            self._dead[local] = self._dead.get(local, 0) | bit

    def _alive(self, members: tuple[int, ...], sent: int) -> int:
        """The messages that may still do something."""
        if not self.group.removes_dead_messages:
            return sent
        dead = 0
        for at, local in enumerate(members):
            facts = self.local.facts[local]
            dead |= self._before[at][facts.disk_term]
            if facts.role is Role.FOLLOWER:
                dead |= self._replies[at][facts.disk_term]
            dead |= self._dead.get(local, 0)
        alive = sent & ~dead
        if not self.group.damages:
            for at, local in enumerate(members):
                requests = alive & self._requests & self._to[at]
                while requests:
                    bit = requests & -requests
                    requests ^= bit
                    if not self._answer(at, local, bit) & ~(alive | dead):
                        alive ^= bit
        return alive

    def _answer(self, at: int, local: int, bit: int) -> int:
        """What a replica answers to a request that changes nothing for the rest of the term; -1 when it may
        still change something."""
        found = self._answers.get((local, bit))
        if found is None:
            number = bit.bit_length() - 1
            message, facts = self.local.messages[number].message, self.local.facts[local]
            result = self._result(self.names[at], local, ("deliver", number))
            found = -1
            if result.state == local and facts.disk_term == message.term and not facts.waiting:
                if isinstance(message, Append):
                    last = message.prev_index + len(message.entries)
                    is_settled = facts.role is Role.FOLLOWER and facts.durable_end >= last
                else:
                    is_settled = facts.has_voted
                found = result.out if is_settled else -1
            self._answers[local, bit] = found
        return found

    def _result(self, name: str, local: int, action: Input) -> LocalResult:
        try:
            return self.local.result(local, action)
        except BrokenLocally as broken:
            violation = BrokenInvariant("assertion", str(broken))
            violation.trace.append(self.describe((name, action)))
            raise violation from broken

    def _actions(self, state: GlobalState, name: str, facts: LocalFacts) -> Iterator[tuple[Input, Budget]]:
        group, spent = self.group, state.spent
        # The members are alike: the first election may as well be a certain one's.
        is_first = state.members == self._first and not group.logs
        campaigners = group.campaigners or self.names
        may_campaign = name in campaigners and (not is_first or name == campaigners[0])
        if facts.role is Role.FOLLOWER and facts.term < group.terms and may_campaign:
            yield ("campaign",), spent
        if spent.timeouts < group.timeouts and facts.term < group.terms:
            yield ("time_out",), spent._replace(timeouts=spent.timeouts + 1)
        if facts.role is Role.LEADER:
            if spent.proposals < group.proposals:
                data = b"%d" % spent.proposals
                yield ("propose", data), spent._replace(proposals=spent.proposals + 1)
            if spent.reads < group.reads:
                committed = len(self._histories[state.history])
                yield ("read", committed), spent._replace(reads=spent.reads + 1)
            for i, (kind, member) in enumerate(group.changes):
                if not spent.changes & 1 << i:
                    yield ("change", kind, member), spent._replace(changes=spent.changes | 1 << i)
        if facts.waiting:
            yield ("sync", 1), spent
        if spent.crashes < group.crashes:
            for kept in range(facts.waiting + 1):
                yield ("crash", kept), spent._replace(crashes=spent.crashes + 1)
        if spent.damages < group.damages:
            for kept in range(facts.disk_entries + (0 if group.knows_vote else 1)):
                more = spent._replace(damages=spent.damages + 1)
                yield ("damage_known" if group.knows_vote else "damage_unknown", kept), more
        if spent.compactions < group.compactions and facts.applied > facts.base:
            yield ("compact",), spent._replace(compactions=spent.compactions + 1)

    # --- invariants

    def _after(
        self, state: GlobalState, at: int, action: Input, result: LocalResult, spent: Budget
    ) -> GlobalState:
        members = (*state.members[:at], result.state, *state.members[at + 1 :])
        leaders, history = state.leaders, state.history
        try:
            if result.out & ~state.sent:
                leaders = self._checked_leaders(leaders, result.out)
            if result.state != state.members[at]:
                history = self._checked_history(state, members, at)
            for context, index in result.reads:
                if index < context:
                    raise BrokenInvariant("reads", f"a read sees {index} of {context} committed entries")
        except BrokenInvariant as violation:
            violation.trace.append(self.describe((self.names[at], action)))
            raise
        return GlobalState(members, self._alive(members, state.sent | result.out), spent, history, leaders)

    def _checked_leaders(self, leaders: tuple[str, ...], out: int) -> tuple[str, ...]:
        while out:
            bit = out.bit_length() - 1
            out ^= 1 << bit
            term, sender = self._leads.get(bit, (0, ""))
            if leaders[term] not in ("", sender) and sender:
                raise BrokenInvariant("election safety", f"{leaders[term]} and {sender} lead in term {term}")
            if sender and not leaders[term]:
                leaders = (*leaders[:term], sender, *leaders[term + 1 :])
        return leaders

    def _checked_history(self, state: GlobalState, members: tuple[int, ...], at: int) -> int:
        facts = self.local.facts[members[at]]
        for other in members:
            if (members[at], other) not in self._agree:
                self._check_logs(facts, self.local.facts[other])
                self._agree |= {(members[at], other), (other, members[at])}
        number = self._verdicts.get((state.history, members[at]))
        if number is None:
            history = self._extended(self._histories[state.history], facts)
            if facts.role is Role.LEADER:
                self._leaders.add(members[at])
                self._check_completeness(history, facts)
            number = self._history_numbers.setdefault(history, len(self._histories))
            if number == len(self._histories):
                self._histories.append(history)
            self._verdicts[state.history, members[at]] = number
        if not self.group.damages and not self.group.changes:
            self._check_durability(number, members)
        return number

    @staticmethod
    def _check_logs(one: LocalFacts, other: LocalFacts) -> None:
        base = max(one.base, other.base)
        pairs = list(zip(one.log[base - one.base :], other.log[base - other.base :], strict=False))
        matching = [i for i, (a, b) in enumerate(pairs) if a[0] == b[0]]
        if matching and any(a != b for a, b in pairs[: matching[-1] + 1]):
            raise BrokenInvariant("log matching", f"{one.log} and {other.log} after {base}")

    @staticmethod
    def _extended(history: Committed, facts: LocalFacts) -> Committed:
        """What was committed, with what this replica adds."""
        for index in range(facts.base + 1, facts.commit + 1):
            term, data = facts.log[index - facts.base - 1]
            if index <= len(history):
                if history[index - 1][:2] != (term, data):
                    raise BrokenInvariant(
                        "state machine safety", f"{index} is {data!r} and {history[index - 1]}"
                    )
            else:
                history = (*history, (term, data, facts.term))
        return history

    @staticmethod
    def _check_completeness(history: Committed, facts: LocalFacts) -> None:
        for at, (term, data, committed_in) in enumerate(history):
            index = at + 1
            if committed_in < facts.term and index > facts.base:
                entry = facts.log[index - facts.base - 1] if index - facts.base <= len(facts.log) else None
                if entry != (term, data):
                    raise BrokenInvariant(
                        "leader completeness", f"leader of {facts.term} lacks {index}: {data!r}"
                    )

    def _check_durability(self, number: int, members: tuple[int, ...]) -> None:
        history = self._histories[number]
        on_disk = [self._on_disk_of(number, local) for local in members[: len(self.group.membership.voters)]]
        reached = sorted(on_disk, reverse=True)[len(on_disk) // 2]
        if reached < len(history):
            raise BrokenInvariant(
                "durability", f"{len(history)} are committed, {reached} on a majority's disks"
            )

    def _on_disk_of(self, number: int, local: int) -> int:
        """How many of the committed entries a replica has on disk."""
        found = self._on_disk.get((number, local))
        if found is None:
            facts = self.local.facts[local]
            found = facts.base
            for term, data, _ in self._histories[number][facts.base : facts.durable_end]:
                if facts.log[found - facts.base] != (term, data):
                    break
                found += 1
            self._on_disk[number, local] = found
        return found
