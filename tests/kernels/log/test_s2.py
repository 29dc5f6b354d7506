"""S2 in kernels/log/archive and protocol/s2_stream against the model: blocks, damage, frames cut anywhere."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.kernels.log.archive import checksum, decode_block, encode_block
from penstock.protocol.s2_stream import FRAGMENT_BYTES, IDENTIFIER, IDENTIFIERS, S2Reader, encode_chunks
from tests.reference import s2 as model

REPEATING = st.lists(st.sampled_from([b"a", b"penstock", b"\0" * 70, b"x" * 300, b"0123456789"]), min_size=1)
DATA = st.one_of(st.binary(min_size=1, max_size=3000), REPEATING.map(b"".join))


@given(DATA)
def test_a_block_is_read_as_the_model_reads_it(data: bytes) -> None:
    block = encode_block(data)
    assert model.decode(block) == data
    assert decode_block(block, len(data)) == data


@given(st.binary(max_size=200))
def test_the_checksum_is_the_masked_crc(data: bytes) -> None:
    assert checksum(data) == model.checksum(data)


def test_blocks_have_a_size() -> None:
    for size in (0, FRAGMENT_BYTES + 1):
        with pytest.raises(ValueError, match="made of 1 to"):
            encode_block(b"x" * size)
    assert decode_block(encode_block(b"y" * FRAGMENT_BYTES), FRAGMENT_BYTES) == b"y" * FRAGMENT_BYTES
    with pytest.raises(ValueError, match="at most 9"):
        decode_block(encode_block(b"y" * 10), 9)


@pytest.mark.feature("stream.backup-restore")
@pytest.mark.parametrize(
    "block",
    [
        b"\x0b\x04ab\x01\x02\x11\x00",  # a copy of 4, then a repeat of 8
        b"\x10\x04ab\x01\x02\x15\x00\x02",  # a repeat whose length takes a byte
        b"\x8e\x03\x04ab\x01\x02\x19\x00\x80\x00",  # two bytes
        b"\x8e\x80\x04\x04ab\x01\x02\x1d\x00\x04\x00\x00",  # three bytes
        b"\x07\x04ab\x12\x02\x00",  # an offset of two bytes
        b"\x07\x04ab\x13\x02\x00\x00\x00",  # of four
    ],
)
def test_what_only_s2_writes_is_read(block: bytes) -> None:
    """The official server's archives hold repeats."""
    at, size, shift = 0, 0, 0
    while True:
        size |= (block[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if block[at - 1] < 0x80:
            break
    try:
        expected = model.decode(block)
    except AssertionError:
        with pytest.raises(ValueError, match="do not decode"):
            decode_block(block, 1 << 22)
    else:
        assert decode_block(block, 1 << 22) == expected and len(expected) == size


@given(st.binary(max_size=60))
def test_damaged_blocks_are_refused_or_have_their_size(block: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(decode_block(block, 1 << 16)) <= 1 << 16


@given(DATA, st.data())
def test_a_stream_is_the_same_however_it_is_cut(data: bytes, cuts: st.DataObject) -> None:
    stream = IDENTIFIER + encode_chunks(data) + b"\xfe\x02\x00\x00zz" + encode_chunks(data[:5])
    at = cuts.draw(st.integers(0, len(stream)))
    reader, plain = S2Reader(), b""
    for part in (stream[:at], stream[at:]):
        reader.feed(part)
        while (chunk := reader.read()) is not None:
            plain += chunk
    assert plain == data + data[:5]
    assert reader.is_empty


def test_a_stream_read_byte_by_byte() -> None:
    data = bytes(range(256)) * 300
    for identifier in IDENTIFIERS:
        reader, plain = S2Reader(), b""
        for byte in identifier + encode_chunks(data):
            reader.feed(bytes((byte,)))
            while (chunk := reader.read()) is not None:
                plain += chunk
        assert plain == data


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"\x00\x01\x00\x00x", "begins with"),
        (b"\xff\x06\x00\x00nobody", "unknown identifier"),
        (IDENTIFIER + b"\x02\x01\x00\x00x", "not readable"),
        (IDENTIFIER + b"\x01\x02\x00\x00xx", "not readable"),
        (IDENTIFIER + b"\x01\xff\xff\xff", "too large"),
        (IDENTIFIER + b"\x01\x05\x00\x00\0\0\0\0x", "checksum"),
        (IDENTIFIER + b"\x00\x05\x00\x00\0\0\0\0\xff", "truncated"),
    ],
)
def test_what_is_no_stream_is_refused(stream: bytes, why: str) -> None:
    reader = S2Reader()
    reader.feed(stream)
    if stream.startswith(IDENTIFIER):
        assert reader.read() == b""
    with pytest.raises(ProtocolError, match=why):
        reader.read()
