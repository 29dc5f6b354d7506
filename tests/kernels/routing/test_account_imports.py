"""Messages across accounts, compared with the model; answers, and how long they are awaited."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.consumer.endpoints import Target
from penstock.kernels.routing.account_imports import ReplyEnd, ReplyTable, Rewriter, ServiceImportSink
from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.sinks import DirtyList, Sink, SinkSubscription
from penstock.routing.account import Account
from penstock.routing.import_router import ImportRouter, intersection
from penstock.routing.imports_exports import (
    AnyExport,
    AnyImport,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamExport,
    StreamImport,
    first_error,
    plan,
)
from tests.reference import account_imports as model
from tests.reference.subscription_index import matches
from tests.support.examples import examples

pytestmark = pytest.mark.feature("security.accounts")


@dataclass
class Own:
    """The exports and imports of an account."""

    name: str
    exports: list[AnyExport] = field(default_factory=list)
    imports: list[AnyImport] = field(default_factory=list)


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Accounts:
    """Accounts with an exchange between them, and clients that remember nothing."""

    def __init__(self, *sharing: Own, about: bytes = b"") -> None:
        self.by_name = {own.name: Account(own.name) for own in sharing}
        self.sharing = {own.name: own for own in sharing}
        self.clock = Clock()
        self.first: list[int] = []
        self.import_router = ImportRouter(
            clock=self.clock,
            seed=lambda: 7,
            describe=lambda origin, share: about,
            chain=lambda importer, header, origin, share: b"{chained}",
            measure=lambda account, export, entry: lambda origin, header, has_reply: None,
            on_first=lambda: self.first.append(self.clock.now),
        )
        self.set_up()

    def set_up(self) -> None:
        assert first_error(self.sharing) == ""
        self.import_router.set_up(self.by_name, self.sharing)

    def subscribe(self, account: str, subject: str, queue: str = "", sid: int = 1) -> ClientSink:
        sink = ClientSink(DirtyList())
        sink.headers = True
        subscription = SinkSubscription(sink, subject.encode(), queue.encode(), b"%d" % sid)
        self.by_name[account].index.insert(subscription)
        return sink

    def waiting(self, account: str) -> int:
        table = self.by_name[account].index.replies
        assert isinstance(table, ReplyTable)
        return len(table)


TOKENS = st.sampled_from(["a", "b", "*"])
NARROW = st.tuples(st.lists(TOKENS, min_size=1, max_size=3), st.sampled_from([[], [">"]])).map(
    lambda parts: ".".join(parts[0] + parts[1])
)
FILTERS = st.one_of(st.sampled_from(["a.>", ">", "*.a", "a"]), NARROW)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(".".join)
NAMES = "XYZ"


WIDE = st.sampled_from([">", "a.>", "*", "*.*"])


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Own], list[tuple[str, str, str]]]:
    """Accounts that export everything, with imports that may be, and subscriptions.

    Half of them are dense: nearly every message goes through an import, to several receivers.
    """
    filters, least = draw(st.sampled_from([(FILTERS, 0), (WIDE, 4)]))
    found = {name: Own(name, [StreamExport(subject=">"), ServiceExport(subject=">")]) for name in NAMES}
    for _ in range(draw(st.integers(least, 6))):
        importer, exporter = draw(st.permutations(NAMES))[:2]
        subject = draw(filters)
        stars = [f"${i}" for i in range(1, subject.split(".").count("*") + 1)]
        shape = draw(st.sampled_from(["same", "swapped"]))
        to = ""
        if shape == "swapped":
            words = [draw(st.sampled_from("ab")), *draw(st.permutations(stars))]
            to = ".".join(words + ([">"] if subject.endswith(">") else []))
        kind = draw(st.sampled_from([StreamImport, ServiceImport]))
        found[importer].imports.append(kind(account=exporter, subject=subject, to=to))
        if first_error(found):
            found[importer].imports.pop()
    subscriptions = st.tuples(st.sampled_from(NAMES), filters, st.sampled_from(["", "", "q"]))
    return found, draw(st.lists(subscriptions, min_size=least, max_size=8))


def made(sharing: dict[str, Own], subscriptions: list[tuple[str, str, str]]) -> model.Deliveries:
    """The same case for the model."""
    case = model.Deliveries({name: [] for name in sharing})
    for i, (account, subject, queue) in enumerate(subscriptions):
        case.subscriptions[account].append((subject, queue, i))
    for own in sharing.values():
        for entry in own.imports:
            its = plan(entry)
            one = model.Import(entry.account, list(its.local_tokens), list(its.remote_tokens))
            kind = case.services if isinstance(entry, ServiceImport) else case.streams
            kind.setdefault(own.name, []).append(one)
    return case


@settings(max_examples=examples(150), deadline=None)
@given(cases(), st.lists(st.tuples(st.sampled_from(NAMES), SUBJECTS), min_size=1, max_size=8), st.booleans())
def test_a_message_reaches_whom_the_model_says(
    case: tuple[dict[str, Own], list[tuple[str, str, str]]], published: list[tuple[str, str]], late: bool
) -> None:
    sharing, subscriptions = case
    accounts = Accounts(*(sharing.values() if not late else [Own(n, o.exports) for n, o in sharing.items()]))
    sinks = [accounts.subscribe(a, s, q, sid=i) for i, (a, s, q) in enumerate(subscriptions)]
    if late:  # imports find the subscriptions that are there
        accounts.sharing = sharing
        accounts.set_up()
    expected = made(sharing, subscriptions)
    for account, subject in published:
        accounts.by_name[account].publish(subject.encode(), b"")
        got = []
        for i, sink in enumerate(sinks):
            lines = sink.take().decode().split("\r\n\r\n")[:-1]
            got += [(i, line.split()[1]) for line in lines]
        check_receivers(got, *expected.publish(account, subject))


@pytest.mark.parametrize("kind", [ServiceImport, StreamImport])
def test_an_import_that_only_swaps_wildcards_renames(kind: type[ServiceImport] | type[StreamImport]) -> None:
    x = Own("X", [StreamExport(subject=">"), ServiceExport(subject=">")])
    y = Own("Y", [], [kind(account="X", subject="a.*.*.>", to="a.$2.$1.>")])
    accounts = Accounts(x, y)
    sender, receiver = ("Y", "X") if kind is ServiceImport else ("X", "Y")
    sink = accounts.subscribe(receiver, ">")
    accounts.by_name[sender].publish(b"a.1.2.3", b"")
    assert sink.take() == b"MSG a.2.1.3 1 0\r\n\r\n"


def check_receivers(
    got: list[tuple[int, str]], plain: list[tuple[int, str]], groups: list[set[tuple[int, str]]]
) -> None:
    """Everybody without a queue group, and one of each group."""
    rest = Counter(got)
    rest.subtract(Counter(plain))
    assert not [one for one, n in rest.items() if n < 0], "a receiver got less than the model says"
    left = list(rest.elements())
    assert len(left) == len(groups)
    assert assignable(left, groups)


def assignable(got: list[tuple[int, str]], groups: list[set[tuple[int, str]]]) -> bool:
    """Can each message be a group's one?"""
    if not got:
        return True
    places = [i for i, group in enumerate(groups) if got[0] in group]
    return any(assignable(got[1:], groups[:i] + groups[i + 1 :]) for i in places)


@given(FILTERS, FILTERS, SUBJECTS)
def test_an_intersection_matches_what_both_match(one: str, other: str, subject: str) -> None:
    common = intersection(one, other)
    both = matches(one, subject) and matches(other, subject)
    assert both == (common is not None and matches(common, subject))


@given(st.lists(st.sampled_from(["a", "*"]), min_size=1, max_size=5), st.booleans(), st.randoms(), SUBJECTS)
def test_a_rewriter_is_its_model(words: list[str], tail: bool, chance: object, subject: str) -> None:
    source: list[str | int] = [i + 1 if word == "*" else word for i, word in enumerate(words)]
    destination: list[str | int] = ["x", *reversed([token for token in source if isinstance(token, int)])]
    if tail:
        source.append(">")
        destination.append(">")
    expected = model.renamed(subject, source, destination)
    if expected is not None:
        assert Rewriter(source, destination).apply(subject.encode()) == expected.encode()


def test_imports_that_are_not_wanted_any_more_end() -> None:
    x = Own("X", [StreamExport(subject="s"), ServiceExport(subject="r")])
    y = Own(
        "Y", [], [StreamImport(account="X", subject="s"), ServiceImport(account="X", subject="r", to="q")]
    )
    accounts = Accounts(x, y)
    stays, server = accounts.subscribe("Y", "s"), accounts.subscribe("X", "r")
    accounts.by_name["X"].publish(b"s", b"1")
    accounts.by_name["Y"].publish(b"q", b"2")
    assert (stays.take(), server.take()) == (b"MSG s 1 1\r\n1\r\n", b"MSG r 1 1\r\n2\r\n")
    accounts.sharing = {"X": x, "Y": Own("Y")}
    accounts.set_up()
    assert accounts.by_name["X"].publish(b"s", b"1") == 0
    assert accounts.by_name["Y"].publish(b"q", b"2") == 0
    assert [account.index.count for account in accounts.by_name.values()] == [1, 1]


def test_what_stays_at_a_reload_keeps_its_requests() -> None:
    x = Own("X", [ServiceExport(subject="r")])
    y = Own("Y", [], [ServiceImport(account="X", subject="r")])
    accounts = Accounts(x, y)
    accounts.subscribe("X", "r")
    accounts.by_name["Y"].publish(b"r", b"", reply=b"in")
    y.imports.append(ServiceImport(account="X", subject="r", to="other"))
    accounts.set_up()
    assert accounts.waiting("X") == 1
    assert accounts.by_name["Y"].publish(b"other", b"") == 1


def reply_of(frame: bytes) -> bytes:
    """The reply of the one MSG or HMSG in it."""
    words = frame.split(b"\r\n")[0].split()
    return words[3]


def service(response: ResponseType = ResponseType.SINGLETON, about: bytes = b"") -> Accounts:
    x = Own("X", [ServiceExport(subject="r", response=response, response_threshold_ns=100)])
    return Accounts(x, Own("Y", [], [ServiceImport(account="X", subject="r")]), about=about)


@pytest.mark.parametrize(("response", "answers"), [(ResponseType.SINGLETON, 1), (ResponseType.STREAMED, 2)])
def test_answers_are_awaited_for_their_threshold(response: ResponseType, answers: int) -> None:
    accounts = service(response)
    server, client = accounts.subscribe("X", "r"), accounts.subscribe("Y", "in")
    accounts.by_name["Y"].publish(b"r", b"", reply=b"in")
    reply = reply_of(server.take())
    for accounts.clock.now in (99, 150):
        accounts.import_router.expire(accounts.clock.now)
        accounts.by_name["X"].publish(reply, b"a")
    assert client.take().count(b"MSG in") == answers
    accounts.clock.now = 250
    assert accounts.import_router.expire(250) == 0
    assert accounts.by_name["X"].publish(reply, b"a") == 0
    assert accounts.first == [0]


def test_the_header_of_who_asks_is_put_behind_the_others_and_in_place_of_its_own() -> None:
    accounts = service(about=b"{}")
    server = accounts.subscribe("X", "r")
    publish = accounts.by_name["Y"].publish
    for header, expected in (
        (b"", b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n"),
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n"),
        (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {}\r\n\r\n"),
        (b"NATS/1.0\r\nNats-Request-Info: x\r\nA: b\r\n\r\n",
         b"NATS/1.0\r\nA: b\r\nNats-Request-Info: {}\r\n\r\n"),
        (b"x", b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n"),
    ):  # fmt: skip
        publish(b"r", b"payload", header=header)
        assert server.take().split(b"\r\n", 1)[1] == expected + b"payload\r\n"


def test_a_measured_request_ends_once() -> None:
    ended: list[object] = []

    class Measurement:
        def answered(self, origin: Sink | None) -> None:
            ended.append("answered")

        def ended(self, why: int) -> None:
            ended.append(ReplyEnd(why))

    accounts = service()
    x, y = accounts.by_name["X"], accounts.by_name["Y"]
    sink = ServiceImportSink(
        x.index, y.index, rewriter=None, mapper=None, share=False, streamed=False, threshold_ns=100,
        describe=lambda origin, share: b"", chain=lambda header, origin, share: b"",
        measure=lambda origin, header, has_reply: Measurement(),
    )  # fmt: skip
    y.index.insert(SinkSubscription(sink, b"m"))
    y.publish(b"m", b"", reply=b"in")
    assert ended == [ReplyEnd.REPLY_UNDELIVERED]
    assert isinstance(x.index.replies, ReplyTable)
    server, client = accounts.subscribe("X", "m"), accounts.subscribe("Y", "in")
    sink_reply = _ask(y, server, b"m")
    x.publish(sink_reply, b"a")
    assert ended[1:] == ["answered"]
    assert client.take() == b"MSG in 1 1\r\na\r\n"
    _ask(y, server, b"m")
    accounts.import_router.expire(1000)
    assert ended[2:] == [ReplyEnd.REPLY_EXPIRED]
    listener = SinkSubscription(ClientSink(DirtyList()), b"gone", b"", b"1")
    y.index.insert(listener)
    y.publish(b"m", b"", reply=b"gone")
    y.unsubscribe(listener)
    assert ended[3:] == [ReplyEnd.REPLY_UNWANTED]


def _ask(account: Account, server: ClientSink, subject: bytes) -> bytes:
    account.publish(subject, b"", reply=b"in")
    return reply_of(server.take())


def test_a_consumer_sees_when_who_asked_is_gone() -> None:
    accounts = service(ResponseType.STREAMED)
    server = accounts.subscribe("X", "r")
    listener = SinkSubscription(ClientSink(DirtyList()), b"in", b"", b"1")
    accounts.by_name["Y"].index.insert(listener)
    accounts.by_name["Y"].publish(b"r", b"", reply=b"in")
    target, index = Target(reply_of(server.take())), accounts.by_name["X"].index
    assert target.is_wanted(index)
    accounts.by_name["Y"].unsubscribe(listener)
    assert not target.is_wanted(index)


@pytest.mark.parametrize("subject", [b"in", b"*", b">"])
def test_who_asked_and_listens_no_more_is_not_waited_for(subject: bytes) -> None:
    accounts = service()
    server, y = accounts.subscribe("X", "r"), accounts.by_name["Y"]
    listeners = [SinkSubscription(ClientSink(DirtyList()), f, b"", b"1") for f in (subject, b"in")]
    for listener in listeners:
        y.index.insert(listener)
    replies = [_ask(y, server, b"r") for _ in range(3)]
    y.publish(b"r", b"", reply=b"other.in")
    y.unsubscribe(listeners[1])
    assert accounts.waiting("X") == 4, "another subscription is left"
    accounts.by_name["X"].publish(replies[1], b"a")
    assert accounts.waiting("X") == 3
    y.unsubscribe(listeners[0])
    assert accounts.waiting("X") == (0 if subject == b">" else 1)
    assert accounts.by_name["X"].publish(replies[0], b"a") == 0


def test_an_answer_that_ends_its_own_subscription_is_an_answer() -> None:
    accounts = service()
    server, y = accounts.subscribe("X", "r"), accounts.by_name["Y"]

    class Owner:
        def on_auto_unsubscribe(self, subscription: SinkSubscription) -> None:
            y.unsubscribe(subscription)

    client = ClientSink(DirtyList(), Owner())
    y.index.insert(SinkSubscription(client, b"in", b"", b"1", 1))
    reply = _ask(y, server, b"r")
    assert accounts.by_name["X"].publish(reply, b"a") == 1
    assert client.take() == b"MSG in 1 1\r\na\r\n"
    assert accounts.waiting("X") == 0


def test_a_cycle_of_services_ends() -> None:
    """The check lets three accounts form one, as the official server's; a message still ends."""
    owns = [
        Own(name, [ServiceExport(subject=subject)], [ServiceImport(account=other, subject=its, to=subject)])
        for name, subject, other, its in (("X", "x", "Z", "z"), ("Y", "y", "X", "x"), ("Z", "z", "Y", "y"))
    ]
    accounts = Accounts(*owns)
    assert accounts.by_name["X"].publish(b"x", b"") == 0
