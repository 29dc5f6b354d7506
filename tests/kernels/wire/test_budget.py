"""The budget of an iteration: large reads in parts, parts in order, and the same results as without one.

Time is a count: each frame costs what the test says, and nothing else takes any.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.frames import OP_ERROR, OP_NEED_MORE, OP_PING
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.kernels.wire.ticks import (
    CROWD_PERIOD_NS,
    CROWDED_READ_BYTES,
    CROWDED_SMALL_READ_BYTES,
    HEAVY_PERIOD_NS,
    LONG_BUDGET_NS,
    SHORT_BUDGET_NS,
    WORK_MAX,
    WORK_MAX_CROWDED,
    LoopBudget,
    TickTrigger,
)
from tests.reference import budget as reference

REQUEST_NS = 5_000
A_SHORT_PART = SHORT_BUDGET_NS // REQUEST_NS
A_LONG_PART = LONG_BUDGET_NS // REQUEST_NS
REQUEST = b"PUB a 1\r\nx\r\n"
PING = b"PING\r\n"


class Harness:
    """A loop that is turned by hand, a clock that runs with the work, and a service that costs time."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.soon: list[Callable[[], object]] = []
        self.flushes = 0
        self.trigger = TickTrigger(self.soon.append, self._end, lambda: self.now_ns)
        self.budget = self.trigger.budget
        self.index = SubscriptionIndex()
        self.served: list[tuple[str, bytes]] = []
        self.cost_ns = REQUEST_NS
        self.on_served: Callable[[], object] = lambda: None
        self.clients: dict[int, Client] = {}
        self.index.insert(SinkSubscription(ServiceSink(self._serve), b">"))

    def _serve(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self.now_ns += self.cost_ns
        self.served.append((self.clients[id(origin)].name, payload))
        self.on_served()

    def _end(self) -> None:
        self.trigger.begin()
        self.trigger.done()
        self.trigger.flush()

    def iterate(self) -> None:
        due, self.soon[:] = self.soon[:], []
        for callback in due:
            callback()

    def crowd(self) -> None:
        """A connection with little to do is there."""
        Client(self, "light").read(PING)
        assert self.budget.crowded

    def count(self, name: str) -> int:
        return sum(1 for served, _ in self.served if served == name)


class Client:
    def __init__(self, harness: Harness, name: str) -> None:
        self.harness, self.name = harness, name
        self.sink = ClientSink(harness.trigger.dirty_sinks, self)
        self.sink.headers = True
        self.ingress = Ingress(self.sink, harness.index)
        self.ingress.trigger, self.ingress.is_direct = harness.trigger, True
        self.ingress.on_control = self.control
        self.ingress.on_wait = self.on_wait
        self.waits = 0
        self.stops: list[int] = []
        self.broken = False
        harness.clients[id(self.sink)] = self

    def on_wait(self) -> None:
        self.waits += 1
        self.harness.budget.wait(self.ingress.go_on)

    def control(self, op: int) -> None:
        while op != OP_NEED_MORE:
            self.stops.append(op)
            if op == OP_ERROR:
                self.broken = self.sink.closed = True
                return
            self.harness.served.append((self.name, b"op %d" % op))
            self.ingress.control()
            op = self.ingress.process()

    def flush(self) -> bool:
        self.harness.flushes += 1
        self.sink.take()
        return False

    def read(self, data: bytes) -> None:
        with self.ingress.parser.get_buffer(len(data)) as room:
            room[: len(data)] = data
        self.ingress.received(len(data))


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_large_read_is_worked_on_in_parts_of_the_long_budget_where_no_client_waits(
    harness: Harness,
) -> None:
    client = Client(harness, "a")
    client.read(REQUEST * 5 * A_LONG_PART)
    assert (len(harness.served), client.ingress.waiting) == (A_LONG_PART, True)
    for iteration in range(2, 6):
        harness.iterate()
        assert len(harness.served) == A_LONG_PART * iteration
    assert not client.ingress.waiting


def test_parts_are_short_while_a_connection_with_little_to_do_is_there(harness: Harness) -> None:
    harness.crowd()
    client = Client(harness, "a")
    client.read(REQUEST * 100)
    assert len(harness.served) - 1 == A_SHORT_PART
    harness.iterate()
    assert len(harness.served) - 1 == 2 * A_SHORT_PART
    harness.now_ns += CROWD_PERIOD_NS
    harness.iterate()
    assert len(harness.served) - 1 == 100, "it has left: parts are long again"


def test_requests_that_were_taken_ahead_together_are_served_no_further_than_the_budget(
    harness: Harness,
) -> None:
    harness.crowd()
    harness.cost_ns = SHORT_BUDGET_NS
    client = Client(harness, "a")
    client.read(REQUEST * 20)
    for iteration in range(1, 20):
        assert harness.count("a") == iteration
        harness.iterate()
    assert [payload for name, payload in harness.served if name == "a"] == [b"x"] * 20


def test_connections_that_wait_have_their_turns_in_order_and_share_its_budget(harness: Harness) -> None:
    harness.crowd()
    clients = [Client(harness, name) for name in "abc"]
    for client in clients:
        client.read(REQUEST * 15)
    harness.served.clear()
    served = []
    for _ in range(6):
        before = len(harness.served)
        harness.iterate()
        served.append("".join(name for name, _ in harness.served[before:]))
    assert served == ["a" * 5, "b" * 5, "c" * 5, "a" * 5, "b" * 5, "c" * 5]


def test_one_with_little_to_do_is_served_as_it_is_read_and_answered_at_once(harness: Harness) -> None:
    flood, bystander = Client(harness, "flood"), Client(harness, "by")
    flood.read(REQUEST * 1000)
    harness.flushes = 0
    bystander.read(REQUEST + PING)
    assert harness.served[-2][0] == "by"
    bystander.sink.write(b"unflushed")
    bystander.read(PING)
    assert (harness.flushes, bystander.sink.take()) == (1, b"")
    while flood.ingress.waiting:
        harness.iterate()
    harness.trigger.schedule()  # so that the end of this tick is due later
    bystander.sink.write(b"unflushed")
    bystander.read(PING)
    assert harness.flushes == 2, "the flood's socket would be read first"
    harness.now_ns += CROWD_PERIOD_NS + LONG_BUDGET_NS
    bystander.sink.write(b"flushed at the end of the tick")
    bystander.read(PING)
    assert harness.flushes == 2


def test_what_one_with_much_reads_waits_while_others_with_little_are_there(harness: Harness) -> None:
    harness.crowd()
    client = Client(harness, "a")
    client.read(REQUEST * 10)
    harness.iterate()
    assert (harness.count("a"), client.ingress.waiting) == (10, False)
    client.read(REQUEST)
    assert (harness.count("a"), client.ingress.waiting) == (10, True)
    harness.iterate()
    assert (harness.count("a"), client.ingress.waiting) == (11, False)


def test_one_with_much_reads_less_at_once_while_others_with_little_are_there(harness: Harness) -> None:
    client = Client(harness, "a")

    def room() -> int:
        with client.ingress.parser.get_buffer() as view:
            return len(view)

    whole = room()
    client.read(REQUEST * 1000)
    assert room() > whole // 2, "no other connection is active"
    while harness.soon:
        harness.iterate()
    harness.crowd()
    client.read(REQUEST * 1000)
    while harness.soon:
        harness.iterate()
    assert room() == CROWDED_SMALL_READ_BYTES
    harness.crowd()
    client.read(b"PUB a 2048\r\n%s\r\n" % bytes(2048) * 7)
    while harness.soon:
        harness.iterate()
    assert room() == CROWDED_READ_BYTES
    harness.now_ns += 2 * HEAVY_PERIOD_NS
    client.read(REQUEST)
    assert room() > whole // 2


def test_what_many_clients_begin_with_leaves_long_parts_to_a_flood_soon_after(harness: Harness) -> None:
    flood = Client(harness, "a")
    flood.read(REQUEST * 1000)
    while harness.soon:
        harness.iterate()
    harness.crowd()
    harness.now_ns += CROWD_PERIOD_NS
    assert not harness.budget.crowded
    before = harness.count("a")
    flood.read(REQUEST * 1000)
    assert harness.count("a") - before == A_LONG_PART


class Flood:
    """A client that has more to send than a part takes, and the other end of its socket."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.ours, self.theirs = socket.socketpair()
        self.client = Client(harness, "a")
        harness.crowd()
        self.client.read(REQUEST * 1000)
        while harness.soon:
            harness.iterate()
        harness.served.clear()
        self.sent = 0
        self.data = b"".join(b"PUB a 6\r\n%06d\r\n" % number for number in range(10_000))

    def requests(self, size: int) -> bytes:
        """The next requests, that many bytes: the last one is incomplete."""
        self.sent += size
        return self.data[self.sent - size : self.sent]

    def fill_a_read(self) -> None:
        """The event loop reads as much as it may, and more waits in the socket."""
        self.harness.crowd()
        with self.client.ingress.parser.get_buffer() as room:
            size = len(room)
            room[:] = self.requests(size)
        self.client.ingress.received(size)
        assert self.client.ingress.waiting
        self.client.ingress.socket = self.ours.fileno()

    def end(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def flood(harness: Harness) -> Iterator[Flood]:
    flood = Flood(harness)
    yield flood
    flood.end()


def test_one_with_much_reads_its_socket_between_its_parts_while_others_with_little_are_there(
    harness: Harness, flood: Flood
) -> None:
    flood.fill_a_read()
    flood.theirs.send(flood.requests(3 * CROWDED_SMALL_READ_BYTES))
    reads = []
    while flood.client.ingress.waiting:
        harness.iterate()
        reads.append(flood.client.ingress.read_bytes)
        harness.crowd()
    assert reads[-1] == CROWDED_SMALL_READ_BYTES
    assert flood.sent == 4 * CROWDED_SMALL_READ_BYTES
    payloads = [payload for name, payload in harness.served if name == "a"]
    assert payloads == [b"%06d" % number for number in range(flood.sent // 17)]
    assert flood.client.waits - 1 >= 3, "reading stays paused"


@pytest.mark.parametrize("why", ["it ended", "nothing came", "no crowd", "paused", "closed"])
def test_the_loop_reads_again_when_others_have_left_or_the_socket_has_nothing(
    harness: Harness, flood: Flood, why: str
) -> None:
    flood.fill_a_read()
    ingress = flood.client.ingress
    if why == "it ended":
        flood.theirs.close()
    elif why != "nothing came":
        flood.theirs.send(flood.requests(1000))
    before = flood.sent if why in ("it ended", "nothing came") else flood.sent - 1000
    if why == "no crowd":
        harness.now_ns += CROWD_PERIOD_NS

    def on_served() -> None:
        if harness.count("a") == before // 17:
            ingress.paused, flood.client.sink.closed = why == "paused", why == "closed"

    harness.on_served = on_served
    while harness.soon:
        harness.iterate()
    assert (harness.count("a"), ingress.waiting, ingress.is_broken) == (before // 17, False, False)
    if flood.sent != before:
        assert len(flood.ours.recv(2000, socket.MSG_PEEK)) == 1000, "they stay in the socket"


def test_a_socket_that_has_failed_is_noted(harness: Harness, flood: Flood) -> None:
    flood.fill_a_read()
    reading, writing = os.pipe()  # no socket: recv() fails
    flood.client.ingress.socket = reading
    while flood.client.ingress.waiting:
        harness.iterate()
        harness.crowd()
    os.close(reading)
    os.close(writing)
    assert flood.client.ingress.is_broken


def test_a_message_larger_than_such_a_read_arrives_whole(harness: Harness) -> None:
    client = Client(harness, "a")
    payload = bytes(range(256)) * (CROWDED_READ_BYTES // 64)
    data = memoryview(REQUEST * 1000 + b"PUB a %d\r\n%s\r\n" % (len(payload), payload))
    while data:
        harness.crowd()
        with client.ingress.parser.get_buffer() as view:
            n = min(len(view), len(data))
            view[:n] = data[:n]
        client.ingress.received(n)
        data = data[n:]
        while harness.soon:
            harness.iterate()
    assert harness.count("a") == 1001
    assert harness.served[-1] == ("a", payload)


def test_what_is_read_while_the_rest_waits_comes_behind_it(harness: Harness) -> None:
    harness.crowd()
    client = Client(harness, "a")
    client.read(b"".join(b"PUB a 2\r\n%02d\r\n" % n for n in range(20)))
    client.read(b"".join(b"PUB a 2\r\n%02d\r\n" % n for n in range(20, 40)) + PING)
    while harness.soon:
        harness.iterate()
    assert [payload for name, payload in harness.served if name == "a"] == [
        b"%02d" % n for n in range(40)
    ] + [b"op %d" % OP_PING]


def test_control_frames_are_worked_on_in_parts_too(harness: Harness) -> None:
    harness.crowd()
    client = Client(harness, "a")
    go_on = client.control

    def slow(op: int) -> None:
        harness.now_ns += SHORT_BUDGET_NS
        go_on(op)

    client.ingress.on_control = slow
    client.read(PING * 3)
    assert len(client.stops) == 1
    harness.iterate()
    assert len(client.stops) == 2


def test_reads_that_fill_the_buffer_one_after_the_other_are_one_part(harness: Harness) -> None:
    client = Client(harness, "a")
    with client.ingress.parser.get_buffer() as room:
        size = len(room)
    harness.cost_ns = LONG_BUDGET_NS // 4
    body = size - len(b"PUB a 123456\r\n\r\n")
    for number in range(1, 5):
        client.read(b"PUB a %06d\r\n" % body + b"x" * body + b"\r\n")
        assert client.ingress.waiting == (number == 4)
    harness.iterate()
    assert not client.ingress.waiting
    client.read(b"PUB a %06d\r\n" % body + b"x" * body + b"\r\n")
    assert not client.ingress.waiting, "a new part"


def test_nothing_is_worked_on_while_input_is_paused(harness: Harness) -> None:
    client = Client(harness, "a")
    client.ingress.paused = True
    client.read(REQUEST)
    client.ingress.go_on()
    assert harness.served == []
    client.ingress.paused = False
    client.ingress.go_on()
    assert harness.count("a") == 1


def test_all_that_waits_is_worked_through_before_the_server_stops(harness: Harness) -> None:
    harness.crowd()
    client = Client(harness, "a")
    client.read(REQUEST * 100)
    client.ingress.finish()
    assert (harness.count("a"), client.ingress.waiting) == (100, False)


def test_what_raises_in_its_turn_takes_no_turn_from_others() -> None:
    soon: list[Callable[[], object]] = []
    budget = LoopBudget(soon.append)
    served: list[str] = []

    def fail() -> None:
        raise ValueError("no")

    budget.wait(fail)
    budget.wait(lambda: served.append("b"))
    with pytest.raises(ValueError, match="no"):
        soon.pop()()
    soon.pop()()
    assert (served, soon, budget.waiting) == (["b"], [], 0)


def test_what_asks_again_within_its_turn_comes_in_the_next_one() -> None:
    soon: list[Callable[[], object]] = []
    budget = LoopBudget(soon.append, lambda: 1)
    served: list[str] = []

    def again(name: str) -> None:
        served.append(name)
        if len(served) < 6:
            budget.wait(lambda: again(name))

    budget.wait(lambda: again("a"))
    budget.wait(lambda: again("b"))
    soon.pop()()
    assert served == ["a", "b"]
    soon.pop()()
    assert served == ["a", "b"] * 2


costs = st.sampled_from([1, SHORT_BUDGET_NS // 3, SHORT_BUDGET_NS, LONG_BUDGET_NS // 2, LONG_BUDGET_NS])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.sampled_from("abcd"), costs, st.integers(0, 3)),
            st.tuples(st.just("light")),
            st.tuples(st.just("pass"), st.sampled_from([1, CROWD_PERIOD_NS // 2, CROWD_PERIOD_NS])),
            st.tuples(st.just("iteration")),
        ),
        max_size=60,
    )
)
def test_turns_are_those_of_the_model(script: list[tuple[Any, ...]]) -> None:
    harness, model = Harness(), reference.BudgetModel()
    light = Client(harness, "light")
    served: list[str] = []

    def wait(name: str, cost_ns: int, again: int) -> None:
        def work() -> None:
            served.append(name)
            harness.now_ns += cost_ns
            if again:
                wait(name, cost_ns, again - 1)

        harness.budget.wait(work)

    for step, *arguments in script:
        match step:
            case "wait":
                wait(*arguments)
                model.wait(*arguments)
            case "light":
                light.read(PING)
                model.light()
            case "pass":
                harness.now_ns += arguments[0]
                model.now_ns += arguments[0]
            case _:
                harness.iterate()
                model.iterate()
        assert (served, harness.now_ns) == (model.served, model.now_ns)
        assert harness.budget.waiting == len(model.queue)
        assert len(harness.soon) <= 1
    while harness.soon:
        harness.iterate()
        model.iterate()
    assert served == model.served
    assert model.queue == []


def test_parts_within_a_part_have_its_budget(harness: Harness) -> None:
    budget = harness.budget
    budget.begin_part()
    budget.begin_part()
    harness.now_ns += LONG_BUDGET_NS
    assert budget.is_over()
    budget.end_part()
    assert budget.is_over()
    budget.end_part()
    assert not budget.is_over(), "no part runs"
    budget.begin_part()
    assert not budget.is_over()


def test_less_work_ends_a_tick_where_others_wait(harness: Harness) -> None:
    ends = []
    trigger = TickTrigger(harness.soon.append, lambda: (ends.append(1), trigger.begin(), trigger.done()))
    trigger.read(trigger.schedule, WORK_MAX_CROWDED)
    assert ends == []
    client = Client(harness, "light")
    client.ingress.trigger = trigger
    client.read(PING)
    trigger.read(trigger.schedule, 0)
    assert ends == [1]
    assert WORK_MAX_CROWDED < WORK_MAX


def unbudgeted(data: bytes) -> tuple[list[tuple[str, bytes]], bool]:
    harness = Harness()
    client = Client(harness, "a")
    client.ingress.trigger = None
    client.read(data)
    return harness.served, client.broken


def budgeted(reads: list[bytes], cost_ns: int, crowded: bool) -> tuple[list[tuple[str, bytes]], bool]:
    harness = Harness()
    if crowded:
        harness.crowd()
        harness.served.clear()
    harness.cost_ns = cost_ns
    client = Client(harness, "a")
    for data in reads:
        client.read(data)
        harness.iterate()
    while harness.soon:
        harness.iterate()
    return harness.served, client.broken


TALK = (
    b"PUB a r 3\r\nxyz\r\nPING\r\nHPUB b 12 14\r\nNATS/1.0\r\n\r\nhi\r\nSUB c 1\r\nPUB d 0\r\n\r\nPONG\r\n"
    * 2
)


@pytest.mark.parametrize("cost_ns", [SHORT_BUDGET_NS // 3, 2 * LONG_BUDGET_NS])
def test_a_talk_split_at_every_byte_is_the_same_with_and_without_a_budget(cost_ns: int) -> None:
    expected = unbudgeted(TALK)
    for at in range(len(TALK) + 1):
        assert budgeted([TALK[:at], TALK[at:]], cost_ns, True) == expected
    assert budgeted([TALK[at : at + 1] for at in range(len(TALK))], cost_ns, True) == expected


frames = st.sampled_from(
    [
        REQUEST,
        b"PUB b r 2\r\nyz\r\n",
        PING,
        b"PONG\r\n",
        b"SUB a 1\r\n",
        b"UNSUB 1\r\n",
        b"CONNECT {}\r\n",
        b"NO\r\n",
    ]
)


@given(
    st.lists(frames, max_size=80),
    st.lists(st.integers(1, 60), max_size=30),
    st.integers(0, 2 * SHORT_BUDGET_NS),
    st.booleans(),
)
def test_a_budget_changes_when_frames_are_worked_on_and_nothing_else(
    talk: list[bytes], sizes: list[int], cost_ns: int, crowded: bool
) -> None:
    data = b"".join(talk)
    reads, start = [], 0
    for size in sizes:
        reads.append(data[start : start + size])
        start += size
    reads.append(data[start:])
    assert budgeted([read for read in reads if read], cost_ns, crowded) == unbudgeted(data)
