"""The columns kernel against its reference, with the wire cut at every byte."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.spark.columns import ColumnBuilder, Event
from penstock.kernels.wire.frames import FrameParser
from penstock.protocol.arrow_columns import record_batch
from tests.reference.columns import ColumnsModel, Frame, Row, parse_headers

pytestmark = pytest.mark.feature("spark.read")

COLUMNS = ("subject", "seq", "time", "headers", "data")
SCHEMA = pa.schema(
    [
        pa.field("subject", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.list_(pa.string())), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

names = st.text("abcXYZ-", min_size=1, max_size=6).map(str.encode)
values = st.text("abc :\t é", max_size=8).map(str.encode)
header_blocks = st.lists(st.tuples(names, values), max_size=5).map(
    lambda lines: b"NATS/1.0\r\n" + b"".join(n + b":" + v + b"\r\n" for n, v in lines) + b"\r\n"
)
subjects = st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=3).map(
    lambda tokens: ".".join(tokens).encode()
)
payloads = st.binary(max_size=24)
times_ns = st.integers(0, 4_000_000_000_000_000_000)


def ack_subject(seq: int, consumer_seq: int, ts: int, pending: int, *, tokens: int = 9) -> bytes:
    head = {9: "$JS.ACK", 11: "$JS.ACK._.hash", 12: "$JS.ACK._.hash"}[tokens]
    tail = ".extra" if tokens == 12 else ""
    return f"{head}.S.C.1.{seq}.{consumer_seq}.{ts}.{pending}{tail}".encode()


def rfc3339(ts: int) -> bytes:
    """As Go writes it: as many digits of the fraction as it takes."""
    seconds, ns = divmod(ts, 1_000_000_000)
    text = (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return (text + (f".{ns:09d}".rstrip("0") if ns else "") + "Z").encode()


@st.composite
def consumer_frames(draw: st.DrawFn) -> list[Frame]:
    """A pull consumer's deliveries, mixed with all else that may come; now and then a delivery is missing."""
    frames = []
    seq, consumer_seq = 0, 0
    for kind in draw(st.lists(st.sampled_from("rrrrrhspmiglj"), max_size=12)):
        seq += draw(st.integers(1, 3))
        consumer_seq += 1
        reply = ack_subject(seq, consumer_seq, draw(times_ns), 5, tokens=draw(st.sampled_from([9, 11, 12])))
        if kind in "rl":
            if kind == "l":
                consumer_seq += 1  # lost on the way
            frames.append(Frame("MSG", b"7", draw(subjects), reply, b"", draw(payloads)))
        elif kind == "h":
            frames.append(Frame("HMSG", b"7", draw(subjects), reply, draw(header_blocks), draw(payloads)))
        else:
            consumer_seq -= 1
            frames.append(draw(other_frame(kind)))
    return frames


@st.composite
def other_frame(draw: st.DrawFn, kind: str) -> Frame:
    if kind == "s":
        code = draw(st.sampled_from([100, 404, 408, 409, 503]))
        return Frame("HMSG", b"7", b"_INBOX.x.1", b"", b"NATS/1.0 %d Text\r\n\r\n" % code, b"")
    if kind == "m":
        return Frame("MSG", b"70", b"other", b"", b"", draw(payloads))
    if kind == "i":
        return Frame("INFO", payload=b'{"port":4222}')
    if kind == "g":  # looks like an ack subject and is none
        bad = draw(
            st.sampled_from(
                [
                    b"$JS.ACK.S.C.1.2.3.4",
                    b"$JS.ACK.S.C.1.2.3.4.x",
                    b"$JS.ACK.S.C.1.99999999999999999999.3.4.5",
                    b"$JS.ACK.S.C.1.9999999999999999999.3.4.5",
                    b"$JS.ACK.a.b.S.C.1.2.3.4",
                    b"$JS.ACK.",
                    b"$JS.ACK.S.C.1..1.4.5",
                ]
            )
        )
        return Frame("MSG", b"7", b"s", bad, b"", b"")
    if kind == "j":
        return Frame("MSG", b"7", b"_INBOX.x.1", b"", b"", draw(payloads))
    return Frame("PING")


@st.composite
def direct_frames(draw: st.DrawFn) -> list[Frame]:
    frames = []
    seq = 0
    for kind in draw(st.lists(st.sampled_from("rrrrepb"), max_size=10)):
        seq += draw(st.integers(1, 3))
        own = draw(header_blocks)[:-2]
        added = (
            b"Nats-Stream: S\r\nNats-Subject: %s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %s\r\n"
            b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 1\r\n\r\n"
            % (draw(subjects), seq, rfc3339(draw(times_ns)))
        )
        if kind == "r":
            frames.append(Frame("HMSG", b"7", b"_INBOX.x.1", b"", own + added, draw(payloads)))
        elif kind == "e":
            frames.append(Frame("HMSG", b"7", b"_INBOX.x.1", b"", b"NATS/1.0 204 EOB\r\n\r\n", b""))
        elif kind == "b":  # no sequence: not a row
            frames.append(Frame("HMSG", b"7", b"_INBOX.x.1", b"", own + b"\r\n", b""))
        else:
            frames.append(Frame("PING"))
    return frames


class Run:
    """Feeds a builder and notes what came out."""

    def __init__(self, builder: ColumnBuilder) -> None:
        self.builder = builder
        self.parser = FrameParser()
        self.rows: list[Row] = []
        self.events: list[str] = []

    def feed(self, data: bytes) -> None:
        self.parser.feed(data)
        while not self.stopped:
            event = Event(self.builder.feed(self.parser))
            if event == Event.EVENT_NEED_MORE:
                return
            if event == Event.EVENT_FULL:
                self.take()
            else:
                self.events.append(event.name.removeprefix("EVENT_").lower())

    @property
    def stopped(self) -> bool:
        return bool(self.events) and self.events[-1] in ("end", "gap", "error")

    def take(self) -> None:
        rows, buffers = self.builder.take()
        batch = record_batch(SCHEMA, rows, buffers, stream="S")
        batch.validate(full=True)
        self.rows += rows_of(batch)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return [
        Row(
            r["subject"].encode(),
            r["seq"],
            int((r["time"] - EPOCH) / timedelta(microseconds=1)),
            [(k.encode(), [v.encode() for v in vs]) for k, vs in r["headers"]],
            r["data"],
        )
        for r in batch.to_pylist()
    ]


def expected(frames: list[Frame], model: ColumnsModel) -> list[str]:
    events = []
    for frame in frames:
        what = model.take(frame)
        if what != "row":
            events.append(what)
        if what in ("end", "gap"):
            return events
    if model.next_seq >= model.end_seq:
        events.append("end")
    return events


def check(frames: list[Frame], start: int, end: int, rows_max: int, cuts: int, *, direct: bool) -> None:
    model = ColumnsModel(b"7", direct, start, end)
    events = expected(frames, model)
    builder = ColumnBuilder(COLUMNS, sid=b"7", direct=direct, rows_max=rows_max)
    builder.restart(start, end)
    run = Run(builder)
    wire = b"".join(frame.encode() for frame in frames)
    for at in range(0, len(wire), cuts):
        run.feed(wire[at : at + cuts])
    run.feed(b"")
    run.take()
    assert run.events == events
    assert run.rows == model.rows
    assert builder.next_seq == model.next_seq


@given(consumer_frames(), st.integers(0, 4), st.integers(4, 30), st.integers(1, 5))
def test_a_consumers_frames_become_the_rows_of_the_model_wherever_the_wire_is_cut(
    frames: list[Frame], start: int, end: int, rows_max: int
) -> None:
    for cuts in (1, 7, 1 << 20):
        check(frames, start, end, rows_max, cuts, direct=False)


@given(direct_frames(), st.integers(0, 4), st.integers(4, 30), st.integers(1, 5))
def test_a_direct_gets_frames_become_the_rows_of_the_model_wherever_the_wire_is_cut(
    frames: list[Frame], start: int, end: int, rows_max: int
) -> None:
    for cuts in (1, 7, 1 << 20):
        check(frames, start, end, rows_max, cuts, direct=True)


@example(frames=[Frame("MSG", b"7", b"s", b"no ack", b"", b"")], start=4, end=4, rows_max=1, chunk=1)
@given(consumer_frames(), st.integers(0, 4), st.integers(4, 30), st.integers(1, 5), st.integers(1, 4))
def test_messages_that_the_client_received_become_the_rows_of_the_model(
    frames: list[Frame], start: int, end: int, rows_max: int, chunk: int
) -> None:
    frames = [frame for frame in frames if frame.sid == b"7"]
    model = ColumnsModel(b"7", direct=False, next_seq=start, end_seq=end)
    wanted = next((what for frame in frames if (what := model.take(frame)) != "row"), "")
    wanted = "end" if not wanted and model.next_seq >= end else wanted
    builder = ColumnBuilder(COLUMNS, sid=b"", rows_max=rows_max)
    builder.restart(start, end)
    run = Run(builder)
    messages = [(7, one.subject, one.reply or None, one.header or None, one.payload) for one in frames]
    event = Event.EVENT_NEED_MORE
    for first in range(0, max(len(messages), 1), chunk):
        part, at = messages[first : first + chunk], 0
        while True:
            found, at = builder.extend(part, at)
            event = Event(found)
            if event != Event.EVENT_FULL:
                break
            run.take()
        if event != Event.EVENT_NEED_MORE:
            break
    run.take()
    names = {Event.EVENT_NEED_MORE: "", Event.EVENT_ERROR: "status"}
    assert names.get(event, event.name.removeprefix("EVENT_").lower()) == wanted
    assert run.rows == model.rows
    assert builder.next_seq == model.next_seq


def test_deliveries_in_any_order_become_rows_where_order_is_not_asked_for() -> None:
    builder = ColumnBuilder(COLUMNS, sid=b"")
    messages: list[tuple[int, bytes, bytes | None, bytes | None, bytes]] = [
        (7, b"s", ack_subject(5, 9, 1_000, 3), None, b"x"),
        (7, b"s", ack_subject(2, 4, 1_000, 3), None, b"x"),
        (7, b"s", b"reply", None, b""),
    ]
    assert builder.extend(messages, ordered=False) == (Event.EVENT_ERROR, 2)
    run = Run(builder)
    run.take()
    assert [row.seq for row in run.rows] == [5, 2]


def test_what_is_no_message_of_the_client_is_refused_and_the_rows_before_it_stay() -> None:
    builder = ColumnBuilder(COLUMNS, sid=b"")
    builder.restart(1, 100)
    ack = ack_subject(1, 1, 1_000, 0)
    wrong: list[Any] = [
        (7, "s", ack, None, b""),
        (7,),
        b"x",
        (7, b"s", ack, "h", b""),
        (7, b"s", ack, None, 5),
    ]
    for one in wrong:
        with pytest.raises((TypeError, ValueError)):
            builder.extend([one])
    assert builder.rows == 0
    assert builder.extend([(7, b"s", ack, None, b"x")]) == (Event.EVENT_NEED_MORE, 1)


def delivery(
    seq: int, consumer_seq: int, payload: bytes = b"x", header: bytes = b"", pending: int = 0
) -> bytes:
    op = "HMSG" if header else "MSG"
    return Frame(op, b"7", b"s", ack_subject(seq, consumer_seq, 1_000, pending), header, payload).encode()


def started(end: int = 1000, start: int = 1, **options: int) -> Run:
    builder = ColumnBuilder(COLUMNS, sid=b"7", **options)
    builder.restart(start, end)
    return Run(builder)


def test_two_halves_of_the_wire_at_every_byte_give_the_same_rows() -> None:
    header = b"NATS/1.0\r\nA: 1\r\nB:2\r\nA:3 \r\n\r\n"
    wire = delivery(1, 1, b"one") + b"PING\r\n" + delivery(4, 2, b"four", header) + delivery(5, 3, b"")
    whole = started()
    whole.feed(wire)
    whole.take()
    assert [row.seq for row in whole.rows] == [1, 4, 5]
    assert whole.rows[1].headers == [(b"A", [b"1", b"3"]), (b"B", [b"2"])]
    for cut in range(len(wire) + 1):
        run = started()
        run.feed(wire[:cut])
        run.feed(wire[cut:])
        run.take()
        assert (run.rows, run.events) == (whole.rows, ["control"])


def test_a_missing_delivery_is_a_gap_and_reading_goes_on_after_a_restart() -> None:
    run = started()
    run.feed(delivery(1, 1) + delivery(3, 3))
    assert run.events == ["gap"]
    assert run.builder.next_seq == 2
    run.builder.restart(2, 1000, b"8")
    run.events.clear()
    run.feed(delivery(3, 1).replace(b"MSG s 7", b"MSG s 8"))
    run.take()
    assert [row.seq for row in run.rows] == [1, 3]


def test_a_restart_never_goes_back_over_rows_already_seen() -> None:
    run = started()
    run.feed(delivery(5, 1))
    with pytest.raises(ValueError, match="below 6 was seen"):
        run.builder.restart(5, 1000)


def test_a_batch_is_full_at_its_bytes_as_well() -> None:
    builder = ColumnBuilder(COLUMNS, sid=b"7", bytes_max=100)
    builder.restart(1, 100)
    parser = FrameParser()
    parser.feed(delivery(1, 1, b"x" * 60) + delivery(2, 2, b"x" * 60) + delivery(3, 3))
    assert builder.feed(parser) == Event.EVENT_FULL
    assert builder.take()[0] == 2
    assert builder.feed(parser) == Event.EVENT_NEED_MORE
    assert builder.rows == 1


def test_finished_buffers_stay_as_they_are_while_the_next_batch_grows() -> None:
    run = started()
    run.feed(b"".join(delivery(i, i, b"%d" % i) for i in range(1, 3)))
    _, buffers = run.builder.take()
    kept = pa.py_buffer(buffers["data"][1])
    run.feed(b"".join(delivery(i, i, b"%d" % i) for i in range(3, 200)))
    del buffers
    assert kept.to_pybytes() == b"12"


def test_pending_and_status_are_readable_after_the_event() -> None:
    run = started()
    run.feed(delivery(1, 1, pending=9))
    assert (run.builder.pending, run.builder.delivered) == (9, 1)
    run.feed(Frame("HMSG", b"7", b"_INBOX.q.3", b"", b"NATS/1.0 408 Request Timeout\r\n\r\n", b"").encode())
    assert run.builder.status == 408
    assert run.builder.message == (b"7", b"_INBOX.q.3", b"", b"NATS/1.0 408 Request Timeout\r\n\r\n", b"")


def test_broken_frames_are_an_error_and_the_rows_before_them_stay() -> None:
    run = started()
    run.feed(delivery(1, 1) + b"NONSENSE 1 2 3\r\n")
    assert run.events == ["error"]
    assert run.builder.rows == 1


def test_many_names_in_one_header_block() -> None:
    block = b"NATS/1.0\r\n" + b"".join(b"K%d: %d\r\n" % (i % 300, i) for i in range(600)) + b"\r\n"
    run = started()
    run.feed(delivery(1, 1, b"", block))
    run.take()
    assert run.rows[0].headers == parse_headers(block)
    assert len(run.rows[0].headers) == 300


def test_only_wanted_columns_are_built() -> None:
    builder = ColumnBuilder(["seq"], sid=b"7")
    builder.restart(1, 10)
    parser = FrameParser()
    parser.feed(delivery(1, 1))
    builder.feed(parser)
    rows, buffers = builder.take()
    assert (rows, list(buffers), len(buffers["seq"][0])) == (1, ["seq"], 8)


def test_unknown_columns_and_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown columns"):
        ColumnBuilder(["sequence"], sid=b"7")
    with pytest.raises(ValueError, match="bytes_max"):
        ColumnBuilder(COLUMNS, sid=b"7", bytes_max=1 << 31)
    with pytest.raises(ValueError, match="rows_max"):
        ColumnBuilder(COLUMNS, sid=b"7", rows_max=0)
