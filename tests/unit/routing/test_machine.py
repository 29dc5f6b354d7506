"""Everything that decides who gets a publish, changing together: mappings, wildcards, queue groups, maxima.

One machine, because the caches between these parts (what became of a subject, who is interested in one) must
each notice what the others change. The model asks every mapping and every subscription in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.frames import OP_NEED_MORE, FrameParser
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.routing.account import Account
from penstock.routing.mapping import Destination, Mappings, SubjectMapping
from tests.reference import mappings as mapping_model
from tests.reference.subscription_index import matches
from tests.support.examples import examples

pytestmark = pytest.mark.feature("core.subject-mapping", "core.queue-groups")

CLIENTS = 3
WORDS = ["a", "b"]
SUBJECTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(".".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from([*WORDS, "*", "*"]), min_size=1, max_size=3), st.sampled_from([[], [], [">"]])
).map(lambda parts: ".".join(parts[0] + parts[1])) | st.just(">")
QUEUES = st.sampled_from(["", "", "q", "r"])


@st.composite
def mapping_lists(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Sources, each with one destination, or two between which chance decides."""
    found = []
    for source in draw(st.lists(FILTERS, max_size=3, unique=True)):
        stars = [f"${i}" for i in range(1, source.split(".").count("*") + 1)]
        words = st.lists(st.sampled_from([*WORDS, *stars]), min_size=1, max_size=2).map(".".join)
        tail = ".>" if source != ">" else ""
        goals = draw(st.lists(words, min_size=1, max_size=2, unique=True))
        found.append((source, [goal + tail if source.endswith(">") else goal for goal in goals]))
        if source == ">":
            found[-1] = (source, [f"{goal}.>" for goal in goals])
    return found


@dataclass
class Member:
    """A subscription as the model knows it."""

    client: int
    subject: str
    queue: str
    subscription: SinkSubscription
    left: int  # messages until UNSUB max ends it; -1 = no maximum


@dataclass
class Client:
    """One connection: what it sends is routed in the account."""

    account: Account
    number: int
    machine: RoutingMachine
    ingress: Ingress = field(init=False)

    def __post_init__(self) -> None:
        self.sink = ClientSink(DirtyList(lambda: None), self)
        self.sink.echo = self.number != 0  # one of them does not hear itself
        self.ingress = Ingress(self.sink, self.account.index)

    def on_auto_unsubscribe(self, subscription: SinkSubscription) -> None:
        self.account.index.remove(subscription)

    def received(self) -> list[tuple[int, str]]:
        """(sid, subject) of all that came."""
        parser = FrameParser()
        parser.feed(self.sink.take())
        return [(sid, subject.decode()) for sid, subject, *_ in parser.next_batch()]


class RoutingMachine(RuleBasedStateMachine):
    """An account with three clients beside its model."""

    @initialize()
    def start(self) -> None:
        self.account = Account("A")
        self.clients = [Client(self.account, i, self) for i in range(CLIENTS)]
        self.members: dict[int, Member] = {}
        self.serial = 0
        self.mappings: list[tuple[str, list[str]]] = []
        self.chance = 0

    def below(self, n: int) -> int:
        """Draws for mappings, the same for every run of a test."""
        self.chance = (self.chance * 1103515245 + 12345) % 2**31
        return self.chance % n

    @rule(
        client=st.integers(0, CLIENTS - 1),
        subject=FILTERS,
        queue=QUEUES,
        most=st.sampled_from([-1, -1, 1, 3]),
    )
    def subscribe(self, client: int, subject: str, queue: str, most: int) -> None:
        self.serial += 1
        subscription = SinkSubscription(
            self.clients[client].sink, subject.encode(), queue.encode(), b"%d" % self.serial, max(0, most)
        )
        self.account.index.insert(subscription)
        self.members[self.serial] = Member(client, subject, queue, subscription, most)

    @precondition(lambda self: self.members)
    @rule(choice=st.integers(0, 50))
    def unsubscribe(self, choice: int) -> None:
        sid = list(self.members)[choice % len(self.members)]
        member = self.members.pop(sid)
        member.subscription.closed = True
        assert self.account.index.remove(member.subscription)

    @rule(mappings=mapping_lists())
    def reload_mappings(self, mappings: list[tuple[str, list[str]]]) -> None:
        self.mappings = mappings
        made = [
            SubjectMapping(
                source, tuple(Destination(subject=goal, weight=100 // len(goals)) for goal in goals)
            )
            for source, goals in mappings
        ]
        self.account.mapper = None
        if made:
            self.account.set_mappings(Mappings(made), self.below)
        for client in self.clients:
            client.ingress.mapper = self.account.mapper

    @rule(
        client=st.integers(0, CLIENTS - 1), subject=SUBJECTS, times=st.integers(1, 3), cut=st.integers(1, 40)
    )
    def publish(self, client: int, subject: str, times: int, cut: int) -> None:
        """The same subject several times: what was remembered of it is used."""
        for _ in range(times):
            data = b"PUB %s 2\r\nhi\r\n" % subject.encode()
            for piece in (data[:cut], data[cut:]):
                self.clients[client].ingress.parser.feed(piece)
                assert self.clients[client].ingress.process() == OP_NEED_MORE
            self.check(client, subject)

    def check(self, sender: int, subject: str) -> None:
        got = [
            (number, sid, seen)
            for number, client in enumerate(self.clients)
            for sid, seen in client.received()
        ]
        goals = {
            mapping_model.mapped(
                [(source, goal) for source, goal in zip(sources, choice, strict=True)], subject
            )
            for sources, choice in self.choices()
        }
        seen = {subject for _, _, subject in got}
        assert len(seen) <= 1, f"one publish arrived as {seen}"
        if seen:
            assert seen <= goals
            self.check_receivers({(number, sid) for number, sid, _ in got}, len(got), sender, seen.pop())
        else:
            assert any(not self.willing(sender, goal) for goal in goals), f"no receiver for {subject}"

    def choices(self) -> list[tuple[list[str], list[str]]]:
        """(sources, one destination of each) for every way chance may decide."""
        sources = [source for source, _ in self.mappings]
        longest = max((len(goals) for _, goals in self.mappings), default=1)
        return [(sources, [goals[i % len(goals)] for _, goals in self.mappings]) for i in range(longest)]

    def willing(self, sender: int, subject: str) -> dict[int, Member]:
        """Who may get a message on this subject, by sid."""
        return {
            sid: member
            for sid, member in self.members.items()
            if matches(member.subject, subject)
            and (member.client != sender or self.clients[sender].sink.echo)
        }

    def check_receivers(self, got: set[tuple[int, int]], count: int, sender: int, subject: str) -> None:
        """Every plain subscription once, one member of each group."""
        willing = self.willing(sender, subject)
        assert len(got) == count, "a receiver got it twice"
        sids = {sid for _, sid in got}
        assert sids <= set(willing)
        assert all(willing[sid].client == number for number, sid in got)
        assert {sid for sid, member in willing.items() if not member.queue} <= sids
        chosen = sorted(willing[sid].queue for sid in sids if willing[sid].queue)
        assert chosen == sorted({member.queue for member in willing.values() if member.queue})
        for sid in sids:
            member = self.members[sid]
            member.left -= 1
            if member.left == 0:
                assert member.subscription.closed
                del self.members[sid]

    @invariant()
    def the_index_holds_what_is_subscribed(self) -> None:
        if hasattr(self, "account"):
            assert len(self.account.index) == len(self.members)


TestRouting = RoutingMachine.TestCase
TestRouting.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
