"""Appends of fast batches, against frames made one by one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.wire.output import OutBuffer, encode_appends, encode_column, encode_pub
from tests.reference.batch_frames import appends

PREFIX = b"_INBOX.abc.batch.100.ok."
payload_lists = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


@given(payload_lists, st.integers(2, 2**63), st.data())
def test_appends_are_the_frames_made_one_by_one(payloads: list[bytes], seq: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(payloads) - 1))
    count = data.draw(st.integers(0, len(payloads) - start))
    out = OutBuffer()
    assert encode_appends(out, b"s.a", PREFIX, seq, payloads, start, count, 1000) == count
    assert out.take() == appends(b"s.a", PREFIX, seq, payloads[start : start + count])


@given(payload_lists, st.integers(1, 2**63))
def test_messages_of_an_atomic_batch_are_the_frames_made_one_by_one(payloads: list[bytes], seq: int) -> None:
    out = OutBuffer()
    block = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: "
    assert encode_appends(out, b"s.a", block, seq, payloads, 0, len(payloads), 1000, True) == len(payloads)
    expected = OutBuffer()
    for n, payload in enumerate(payloads):
        encode_pub(expected, b"s.a", None, block + b"%d\r\n\r\n" % (seq + n), payload)
    assert out.take() == expected.take()


@given(payload_lists, st.integers(2, 2**63), st.booleans(), st.data())
def test_a_column_makes_the_same_frames_as_its_list(
    payloads: list[bytes], seq: int, wide: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(payloads) - 1))
    count = data.draw(st.integers(0, len(payloads) - start))
    ends = [sum(map(len, payloads[:i])) for i in range(len(payloads) + 1)]
    offsets = struct.pack(f"={len(ends)}{'q' if wide else 'i'}", *ends)
    content = b"".join(payloads) or None
    out = OutBuffer()
    wrote = encode_column(out, b"s.a", PREFIX, seq, offsets, wide, content, start, count, 1000)
    assert wrote == count
    assert out.take() == appends(b"s.a", PREFIX, seq, payloads[start : start + count])


def test_it_stops_before_a_payload_that_is_too_large() -> None:
    out = OutBuffer()
    assert encode_appends(out, b"s", PREFIX, 2, [b"1", b"22", b"333", b"4"], 0, 4, 2) == 2
    assert out.take() == appends(b"s", PREFIX, 2, [b"1", b"22"])
    offsets = struct.pack("=3i", 0, 1, 4)
    assert encode_column(out, b"s", PREFIX, 2, offsets, False, b"1333", 0, 2, 2) == 1


def test_it_stops_when_the_buffer_is_full() -> None:
    out = OutBuffer()
    payloads = [bytes(600_000)] * 4
    assert encode_appends(out, b"s", PREFIX, 2, payloads, 0, 4, 1 << 20) == 2
    out.clear()
    assert encode_appends(out, b"s", PREFIX, 4, payloads, 2, 2, 1 << 20) == 2


def test_what_is_no_list_of_bytes_or_no_column_is_refused() -> None:
    out = OutBuffer()
    with pytest.raises(TypeError, match="payload 1 is str"):
        encode_appends(out, b"s", PREFIX, 2, [b"1", "2"], 0, 2, 10)  # type: ignore[list-item]
    with pytest.raises(IndexError):
        encode_appends(out, b"s", PREFIX, 2, [b"1"], 0, 2, 10)
    with pytest.raises(IndexError):
        encode_column(out, b"s", PREFIX, 2, struct.pack("=2i", 0, 1), False, b"1", 0, 2, 10)
    with pytest.raises(ValueError, match="lies at 5"):
        encode_column(out, b"s", PREFIX, 2, struct.pack("=2i", 5, 1), False, b"1", 0, 1, 10)
    with pytest.raises(ValueError, match="of 1 bytes"):
        encode_column(out, b"s", PREFIX, 2, struct.pack("=2i", 0, 9), False, b"1", 0, 1, 10)
