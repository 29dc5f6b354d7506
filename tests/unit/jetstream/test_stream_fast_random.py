"""Fast ingest on the server under losses, duplicates, reorderings and lost answers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.wire.dispatch import publish
from penstock.protocol.batch import FlowAck, parse_answer
from penstock.protocol.flow import FlowWindow
from tests.support.engine import EngineHarness
from tests.support.examples import examples
from tests.support.fast_batches import APPEND, COMMIT, EOB, PING, START, FastPublisher

REFUSED = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 987654321\r\n\r\n"
KNOWN = b"NATS/1.0\r\nNats-Msg-Id: known\r\n\r\n"

Step = tuple[int, int, str]  # batch sequence, operation, what kind of message


@dataclass
class BatchModel:
    """What ADR-50 says of one batch, message by message; flow acks are left out."""

    gap_ok: bool
    seq: int = 0
    stored: list[int] = field(default_factory=list)
    said: list[tuple[Any, ...]] = field(default_factory=list)
    state: str = "unknown"
    refused_behind: bool = False  # in this tick

    def receive(self, seq: int, operation: int, kind: str) -> None:
        if self.state == "ended" and seq == 1 and operation != PING:
            self.state, self.seq, self.refused_behind = "unknown", 0, False
        if self.state == "unknown":
            if seq != 1 or operation == PING:
                self.said.append(("refused", 10206))
                return
        elif self.state == "ended":
            if operation == PING:
                self.said.append(self.final)
            elif not self.refused_behind:
                self.refused_behind = True
                self.said.append(("refused", 10206))
            return
        elif operation == PING:
            if seq > self.seq:
                self.said.append(("gap", self.seq, seq + 1))
                if not self.gap_ok:
                    self.end()
                    return
                self.seq = seq
            return
        elif seq != self.seq + 1:
            self.said.append(("gap", self.seq, seq))
            if not self.gap_ok or seq <= self.seq:
                self.end()
                return
            self.seq = seq - 1
        single = seq == 1 and operation == COMMIT
        if operation == EOB:
            self.end()
        elif kind == "refused":
            self.refuse(seq, operation, single=single)
        else:
            self.state, self.seq = "open", seq
            if kind == "stored":
                self.stored.append(seq)
            if operation == COMMIT:
                self.end()
                if single:  # nothing of it is remembered
                    self.state = "unknown"

    def refuse(self, seq: int, operation: int, *, single: bool) -> None:
        if single and self.gap_ok:
            self.said += [("err", seq), ("final", 0)]
            self.state = "unknown"
            return
        if seq == 1 and not self.gap_ok:
            self.said.append(("refused", 10071))
            self.state = "unknown"
            return
        self.said.append(("err", seq))
        self.state = "open"
        if self.gap_ok and operation != COMMIT:
            self.seq = seq
        else:
            self.end()

    def end(self) -> None:
        self.state = "ended"
        self.final = ("final", self.seq)
        self.said.append(self.final)


def summary(answer: dict[str, Any]) -> tuple[Any, ...] | None:
    kind = answer.get("type")
    if kind == "ack":
        return None
    if kind == "gap":
        return "gap", answer["last_seq"], answer["seq"]
    if kind == "err":
        return "err", answer["seq"]
    if "batch" in answer:
        return "final", answer.get("count", 0)
    return "refused", answer["error"]["err_code"]


kinds = st.sampled_from(["stored"] * 6 + ["refused", "duplicate"])


@st.composite
def deliveries(draw: st.DrawFn) -> list[Step]:
    """A publisher's messages as a network brings them that loses, doubles and reorders."""
    count = draw(st.integers(1, 12))
    sent: list[Step] = [(1, START, draw(kinds))]
    sent += [(seq, APPEND, draw(kinds)) for seq in range(2, count + 1)]
    sent.append((count + 1, draw(st.sampled_from([COMMIT, EOB] if count else [COMMIT])), draw(kinds)))
    brought = []
    for step in sent:
        brought += [step] * draw(st.sampled_from([1] * 8 + [0, 2]))
        if draw(st.integers(0, 5)) == 0:
            brought.append((step[0], PING, "stored"))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, max(0, len(brought) - 1)))
        if brought:
            brought.insert(draw(st.integers(0, len(brought) - 1)), brought.pop(at))
    return brought


@pytest.mark.feature(
    "fast-ingest.gap-ok", "fast-ingest.gap-fail", "fast-ingest.message-errors", "fast-ingest.ping"
)
@settings(max_examples=examples(150), deadline=None)
@given(deliveries(), st.booleans(), st.integers(1, 12), st.integers(1, 5))
def test_whatever_arrives_the_stream_holds_and_answers_say_what_the_model_says(
    steps: list[Step], gap_ok: bool, flow: int, run: int
) -> None:
    """Fail never stores past a gap, ok reports every gap, counts are right."""
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, storage="memory")
    harness.request("s.a", b"before", KNOWN)
    model = BatchModel(gap_ok)
    publisher = FastPublisher(harness, gap="ok" if gap_ok else "fail", flow=flow)
    answers: list[dict[str, Any]] = []
    for n, (seq, operation, kind) in enumerate(steps):
        header = {"refused": REFUSED, "duplicate": KNOWN}.get(kind, b"")
        publisher.send(seq, operation, b"%d" % seq, header)
        model.receive(seq, operation, kind)
        if n % run == 0:
            answers += publisher.heard()
            model.refused_behind = False
    answers += publisher.heard()
    log = harness.engine.streams["S"].log
    messages = [log.load_next(b"", seq) for seq in range(2, log.last_seq + 1)]
    assert [int(message.payload) for message in messages if message is not None] == model.stored
    assert [found for answer in answers if (found := summary(answer)) is not None] == model.said
    flow_acks = [answer for answer in answers if answer.get("type") == "ack"]
    assert all(1 <= answer["msgs"] == answer["ack_msgs"] <= flow for answer in flow_acks)
    assert harness.engine.capacity.fast_batches() == (model.state == "open")


TOTAL = 60


class Client:
    """The publisher's side as the client has it, against the engine, on a network that loses answers."""

    def __init__(
        self, harness: EngineHarness, name: str, flow: int, outstanding: int, *, gap_ok: bool
    ) -> None:
        self.gap_ok = gap_ok
        self.window = FlowWindow(flow, outstanding, gap_ok=gap_ok)
        self.publisher = FastPublisher(harness, name, gap="ok" if gap_ok else "fail", flow=flow)
        self.committed = 0  # the batch sequence of the commit
        self.pings = 0

    def step(self, *, loses: bool) -> None:
        """Sends what may be sent, or asks; loses: the messages (not the pings) are lost on the way."""
        window = self.window
        if window.is_over:
            return
        if window.room and not self.committed:
            seq = window.take()
            operation = START if seq == 1 else APPEND
            if seq > TOTAL:
                operation, self.committed = COMMIT, seq
            if not loses or seq == 1:
                self.publisher.send(seq, operation)
        else:
            self.pings += 1
            self.publisher.send(window.sent, PING)

    def hear(self, subject: bytes, text: bytes) -> None:
        answer = parse_answer(text)
        self.window.on_answer(answer)
        if self.committed and not self.window.is_over and self.window.lost_commit(subject, answer):
            self.committed = self.window.take()
            self.publisher.send(self.committed, COMMIT)
        assert not isinstance(answer, FlowAck) or answer.seq <= self.window.sent


@pytest.mark.feature("fast-ingest.ack-window")
@settings(max_examples=examples(50), deadline=None)
@given(
    publishers=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 3), st.booleans()), min_size=1, max_size=3
    ),
    lost_answers=st.lists(st.booleans(), min_size=1, max_size=20),
    lost_messages=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    run=st.integers(1, 9),
)
def test_no_pattern_of_lost_answers_stalls_a_publisher(
    publishers: list[tuple[int, int, bool]], lost_answers: list[bool], lost_messages: list[int], run: int
) -> None:
    """The client's window against the server's flow control, several batches at once."""
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, storage="memory")
    clients = [
        Client(harness, f"id{n}", flow, outstanding, gap_ok=gap_ok)
        for n, (flow, outstanding, gap_ok) in enumerate(publishers)
    ]
    rounds = answers = 0
    while any(not client.window.is_over for client in clients):
        rounds += 1
        assert rounds < 60 * TOTAL, "a batch stalls"
        for client in clients:
            loses = client.gap_ok and lost_messages[rounds % len(lost_messages)] == 0
            client.step(loses=loses and rounds % 11 != 0)
        if rounds % run:
            continue
        for client in clients:
            for subject, text in client.publisher.heard_raw():
                answers += 1
                if not lost_answers[answers % len(lost_answers)] or answers % 7 == 6:
                    client.hear(subject, text)
    log = harness.engine.streams["S"].log
    for client in clients:
        final = client.window.final
        assert final is not None
        assert final.error is None
        assert final.count == client.committed
    assert log.messages <= sum(client.committed for client in clients)
    if not any(client.gap_ok for client in clients):
        assert log.messages == sum(client.committed for client in clients)


@pytest.mark.feature("fast-ingest.any-size")
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_a_batch_takes_no_memory_for_its_length() -> None:
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, storage="memory", max_msgs=1000)
    publisher = FastPublisher(harness, flow=500)
    publisher.ask(1, START)

    def send(first: int, last: int) -> None:
        for start in range(first, last, 500):
            for seq in range(start, start + 500):
                publish(harness.index, b"s.a", b"%b%d.1.$FI" % (head, seq), b"", payload)
            harness.tick()

    def used() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    head, payload = publisher.head.encode(), bytes(128)
    send(2, 300_001)  # by now every block and buffer has been in use
    answers = publisher.heard()
    assert answers[-1]["seq"] == 300_000
    before = used()
    send(300_002, 600_001)
    assert used() - before < 4 * 1024 * 1024
    assert len(publisher.heard()) == 600
    assert publisher.ask(600_002, EOB)[-1]["count"] == 600_001
