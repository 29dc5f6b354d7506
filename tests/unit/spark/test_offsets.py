"""Offsets: sequences per stream, loss noticed, ranges that cover everything once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.offsets import (
    DataLossError,
    SequenceRange,
    StreamBounds,
    StreamPosition,
    cap,
    decode_offset,
    encode_offset,
    resume_at,
    split,
)

pytestmark = pytest.mark.feature("spark.stream")

NOW = StreamBounds("S", "t1", first_seq=10, last_seq=20)


def test_an_offset_survives_the_checkpoint() -> None:
    offset = {"B": StreamPosition(7, "t"), "A": StreamPosition(1, "u")}
    raw = encode_offset(offset)
    assert raw == {"v": 1, "streams": {"A": {"next": 1, "created": "u"}, "B": {"next": 7, "created": "t"}}}
    assert decode_offset(json.loads(json.dumps(raw))) == offset


@pytest.mark.parametrize("raw", [{}, {"v": 2, "streams": {}}, {"v": 1}, {"v": 1, "streams": {"S": {}}}])
def test_what_is_no_offset_of_ours_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="new checkpoint"):
        decode_offset(raw)


@pytest.mark.parametrize("position", [10, 15, 21])
def test_a_position_within_the_stream_is_where_it_goes_on(position: int) -> None:
    assert resume_at(NOW, StreamPosition(position, "t1"), fail_on_data_loss=True) == position


@pytest.mark.parametrize(
    ("position", "lenient", "said"),
    [
        (StreamPosition(9, "t1"), 10, "sequence 9 was still to be read"),
        (StreamPosition(22, "t1"), 21, "its last sequence is 20"),
        (StreamPosition(15, "t0"), 10, "created t1"),
    ],
)
def test_lost_messages_fail_the_query_unless_told_otherwise(
    position: StreamPosition, lenient: int, said: str
) -> None:
    with pytest.raises(DataLossError, match=said):
        resume_at(NOW, position, fail_on_data_loss=True)
    assert resume_at(NOW, position, fail_on_data_loss=False) == lenient


def test_a_stream_the_checkpoint_does_not_know_is_read_from_its_first_message() -> None:
    assert resume_at(NOW, None, fail_on_data_loss=True) == 10


spans = st.tuples(st.integers(1, 50), st.integers(0, 40)).map(lambda t: (t[0], t[0] + t[1]))


@given(st.dictionaries(st.sampled_from("ABCD"), spans, min_size=1), st.integers(1, 100))
def test_a_cap_is_kept_used_up_and_never_stalls(available: dict[str, tuple[int, int]], rows_max: int) -> None:
    ends = cap(available, rows_max)
    taken = {name: ends[name] - start for name, (start, _) in available.items()}
    total = sum(end - start for start, end in available.values())
    assert all(0 <= taken[name] <= end - start for name, (start, end) in available.items())
    assert sum(taken.values()) == min(rows_max, total)
    assert cap(available, None) == {name: end for name, (_, end) in available.items()}


@given(
    st.dictionaries(st.sampled_from("ABCD"), spans, min_size=1), st.integers(1, 10_000), st.integers(1, 500)
)
def test_a_cap_of_bytes_is_kept_and_never_stalls(
    available: dict[str, tuple[int, int]], bytes_max: int, size: int
) -> None:
    ends = cap(available, bytes_max, dict.fromkeys(available, float(size)))
    taken = sum(ends[name] - start for name, (start, _) in available.items())
    total = sum(end - start for start, end in available.values())
    assert taken == min(total, max(1, bytes_max // size))


def test_a_stream_that_went_backwards_is_followed() -> None:
    assert cap({"A": (21, 11)}, 5) == {"A": 11}


@given(st.integers(1, 1000), st.integers(-2, 500), st.integers(1, 20), st.integers(1, 300))
def test_ranges_cover_a_span_exactly_once(start: int, length: int, parts_min: int, records_max: int) -> None:
    parts = split(
        SequenceRange("S", "t", start, start + length), parts_min=parts_min, records_max=records_max
    )
    assert [s for part in parts for s in range(part.start, part.end)] == list(range(start, start + length))
    assert all(0 < part.end - part.start <= records_max for part in parts)
    assert len(parts) >= min(parts_min, max(length, 0))
