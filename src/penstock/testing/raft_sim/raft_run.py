"""Runs one seed of the simulation of Raft groups, and checks it. See the package's docstring."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_options import MILLISECOND_NS, RaftOptions
from penstock.raft.raft_replica import RaftReplica, Role
from penstock.testing.raft_sim.raft_history import BrokenPromise, RaftHistory
from penstock.testing.raft_sim.raft_server import RaftServer

TICK_NS = 50 * MILLISECOND_NS
FAULTS_NS = 20_000 * MILLISECOND_NS
"""Virtual time in which faults happen."""
HEAL_NS = 15_000 * MILLISECOND_NS
"""Virtual time after the last fault in which every group makes progress and all its members are equal."""
MESSAGES_MAX = 50_000
"""Ten times what a run sends: more means that replicas answer each other without end."""
IDLE_NS = 4_000 * MILLISECOND_NS
"""Virtual time after the last write in which a group becomes idle."""


class RaftOutcome(NamedTuple):
    """The result of a seed. rule: "" = it passed; digest: equal runs have equal ones."""

    seed: int
    rule: str
    what: str
    digest: str
    counts: Counter[str]


class RaftRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self.is_faulty = True
        self.loss = self.random.choice((0.0, 0.0, 0.01, 0.1))
        self.cut: set[tuple[int, int]] = set()
        self.options = self._some_options()
        size = self.random.choice((3, 3, 3, 5, 4))
        voters = self.random.choice((3, 3, size)) if size >= 3 else size
        self.groups = [f"g{i}" for i in range(self.random.choice((1, 2, 3)))]
        self.wanted = {group: set(self.random.sample(range(size), voters)) for group in self.groups}
        self.histories = {group: RaftHistory(group) for group in self.groups}
        first = {
            group: Membership(tuple(sorted(f"s{i}.0" for i in wanted)))
            for group, wanted in self.wanted.items()
        }
        self._disks = [0] * size
        self.servers = [self._new_server(i, first) for i in range(size)]

    def _some_options(self) -> RaftOptions:
        small = self.random.random() < 0.5
        return replace(
            RaftOptions(),
            append_bytes_max=200 if small else 1 << 20,
            inflight_bytes_max=600 if small else 16 << 20,
            uncommitted_bytes_max=2000 if small else 64 << 20,
            committed_bytes_max=300 if small else 16 << 20,
            quiesce_after_ns=self.random.choice((500, 2000)) * MILLISECOND_NS,
            write_first_bytes_max=self.random.choice((0, 0, 200, 2000)),
        )

    def _new_server(self, number: int, groups: dict[str, Membership]) -> RaftServer:
        return RaftServer(
            number, self._disks[number], groups, self.options, self.random, self.histories,
            self._send, self.call_later, lambda: self.now,
        )  # fmt: skip

    def go(self) -> RaftOutcome:
        """Runs the seed."""
        rule = what = ""
        try:
            self._run()
        except BrokenPromise as broken:
            rule, what = broken.rule, str(broken)
        except AssertionError as error:
            rule, what = "assertion", f"assertion: {error}"
        histories = self.histories.values()
        self.counts["commands"] = sum(len(one.committed) for one in histories)
        self.counts["elections"] = sum(one.terms for one in histories)
        self.counts["acknowledged"] = sum(one.writes for one in histories)
        self.counts["reads"] = sum(one.reads for one in histories)
        self.counts["snapshots"] = sum(one.snapshots for one in self.servers)
        digest = f"{self.now} {sorted(self.counts.items())}"
        return RaftOutcome(self.seed, rule, what, digest, self.counts)

    def _run(self) -> None:
        names = [one.name for one in self.servers]
        for server in self.servers:
            server.start(names, self.now)
            self._tick_later(server, server.boot)
        while self.now < FAULTS_NS:
            self._act()
            self._run_for(self.random.choice((1, 1, 10, 100, 400)) * MILLISECOND_NS)
        self._heal()
        self._check_progress()
        self._check_idle()

    # --- time and network

    def call_later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Calls after some virtual time."""
        self._event_number += 1
        heapq.heappush(self._events, (self.now + delay_ns, self._event_number, action))

    def _run_for(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def _tick_later(self, server: RaftServer, boot: int) -> None:
        def tick() -> None:
            if server.is_up and server.boot == boot:
                server.tick(self.now)
                self._tick_later(server, boot)

        self.call_later(TICK_NS, tick)

    def _send(self, frame: Frame) -> None:
        sender, to = _number_of(frame.sender), _number_of(frame.to)
        self.counts["messages"] += len(frame.messages)
        if self.counts["messages"] > MESSAGES_MAX:
            raise BrokenPromise("storm", f"more than {MESSAGES_MAX} messages: {self._states()}")
        if (sender, to) in self.cut or (self.is_faulty and self.random.random() < self.loss):
            return
        copies = 2 if self.is_faulty and self.random.random() < 0.02 else 1
        for _ in range(copies):
            delay = self.random.randrange(100_000, 3_000_000)
            if self.is_faulty and self.random.random() < 0.02:
                delay = self.random.randrange(2000 * MILLISECOND_NS)
            self.call_later(delay, lambda: self._deliver(to, frame))

    def _deliver(self, to: int, frame: Frame) -> None:
        server = self.servers[to]
        if server.is_up and server.name == frame.to:
            server.receive(frame, self.now)

    # --- actions

    def _act(self) -> None:
        actions: tuple[tuple[float, Callable[[], object]], ...] = (
            (20, self._write),
            (5, self._read),
            (4, self._administer),
            (1, self._kill),
            (0.5, self._lose_all_power),
            (0.7, self._separate),
            (0.5, self._slow_down),
            (0.5, self._fail_disk),
            (0.5, self._damage),
            (0.5, self._wipe),
            (0.5, self._choose_members),
            (1, self._transfer),
            (1, self._compact),
            (0.5, self._lose_link),
        )
        [action] = self.random.choices([one for _, one in actions], [weight for weight, _ in actions])
        action()

    def _up(self) -> list[RaftServer]:
        return [one for one in self.servers if one.is_up]

    def _leader(self, group: str) -> RaftServer | None:
        leaders = [one for one in self._up() if one.replicas[group].role is Role.LEADER]
        return self.random.choice(leaders) if leaders else None

    def _write(self) -> None:
        group = self.random.choice(self.groups)
        server = self._leader(group)
        if server is not None:
            for _ in range(self.random.choice((1, 1, 5))):
                self.counts["proposals"] += 1
                server.write(group, b"c%d" % self.counts["proposals"], self.now)

    def _read(self) -> None:
        group = self.random.choice(self.groups)
        server = self._leader(group)
        if server is not None:
            server.read(group, self.now)

    def _kill(self) -> None:
        if not self._up():
            return
        server = self.random.choice(self._up())
        loses_power = self.random.random() < 0.5
        self.counts["power losses" if loses_power else "crashes"] += 1
        server.stop(loses_power=loses_power)
        self.call_later(self.random.choice((1, 300, 3000)) * MILLISECOND_NS, lambda: self._start(server))

    def _start(self, server: RaftServer) -> None:
        if not server.is_up and server is self.servers[server.number]:
            server.start([one.name for one in self.servers], self.now)
            self._tick_later(server, server.boot)
            server.pump(self.now)

    def _lose_all_power(self) -> None:
        self.counts["power losses"] += 1
        for server in self._up():
            server.stop(loses_power=True)
            delay = self.random.choice((1, 1000)) * MILLISECOND_NS
            self.call_later(delay, lambda server=server: self._start(server))  # type: ignore[misc]

    def _separate(self) -> None:
        """Cuts one server off, or one direction between two."""
        self.counts["partitions"] += 1
        one = self.random.randrange(len(self.servers))
        others = [i for i in range(len(self.servers)) if i != one]
        if self.random.random() < 0.5:
            pairs = {(one, other) for other in others} | {(other, one) for other in others}
        else:
            pairs = {(one, self.random.choice(others))}
        self.cut |= pairs
        delay = self.random.choice((100, 2000, 5000)) * MILLISECOND_NS
        self.call_later(delay, lambda: self.cut.difference_update(pairs))

    def _slow_down(self) -> None:
        server = self.random.choice(self.servers)
        server.set_sync_time(self.random.choice((2, 2, 50, 700)) * MILLISECOND_NS)

    def _fail_disk(self) -> None:
        server = self.random.choice(self.servers)
        if server.is_up:
            self.counts["disk failures"] += 1
            server.set_fail_rate(self.random.choice((0.2, 1.0)))
            delay = self.random.choice((10, 1000)) * MILLISECOND_NS
            self.call_later(delay, lambda: server.set_fail_rate(0.0))

    def _lose_link(self) -> None:
        one, other = self.random.sample(self.servers, 2)
        if one.is_up:
            one.node.peer_unlinked(other.name)
            one.pump(self.now)

    def _transfer(self) -> None:
        group = self.random.choice(self.groups)
        server = self._leader(group)
        if server is not None:
            replicated = server.node.groups[group]
            others = [one for one in replicated.membership.voters if one != server.name]
            if others and replicated.step_down(self.random.choice((None, *others))):
                self.counts["transfers"] += 1
            server.pump(self.now)

    def _compact(self) -> None:
        if self._up():
            server = self.random.choice(self._up())
            server.compact(self.random.choice(self.groups), self.now)

    # --- faults that take what was acknowledged: of one server at a time

    def _is_whole(self) -> bool:
        """Whether every group has all members that it should have, with all they acknowledged."""
        for group, wanted in self.wanted.items():
            if any(group in self.servers[i].damaged for i in wanted):
                return False
        return all(self._membership_of(group) == self._wanted_names(group) for group in self.groups)

    def _membership_of(self, group: str) -> Membership:
        """The last one that is committed anywhere."""
        logs = [one.replicas[group].log for one in self.servers]
        best = max(logs, key=lambda log: log.commit_index)
        return best.membership_at(best.commit_index)

    def _wanted_names(self, group: str) -> Membership:
        return Membership(tuple(sorted(self.servers[i].name for i in self.wanted[group])))

    def _damage(self) -> None:
        if self._is_whole() and self._up():
            server = self.random.choice(self._up())
            self.counts["damages"] += 1
            server.stop(loses_power=self.random.random() < 0.5)
            server.damage()
            self._start(server)

    def _wipe(self) -> None:
        if not self._is_whole() or not self._up():
            return
        old = self.random.choice(self._up())
        self.counts["wipes"] += 1
        old.stop()
        self._disks[old.number] += 1
        new = self._new_server(old.number, dict.fromkeys(self.groups, Membership(())))
        self.servers[old.number] = new
        self._start(new)
        for server in self._up():
            if server is not new:
                server.node.peer_linked(new.name)

    # --- memberships

    def _choose_members(self) -> None:
        group = self.random.choice(self.groups)
        size = len(self.servers)
        if size > 3 and self._is_whole():
            self.wanted[group] = set(self.random.sample(range(size), self.random.choice((3, size))))

    def _administer(self) -> None:
        for group in self.groups:
            server = self._leader(group)
            if server is None:
                continue
            step = self._next_change(group, server.replicas[group])
            if step is not None:
                result = server.node.groups[group].change_members(*step)
                self.counts["changes"] += result is ChangeResult.PROPOSED
                server.pump(self.now)

    def _next_change(self, group: str, replica: RaftReplica) -> tuple[ChangeKind, str] | None:
        membership = replica.log.membership
        present = {one.name for one in self.servers}
        wanted = self._wanted_names(group).voters
        gone = [one for one in membership.members if one not in present]
        missing = [one for one in wanted if one not in membership.members]
        learners = [one for one in wanted if one in membership.learners]
        extra = [one for one in membership.members if one not in wanted]
        for kind, names in (
            (ChangeKind.REMOVE, gone),
            (ChangeKind.ADD_LEARNER, missing),
            (ChangeKind.PROMOTE, learners),
            (ChangeKind.REMOVE, extra),
        ):
            if names:
                return kind, names[0]
        return None

    # --- at the end

    def _heal(self) -> None:
        self.is_faulty = False
        self.cut.clear()
        for server in self.servers:
            server.set_sync_time(2 * MILLISECOND_NS)
            server.set_fail_rate(0.0)
            self._start(server)
        end = self.now + HEAL_NS
        while self.now < end:
            self._administer()
            self._run_for(200 * MILLISECOND_NS)

    def _check_progress(self) -> None:
        before = {group: one.last_index for group, one in self.histories.items()}
        for group in self.groups:
            leaders = [one for one in self._up() if one.replicas[group].role is Role.LEADER]
            if len(leaders) != 1 or not leaders[0].write(group, b"last", self.now):
                raise BrokenPromise("liveness", f"{group} has {len(leaders)} leaders: {self._states()}")
        self._run_for(1000 * MILLISECOND_NS)
        for group, history in self.histories.items():
            if history.last_index <= before[group]:
                raise BrokenPromise("liveness", f"{group} commits nothing: {self._states()}")
        if not self._is_whole():
            raise BrokenPromise("liveness", f"not all members are there: {self._states()}")
        for group, wanted in self.wanted.items():
            owners = [self.servers[i].owners[group] for i in sorted(wanted)]
            ends = {(one.index, one.digest) for one in owners}
            if len(ends) != 1 or owners[0].index != self.histories[group].last_index:
                raise BrokenPromise("equality", f"{group}: {[one.index for one in owners]} {self._states()}")
            if any(one.waiting for one in owners):
                raise BrokenPromise("answers", f"{group}: {[one.waiting for one in owners]} requests wait")

    def _check_idle(self) -> None:
        """Servers that are no members any more have forgotten the group: an administrator's task, for they
        may not have heard of their removal, and would ask for votes for ever."""
        for group in self.groups:
            for server in self.servers:
                if server.name not in self._wanted_names(group).voters:
                    server.forget(group)
        self._run_for(IDLE_NS)
        before = self.counts["messages"]
        self._run_for(2000 * MILLISECOND_NS)
        if self.counts["messages"] != before:
            sent = self.counts["messages"] - before
            raise BrokenPromise("idle", f"{sent} messages of idle groups: {self._states()}")

    def _states(self) -> str:
        return " | ".join(one.state() for one in self.servers)


def _number_of(name: str) -> int:
    return int(name[1:].partition(".")[0])


def run_raft_seed(seed: int) -> RaftOutcome:
    """Runs a seed."""
    return RaftRun(seed).go()
