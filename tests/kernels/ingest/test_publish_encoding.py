"""Encoded batches of publishes: what was sent comes back, and malformed ones are refused as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits
from penstock.kernels.log.stream_log import StreamLog
from tests.reference.commands import BODY_MAX, LENGTHS, Publish, decode_publishes, encode_publishes
from tests.support.examples import examples

header_blocks = st.sampled_from(
    [
        b"",
        b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n",
        b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\n",
        b"NATS/1.0\r\nX: y\n\r\n",
        b"N",
    ]
)
publishes = st.tuples(
    st.binary(min_size=1, max_size=12),
    st.sampled_from([b"", b"_INBOX.1", b"a.b.1.ok.1.0.$FI"]),
    st.one_of(header_blocks, st.binary(max_size=20)),
    st.binary(max_size=40),
)


def batch_of(*all_: Publish) -> IngestBatch:
    batch = IngestBatch()
    for one in all_:
        batch.append(*one)
    return batch


def taken(batch: IngestBatch) -> list[Publish]:
    found = []
    while (one := batch.take_one()) is not None:
        found.append(one)
    return found


@settings(max_examples=examples(300))
@given(st.lists(publishes, max_size=8), st.integers(0, 3))
def test_a_batch_is_encoded_as_the_model_encodes_it_and_comes_back(sent: list[Publish], from_: int) -> None:
    batch = batch_of(*sent)
    for _ in range(from_):
        batch.take_one()
    data = batch.encode()
    assert data == encode_publishes(sent[from_:])
    assert batch.encode(b"head") == b"head" + data
    again = IngestBatch.decode(b"head" + data + b"another", 4, 4 + len(data))
    assert (len(again), again.encode()) == (len(sent[from_:]), data)
    assert taken(again) == sent[from_:]
    assert again.size == batch_of(*sent[from_:]).size


@settings(max_examples=examples(500))
@given(st.lists(publishes, max_size=4), st.data())
def test_bytes_that_the_model_refuses_are_refused(sent: list[Publish], data: st.DataObject) -> None:
    text = bytearray(encode_publishes(sent))
    if text:
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.integers(0, 255))
    text = text[: data.draw(st.integers(0, len(text)))]
    expected = decode_publishes(bytes(text))
    try:
        found = IngestBatch.decode(bytes(text))
    except ValueError:
        assert expected is None
    else:
        assert taken(found) == expected


@pytest.mark.parametrize(
    "data",
    [
        LENGTHS.pack(0, 0, 0, 0),  # no subject
        LENGTHS.pack(1, 0, 2, 1) + b"sx",  # headers longer than the body
        LENGTHS.pack(1, 0, 0, 2) + b"sx",  # a byte is missing
        LENGTHS.pack(1, 0, 0, BODY_MAX + 1) + b"sx",
        LENGTHS.pack(0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
    ],
)
def test_a_malformed_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a publish at"):
        IngestBatch.decode(data)


def test_a_head_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="the head of a publish at 0 ends at 1"):
        IngestBatch.decode(b"\x01")


def test_a_decoded_batch_is_applied_like_the_one_that_was_encoded() -> None:
    """Flags about headers are not in the encoding; they are found again."""
    sent = [
        (b"s", b"r1", b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n", b"x"),
        (b"s", b"r2", b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n", b"y"),
        (b"s", b"r3", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n", b"z"),
    ]
    acks = AckBatch(b'{"seq":')
    again = IngestBatch.decode(batch_of(*sent).encode())
    assert apply_plain(again, StreamLog(), PlainLimits(), MessageIds(100), 1, 1, acks) == 3
    assert acks.items() == [
        (b"r1", b'{"seq":1}'), (b"r2", b'{"seq":1,"duplicate":true}'), (b"r3", b'{"seq":2}'),
    ]  # fmt: skip
