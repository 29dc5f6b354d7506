"""What permissions mean on the hot path: the guard of a receiver, answers of a publish check."""

from __future__ import annotations

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, DeliveryGuard, publish
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription


def receiver(index: SubscriptionIndex, *, queue: bytes = b"") -> ClientSink:
    sink = ClientSink(DirtyList())
    index.insert(SinkSubscription(sink, b">", queue, b"1"))
    return sink


def test_a_guard_keeps_away_what_may_not_be_received_and_asks_once() -> None:
    index = SubscriptionIndex()
    sink = receiver(index)
    asked: list[bytes] = []

    def may_receive(subject: bytes) -> bool:
        asked.append(subject)
        return not subject.startswith(b"no")

    sink.guard = DeliveryGuard(may_receive)
    taken = [publish(index, subject, b"", b"", b"") for subject in (b"no.1", b"a", b"no.1", b"a")]
    assert taken == [0, 1, 0, 1]
    assert asked == [b"no.1", b"a"]
    assert sink.take() == b"MSG a 1 0\r\n\r\n" * 2
    assert sink.out_msgs == 2


def test_what_a_guard_remembers_has_a_bound() -> None:
    index = SubscriptionIndex()
    sink = receiver(index)
    asked = []
    sink.guard = DeliveryGuard(lambda subject: asked.append(subject) is None)
    for i in range(5000):
        assert publish(index, b"s.%d" % i, b"", b"", b"") == 1
    publish(index, b"s.0", b"", b"", b"")
    assert len(asked) == 5001  # forgotten, asked again


def test_a_queue_group_passes_over_a_guarded_member() -> None:
    index = SubscriptionIndex()
    guarded, free = receiver(index, queue=b"q"), receiver(index, queue=b"q")
    guarded.guard = DeliveryGuard(lambda subject: False)
    for _ in range(20):
        assert publish(index, b"a", b"", b"", b"") == 1
    assert (guarded.out_msgs, free.out_msgs) == (0, 20)


def test_a_guard_receives_replies_of_what_is_delivered_only() -> None:
    index = SubscriptionIndex()
    sink = receiver(index)
    replies: list[bytes] = []
    sink.guard = DeliveryGuard(lambda subject: subject != b"no", replies.append)
    publish(index, b"a", b"r.1", b"", b"")
    publish(index, b"a", b"", b"", b"")
    publish(index, b"no", b"r.2", b"", b"")
    assert replies == [b"r.1"]


def test_what_is_allowed_once_is_asked_about_again() -> None:
    index = SubscriptionIndex()
    answers = {b"once": 2, b"always": True, b"never": False}
    asked: list[bytes] = []

    def check(subject: bytes) -> int:
        asked.append(subject)
        return answers[subject]

    sink = receiver(index)
    ingress = Ingress(ClientSink(DirtyList()), index)
    ingress.publish_check = check
    ingress.parser.feed(b"PUB once 0\r\n\r\nPUB always 0\r\n\r\nPUB never 0\r\n\r\n" * 2)
    ingress.process()
    assert asked == [b"once", b"always", b"never", b"once", b"never"]
    assert sink.take() == b"MSG once 1 0\r\n\r\nMSG always 1 0\r\n\r\n" * 2
