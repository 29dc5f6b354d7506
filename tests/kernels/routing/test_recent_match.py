"""Lookups that are answered by the one before them: the answer is that of a lookup of its own."""

from __future__ import annotations

import random

import pytest

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import FrameParser, ParseError
from penstock.kernels.wire.sinks import DirtyList, Sink, SinkSubscription
from tests.reference import subscription_index as model

LAST_TOKENS = ["a", "b", "c", "", "a.b", "a.", "*", ">"]


@pytest.mark.parametrize("seed", range(40))
def test_subjects_that_share_all_but_the_last_token_are_distinct(seed: int) -> None:
    rng = random.Random(seed)
    index, expected, subs = SubscriptionIndex(), model.IndexModel(), {}
    for step in range(400):
        choice = rng.random()
        if choice < 0.03:
            stem = rng.choice(["", "x.", "x.y.", "*.y.", "_R_.x."])
            f = stem + rng.choice(["a", "*", ">", "a.*", "*.b"])
            subs[step] = SinkSubscription(Sink(), f.encode(), sid=b"%d" % step)
            index.insert(subs[step])
            expected.insert(step, f, "")
        elif choice < 0.045 and subs:
            gone = rng.choice(sorted(subs))
            index.remove(subs.pop(gone))
            expected.remove(gone)
        else:
            subject = rng.choice(["x.y.", "x.y.", "x.", "z.y.", "_R_.x.", ""]) + rng.choice(LAST_TOKENS)
            if not subject:
                continue
            found = {int(sub.sid) for sub in index.match(subject.encode()).plain}
            assert found == expected.match(subject)[0], (subject, [f for _, f, _ in expected.members])


def test_replies_of_one_requester_are_answered_without_another_walk() -> None:
    index = SubscriptionIndex()
    inbox = SinkSubscription(Sink(), b"_INBOX.abc.*")
    index.insert(inbox)
    index.match(b"_INBOX.abc.0")
    walks = index.num_walks
    for n in range(1, 100):
        assert index.match(b"_INBOX.abc.%d" % n).plain == [inbox]
    assert index.num_walks == walks


def test_a_subject_too_long_to_be_remembered_is_looked_up_each_time() -> None:
    index = SubscriptionIndex()
    index.insert(SinkSubscription(Sink(), b"long.>"))
    for size in (95, 99, 100, 200, 5000):
        for last in (b"a", b"b"):
            assert len(index.match(b"long." + b"x" * size + b"." + last).plain) == 1
            assert index.match(b"lang." + b"x" * size + b"." + last).plain == []


@pytest.mark.parametrize("odd", [b"\x01", b"\x1f", b"!", b"\x7f", b"\x80", b"\xff", b"\x0b"])
def test_words_of_any_length_with_any_byte_anywhere_end_where_the_blank_is(odd: bytes) -> None:
    for size in range(1, 30):
        for at in range(size):
            subject = b"s" * at + odd + b"s" * (size - at - 1)
            parser = FrameParser()
            parser.feed(b"PUB %s\treply.%d  3\r\nabc\r\n" % (subject, size))
            frame = parser.next_frame()
            assert frame is not None
            assert (frame.subject, frame.reply, frame.payload) == (subject, b"reply.%d" % size, b"abc")


def test_a_carriage_return_in_a_word_is_refused_wherever_it_stands() -> None:
    for size in range(1, 30):
        for at in range(size):
            parser = FrameParser()
            parser.feed(b"PUB " + b"s" * at + b"\r" + b"s" * (size - at) + b" 3\r\nabc\r\n")
            parser.next_frame()
            assert parser.error == ParseError.ERROR_MALFORMED


class Receiver:
    """A client that takes messages."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self.index = index
        self.sink = ClientSink(DirtyList(), self)

    def on_auto_unsubscribe(self, sub: SinkSubscription) -> None:
        self.index.remove(sub)

    def subscribe(self, f: bytes, sid: int, queue: bytes = b"", most: int = 0) -> SinkSubscription:
        sub = SinkSubscription(self.sink, f, queue, b"%d" % sid, most)
        self.index.insert(sub)
        return sub

    def sids(self) -> list[int]:
        """Of the messages since the last call."""
        parser = FrameParser()
        parser.feed(self.sink.take())
        return sorted(sid for sid, *_ in parser.next_batch())


def publish_twice(index: SubscriptionIndex, receiver: Receiver, subject: bytes) -> list[list[int]]:
    got = []
    for _ in range(2):
        publish(index, subject, b"", b"", b"x")
        got.append(receiver.sids())
    return got


def test_a_repeated_literal_subject_reaches_who_is_subscribed_now() -> None:
    index = SubscriptionIndex()
    receiver = Receiver(index)
    first = receiver.subscribe(b"a.b", 1)
    assert publish_twice(index, receiver, b"a.b") == [[1], [1]]
    assert publish_twice(index, receiver, b"a.c") == [[], []], "of the same length"
    second = receiver.subscribe(b"a.b", 2)
    assert publish_twice(index, receiver, b"a.b") == [[1, 2], [1, 2]]
    index.remove(first)
    assert publish_twice(index, receiver, b"a.b") == [[2], [2]]
    wildcard = receiver.subscribe(b"a.*", 3)
    assert publish_twice(index, receiver, b"a.b") == [[2, 3], [2, 3]]
    index.remove(wildcard)
    index.remove(second)
    assert publish_twice(index, receiver, b"a.b") == [[], []]
    receiver.subscribe(b"a.b", 4, most=3)
    assert publish_twice(index, receiver, b"a.b") == [[4], [4]]
    assert publish_twice(index, receiver, b"a.b") == [[4], []], "the maximum ends it"
    receiver.subscribe(b"a.b", 5, queue=b"g")
    receiver.subscribe(b"a.b", 6)
    assert publish_twice(index, receiver, b"a.b") == [[5, 6], [5, 6]]


def test_a_freed_subscription_is_not_the_receiver_of_its_subject() -> None:
    index = SubscriptionIndex()
    receiver = Receiver(index)
    for sid in range(1, 200):
        sub = receiver.subscribe(b"a.b", sid)
        assert publish_twice(index, receiver, b"a.b") == [[sid], [sid]]
        index.remove(sub)
        del sub
        assert publish_twice(index, receiver, b"a.b") == [[], []]


def test_a_repeated_literal_subject_is_looked_up_once() -> None:
    index = SubscriptionIndex()
    receiver = Receiver(index)
    receiver.subscribe(b"a.b", 1)
    publish_twice(index, receiver, b"a.b")
    walks = index.num_walks
    publish_twice(index, receiver, b"a.b")
    assert index.num_walks == walks
