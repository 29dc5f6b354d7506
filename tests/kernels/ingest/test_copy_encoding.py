"""Encoded batches of copies: they come back as they were, and what points outside of them is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.ingest.copying import CopyBatch, apply_mirrored, apply_sourced
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits
from penstock.kernels.log.stream_log import StreamLog
from tests.reference.commands import COPY_HEAD, HAS_ID, Copy, encode_copy, encode_place, is_whole
from tests.support.examples import examples

BLOCKS = [
    b"",
    b"NATS/1.0\r\nX: y\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:  7 \r\n\r\n",
    b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: 8\r\nNats-Msg-Id: 9\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Msg-Id: 8\r\n\r\n",
]
copies = st.tuples(
    st.integers(1, 2**48 - 1),
    st.integers(0, 2**62),
    st.binary(min_size=1, max_size=9),
    st.sampled_from(BLOCKS),
    st.binary(max_size=20),
)


def batch_of(all_: list[Copy | int]) -> CopyBatch:
    batch = CopyBatch()
    for one in all_:
        if isinstance(one, int):
            batch.place(one)
        else:
            batch.append(*one)
    return batch


@settings(max_examples=examples(300))
@given(st.lists(st.one_of(copies, st.integers(1, 2**40)), max_size=6))
def test_a_batch_of_copies_is_encoded_as_the_model_encodes_it(sent: list[Copy | int]) -> None:
    data = batch_of(sent).encode()
    assert data == b"".join(encode_place(one) if isinstance(one, int) else encode_copy(one) for one in sent)
    assert batch_of(sent).encode(b"head") == b"head" + data
    again = CopyBatch.decode(b"head" + data + b"another", 4, 4 + len(data))
    assert (len(again), again.encode(), again.size) == (len(sent), data, batch_of(sent).size)


@settings(max_examples=examples(500))
@given(st.lists(copies, min_size=1, max_size=3), st.data())
def test_only_whole_copies_are_accepted(sent: list[Copy], data: st.DataObject) -> None:
    text = bytearray(b"".join(map(encode_copy, sent)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.one_of(st.integers(0, COPY_HEAD.size - 1), st.integers(0, len(text) - 1)))
        text[at] = data.draw(st.sampled_from([0, 1, 2, 4, 7, 8, 255]))
    del text[data.draw(st.sampled_from([len(text), len(text), len(text) - 1, 3])) :]
    try:
        found = CopyBatch.decode(bytes(text))
    except ValueError:
        assert not is_whole(bytes(text))
    else:
        assert is_whole(bytes(text))
        assert found.encode() == bytes(text)
        apply_sourced(found, StreamLog(), PlainLimits(), MessageIds(5), 1, 1)


def test_an_id_outside_of_its_header_block_is_refused() -> None:
    data = COPY_HEAD.pack(1, 1, HAS_ID, 1, 4, 4, 3, 2) + b"sabcd"
    with pytest.raises(ValueError, match="a copy at 40 of 5 bytes, flags 2, does not fit 5 bytes"):
        CopyBatch.decode(data)


def test_a_decoded_batch_is_stored_like_the_one_that_was_encoded() -> None:
    batch = batch_of([(3, 5, b"s", BLOCKS[2], b"x"), 6, (7, 8, b"t", b"", b"y")])
    log, ids = StreamLog(), MessageIds(100)
    assert apply_mirrored(CopyBatch.decode(batch.encode()), log, PlainLimits(), ids) == 3
    assert [(one.seq, one.ts, one.subject) for seq in (3, 7) if (one := log.load(seq))] == [
        (3, 5, b"s"), (7, 8, b"t"),
    ]  # fmt: skip
    assert (ids.items(), log.last_seq) == ([(b"7", 3, 5)], 7)
