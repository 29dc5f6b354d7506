"""What runs of servers with links between them have in common: clients, faults, and the check that nothing
arrives twice."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Generic, NamedTuple, TypeVar

from penstock.testing.cluster_sim.sim_member import ACCOUNTS, SimMember, SimSubscription
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


Server = TypeVar("Server", bound=SimMember)


class LinkRun(Generic[Server]):
    """One run. Each kind of run says which servers there are, and what holds when faults are over.

    Args:
        seed: everything follows from it.
    """

    actions: tuple[tuple[float, str], ...] = (
        (4, "subscribe"), (2, "unsubscribe"), (6, "publish"), (1, "cut"), (0.3, "separate"), (0.3, "restart"),
    )  # fmt: skip
    """What happens during faults: (weight, method)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.network = SimNetwork(self.random)
        self.members: dict[int, Server] = {}
        self.present: list[SimSubscription] = []
        self.past: list[SimSubscription] = []
        self.messages: list[Message] = []
        self._incarnations: Counter[int] = Counter()
        self._next_sid = 1
        self.size = 0

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
            self._check_healed()

    def _start(self, number: int) -> None:
        """Starts a server of this number."""
        raise NotImplementedError

    def _check_healed(self) -> None:
        """What holds when all faults are over. Raises Broken."""
        raise NotImplementedError

    # -- actions

    def _act(self) -> None:
        [name] = self.random.choices([one for _, one in self.actions], [weight for weight, _ in self.actions])
        getattr(self, name)()

    def subscribe(self) -> None:
        member = self.random.choice(list(self.members.values()))
        sid = b"%d" % self._next_sid
        self._next_sid += 1
        account, subject = self.random.choice(ACCOUNTS), self.random.choice(FILTERS).encode()
        queue = self.random.choice(QUEUES).encode()
        self.present.append(member.subscribe(account, subject, queue, sid))

    def unsubscribe(self) -> None:
        if self.present:
            gone = self.present.pop(self.random.randrange(len(self.present)))
            self.members[gone.member].unsubscribe(gone)
            self.past.append(gone)

    def publish(self) -> None:
        message = Message(
            b"m%d" % len(self.messages), self.random.choice(ACCOUNTS), self.random.choice(SUBJECTS)
        )
        self.messages.append(message)
        member = self.random.choice(list(self.members.values()))
        member.publish(message.account, message.subject.encode(), message.name)

    def cut(self) -> None:
        if self.network.pipes:
            self.random.choice(self.network.pipes).cut()

    def separate(self) -> None:
        one, other = self.random.sample(range(self.size), 2)
        self.network.separate(one, other)
        self.network.call_later(
            self.random.uniform(0, 4), lambda: self.network.apart.discard(frozenset((one, other)))
        )

    def restart(self) -> None:
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
