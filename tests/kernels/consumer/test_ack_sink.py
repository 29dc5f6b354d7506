"""Acks through the AckSink, against ack subjects read by splitting them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.consumer.endpoints import AckQueue, AckSink
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference import ack_sink as reference

tokens = st.one_of(
    st.integers(0, 2**65).map(lambda n: b"%d" % n),
    st.integers(0, 20).map(lambda n: b"%d" % n),
    st.sampled_from([b"C", b"CC", b"x", b"-1", b"1x", b"00", b"18446744073709551615"]),
)


class Acker:
    """An AckSink subscribed as a stream's is."""

    def __init__(self) -> None:
        self.index = SubscriptionIndex()
        self.dirty = DirtyList()
        self.sink = AckSink()
        for subject in (b"$JS.ACK.S.>", b"$JS.ACK._.h4sh.S.>"):
            self.index.insert(SinkSubscription(self.sink, subject))
        self.queues = {name: AckQueue(name, self.dirty) for name in (b"C", b"CC")}
        for name, queue in self.queues.items():
            self.sink.add(name, queue)

    def ack(self, subject: bytes, body: bytes = b"", reply: bytes = b"") -> int:
        return publish(self.index, subject, reply, b"", body)


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+OK"])
@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.S.C.1.7.9.1000.3",
        b"$JS.ACK._.h4sh.S.C.1.7.9.1000.3",
        b"$JS.ACK._.h4sh.S.C.1.7.9.1000.3.more.tokens",
    ],
)
def test_a_plain_ack_is_gathered_for_its_consumer(subject: bytes, body: bytes) -> None:
    acker = Acker()
    assert acker.ack(subject, body) == 1
    assert [queue.count for queue in acker.queues.values()] == [1, 0]
    assert acker.dirty.take() == [b"C"]
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.delivered(7, 1)
    assert acker.queues[b"C"].apply(state) == 1


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.S.C.1.7.9.1000",
        b"$JS.ACK.S.C.1.7.9.1000.3.4",
        b"$JS.ACK.S.C.1.x.9.1000.3",
        b"$JS.ACK.S.C.1.7.9.1000.3x",
        b"$JS.ACK.S.C.1.99999999999999999999.9.1000.3",
        b"$JS.ACK.S.C.1.-7.9.1000.3",
        b"$JS.ACK.S.C",
        b"$JS.ACK.S.D.1.7.9.1000.3",
        b"$JS.ACK.S.CCC.1.7.9.1000.3",
    ],
)
def test_what_is_no_ack_of_a_known_consumer_is_refused(subject: bytes) -> None:
    acker = Acker()
    assert acker.ack(subject) == 0
    assert acker.dirty.take() == []


def test_acks_that_need_a_decision_keep_their_place_among_the_plain_ones() -> None:
    acker = Acker()
    acker.ack(b"$JS.ACK.S.C.1.1.1.1000.3")
    acker.ack(b"$JS.ACK.S.C.2.2.2.1000.3", b"-NAK")
    acker.ack(b"$JS.ACK.S.CC.1.1.1.1000.3")
    acker.ack(b"$JS.ACK.S.C.1.3.3.1000.3", b"+ACK", b"_INBOX.sure")
    acker.ack(b"$JS.ACK.S.C.1.4.4.1000.3")
    queue = acker.queues[b"C"]
    assert queue.begin(0) == [(1, 2, 2, 2, b"-NAK", b""), (1, 3, 3, 1, b"+ACK", b"_INBOX.sure")]
    assert acker.dirty.take() == [b"C", b"CC"]
    state = AckState(AckPolicy.ACK_EXPLICIT)
    for seq in range(1, 5):
        state.delivered(seq, 1)
    assert queue.apply(state, 1) == 1
    assert state.ack_floor_stream == 1
    assert queue.apply(state) == 1
    assert [seq for seq, _, _, _ in state.pending()] == [2, 3]


@given(
    st.sampled_from([b"C", b"CC", b"D"]),
    st.lists(tokens, max_size=8),
    st.booleans(),
    st.sampled_from([*reference.PLAIN, b"-NAK", b"+WPI"]),
)
def test_acks_are_read_as_the_model_reads_them(
    consumer: bytes, numbers: list[bytes], longer: bool, body: bytes
) -> None:
    acker = Acker()
    rest = b".".join([consumer, *numbers])
    taken = acker.ack((b"$JS.ACK._.h4sh.S." if longer else b"$JS.ACK.S.") + rest, body)
    expected = reference.read(rest, longer=longer)
    if expected is None or expected[0] not in acker.queues:
        assert taken == 0
        return
    assert taken == 1
    deliveries, stream_seq, consumer_seq, _, _ = expected[1]
    queue = acker.queues[expected[0]]
    if body in reference.PLAIN:
        assert (queue.count, queue.begin(0)) == (1, [])
    else:
        assert queue.begin(0) == [(0, stream_seq, consumer_seq, deliveries, body, b"")]
