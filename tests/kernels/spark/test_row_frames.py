"""Rows of Arrow columns as publishes: the kernel beside a few lines of Python."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.spark.row_frames import Rows, TextColumn
from penstock.kernels.wire.frames import FrameParser, Op
from penstock.kernels.wire.output import OutBuffer
from tests.reference.sinkrows import Row, made_id

pytestmark = pytest.mark.feature("spark.write")

TOKENS = st.binary(min_size=1, max_size=8).filter(lambda b: not any(c <= 32 for c in b))
LINES = st.lists(st.sampled_from([b"A: 1\r\n", b"Long-Name: some value\r\n", b"B:\r\n"]), max_size=3).map(
    b"".join
)
ROWS = st.lists(st.builds(Row, TOKENS, st.binary(max_size=40), LINES, TOKENS), max_size=12)


def column(values: list[bytes], lead: int = 0) -> TextColumn:
    """As a slice behind `lead` other rows, as Arrow may hand it over."""
    array = pa.array([b"other"] * lead + values, pa.binary()).slice(lead)
    _, offsets, data = array.buffers()
    plain = memoryview(data).cast("B") if data is not None and data.size else None
    return TextColumn(memoryview(offsets).cast("B"), plain, array.offset, len(array))


# Blanks or control characters, an empty token, a wildcard.
_BAD_SUBJECT = re.compile(rb"[\x00-\x20\x7f]|^$|^\.|\.\.|\.$|(^|\.)[*>](\.|$)", re.DOTALL)


@given(
    st.lists(st.lists(st.sampled_from(".*>a\x7f \u00e9\0"), max_size=6).map("".join), max_size=5),
    st.integers(0, 2),
)
def test_the_first_bad_subject_is_that_of_a_pattern(texts: list[str], lead: int) -> None:
    subjects = [text.encode() for text in texts]
    bad = [i for i, subject in enumerate(subjects) if _BAD_SUBJECT.search(subject)]
    assert column(subjects, lead).first_bad_subject() == (bad[0] if bad else -1)


@given(st.integers(0, 19).flatmap(lambda digits: st.integers(0, min(10**digits, 2**64 - 1))))
@example(2**64 - 1)
def test_numbers_are_written_in_all_their_digits(number: int) -> None:
    out = OutBuffer()
    rows = Rows(column([b"s"]), column([b""]))
    rows.encode(out, 0, 1, reply=b"r.", number=number, max_payload=10)
    assert out.take() == b"PUB s r.%d 0\r\n\r\n" % number


@given(
    ROWS, st.integers(0, 3), st.booleans(), st.sampled_from(["own", "made", "none"]), st.integers(0, 10**12)
)
def test_frames_and_ids_are_those_of_the_model(
    rows: list[Row], lead: int, with_headers: bool, ids: str, first: int
) -> None:
    columns = [column([row[i] for row in rows], lead) for i in range(4)]
    made = Rows(
        columns[0],
        columns[1],
        columns[2] if with_headers else None,
        columns[3] if ids == "own" else None,
        b"q:1:2:" if ids == "made" else b"",
        first,
    )
    expected_ids = {
        "own": [row[3] for row in rows],
        "made": [made_id(b"q:1:2:", first + i, row, with_headers=with_headers) for i, row in enumerate(rows)],
        "none": [b""] * len(rows),
    }[ids]
    assert made.message_ids() == expected_ids
    out = OutBuffer()
    wrote = made.encode(
        out, 0, len(rows), reply=b"_INBOX.x.", number=7, end=b".0.$FI", fixed=b"F: f\r\n", numbered=b"N: ",
        max_payload=1 << 20,
    )  # fmt: skip
    assert wrote == len(rows)
    parser = FrameParser(4096, 1 << 20)
    data = out.take()
    with parser.get_buffer(len(data) + 1) as buffer:
        memoryview(buffer)[: len(data)] = data
    parser.buffer_updated(len(data))
    for i, (row, found_id) in enumerate(zip(rows, expected_ids, strict=True)):
        frame = parser.next_frame()
        assert frame is not None and frame.op == Op.OP_HPUB
        assert (frame.subject, frame.reply, frame.payload) == (row[0], b"_INBOX.x.%d.0.$FI" % (7 + i), row[1])
        own_id = b"Nats-Msg-Id: %s\r\n" % found_id if found_id else b""
        lines = row[2] if with_headers else b""
        assert frame.header == b"NATS/1.0\r\nF: f\r\nN: %d\r\n" % (7 + i) + own_id + lines + b"\r\n"
    assert parser.next_frame() is None


def test_a_row_without_header_lines_is_a_plain_publish() -> None:
    out = OutBuffer()
    rows = Rows(column([b"a.b"]), column([b"hello"]))
    assert rows.encode(out, 0, 1, max_payload=100) == 1
    assert out.take() == b"PUB a.b 5\r\nhello\r\n"


def test_encoding_stops_before_a_row_that_is_too_large_and_when_the_buffer_is_full() -> None:
    out = OutBuffer()
    rows = Rows(column([b"a", b"b", b"c"]), column([b"x", b"y" * 50, b"z"]))
    assert rows.encode(out, 0, 3, max_payload=49) == 1
    assert rows.encode(out, 1, 2, max_payload=49) == 0
    assert (rows.size(1), rows.subject(1)) == (51, b"b")
    assert rows.encode(out, 1, 2, max_payload=50, out_max=out.size + 1) == 1
    assert rows.encode(out, 2, 1, max_payload=50, out_max=out.size) == 0


def test_rows_picked_out_keep_their_numbers_and_so_their_ids() -> None:
    values = [b"a", b"b", b"c"]
    whole = Rows(column(values), column(values), id_prefix=b"p:", first_row=40)
    picked = Rows(
        column([b"a", b"c"]), column([b"a", b"c"]), id_prefix=b"p:", first_row=40,
        numbers=memoryview(pa.array([40, 42], pa.int64()).buffers()[1]).cast("B").cast("q"),
    )  # fmt: skip
    assert picked.message_ids() == [whole.message_ids()[0], whole.message_ids()[2]]


def test_columns_that_can_not_be_are_refused() -> None:
    ints = memoryview(pa.array([0, 5], pa.int32()).buffers()[1]).cast("B")[:8]
    with pytest.raises(ValueError, match="end at 5 of 2 bytes"):
        TextColumn(ints, b"ab", 0, 1)
    with pytest.raises(ValueError, match=r"rows 0\.\.2 of a column of 1"):
        TextColumn(ints, b"abcdef", 0, 2)
    falling = memoryview(pa.array([0, 5, 3], pa.int32()).buffers()[1]).cast("B")[:12]
    with pytest.raises(ValueError, match=r"row 1 lies at 5\.\.3"):
        TextColumn(falling, b"abcdef", 0, 2)
    with pytest.raises(ValueError, match="columns of 1 and 2 rows"):
        Rows(column([b"a"]), column([b"a", b"b"]))
    with pytest.raises(IndexError, match=r"rows 0\.\.2 of 1"):
        Rows(column([b"a"]), column([b"a"])).encode(OutBuffer(), 0, 2, max_payload=10)
