"""Chunks of a log: read while the log changes, they have the messages of the moment at which the reader was
made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.log.state_chunks import StateReader, count_live, unpack_chunk
from penstock.kernels.log.stream_log import StreamLog
from tests.reference import state_chunks
from tests.support.examples import examples

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"

CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"), st.sampled_from([b"a", b"a.b"]), st.sampled_from([b"", HEADER]),
            st.binary(max_size=90),
        ),
        st.tuples(st.just("skip"), st.integers(0, 12)),
        st.tuples(st.just("remove"), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("purge"), st.sampled_from([b"a", b"a.*"]), st.integers(0, 40)),
        st.tuples(st.just("limit"), st.integers(1, 20)),
    ),
    max_size=20,
)  # fmt: skip


def change(log: StreamLog, one: tuple[Any, ...]) -> None:
    kind, *rest = one
    if kind == "append":
        log.append(*rest, log.last_ts + 5)
    elif kind == "skip":
        log.skip_to(log.last_seq + rest[0], log.last_ts)
    elif kind == "remove":
        log.remove(*rest)
    elif kind == "purge":
        log.purge(rest[0], rest[1])
    else:
        log.limit(rest[0], -1)


def messages(log: StreamLog) -> list[tuple[int, int, bytes, bytes, bytes]]:
    found = []
    seq = log.next_seq(0)
    while seq:
        one = log.load(seq)
        assert one is not None
        found.append((one.seq, one.ts, one.subject, one.header, one.payload))
        seq = log.next_seq(seq + 1)
    return found


@given(CHANGES, st.integers(1, 9), st.data())
@settings(max_examples=examples(80))
def test_a_reader_sees_the_log_as_it_was(before: list[Any], chunk_seqs: int, drawn: st.DataObject) -> None:
    log = StreamLog(2048)
    for one in before:
        change(log, one)
    expected = messages(log)
    model = state_chunks.chunks(expected, log.first_seq, log.last_seq, chunk_seqs)
    reader = StateReader(log, chunk_seqs)
    chunks: list[bytes] = []
    parts: list[bytes] = []
    while reader.seq <= reader.last_seq:
        for one in drawn.draw(CHANGES) if drawn.draw(st.integers(0, 3)) == 0 else ():
            change(log, one)
        if reader.is_lost:
            return
        if not parts:
            inside = [one for one in expected if reader.seq <= one[0] <= reader.chunk_end]
            assert reader.count() == len(inside)
        part, is_done = reader.read(drawn.draw(st.integers(1, 300)))
        parts.append(part)
        if is_done:
            chunks.append(b"".join(parts))
            parts = []
    assert not reader.kept_bytes
    reader.close()
    assert chunks == model
    copy = StreamLog()
    for chunk in chunks:
        at = 0
        while at < len(chunk):
            at = unpack_chunk(copy, chunk, at, drawn.draw(st.integers(1, 300)))
    assert messages(copy) == expected


def test_a_reader_that_skips_a_chunk_forgets_what_was_removed_there() -> None:
    log = StreamLog()
    for i in range(8):
        log.append(b"s", b"", b"%d" % i, i)
    reader = StateReader(log, 4)
    log.remove(2)
    assert reader.kept_bytes
    assert reader.count() == 4
    reader.skip()
    assert (reader.seq, reader.kept_bytes, reader.count()) == (5, 0, 4)


def test_a_purge_of_everything_loses_what_is_left_to_read() -> None:
    log = StreamLog()
    log.append(b"s", b"", b"x", 1)
    reader = StateReader(log, 4)
    log.purge()
    assert reader.is_lost


def test_a_closed_reader_keeps_nothing() -> None:
    log = StreamLog()
    log.append(b"s", b"", b"x", 1)
    log.append(b"s", b"", b"x", 1)
    reader = StateReader(log, 4)
    reader.close()
    log.remove(1)
    assert not reader.kept_bytes


@given(CHANGES, st.integers(0, 50), st.integers(0, 50))
def test_live_messages_of_a_range_are_counted(changes: list[Any], first: int, length: int) -> None:
    log = StreamLog(1024)
    for one in changes:
        change(log, one)
    found = [one for one in messages(log) if first <= one[0] <= first + length]
    assert count_live(log, first, first + length) == len(found)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_bytes_that_are_no_chunk_are_refused_or_taken_whole(data: bytes, have: int) -> None:
    log = StreamLog()
    for _ in range(have):
        log.append(b"s", b"", b"", 5)
    try:
        assert unpack_chunk(log, data, 0, 1000) == len(data)
    except ValueError:
        assert log.last_seq < 2**48


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_chunk_that_ends_in_a_message_is_refused(cut: int) -> None:
    log = StreamLog()
    log.append(b"s.t", HEADER, b"payload", 1)
    chunk, is_done = StateReader(log, 4).read(1000)
    assert is_done
    with pytest.raises(ValueError):
        unpack_chunk(StreamLog(), chunk[:-cut], 0, 1000)


def test_a_message_that_does_not_follow_the_last_one_is_refused() -> None:
    log = StreamLog()
    log.append(b"s", b"", b"x", 1)
    chunk, _ = StateReader(log, 4).read(1000)
    with pytest.raises(ValueError, match="cannot follow message 1"):
        unpack_chunk(log, chunk, 0, 1000)
