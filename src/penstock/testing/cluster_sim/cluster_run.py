"""Runs one seed of the cluster simulation, and checks it. See the package's docstring for the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.cluster.peer_link import Address
from penstock.kernels.wire.route_links import RouteSink
from penstock.protocol.subjects import matches
from penstock.testing.cluster_sim.sim_member import ACCOUNTS, SimMember, SimSettings, SimSubscription
from penstock.testing.cluster_sim.sim_network import SimNetwork

SUBJECTS = ("a", "a.b", "a.c", "b.c")
FILTERS = (*SUBJECTS, "a.*", "a.>", ">", "*.c")
QUEUES = ("", "", "q", "r")
STEPS = 120
HEAL_S = 45.0
"""Virtual time in which the mesh is complete after the last fault: servers that only peers know are dialled
every 30 seconds when the first attempts failed."""
DRAIN_S = 2.0


class Broken(AssertionError):
    """A promise was broken. `rule` names it."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class RunOutcome(NamedTuple):
    """The result of a seed. rule: "" = it passed; digest: equal runs have equal ones."""

    seed: int
    rule: str
    what: str
    digest: str
    messages: int


class Message(NamedTuple):
    """A published message: its payload is its name."""

    name: bytes
    account: str
    subject: str


class ClusterRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.network = SimNetwork(self.random)
        self.members: dict[int, SimMember] = {}
        self.present: list[SimSubscription] = []
        self.past: list[SimSubscription] = []
        self.messages: list[Message] = []
        self._incarnations: Counter[int] = Counter()
        self._next_sid = 1
        self.size = self.random.randrange(2, 6)
        self.cluster_name = self.random.choice(("", "named"))
        self._names = [self.cluster_name] * self.size
        if not self.cluster_name and self.random.random() < 0.5:
            self._names[self.random.randrange(self.size)] = "given"
        self._settings = [self._settings_of(number) for number in range(self.size)]

    def _settings_of(self, number: int) -> SimSettings:
        """Routes that connect all servers: each but the first has a route to an earlier one, and some
        others."""
        others = [self.random.randrange(number)] if number else []
        others += [other for other in range(self.size) if self.random.random() < 0.2]
        if number == 0 and self.size > 1:
            others.append(1)  # so that the first server finds the others again after a restart
        return SimSettings(
            routes=tuple(Address(f"host-{other}", 1) for other in dict.fromkeys(others)),
            pool_size=self.random.choice((3, 3, 3, 1, 2, 5, -1)),
        )

    def go(self) -> RunOutcome:
        rule = what = ""
        try:
            self._run()
        except Broken as broken:
            rule, what = broken.rule, str(broken)
        digest = f"{self.network.now_s:.9f} {len(self.messages)} {sum(len(one.got) for one in self._all())}"
        return RunOutcome(self.seed, rule, what, digest, len(self.messages))

    def _run(self) -> None:
        for number in range(self.size):
            if number and self.random.random() < 0.5:
                self.network.run_for(self.random.uniform(0, 0.3))
            self._start(number)
        for _ in range(2):
            for _ in range(STEPS // 2):
                self._act()
                self.network.run_for(self.random.choice((0.0, 0.001, 0.01, 0.1, 0.5)))
                self._check_copies()
            self._heal()
            self._check_mesh()
            self._check_interest()
            self._check_exactly_once()

    # -- actions

    def _act(self) -> None:
        actions: tuple[tuple[float, Callable[[], object]], ...] = (
            (4, self._subscribe),
            (2, self._unsubscribe),
            (6, self._publish),
            (1, self._cut),
            (0.3, self._separate),
            (0.3, self._restart),
        )
        [action] = self.random.choices([one for _, one in actions], [weight for weight, _ in actions])
        action()

    def _start(self, number: int) -> None:
        self._incarnations[number] += 1
        self.members[number] = SimMember(
            self.network,
            number,
            self._incarnations[number],
            self._settings[number],
            self.members.get,
            self._names[number],
        )

    def _subscribe(self) -> None:
        member = self.random.choice(list(self.members.values()))
        sid = b"%d" % self._next_sid
        self._next_sid += 1
        account, subject = self.random.choice(ACCOUNTS), self.random.choice(FILTERS).encode()
        queue = self.random.choice(QUEUES).encode()
        self.present.append(member.subscribe(account, subject, queue, sid))

    def _unsubscribe(self) -> None:
        if self.present:
            gone = self.present.pop(self.random.randrange(len(self.present)))
            self.members[gone.member].unsubscribe(gone)
            self.past.append(gone)

    def _publish(self) -> None:
        message = Message(
            b"m%d" % len(self.messages), self.random.choice(ACCOUNTS), self.random.choice(SUBJECTS)
        )
        self.messages.append(message)
        member = self.random.choice(list(self.members.values()))
        member.publish(message.account, message.subject.encode(), message.name)

    def _cut(self) -> None:
        if self.network.pipes:
            self.random.choice(self.network.pipes).cut()

    def _separate(self) -> None:
        one, other = self.random.sample(range(self.size), 2)
        self.network.separate(one, other)
        self.network.call_later(
            self.random.uniform(0, 4), lambda: self.network.apart.discard(frozenset((one, other)))
        )

    def _restart(self) -> None:
        """A server ends with its clients, and is back with none."""
        number = self.random.choice(list(self.members))
        self.members.pop(number).crash()
        lost = [one for one in self.present if one.member == number]
        self.past += lost
        self.present = [one for one in self.present if one.member != number]
        self.network.run_for(self.random.choice((0.0, 0.1, 2.0)))
        self._start(number)

    def _heal(self) -> None:
        self.network.apart.clear()
        self.network.run_for(HEAL_S)

    # -- checks

    def _all(self) -> list[SimSubscription]:
        return [*self.present, *self.past]

    def _check_copies(self) -> None:
        """At any time, whatever broke: no message twice."""
        served: Counter[tuple[str, bytes, bytes]] = Counter()
        for one in self._all():
            if len(one.got) != len(set(one.got)):
                raise Broken(
                    "twice", f"a subscription to {one.subject!r} on server {one.member} got one twice"
                )
            if one.queue:
                served.update((one.account, one.queue, name) for name in one.got)
        worst = served.most_common(1)
        if worst and worst[0][1] > 1:
            raise Broken("group twice", f"two members of a queue group got the same message: {worst[0]}")

    def _check_mesh(self) -> None:
        for member in self.members.values():
            wanted = {other.mesh.server_id for other in self.members.values()} - {member.mesh.server_id}
            if set(member.mesh.peers) != wanted:
                raise Broken(
                    "mesh", f"server {member.number} knows {sorted(member.mesh.peers)}, not {sorted(wanted)}"
                )
            if member.peers_here != len(wanted):
                raise Broken("mesh", f"server {member.number} counts {member.peers_here} peers")
            for other in self.members.values():
                self._check_pool(member, other)
        names = {member.mesh.cluster_name for member in self.members.values()}
        if len(names) != 1:
            raise Broken("name", f"the servers are in clusters {sorted(names)}")

    def _check_pool(self, member: SimMember, other: SimMember) -> None:
        if member is other:
            return
        links = [link for link in member.mesh.links if link.remote_id == other.mesh.server_id]
        sizes = [one.mesh.settings.pool_size for one in (member, other)]
        wanted = 1 if min(sizes) < 0 else max(sizes) + 1
        if len(links) != wanted:
            raise Broken(
                "pool", f"server {member.number} has {len(links)} links to {other.number}, not {wanted}"
            )
        if member.mesh.client_urls().count(f"client-{other.number}:1") != 1:
            raise Broken("urls", f"server {member.number} advertises {member.mesh.client_urls()}")

    def _check_interest(self) -> None:
        for member in self.members.values():
            for other in self.members.values():
                if other is member:
                    continue
                known: Counter[tuple[str, bytes, bytes]] = Counter()
                for link in member.mesh.links:
                    assert isinstance(link.sink, RouteSink)
                    if link.remote_id == other.mesh.server_id:
                        for account, subject, queue, weight, _ in link.sink.interest():
                            known[account.decode(), subject, queue] += weight
                wanted: Counter[tuple[str, bytes, bytes]] = Counter()
                for one in other.subscriptions.values():
                    key = (one.account, one.subject, one.queue)
                    wanted[key] = wanted[key] + 1 if one.queue else 1
                if known != wanted:
                    raise Broken(
                        "interest", f"server {member.number} knows of {other.number}: {known}, not {wanted}"
                    )

    def _check_exactly_once(self) -> None:
        """With all links up: every subscription gets every message it matches, every group one member."""
        first = len(self.messages)
        for _ in range(20):
            self._publish()
        self.network.run_for(DRAIN_S)
        self._check_copies()
        for message in self.messages[first:]:
            groups: dict[bytes, int] = {}
            for one in self.present:
                if one.account != message.account or not matches(one.subject.decode(), message.subject):
                    if message.name in one.got:
                        raise Broken("unwanted", f"{message} reached a subscription to {one.subject!r}")
                    continue
                got = one.got.count(message.name)
                if one.queue:
                    groups[one.queue] = groups.get(one.queue, 0) + got
                elif got != 1:
                    raise Broken("lost", f"{message} did not reach a subscription on server {one.member}")
            for queue, got in groups.items():
                if got != 1:
                    raise Broken(
                        "group lost", f"{message} reached {got} members of the queue group {queue!r}"
                    )


def run_cluster_seed(seed: int) -> RunOutcome:
    """Runs one seed."""
    return ClusterRun(seed).go()
