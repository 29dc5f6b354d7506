"""Mappings on the way of a publish: before checks and routing, remembered where chance has no part."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, SubjectMapper
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.routing.account import Account
from penstock.routing.mapping import Destination, Mappings, SubjectMapping
from tests.reference import mappings as model
from tests.reference.subscription_index import matches

pytestmark = pytest.mark.feature("core.subject-mapping")


class Client:
    """One client that gets what it publishes."""

    def __init__(self, *filters: bytes) -> None:
        self.sink = ClientSink(DirtyList(lambda: None))
        self.sink.headers = True
        self.index = SubscriptionIndex()
        self.ingress = Ingress(self.sink, self.index)
        self.ingress.no_responders = True
        for i, subject in enumerate(filters):
            self.index.insert(SinkSubscription(self.sink, subject, b"", b"%d" % i))

    def send(self, data: bytes) -> bytes:
        self.ingress.parser.feed(data)
        self.ingress.process()
        return self.sink.take()


class Deciding:
    """A decide() that counts what it is asked."""

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed
        self.asked: list[bytes] = []

    def __call__(self, subject: bytes) -> tuple[bytes, bool]:
        self.asked.append(subject)
        return b"to.%d" % len(self.asked), self.fixed


def test_the_receiver_sees_the_mapped_subject() -> None:
    client = Client(b">")
    client.ingress.mapper = SubjectMapper(lambda subject: (b"new." + subject, True))
    assert (
        client.send(b"PUB a 2\r\nhi\r\nPUB b r 0\r\n\r\n")
        == b"MSG new.a 0 2\r\nhi\r\nMSG new.b 0 r 0\r\n\r\n"
    )
    client.ingress.mapper = None
    assert client.send(b"PUB a 0\r\n\r\n") == b"MSG a 0 0\r\n\r\n"


def test_a_publish_byte_by_byte_is_mapped_once() -> None:
    client, decide = Client(b">"), Deciding(fixed=False)
    client.ingress.mapper = SubjectMapper(decide)
    got = b"".join(client.send(bytes([byte])) for byte in b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert got == b"HMSG to.1 0 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    assert decide.asked == [b"a"]


def test_what_is_always_so_is_asked_once_and_chance_every_time() -> None:
    always, chance = Deciding(fixed=True), Deciding(fixed=False)
    fixed_mapper, random_mapper = SubjectMapper(always), SubjectMapper(chance)
    assert [fixed_mapper.map(b"a") for _ in range(3)] == [b"to.1"] * 3
    assert [random_mapper.map(b"a") for _ in range(3)] == [b"to.1", b"to.2", b"to.3"]
    assert (len(always.asked), len(chance.asked)) == (1, 3)


def test_what_is_remembered_is_bounded() -> None:
    decide = Deciding(fixed=True)
    mapper = SubjectMapper(decide)
    for i in range(5000):
        mapper.map(b"%d" % i)
    for i in range(5000):
        mapper.map(b"%d" % i)
    assert len(decide.asked) > 5000, "the first ones were forgotten"


def test_mappings_are_asked_only_about_subjects_with_their_prefix() -> None:
    client, decide = Client(b">"), Deciding(fixed=False)
    client.ingress.mapper = SubjectMapper(decide, b"$JS.hub")
    got = client.send(
        b"PUB $JS.hub.a 0\r\n\r\nPUB $JS.hu 0\r\n\r\nPUB $KS.hub.a 0\r\n\r\nPUB $JS.hub 0\r\n\r\n"
    )
    assert got == b"MSG to.1 0 0\r\n\r\nMSG $JS.hu 0 0\r\n\r\nMSG $KS.hub.a 0 0\r\n\r\nMSG to.2 0 0\r\n\r\n"
    assert decide.asked == [b"$JS.hub.a", b"$JS.hub"]


def test_permissions_see_the_mapped_subject() -> None:
    client = Client(b">")
    seen: list[bytes] = []

    def refuse(subject: bytes) -> bool:
        seen.append(subject)
        return False

    client.ingress.mapper = SubjectMapper(lambda subject: (b"mapped", True))
    client.ingress.publish_check = refuse
    assert client.send(b"PUB a 0\r\n\r\n") == b""
    assert seen == [b"mapped"]


def test_a_mapping_to_a_reserved_subject_is_refused() -> None:
    client = Client(b">")
    client.ingress.mapper = SubjectMapper(lambda subject: (b"$NRG.x", True))
    assert client.send(b"PUB a 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"$NRG.x\"'\r\n"


def test_a_dropped_message_gets_no_responders() -> None:
    client = Client(b"r", b"a")
    client.ingress.mapper = SubjectMapper(lambda subject: (b"", False))
    assert client.send(b"PUB a r 0\r\n\r\n") == (
        b"HMSG r 0 32 32\r\nNATS/1.0 503\r\nNats-Subject: \r\n\r\n\r\n"
    )


def test_a_subject_with_a_space_never_reaches_a_receiver() -> None:
    with pytest.raises(ValueError, match="whitespace"):
        SubjectMapper(lambda subject: (b"a b", True)).map(b"a")


def test_an_account_maps_with_its_mappings_and_its_chance() -> None:
    account = Account("A")
    assert account.mapper is None
    mapping = SubjectMapping("a", (Destination(subject="b", weight=50),))
    account.set_mappings(Mappings([mapping]), lambda n: n - 1)
    assert account.mapper is not None
    assert account.mapper.map(b"a") == b"a"
    account.set_mappings(Mappings([mapping]), lambda n: 0)
    assert account.mapper.map(b"a") == b"b"


WORDS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(WORDS, min_size=1, max_size=4).map(".".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=3), st.sampled_from([[], [">"]])
).map(lambda parts: ".".join(parts[0] + parts[1]))


@st.composite
def plain_mappings(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Sources with destinations that fit them."""
    found = []
    for source in draw(st.lists(FILTERS, max_size=4)):
        stars = [f"${i}" for i in range(1, source.split(".").count("*") + 1)]
        words = draw(st.lists(st.sampled_from(["a", "b", "x", *stars]), min_size=1, max_size=3))
        found.append((source, ".".join(words + ([">"] if source.endswith(">") else []))))
    return found


@given(
    plain_mappings(),
    st.lists(st.tuples(FILTERS, st.sampled_from([b"", b"q", b"r"])), max_size=6),
    st.lists(SUBJECTS, max_size=12),
)
def test_publishes_with_mappings_reach_whom_the_model_says(
    mappings: list[tuple[str, str]], filters: list[tuple[str, bytes]], subjects: list[str]
) -> None:
    client = Client()
    account = Account("A")
    account.set_mappings(Mappings(SubjectMapping.to(*pair) for pair in mappings), lambda n: 0)
    client.ingress.mapper = account.mapper
    for i, (subject, queue) in enumerate(filters):
        client.index.insert(SinkSubscription(client.sink, subject.encode(), queue, b"%d" % i))
    for subject in subjects:
        expected = model.mapped(mappings, subject)
        willing = [(i, queue) for i, (f, queue) in enumerate(filters) if matches(f, expected)]
        lines = client.send(b"PUB %s 0\r\n\r\n" % subject.encode()).split(b"\r\n\r\n")[:-1]
        got = [line.split() for line in lines]
        assert all(verb == b"MSG" and seen == expected.encode() for verb, seen, *_ in got)
        sids = [int(words[2]) for words in got]
        assert sorted(i for i in sids if not filters[i][1]) == [i for i, queue in willing if not queue]
        groups = Counter(filters[i][1] for i in sids if filters[i][1])
        assert groups == dict.fromkeys({queue for _, queue in willing if queue}, 1)
        assert set(sids) <= {i for i, _ in willing}
