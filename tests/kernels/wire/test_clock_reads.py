"""How often the clock is read, which takes as long as half a publish, and what is noted of its time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink, publish
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.kernels.wire.ticks import TickTrigger

SMALL_READ_PUBLISHES_MAX = 4
RECEIVERS = 40  # of one message: more than a read without a look at the clock delivers to


class Harness:
    """A trigger with a clock that counts its reads, and an account."""

    def __init__(self) -> None:
        self.reads = 0
        self.soon: list[Callable[[], object]] = []
        self.trigger = TickTrigger(self.soon.append, self.end, self.clock)
        self.index = SubscriptionIndex()

    def clock(self) -> int:
        self.reads += 1
        return 1000 + self.reads

    def end(self) -> None:
        self.trigger.begin()
        self.trigger.done()
        self.trigger.flush()

    def iterate(self) -> None:
        due, self.soon[:] = self.soon[:], []
        for callback in due:
            callback()


class Client:
    def __init__(self, harness: Harness) -> None:
        self.sink = ClientSink(harness.trigger.dirty_sinks, self)
        self.ingress = Ingress(self.sink, harness.index)
        self.ingress.trigger, self.ingress.is_direct = harness.trigger, True
        self.ingress.on_wait = lambda: None
        self.failures: list[Exception] = []
        self.harness = harness

    def flush(self) -> bool:
        self.sink.take()
        return False

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def subscribe(self, subject: bytes) -> None:
        self.harness.index.insert(SinkSubscription(self.sink, subject, b"", b"1"))

    def read(self, data: bytes) -> int:
        """Reads, and returns how often that read the clock."""
        before = self.harness.reads
        with self.ingress.parser.get_buffer(len(data)) as room:
            room[: len(data)] = data
        self.ingress.received(len(data))
        return self.harness.reads - before


@pytest.fixture
def harness() -> Harness:
    """After a tick of one read, so that the next reads end theirs themselves."""
    harness = Harness()
    client = Client(harness)
    client.sink.write(b"x")
    client.read(b"PUB none 1\r\nx\r\n")
    harness.iterate()
    assert harness.trigger.at_once
    return harness


def test_a_read_of_a_few_publishes_reads_the_clock_once_and_so_does_its_flush_not(harness: Harness) -> None:
    client, receiver = Client(harness), Client(harness)
    receiver.subscribe(b"a")
    at_once = harness.trigger.at_once
    for publishes in range(1, SMALL_READ_PUBLISHES_MAX + 1):
        assert client.read(b"PUB a 1\r\nx\r\n" * publishes) == 1
        assert harness.trigger.at_once == at_once - publishes, "the read has flushed the receiver"
        assert client.sink.active_ns == receiver.sink.active_ns == 1000 + harness.reads
    assert receiver.sink.out_msgs == sum(range(1, SMALL_READ_PUBLISHES_MAX + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"PUB none 1\r\nx\r\n" * (SMALL_READ_PUBLISHES_MAX + 1),
        b"PUB none 2000\r\n" + b"x" * 2000 + b"\r\n",
        b"PUB service 1\r\nx\r\n",
        b"PUB many 1\r\nx\r\n",
    ],
    ids=["more publishes", "a large one", "a service", "many receivers"],
)
def test_what_may_take_long_is_measured(harness: Harness, data: bytes) -> None:
    harness.index.insert(SinkSubscription(ServiceSink(lambda *_: None), b"service"))
    for _ in range(RECEIVERS):
        Client(harness).subscribe(b"many")
    assert Client(harness).read(data) >= 2


def test_a_flush_between_reads_reads_the_clock_once_for_all_sinks(harness: Harness) -> None:
    receivers = [Client(harness) for _ in range(3)]
    for receiver in receivers:
        receiver.subscribe(b"a")
    publish(harness.index, b"a", b"", b"", b"x")
    before = harness.reads
    harness.trigger.flush()
    harness.trigger.flush()
    assert harness.reads == before + 1
    assert [receiver.sink.active_ns for receiver in receivers] == [1000 + harness.reads] * 3


def test_a_flush_without_messages_is_no_activity(harness: Harness) -> None:
    client = Client(harness)
    client.sink.write(b"PONG\r\n")
    harness.trigger.flush()
    assert client.sink.active_ns == 0


def test_a_sink_that_cannot_be_flushed_ends_its_connection_and_the_others_are_flushed(
    harness: Harness, noted_faults: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, last = (Client(harness) for _ in range(4))

    def refuse(*_: object) -> bool:
        raise ValueError("no")

    monkeypatch.setattr(first, "flush", refuse)
    monkeypatch.setattr(third, "flush", refuse)
    monkeypatch.setattr(third, "fail", refuse)
    for client in (first, second, third, last):
        client.sink.write(b"x")
    harness.trigger.flush()
    assert [type(error) for error in first.failures] == [ValueError]
    assert [client.sink.take() for client in (second, last)] == [b"", b""]
    assert [type(error) for error in noted_faults] == [ValueError], "that of the one which could not be ended"
    noted_faults.clear()


def test_more_bytes_than_there_was_room_for_are_refused(harness: Harness) -> None:
    client = Client(harness)
    with client.ingress.parser.get_buffer() as room:
        size = len(room)
    with pytest.raises(ValueError, match="room for"):
        client.ingress.received(size + 1)
    with pytest.raises(ValueError, match="room for"):
        client.ingress.received(-1)
    assert client.ingress.parser.pending == 0
