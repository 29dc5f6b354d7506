"""Kernel messageids: a window of ids that finds what the model finds, in little memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.ingest.ingest import recover_ids
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from tests.reference.message_ids import MessageIdsModel
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.deduplication")

names = st.one_of(
    st.integers(0, 40).map(lambda n: b"%d" % n),
    st.binary(min_size=1, max_size=80),
    st.sampled_from([b"x" * 5000, b"y" * 65_000]),
)


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), names, st.integers(0, 30)),
            st.tuples(st.just("prune"), st.just(b""), st.integers(0, 300)),
            st.tuples(st.just("part"), st.just(b""), st.integers(0, 300)),
            st.tuples(st.just("resize"), st.just(b""), st.integers(1, 400)),
            st.tuples(st.just("many"), names, st.integers(1, 300)),
        ),
        max_size=40,
    )
)
def test_it_finds_what_the_model_finds(steps: list[tuple[str, bytes, int]]) -> None:
    ids, model = MessageIds(200), MessageIdsModel(200)
    now, seq = 1_000, 0
    for step, name, value in steps:
        if step == "publish":
            now += value
            assert ids.find(name, now) == model.find(name, now)
            model.prune(now)
            seq += 1
            ids.add(name, seq, now)
            model.add(name, seq, now)
        elif step == "many":
            for n in range(value):
                seq += 1
                ids.add(name[:60] + b"-%d" % n, seq, now)
                model.add(name[:60] + b"-%d" % n, seq, now)
        elif step == "part":
            now += value
            model.prune(now)
            assert 0 <= ids.prune(now, value % 5) <= value % 5
        elif step == "prune":
            now += value
            ids.prune(now)
            model.prune(now)
        else:
            ids.resize(value, now)
            model.window_ns = value
            model.prune(now)
        for known in model.stored:
            assert ids.find(known, now) == model.find(known, now)
        assert len(ids) >= len(model.stored)
        if step in ("prune", "resize"):
            assert len(ids) == len(model.stored)
    ids.prune(now + 10_000)
    assert (len(ids), ids.memory, ids.next_deadline()) == (0, 0, None)


def test_an_id_takes_little_memory_however_long_the_window_slides() -> None:
    ids = MessageIds(1_000_000)
    most = 0.0
    for n in range(300_000):
        ids.find(b"%022d" % n, n * 20)
        ids.add(b"%022d" % n, n + 1, n * 20)
        if n > 60_000 and n % 5_000 == 0:
            assert len(ids) == 50_000
            most = max(most, ids.memory / len(ids))
    assert most < 85
    assert ids.find(b"%022d" % 250_001, 299_999 * 20) == 250_002
    assert ids.find(b"%022d" % 249_999, 299_999 * 20) == 0
    ids.prune(299_999 * 20 + 999_900)
    assert len(ids) < 10
    assert ids.memory < 10_000


def test_ids_that_only_begin_alike_are_different() -> None:
    ids = MessageIds(100)
    ids.add(b"a", 1, 1)
    ids.add(b"a\0", 2, 1)
    assert [ids.find(name, 1) for name in (b"a", b"a\0", b"", b"b")] == [1, 2, 0, 0]
    ids.add(b"a", 3, 2)
    assert (ids.find(b"a", 2), len(ids)) == (1, 2)


def test_the_last_id_is_kept_whether_or_not_ids_are() -> None:
    ids = MessageIds(0)
    assert ids.last_id == b""
    ids.note_last(b"some id")
    ids.add(b"some id", 1, 1)
    assert (ids.last_id, len(ids), ids.find(b"some id", 1)) == (b"some id", 0, 0)
    ids.note_last(b"")
    assert ids.last_id == b""


def test_a_window_forgets_in_order_and_can_be_resized() -> None:
    ids = MessageIds(160)
    for n in range(5):
        ids.add(b"%d" % n, n + 1, n * 10)
    assert (len(ids), ids.next_deadline()) == (5, 170)  # a sixteenth later than the first could go
    ids.prune(170)
    assert [ids.find(b"%d" % n, 170) for n in range(5)] == [0, 0, 3, 4, 5]
    ids.resize(20, 55)
    assert (len(ids), ids.next_deadline(), ids.window_ns) == (1, 61, 20)
    ids.prune(60)
    assert (len(ids), ids.next_deadline()) == (0, None)
    ids.add(b"again", 9, 1000)
    assert (ids.find(b"again", 1019), ids.find(b"again", 1020)) == (9, 0)


def test_a_call_drops_a_bounded_number_of_ids_and_forgets_all() -> None:
    """A million at once took a seventh of a second: in a timer, an update or a publish."""
    count = 20_000
    ids = MessageIds(100)
    for n in range(count):
        ids.add(b"%d" % n, n + 1, 0)
    ids.resize(10, 50)
    left = len(ids)
    assert count - 10_000 < left < count
    assert ids.find(b"1", 50) == ids.find(b"%d" % (count - 1), 50) == 0
    assert left - 16 <= len(ids) < left
    for n in range(0, count, 100):
        assert ids.find(b"%d" % n, 60) == 0
        ids.add(b"%d" % n, count + n, 60)
        assert ids.find(b"%d" % n, 60) == count + n
    while (due := ids.next_deadline()) is not None and due <= 60:
        before = len(ids)
        assert ids.prune(60, 1000) == before - len(ids) <= 1000
    assert len(ids) == count // 100
    assert [ids.find(b"%d" % n, 69) for n in (0, 100, 101)] == [count, count + 100, 0]


def test_a_longer_window_finds_no_id_that_a_shorter_one_excluded() -> None:
    ids = MessageIds(100)
    for n in range(20_000):
        ids.add(b"%d" % n, n + 1, n // 10_000)
    ids.resize(10, 10)
    ids.resize(100, 10)
    assert [ids.find(b"%d" % n, 10) for n in (0, 9_999, 10_000, 19_999)] == [0, 0, 10_001, 20_000]


def test_the_entries_are_listed_in_the_order_of_their_times() -> None:
    ids = MessageIds(10)
    assert ids.items() == []
    for seq, msg_id in enumerate([b"b", b"a", b"long" * 30], 1):
        ids.add(msg_id, seq, seq)
    ids.prune(11)
    assert ids.items() == [(b"a", 2, 2), (b"long" * 30, 3, 3)]


PLAIN, WITH_ID = b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n"
MESSAGES = 30


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from([b"", PLAIN, WITH_ID]), min_size=MESSAGES, max_size=MESSAGES), st.data())
def test_recovery_finds_the_ids_of_readable_messages_in_a_block_with_a_changed_byte(
    headers: list[bytes], data: st.DataObject
) -> None:
    written = StreamLog(1 << 20, True)
    for number, header in enumerate(headers):
        written.append(b"s", header % number if header is WITH_ID else header, b"x" * number, number)
    [whole] = written.block_list()
    stored = bytes(whole)
    block = MessageBlock(1, 1)
    block.scan(stored)
    block.closed = True
    index = block.export_index()
    MessageBlock.tie_index(index, len(stored), int.from_bytes(stored[-8:], "little"))
    indexed = MessageBlock.from_index(bytes(index), 1, len(stored), int.from_bytes(stored[-8:], "little"))
    damaged = bytearray(stored)
    at = data.draw(st.integers(0, len(stored) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    log = StreamLog(1 << 20, True, lambda number, size: bytes(damaged[:size]))
    log.restore([indexed])
    ids = MessageIds(1000)
    assert recover_ids(log, ids, 1, 10 * MESSAGES) == 0
    for number, header in enumerate(headers):
        readable = log.load(number + 1) is not None
        expected = number + 1 if header is WITH_ID and readable else 0
        assert ids.find(b"%d" % number, MESSAGES) == expected
