"""Records of message blocks: compared with the plain model, and with damaged bytes."""

from __future__ import annotations

import os

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.log import records
from penstock.kernels.log.records import Corrupt, RecordReader, StreamedHash, encode, xxh64_digest
from tests.reference import records as model

pytestmark = pytest.mark.feature("stream.recovery")

FIELDS = st.tuples(
    st.integers(0, 2**48 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.binary(max_size=100),
    st.integers(0, 3),
)


def read_all(data: bytes) -> tuple[list[tuple[int, int, int, bytes, bytes, bytes]], int, str | None]:
    """The records before the end or the first bad one, where that is, and what is wrong with it."""
    reader = RecordReader(data)
    found = []
    while True:
        record = reader.next()
        if record is None:
            return found, reader.offset, None
        if isinstance(record, Corrupt):
            assert record.offset == reader.offset
            return found, record.offset, record.why
        found.append(record)


def test_the_kernel_is_the_compiled_one() -> None:
    assert records.__file__ is not None and not records.__file__.endswith(".py")


def test_hello_on_a_four_character_subject_takes_39_bytes() -> None:
    assert len(encode(1, 0, b"abcd", b"", b"hello")) == 39


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_the_hash_is_xxh64(data: bytes, seed: int) -> None:
    assert xxh64_digest(data, seed) == xxhash.xxh64_intdigest(data, seed)


def test_the_hash_is_xxh64_at_every_length_and_alignment() -> None:
    data = os.urandom(400)
    for start in range(9):
        for end in range(start, 300):
            assert xxh64_digest(memoryview(data)[start:end]) == xxhash.xxh64_intdigest(data[start:end])


@given(st.lists(st.binary(max_size=70)))
def test_a_hash_of_parts_is_that_of_their_bytes_together(parts: list[bytes]) -> None:
    streamed = StreamedHash()
    data = b""
    for part in parts:
        data += part
        streamed.update(part)
        assert streamed.digest() == xxhash.xxh64_intdigest(data)


@given(FIELDS)
def test_encode_writes_what_the_model_writes(fields: tuple[int, int, bytes, bytes, bytes, int]) -> None:
    assert encode(*fields) == model.encode(*fields)


@given(st.lists(FIELDS, max_size=6))
def test_what_was_encoded_is_read_back(batch: list[tuple[int, int, bytes, bytes, bytes, int]]) -> None:
    data = b"".join(encode(*fields) for fields in batch)
    found, at, why = read_all(data)
    assert found == [(kind, *fields) for *fields, kind in batch]
    assert at == len(data) and why is None


def test_a_cut_at_every_byte_leaves_the_whole_records_before_it() -> None:
    batch = [
        encode(1, 5, b"a.b", b"", b"one"),
        encode(2, 6, b"c", b"NATS/1.0\r\n\r\n", b""),
        encode(3, 7, b"d", b"", b""),
    ]
    data = b"".join(batch)
    for cut in range(len(data) + 1):
        found, at, why = read_all(data[:cut])
        assert (found, at) == model.decode_all(data[:cut])
        assert (why is None) == (at == cut)


def test_every_flipped_bit_is_noticed() -> None:
    first, second = encode(1, 5, b"a.b", b"N", b"payload"), encode(2, 6, b"c", b"", b"x")
    for byte in range(len(first)):
        for bit in range(8):
            data = bytearray(first + second)
            data[byte] ^= 1 << bit
            found, at, why = read_all(bytes(data))
            assert found == [] and at == 0 and why is not None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_as_the_model_reads_them(data: bytes) -> None:
    found, at, _ = read_all(data)
    assert (found, at) == model.decode_all(data)


@given(st.binary(min_size=18, max_size=90), st.booleans())
def test_lengths_that_contradict_each_other_are_refused(inner: bytes, header: bool) -> None:
    """Any bytes between a fitting length and a fitting hash: the lengths inside must be checked too."""
    size = 4 + len(inner) + 8
    out = (size | (model.HAS_HEADER if header else 0)).to_bytes(4, "little") + inner
    data = out + xxhash.xxh64_intdigest(out).to_bytes(8, "little")
    found, at, _ = read_all(data)
    assert (found, at) == model.decode_all(data)


def test_what_no_record_can_hold_is_refused() -> None:
    for seq, subject in ((2**48, b"a"), (1, b"s" * 65536)):
        with pytest.raises(ValueError, match="no record holds"):
            encode(seq, 0, subject, b"", b"")


def test_bodies_and_fronts_of_every_length_are_hashed_as_they_are_copied() -> None:
    data = os.urandom(300)
    for subject in range(1, 40):
        for size in range(0, 260, 1 if subject < 3 else 7):
            assert encode(7, 9, b"s" * subject, b"", data[:size]) == model.encode(
                7, 9, b"s" * subject, b"", data[:size]
            )
    for size in range(1, 70):
        header, payload = data[:size], data[size : size + 150]
        assert encode(7, 9, b"abc", header, payload) == model.encode(7, 9, b"abc", header, payload)
