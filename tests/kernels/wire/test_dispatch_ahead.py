"""What one read brought is taken a handful at a time: it must come to what each publish alone comes to."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.frames import OP_ERROR, OP_NEED_MORE, OP_PING, FrameParser
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, Sink, SinkSubscription
from tests.reference.subscription_index import IndexModel

MANY = 1100  # literal filters from which on lookups are fetched ahead
SUBJECTS = ["a", "b", "a.b", "many.7", "many.8", "many.900", "nobody"]


class Side:
    """An account with two clients and a service whose callback changes who is subscribed."""

    def __init__(self, many: int) -> None:
        self.index = SubscriptionIndex()
        self.dirty = DirtyList()
        self.model = IndexModel()
        self.subs: dict[int, SinkSubscription] = {}
        self.receiver = ClientSink(self.dirty, self)
        self.sender = ClientSink(self.dirty, self)
        self.ingress = Ingress(self.sender, self.index)
        for n in range(many):
            self.subscribe(f"many.{n}", "", 0)
        self.index.insert(SinkSubscription(ServiceSink(self.serve), b"$do.>"))

    def subscribe(self, f: str, queue: str, most: int) -> None:
        sid = len(self.subs) + 1
        self.subs[sid] = SinkSubscription(self.receiver, f.encode(), queue.encode(), b"%d" % sid, most)
        self.index.insert(self.subs[sid])
        self.model.insert(sid, f, queue)

    def on_auto_unsubscribe(self, sub: SinkSubscription) -> None:
        self.index.remove(sub)
        self.model.remove(int(sub.sid))

    def serve(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        match payload.decode().split():
            case ["subscribe", f, most]:
                self.subscribe(f, "", int(most))
            case ["join", f, queue]:
                self.subscribe(f, queue, 0)
            case ["leave", f]:
                for sid, sub in list(self.subs.items()):
                    if sub.subject == f.encode() and self.index.remove(sub):
                        sub.closed = True
                        self.model.remove(sid)
            case ["fail"]:
                raise LookupError

    def read(self, data: bytes) -> int:
        """One read, worked through although services raise."""
        self.ingress.parser.feed(data)
        return self.ingress.process()

    def received(self) -> list[tuple[int, bytes]]:
        parser = FrameParser()
        parser.feed(self.receiver.take())
        got = [(sid, subject) for sid, subject, *_ in parser.next_batch()]
        assert parser.pending == 0
        return got


def frame_of(step: tuple[str, ...]) -> bytes:
    if step[0] == "publish":
        return b"PUB %s 2\r\nhi\r\n" % step[1].encode()
    body = " ".join(step).encode()
    return b"PUB $do.it %d\r\n%s\r\n" % (len(body), body)


filters = st.sampled_from([*SUBJECTS, "a.*", "many.*", ">", "*.900"])
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("publish"), st.sampled_from(SUBJECTS))] * 3,
        st.tuples(st.just("subscribe"), filters, st.sampled_from(["0", "0", "1", "2"])),
        st.tuples(st.just("join"), filters, st.sampled_from(["q", "r"])),
        st.tuples(st.just("leave"), filters),
        st.tuples(st.just("fail")),
    ),
    min_size=2,
    max_size=80,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, many=st.sampled_from([0, MANY]), cuts=st.lists(st.integers(1, 600), max_size=4))
def test_one_read_comes_to_what_each_publish_alone_comes_to(
    steps: list[tuple[str, ...]], many: int, cuts: list[int], noted_faults: list[BaseException]
) -> None:
    noted_faults.clear()
    whole, single = Side(many), Side(many)
    data = b"".join(map(frame_of, steps))
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        assert whole.read(data[start:end]) == OP_NEED_MORE
    got = []
    for step in steps:
        due_plain: set[int] = set()
        due_groups: dict[str, set[int]] = {}
        if step[0] == "publish":
            due_plain, due_groups = single.model.match(step[1])
        assert single.read(frame_of(step)) == OP_NEED_MORE
        now = single.received()
        if step[0] == "publish":
            sids = [sid for sid, _ in now]
            assert len(set(sids)) == len(sids) == len(due_plain) + len(due_groups)
            assert due_plain <= set(sids)
            assert all(members & set(sids) for members in due_groups.values())
        got += now
    assert whole.received() == got
    assert whole.sender.in_msgs == len(steps)
    assert len(noted_faults) == 2 * steps.count(("fail",))
    noted_faults.clear()


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 70])
@pytest.mark.parametrize("behind", [b"PING\r\n", b"PUB a b c d 1\r\n"], ids=["control", "breach"])
def test_what_stands_behind_a_publish_that_fails_comes_next(
    before: int, behind: bytes, noted_faults: list[BaseException]
) -> None:
    side = Side(0)
    side.subscribe("a", "", 0)
    side.ingress.parser.feed(b"PUB a 1\r\nx\r\n" * before + frame_of(("fail",)) + behind)
    assert side.ingress.process() == (OP_PING if behind == b"PING\r\n" else OP_ERROR)
    assert len(side.received()) == before
    assert isinstance(noted_faults.pop(), LookupError)
    assert side.ingress.control().op == (OP_PING if behind == b"PING\r\n" else OP_ERROR)


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 70])
def test_a_sink_that_closes_leaves_the_rest_of_the_read_alone(before: int) -> None:
    side = Side(0)
    side.subscribe("a", "", 0)

    def close(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        side.sender.closed = True

    side.index.insert(SinkSubscription(ServiceSink(close), b"close"))
    rest = b"PUB a 1\r\nx\r\n" * 3 + b"PING\r\n"
    side.ingress.parser.feed(b"PUB a 1\r\nx\r\n" * before + b"PUB close 0\r\n\r\n" + rest)
    assert side.ingress.process() == OP_NEED_MORE
    assert len(side.received()) == before
    assert side.sender.in_msgs == before + 1
    assert side.ingress.parser.pending == len(rest)


def test_a_subscription_that_goes_between_two_publishes_of_a_read_gets_the_first_only() -> None:
    side = Side(MANY)
    steps = [("publish", "many.7"), ("leave", "many.7"), ("publish", "many.7"), ("publish", "many.8")]
    side.read(b"".join(map(frame_of, steps)))
    assert [subject for _, subject in side.received()] == [b"many.7", b"many.8"]
