"""A Raft group in a test: replicas, their disks as values, and messages that arrive when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeVar

from penstock.raft.membership import Membership
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import Entry, EntryKind, HardState, Message, RaftSnapshot
from penstock.raft.raft_options import MILLISECOND_NS, RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready, Role

OPTIONS = RaftOptions(quiesce_after_ns=0)
ELECTION_NS = OPTIONS.election_timeout_ns
HEARTBEAT_NS = OPTIONS.heartbeat_interval_ns
KIND = TypeVar("KIND")


class Member:
    """A replica and what it has on disk. is_slow: syncs wait for sync()."""

    def __init__(self, name: str, snapshot: RaftSnapshot, options: RaftOptions, entries: list[Entry]) -> None:
        self.name = name
        self.options = options
        self.snapshot = snapshot
        self.hard_state = HardState(entries[-1].term if entries else snapshot.term)
        self.entries = list(entries)
        self.boot = 0
        self.is_slow = False
        self.waiting: list[Ready] = []
        self.applied: list[Entry] = []
        self.reads: list[tuple[int, int]] = []
        self.offered: list[RaftSnapshot] = []
        self.start(0)

    def start(self, now: int, *, is_recovering: bool = False) -> None:
        """Starts with what is on disk."""
        self.boot += 1
        self.waiting.clear()
        self.applied.clear()
        log = RaftLog(self.snapshot, self.entries)
        self.replica = RaftReplica(
            self.name, log, self.hard_state, self.options, Random(self.name).random, now,
            boot=self.boot, is_recovering=is_recovering,
        )  # fmt: skip

    def store(self, ready: Ready) -> None:
        """Writes and syncs."""
        self.hard_state = ready.hard_state or self.hard_state
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [one for one in self.entries if one.index < first] + list(ready.entries)


class RaftGroup:
    """Replicas on a network that delivers at once, but for what is cut or held back."""

    def __init__(
        self,
        voters: str,
        *,
        learners: str = "",
        options: RaftOptions = OPTIONS,
        logs: dict[str, str] | None = None,
    ) -> None:
        self.now = 0
        self.first = RaftSnapshot(0, 0, Membership(tuple(voters), tuple(learners)))
        self.members: dict[str, Member] = {}
        self.options = options
        for name in voters + learners:
            terms = (logs or {}).get(name, "")
            self.add(name, [entry(i + 1, int(term)) for i, term in enumerate(terms)])
        self.network: list[Message] = []
        self.sent: list[Message] = []
        self.cut: set[tuple[str, str]] = set()
        self.drop: Callable[[Message], bool] = lambda message: False

    def add(self, name: str, entries: list[Entry] | None = None) -> Member:
        """A member that knows the first membership and nothing else."""
        self.members[name] = Member(name, self.first, self.options, entries or [])
        return self.members[name]

    def __getitem__(self, name: str) -> RaftReplica:
        return self.members[name].replica

    def isolate(self, *names: str) -> None:
        """No messages between these members and the others."""
        for name in names:
            for other in set(self.members) - set(names):
                self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.cut.clear()

    def collect(self, member: Member) -> None:
        """Takes what a replica has to do, and does it."""
        while (ready := member.replica.ready(self.now)) is not None:
            self._send(ready.messages)
            member.waiting.append(ready)
            if not member.is_slow:
                self.sync(member.name)
            member.applied += ready.committed
            member.reads += [(one.context, one.index) for one in ready.reads]
            if ready.snapshot is not None:
                member.offered.append(ready.snapshot)

    def sync(self, name: str) -> None:
        """Ends the syncs that a member waits for."""
        member = self.members[name]
        waiting, member.waiting = member.waiting, []
        for ready in waiting:
            member.store(ready)
            member.replica.synced(ready, self.now)
            self._send(ready.after_sync)

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.sent.append(message)
            if (message.sender, message.to) not in self.cut and not self.drop(message):
                self.network.append(message)

    def settle(self) -> None:
        """Delivers everything until nothing is left to do."""
        for _ in range(10_000):
            for member in self.members.values():
                self.collect(member)
            if not self.network:
                return
            message = self.network.pop(0)
            if message.to in self.members:
                self[message.to].step(message, self.now)
        raise AssertionError("the group does not settle")

    def pass_time(self, duration_ns: int, *, step_ns: int = 50 * MILLISECOND_NS) -> None:
        """Lets time pass in steps."""
        end = self.now + duration_ns
        while self.now < end:
            self.now = min(end, self.now + step_ns)
            for member in self.members.values():
                member.replica.tick(self.now)
            self.settle()

    def elect(self, name: str) -> RaftReplica:
        """Time passes for all, and this member stands for election first."""
        self.now += 2 * ELECTION_NS
        self[name].tick(self.now)
        self.settle()
        assert self[name].role is Role.LEADER, self.roles()
        return self[name]

    def propose(self, name: str, *commands: bytes) -> int:
        index = self[name].propose(list(commands), self.now)
        self.settle()
        return index

    def roles(self) -> dict[str, str]:
        return {name: f"{one.replica.role.value} {one.replica.term}" for name, one in self.members.items()}

    def leaders(self) -> list[str]:
        return [name for name, one in self.members.items() if one.replica.role is Role.LEADER]

    def commands(self, name: str) -> list[bytes]:
        """The commands that a member has applied."""
        return [one.data for one in self.members[name].applied if one.kind is EntryKind.COMMANDS]

    def messages(self, kind: type[KIND]) -> list[KIND]:
        """The messages of a kind that were sent so far, also lost ones."""
        return [one for one in self.sent if isinstance(one, kind)]


def entry(index: int, term: int, data: bytes = b"") -> Entry:
    return Entry(index, term, EntryKind.COMMANDS, data or b"%d.%d" % (term, index))
