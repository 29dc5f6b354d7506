"""kernels/log/archive against the model: messages as entries, entries as messages, at every cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.kernels.log.archive import (
    ENTRY_CUT,
    ENTRY_LAST,
    ENTRY_MORE,
    pack_messages,
    unpack_messages,
)
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.snapshot_archive import END, ArchiveEntry, pack_entry, take_entry
from tests.reference import archive_entries as model

pytestmark = pytest.mark.feature("stream.backup-restore")

HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 3),  # sequences left out
        st.integers(0, 10**12),  # ns after the one before
        st.sampled_from([b"a", b"a.b", b"orders.eu"]),
        st.sampled_from([b"", HEADER]),
        st.binary(max_size=300),
    ),
    max_size=20,
)


def numbered(drawn: list[tuple[int, int, bytes, bytes, bytes]]) -> list[model.Message]:
    seq, ts, made = 0, 1_700_000_000_000_000_000, []
    for gap, later, subject, header, payload in drawn:
        seq, ts = seq + 1 + gap, ts + later
        made.append((seq, ts, subject, header, payload))
    return made


def live(log: StreamLog) -> list[model.Message]:
    found, seq = [], 1
    while (message := log.load_next(b"", seq)) is not None:
        found.append((message.seq, message.ts, message.subject, message.header, message.payload))
        seq = message.seq + 1
    return found


@given(MESSAGES, st.integers(1, 400), st.data())
def test_messages_come_back_as_they_were(drawn: list, enough: int, cuts: st.DataObject) -> None:  # type: ignore[type-arg]
    messages = numbered(drawn)
    packed = model.pack(messages) + END
    at = cuts.draw(st.integers(0, len(packed)))
    log = StreamLog(4096)
    most = cuts.draw(st.integers(1, 30))
    taken, total, end = 0, 0, ENTRY_CUT
    for data in (packed[:at], bytearray(packed)):
        while end != ENTRY_LAST:
            taken, count, end = unpack_messages(log, data, taken, 4096, most)
            assert count == most if end == ENTRY_MORE else count < most
            total += count
            if end == ENTRY_CUT:
                break
        assert end != ENTRY_MORE
    assert (taken, total, end) == (len(packed), len(messages), ENTRY_LAST)
    assert live(log) == messages
    again, seq = b"", 1
    while seq:
        part, seq = pack_messages(log, seq, log.last_seq, enough)
        again += part
    assert again + END == packed


def test_it_stops_at_the_last_sequence() -> None:
    log = StreamLog()
    for i in range(5):
        log.append(b"s", b"", b"%d" % i, 1)
    log.remove(2)
    assert pack_messages(log, 1, 3, 1000) == (
        model.pack([(1, 1, b"s", b"", b"0"), (3, 1, b"s", b"", b"2")]),
        0,
    )


def test_times_never_go_backwards() -> None:
    log = StreamLog()
    unpack_messages(log, model.pack([(1, 5, b"s", b"", b""), (2, 3, b"s", b"", b"")]), 0, 10, 5)
    assert log.last_ts == 5


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (model.pack([(2, 1, b"s", b"", b""), (2, 1, b"s", b"", b"")]), "out of order"),
        (model.pack([(0, 1, b"s", b"", b"")]), "expected message sequence"),
        (model.pack([(2**48, 1, b"s", b"", b"")]), "can not go on"),
        (model.pack([(1, 1, b"a.*", b"", b"")]), "its subject is invalid"),
        (model.pack([(1, 1, b"a b", b"", b"")]), "its subject is invalid"),
        (model.pack([(1, 1, b"", b"", b"x")]), "a subject of 0 bytes"),
        (model.pack([(1, 1, b"s", b"X: y\r\n\r\n....", b"")]), "its header is invalid"),
        (model.pack([(1, 1, b"s", b"", b"x" * 4097)]), "exceeds maximum message size"),
        (b"\xff" * 10, "over 64 bits"),
    ],
)
def test_what_could_not_have_been_published_is_refused(packed: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack_messages(StreamLog(), packed, 0, 4096, 5)


@given(st.text(min_size=1, max_size=40), st.integers(-(2**62), 2**62), st.binary(max_size=200))
def test_other_entries_come_back_as_they_were(name: str, time: int, payload: bytes) -> None:
    name = name.encode("utf-8", "replace").decode()
    entry = ArchiveEntry(name, time, payload)
    packed = pack_entry(entry)
    assert take_entry(packed + b"more", 0, 200) == (entry, len(packed))
    assert all(take_entry(bytearray(packed[:cut]), 0, 200) is None for cut in range(len(packed)))
    if payload:
        with pytest.raises(ProtocolError, match=f"at most 1024 \\+ {len(payload) - 1} are allowed"):
            take_entry(packed, 0, len(payload) - 1)
