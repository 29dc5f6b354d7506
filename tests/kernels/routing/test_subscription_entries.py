"""What deliveries read of a subscription is kept apart from it, and must say what the subscription says."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.base.memory import blocks_in_use, chunks_in_use
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference.subscription_index import IndexModel
from tests.support.examples import examples

SUBJECT_SIZES = (1, 20, 27, 28, 29, 60, 100, 200, 300, 1000)


class Account:
    """An index, a receiver, and the model of who is interested."""

    def __init__(self) -> None:
        self.index = SubscriptionIndex()
        self.sink = ClientSink(DirtyList(), self)
        self.model = IndexModel()
        self.subs: dict[int, SinkSubscription] = {}

    def on_auto_unsubscribe(self, sub: SinkSubscription) -> None:
        self.remove(next(n for n, known in self.subs.items() if known is sub))

    def insert(
        self, subject: str, queue: str = "", sid: bytes | None = None, max_msgs: int = 0
    ) -> SinkSubscription:
        n = len(self.subs) + 1
        sub = SinkSubscription(
            self.sink, subject.encode(), queue.encode(), b"%d" % n if sid is None else sid, max_msgs
        )
        self.subs[n] = sub
        self.index.insert(sub)
        self.model.insert(n, subject, queue)
        return sub

    def remove(self, n: int) -> None:
        if self.index.remove(self.subs[n]):
            self.model.remove(n)

    def publish(self, subject: str) -> list[bytes]:
        publish(self.index, subject.encode(), b"", b"", b"x")
        return sorted(self.sink.take().split(b" 1\r\nx\r\n")[:-1])


STEPS = st.one_of(
    st.tuples(st.just("insert"), st.sampled_from("abc"), st.sampled_from(["", "q"]), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.integers(0, 30), st.just(""), st.just(0)),
    st.tuples(st.just("publish"), st.sampled_from("abc"), st.just(""), st.just(0)),
)


@settings(max_examples=examples(200))
@given(st.lists(STEPS, max_size=40))
def test_filters_gain_and_lose_subscriptions_and_each_counts_what_it_got(
    steps: list[tuple[object, ...]],
) -> None:
    """One subscription, several, queue groups, maxima: each receiver gets its frame and counts it."""
    account = Account()
    counts: dict[int, int] = {}
    for step in steps:
        match step:
            case ("insert", str(subject), str(queue), int(most)):
                account.insert(subject, queue, max_msgs=most)
            case ("remove", int(n), _, _) if n in account.subs:
                account.remove(n)
            case ("publish", str(subject), _, _):
                plain, groups = account.model.match(subject)
                got = account.publish(subject)
                numbers = [int(frame.split()[2]) for frame in got]
                assert all(frame.split()[:2] == [b"MSG", subject.encode()] for frame in got)
                assert set(plain) <= set(numbers)
                assert len(numbers) == len(plain) + len(groups)
                for n in numbers:
                    counts[n] = counts.get(n, 0) + 1
    for n, sub in account.subs.items():
        assert sub.delivered == counts.get(n, 0)
        assert sub.closed == (sub.max_msgs > 0 and sub.delivered == sub.max_msgs)


@pytest.mark.parametrize("size", SUBJECT_SIZES)
@pytest.mark.parametrize("sid_size", [0, 1, 7, 255, 256, 3000])
def test_a_frame_is_the_same_whatever_the_size_of_subject_and_sid(size: int, sid_size: int) -> None:
    account = Account()
    subject, sid = "s" * size, b"7" * sid_size
    sub = account.insert(subject, sid=sid)
    assert account.publish(subject) == [b"MSG " + subject.encode() + b" " + sid]
    assert sub.delivered == 1
    account.insert(subject, sid=b"1")
    assert account.publish(subject) == sorted(
        [b"MSG " + subject.encode() + b" " + sid, b"MSG " + subject.encode() + b" 1"]
    )
    account.remove(2)
    account.publish(subject)
    assert sub.delivered == 3


def test_a_closed_subscription_gets_nothing_and_may_open_again() -> None:
    account = Account()
    sub = account.insert("a")
    sub.closed = True
    assert account.publish("a") == []
    sub.closed = False
    assert account.publish("a") == [b"MSG a 1"]
    assert (sub.closed, sub.delivered) == (False, 1)


def test_a_maximum_set_later_counts_what_was_delivered_before() -> None:
    account = Account()
    sub = account.insert("a")
    account.publish("a")
    sub.max_msgs = 2
    account.publish("a")
    assert (sub.closed, sub.delivered) == (True, 2)
    assert account.publish("a") == []


def test_a_subject_too_long_for_an_index_is_refused_and_its_subscription_goes_away() -> None:
    account = Account()
    sub = SinkSubscription(account.sink, b"s" * 70_000, b"", b"1")
    with pytest.raises(ValueError, match="70000 bytes"):
        account.index.insert(sub)


def test_memory_goes_back_when_subscriptions_go() -> None:
    gc.collect()
    before = blocks_in_use(), chunks_in_use()
    account = Account()
    for n in range(3000):
        account.insert(f"{'t' * SUBJECT_SIZES[n % len(SUBJECT_SIZES)]}.{n}")
        if n % 3 == 0:
            account.insert(f"{'t' * SUBJECT_SIZES[n % len(SUBJECT_SIZES)]}.{n}")
    assert blocks_in_use() > before[0] + 2000
    assert chunks_in_use() > before[1]
    del account
    gc.collect()
    after = blocks_in_use(), chunks_in_use()
    assert after[0] <= before[0]
    assert after[1] <= before[1]
