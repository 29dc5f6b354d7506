"""FrameReader against its model: the same payloads however the bytes are cut, and nothing of other frames."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.wire.websocket_frames import FrameReader
from tests.reference.websocket_frames import Frame, split

pytestmark = pytest.mark.feature("connectivity.websocket")

MASK = b"\x01\x80\xff\x10"
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([125, 126, 127, 65535, 65536, 70001]).map(lambda n: b"abcdefg" * n),
).map(lambda data: data[:70001])
FRAMES = st.one_of(
    PAYLOADS.map(lambda payload: Frame(2, payload, mask=MASK)),
    st.builds(
        Frame,
        st.sampled_from([0, 1, 2, 2, 3, 8, 9, 10, 15]),
        PAYLOADS,
        st.booleans(),
        st.sampled_from([0, 0, 0, 4, 7]),
        st.sampled_from([MASK, MASK, b"\0\0\0\0", b""]),
        st.just(0),
    ),
)


def read(
    data: bytes, cuts: list[int], masked: bool = True, room: int = 64, most: int = 50
) -> tuple[bytes, bytes]:
    """(payloads of plain frames, all other bytes) of data that arrives in these pieces."""
    reader, plain, others, unread = FrameReader(masked), b"", b"", b""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        unread, at = unread + data[start:end], 0
        while True:
            space = bytearray(room)
            taken, copied = reader.take(unread, at, space)
            assert copied <= taken
            plain += space[:copied]
            at += taken
            if not taken:
                count = reader.other(unread, at, most)
                assert count <= most
                others += unread[at : at + count]
                at += count
                if not count:
                    break
        unread = unread[at:]
    assert len(unread) < 14  # part of a head
    return plain, others + unread


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 1 << 20), max_size=12), st.booleans(),
       st.sampled_from([1, 7, 64, 1 << 17]))  # fmt: skip
@example(
    [Frame(2, b"a", mask=MASK), Frame(1, b"b", False), Frame(2, b"c", mask=MASK), Frame(0)], [3], True, 7
)
def test_payloads_of_plain_frames_are_copied_and_all_else_is_left(
    frames: list[Frame], cuts: list[int], masked: bool, room: int
) -> None:
    data = b"".join(frame.encode() for frame in frames)
    assert read(data, cuts, masked, room) == split(frames, masked)


def test_frames_are_read_alike_split_at_every_byte() -> None:
    frames = [
        Frame(2, b"hello", mask=MASK), Frame(9, b"ping", mask=MASK), Frame(2, mask=MASK),
        Frame(2, b"x" * 126, mask=MASK), Frame(2, b"a", False, mask=MASK), Frame(0, b"b", mask=MASK),
        Frame(2, b"c" * 9, mask=MASK),
    ]  # fmt: skip
    data = b"".join(frame.encode() for frame in frames)
    for at in range(len(data)):
        assert read(data, [at]) == split(frames, True)
    assert read(data, list(range(len(data))), room=1, most=1) == split(frames, True)


@pytest.mark.parametrize(("size", "wide"), [(5, 2), (5, 8), (125, 2), (126, 8), (65535, 8)])
def test_a_length_that_is_longer_than_it_must_be_is_for_the_library(size: int, wide: int) -> None:
    frame = Frame(2, b"x" * size, mask=MASK, wide=wide)
    assert read(frame.encode(), []) == (b"", frame.encode())


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 14])
def test_a_length_of_nearly_64_bits_is_for_the_library(length: int) -> None:
    data = b"\x82\xff" + length.to_bytes(8, "big") + MASK + b"x" * 20
    assert read(data, []) == (b"", data)


def test_a_run_of_empty_frames_ends_after_some() -> None:
    data = Frame(2, mask=MASK).encode() * 5000
    taken, copied = FrameReader(masked=True).take(data, 0, bytearray(10))
    assert 0 < taken < len(data)
    assert copied == 0


def test_a_start_behind_the_data_is_refused() -> None:
    reader = FrameReader(masked=True)
    with pytest.raises(ValueError, match="there are 2 bytes, and none at 3"):
        reader.take(b"ab", 3, bytearray(1))
    with pytest.raises(ValueError, match="there are 2 bytes, and none at 3"):
        reader.other(b"ab", 3, 1)
