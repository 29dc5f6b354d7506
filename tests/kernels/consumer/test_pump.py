"""The pump against its model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.consumer.endpoints import Target, TargetEnd
from penstock.kernels.consumer.pump import Pump, RunEnd, drain_ready, ready
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, DeliveryGuard, ServiceSink
from penstock.kernels.wire.frames import FrameParser
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference.ack_state import AckStateModel
from tests.reference.pump import PumpModel, TargetModel
from tests.support.examples import examples

TS = 1000
PREFIX = b"$JS.ACK.S.C."
SUBJECTS = [b"a.x", b"a.y", b"b.x", b"c"]
FILTERS: list[list[bytes]] = [[], [b"a.x"], [b"a.*"], [b"a.x", b"c"], [b"a.*", b"*.x"], [b">"]]

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "remove", "run", "run", "ack", "nak", "expire"]),
        st.integers(0, 40),
    ),
    max_size=50,
)


class Inbox:
    """Everything delivered below `_INBOX.`: (target, subject, ack subject, header, payload)."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self.index = index
        self.sink = ClientSink(DirtyList())
        self.sink.headers = True
        self.parser = FrameParser()
        self.subscriptions: dict[bytes, SinkSubscription] = {}

    def listen(self, name: bytes) -> bytes:
        if name not in self.subscriptions:
            sid = b"%d" % len(self.subscriptions)
            self.subscriptions[name] = SinkSubscription(self.sink, name, b"", sid)
            self.index.insert(self.subscriptions[name])
        return name

    def take(self) -> list[tuple[bytes, bytes, bytes, bytes, bytes]]:
        self.parser.feed(self.sink.take())
        names = list(self.subscriptions)
        return [
            (names[sid], subject, reply or b"", header or b"", payload)
            for sid, subject, reply, header, payload in self.parser.next_batch()
        ]


def without_time(reply: bytes) -> bytes:
    numbers = reply.removeprefix(PREFIX).split(b".")
    assert numbers[3] == b"%d" % TS
    return b".".join([*numbers[:3], numbers[4]])


class Pair:
    """The kernel and the model over the same stream."""

    def __init__(
        self, policy: int, filters: list[bytes], max_ack_pending: int, max_deliver: int, prioritized: bool
    ) -> None:
        self.index = SubscriptionIndex()
        self.inbox = Inbox(self.index)
        self.log = StreamLog()
        self.state = AckState(policy)
        self.state.set_waits([50])
        self.pump = Pump(self.log, self.state, self.index, PREFIX, filters, 1)
        self.pump.configure(max_ack_pending=max_ack_pending, max_deliver=max_deliver, prioritized=prioritized)
        model = AckStateModel(policy, 1, [50])
        self.model = PumpModel(model, filters, 1, max_ack_pending, max_deliver, prioritized)
        self.now = 1

    def step(self, what: str, n: int) -> None:
        model = self.model
        self.now += n
        if what == "append":
            subject, payload = SUBJECTS[n % len(SUBJECTS)], b"p" * n
            seq = self.log.append(subject, b"", payload, TS)
            model.messages[seq] = (subject, payload)
        elif what == "remove" and model.messages:
            seq = sorted(model.messages)[n % len(model.messages)]
            assert self.log.remove(seq, False)
            del model.messages[seq]
        elif what == "ack" and model.state.pending:
            seq = sorted(model.state.pending)[n % len(model.state.pending)]
            assert self.state.acked(seq, model.state.delivered[0]) == (
                model.state.ack_all(seq, model.state.delivered[0])
                if model.state.policy == 1
                else model.state.ack(seq)
            )
        elif what == "nak" and model.state.pending:
            seq = sorted(model.state.pending)[n % len(model.state.pending)]
            assert self.state.requeue(seq) == model.state.requeue(seq)
        elif what == "expire":
            queued, given_up, _ = self.state.expire(self.now, model.max_deliver)
            assert (queued, given_up) == model.state.expire(self.now, model.max_deliver)
        elif what == "run":
            self.run(n)
        assert self.pump.num_pending == model.num_pending
        assert self.state.num_pending == len(model.state.pending)

    def run(self, n: int) -> None:
        plan = [(b"_INBOX.%d" % i, 1 + (n + i) % 5, (n * 7 + i) % 3 * 60) for i in range(n % 4)]
        waiting = [Target(self.inbox.listen(name), batch, size) for name, batch, size in plan]
        models = [TargetModel(name, batch, size) for name, batch, size in plan]
        for i, (target, model) in enumerate(zip(waiting, models, strict=True)):
            model.priority = target.priority = (n + i * i) % 3
            model.min_pending = target.min_pending = max(0, (n * 3 + i) % 9 - 4)
            model.min_ack_pending = target.min_ack_pending = max(0, (n * 5 + i) % 7 - 4)
        targets: list[Target] = []
        for target in waiting:
            self.pump.rotation.add(targets, target)
        if self.pump.rotation.prioritized:
            models.sort(key=lambda one: one.priority)
        self.pump.given_up.clear()
        self.model.given_up.clear()
        self.pump.run(targets, self.now, 1 + n)
        expected = self.model.run(models, self.now, 1 + n)
        got = [
            (name, subject, without_time(reply), payload)
            for name, subject, reply, _, payload in self.inbox.take()
        ]
        assert got == expected
        assert self.pump.sent == len(expected)
        assert [(t.subject, t.batch, t.bytes_left) for t in targets] == [
            (t.name, t.batch, t.bytes_left) for t in models
        ]
        assert self.pump.given_up == self.model.given_up


@settings(max_examples=examples(300))
@given(
    steps,
    st.sampled_from(list(AckPolicy)),
    st.sampled_from(FILTERS),
    st.integers(0, 6),
    st.integers(0, 2),
    st.booleans(),
)
def test_the_pump_delivers_what_its_model_does(
    plan: list[tuple[str, int]],
    policy: AckPolicy,
    filters: list[bytes],
    max_ack_pending: int,
    max_deliver: int,
    prioritized: bool,
) -> None:
    pair = Pair(policy, filters, max_ack_pending, max_deliver, prioritized)
    for what, n in plan:
        pair.step(what, n)


class Bench:
    """A stream of ten messages and a pump on it."""

    def __init__(self, policy: int = AckPolicy.ACK_EXPLICIT, header: bytes = b"") -> None:
        self.index = SubscriptionIndex()
        self.inbox = Inbox(self.index)
        self.log = StreamLog()
        for i in range(10):
            self.log.append(b"s.%d" % i, header, b"payload", TS)
        self.state = AckState(policy)
        self.ends: list[tuple[bytes, int]] = []
        self.pump = Pump(
            self.log,
            self.state,
            self.index,
            PREFIX,
            [],
            1,
            on_end=lambda target, why: self.ends.append((target.subject, why)),
        )

    def target(self, name: bytes, batch: int = -1, max_bytes: int = 0) -> Target:
        return Target(self.inbox.listen(name), batch, max_bytes)


def test_the_message_keeps_its_subject_and_goes_to_the_subscription_of_the_target() -> None:
    bench = Bench()
    assert bench.pump.run([bench.target(b"_INBOX.a", 1)], 5, 100) == RunEnd.RUN_NO_TARGET
    assert bench.inbox.take() == [(b"_INBOX.a", b"s.0", b"$JS.ACK.S.C.1.1.1.1000.9", b"", b"payload")]
    assert bench.ends == [(b"_INBOX.a", TargetEnd.END_FULL)]


def test_lost_interest_delivers_nothing_and_counts_nothing() -> None:
    bench = Bench()
    target = bench.target(b"_INBOX.a", 5)
    bench.index.remove(bench.inbox.subscriptions[b"_INBOX.a"])
    targets = [target]
    assert bench.pump.run(targets, 5, 100) == RunEnd.RUN_NO_TARGET
    assert (targets, bench.state.delivered_consumer, bench.pump.position) == ([], 0, 1)
    assert bench.ends == [(b"_INBOX.a", TargetEnd.END_NO_INTEREST)]


def test_a_receiver_that_unsubscribes_itself_mid_run_loses_no_message() -> None:
    bench = Bench()
    sink = ClientSink(DirtyList())

    class Owner:
        def on_auto_unsubscribe(self, sub: SinkSubscription) -> None:
            bench.index.remove(sub)

    sink.owner = Owner()
    bench.index.insert(SinkSubscription(sink, b"_INBOX.once", b"", b"7", 3))
    other = bench.target(b"_INBOX.other")
    bench.pump.run([Target(b"_INBOX.once", 100)], 5, 100)
    assert sink.take().count(b"\r\nMSG ") == 2
    assert bench.state.delivered_stream == 3
    bench.pump.run([other], 5, 100)
    assert [subject for _, subject, _, _, _ in bench.inbox.take()] == [b"s.%d" % i for i in range(3, 10)]


def test_a_receiver_with_too_many_unsent_bytes_gets_no_more_until_it_has_drained() -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    sink = ClientSink(DirtyList())
    bench.index.insert(SinkSubscription(sink, b"_INBOX.slow", b"", b"1"))
    bench.pump.rotation.backlog_max = 100
    targets = [Target(b"_INBOX.slow")]
    assert bench.pump.run(targets, 5, 100) == RunEnd.RUN_BLOCKED
    assert (bench.pump.sent, len(targets)) == (3, 1)
    assert bench.pump.run(targets, 5, 100) == RunEnd.RUN_BLOCKED
    assert bench.pump.sent == 0
    sink.take()
    assert bench.pump.run(targets, 5, 100) == RunEnd.RUN_BLOCKED
    assert bench.pump.sent == 3


@pytest.mark.parametrize("queues", [(b"", b""), (b"", b"q"), (b"q", b"p")])
def test_several_receivers_of_one_subject_are_bounded_as_one_is(queues: tuple[bytes, bytes]) -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    sinks = [ClientSink(DirtyList()), ClientSink(DirtyList())]
    for sink, queue in zip(sinks, queues, strict=True):
        bench.index.insert(SinkSubscription(sink, b"_INBOX.slow", queue, b"1"))
    bench.pump.rotation.backlog_max = 100
    targets = [Target(b"_INBOX.slow")]
    assert bench.pump.run(targets, 5, 100) == RunEnd.RUN_BLOCKED
    assert bench.pump.sent == 3
    drained: list[int] = []
    targets[0].when_drained(lambda: drained.append(1))
    sinks[1].drained()
    assert drained == [1]


def test_a_queue_group_goes_on_with_the_members_that_are_not_full() -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    full, free = ClientSink(DirtyList()), ClientSink(DirtyList())
    full.stall_threshold = 0
    for sink in (full, free):
        bench.index.insert(SinkSubscription(sink, b"_INBOX.slow", b"q", b"1"))
    assert bench.pump.run([Target(b"_INBOX.slow")], 5, 4) == RunEnd.RUN_BUDGET
    assert (full.out_msgs, free.out_msgs) == (0, 4)


@pytest.mark.parametrize("queue", [b"", b"q"])
def test_a_message_that_the_receiver_may_not_read_is_passed_over(queue: bytes) -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    sink = ClientSink(DirtyList())
    sink.guard = DeliveryGuard(lambda subject: subject != b"s.1")
    bench.index.insert(SinkSubscription(sink, b"deliver.here", queue, b"1"))
    assert bench.pump.run([Target(b"deliver.here")], 5, 3) == RunEnd.RUN_BUDGET
    assert bench.state.delivered_stream == 3
    assert sink.out_msgs == 2


def test_a_slow_receiver_does_not_hold_up_another_one() -> None:
    bench = Bench()
    sink = ClientSink(DirtyList())
    bench.index.insert(SinkSubscription(sink, b"_INBOX.slow", b"", b"1"))
    sink.stall_threshold = 0
    fast = bench.target(b"_INBOX.fast")
    assert bench.pump.run([Target(b"_INBOX.slow"), fast], 5, 100) == RunEnd.RUN_EMPTY
    assert len(bench.inbox.take()) == 10


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", b"NATS/1.0\r\nNats-Msg-Size: 7\r\n\r\n"),
        (b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 7\r\n\r\n"),
    ],
)
def test_headers_only_replaces_the_payload_by_its_size(header: bytes, expected: bytes) -> None:
    bench = Bench(header=header)
    bench.pump.configure(headers_only=True)
    bench.pump.run([bench.target(b"_INBOX.a", 1)], 5, 100)
    assert bench.inbox.take()[0][3:] == (expected, b"")


def test_flow_control_asks_at_half_the_window_and_stalls_beyond_it() -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    asked: list[int] = []
    bench.pump.control_flow(200, lambda: asked.append(bench.state.delivered_stream))
    assert bench.pump.run([bench.target(b"_INBOX.a")], 5, 100) == RunEnd.RUN_STALLED
    assert bench.pump.flow_open
    assert asked == [3]
    stalled_at = bench.state.delivered_stream
    assert stalled_at < 10
    bench.pump.reset_flow()
    bench.pump.run([bench.target(b"_INBOX.a")], 5, 100)
    assert bench.state.delivered_stream > stalled_at


def test_a_flow_control_response_answers_what_preceded_its_request_and_doubles_the_window() -> None:
    bench = Bench(AckPolicy.ACK_NONE)
    asked: list[int] = []
    bench.pump.control_flow(120, lambda: asked.append(bench.state.delivered_stream))
    target = bench.target(b"_INBOX.a")
    assert bench.pump.run([target], 5, 100) == RunEnd.RUN_STALLED
    (first,) = asked
    stalled_at = bench.state.delivered_stream
    bench.pump.flow_answered(200)
    assert (bench.pump.flow_window, bench.pump.flow_open) == (200, False)
    # Half of the new window holds two messages: the ones after the request count, so one more is enough.
    assert bench.pump.run([target], 5, 1) == RunEnd.RUN_BUDGET
    assert asked == [first, stalled_at + 1]


def test_a_flow_control_window_has_at_least_one_byte() -> None:
    with pytest.raises(ValueError, match="at least one byte, not 0"):
        Bench().pump.control_flow(0, lambda: None)


def test_what_listens_within_the_server_gets_it_under_the_targets_subject() -> None:
    bench = Bench()
    got: list[bytes] = []
    service = ServiceSink(lambda subject, *rest: got.append(subject))
    bench.index.insert(SinkSubscription(service, b"t.*"))
    bench.pump.run([Target(b"t.here", 2)], 5, 100)
    assert got == [b"t.here", b"t.here"]


def test_one_call_finds_all_consumers_with_news() -> None:
    bench = Bench()
    pumps = [
        Pump(bench.log, AckState(2), bench.index, PREFIX, [f], 1) for f in (b"s.3", b"t.1", b"s.>", b"t.>")
    ]
    assert ready(pumps) == [0, 2]
    bench.log.append(b"t.1", b"", b"", TS)
    assert ready(pumps) == [0, 1, 2, 3]


def test_those_with_filters_report_each_once_when_a_message_comes_that_they_match() -> None:
    bench = Bench()
    pumps = [Pump(bench.log, AckState(2), bench.index, PREFIX, [f], 1) for f in (b"t.1", b"t.>", b"u.*")]
    reported: list[Pump] = []
    for pump in pumps:
        pump.report_to(reported)
    for subject in (b"v.1", b"t.2", b"t.1", b"t.1"):
        bench.log.append(subject, b"", b"", TS)
    assert drain_ready(reported) == [pumps[1], pumps[0]]
    assert drain_ready(reported) == reported == []
    pumps[0].report_to(None)
    bench.log.append(b"t.1", b"", b"", TS)
    assert drain_ready(reported) == [pumps[1]]
