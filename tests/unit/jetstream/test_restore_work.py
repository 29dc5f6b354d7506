"""What a restore costs, whatever its archive says: work in each iteration, and memory of all together."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream import opening, restore, snapshot, transfers
from penstock.jetstream.engine import SharedState
from penstock.jetstream.snapshot import pack_consumer
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import snapshot_archive as archive
from penstock.protocol.api import ApiConsumerConfig, StorageType, StreamState, decode, encode
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.protocol.snapshot_archive import (
    CONSUMER_MAX,
    CONSUMER_PREFIX,
    END,
    MARK,
    NAME_MAX,
    STATE_MAX,
    STATE_NAME,
    ArchivedConsumer,
    ArchivedState,
    ArchiveEntry,
    pack_entry,
)
from tests.reference import archive_entries as model
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.backup-restore", "stream.long-requests")

CONSUMER = CONSUMER_PREFIX + "C"


def state(**fields: Any) -> bytes:
    return MARK + pack_entry(ArchiveEntry(STATE_NAME, 0, encode(StreamState(**fields))))


def begun(js: EngineHarness, name: str = "S") -> str:
    """The subject that takes the chunks of a restore."""
    body = {"config": {"name": name, "subjects": [name]}, "state": {}}
    answer = js.api(f"STREAM.RESTORE.{name}", body)
    assert "error" not in answer, answer
    subject: str = answer["deliver_subject"]
    return subject


def sent(js: EngineHarness, subject: str, *chunks: bytes) -> list[bytes]:
    """The answers to chunks that are sent without waiting."""
    heard = [js.messages(subject, chunk) for chunk in chunks]
    for _ in range(10_000):
        if all(heard):
            return [answers[0][2] for answers in heard]
        js.tick()
    raise AssertionError("no answer")


def refusal(js: EngineHarness, subject: str, *chunks: bytes) -> str:
    description: str = json.loads(sent(js, subject, *chunks)[-1])["error"]["description"]
    return description


def seconds(make: Callable[[], Callable[[], object]]) -> float:
    found = []
    for _ in range(3):
        call = make()
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def trickling(gathered: int) -> Callable[[], object]:
    """Single bytes behind `gathered` bytes of an entry that is not whole."""
    js = EngineHarness()
    subject = begun(js)
    head = pack_entry(ArchiveEntry(CONSUMER, 0, bytes(CONSUMER_MAX)))[: gathered + 40]
    sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=1)), encode_chunks(head))
    return lambda: sent(js, subject, *(encode_chunks(b" ") for _ in range(100)))


def test_a_chunk_costs_the_same_however_much_of_its_entry_came_before() -> None:
    assert seconds(lambda: trickling(CONSUMER_MAX - 1000)) < 5 * seconds(lambda: trickling(1000))


@pytest.mark.parametrize(
    ("entries", "most"),
    [
        ([ArchiveEntry("x" * (NAME_MAX + 1), 0, b"")], NAME_MAX),
        ([ArchiveEntry(STATE_NAME, 0, bytes(STATE_MAX + 1))], STATE_MAX),
        ([ArchiveEntry(CONSUMER, 0, bytes(CONSUMER_MAX + 1))], CONSUMER_MAX),
    ],
)
def test_an_entry_that_no_backup_has_is_refused_when_it_is_announced(
    entries: list[ArchiveEntry], most: int
) -> None:
    js = EngineHarness()
    subject = begun(js)
    head = state(consumer_count=1) if entries[0].name == CONSUMER else MARK
    announced = IDENTIFIER + encode_chunks((head + pack_entry(entries[0]))[: len(head) + 30])
    why = refusal(js, subject, announced)
    assert "archive: an entry of" in why
    assert f"{most} " in why


def ticks_until(js: EngineHarness, done: Callable[[], object]) -> int:
    for count in range(100_000):
        if done():
            return count
        js.tick()
    raise AssertionError("it never ended")


def packed_messages(count: int) -> bytes:
    head = state(messages=count, first_seq=1, last_seq=count)
    messages = model.pack([(1 + n, 1, b"S", b"", b"") for n in range(count)])
    return IDENTIFIER + encode_chunks(head + messages + END)


def growth(js: EngineHarness, data: bytes, restores: int) -> list[int]:
    """Bytes that are stored in each tick while so many restores go on."""
    heard = [js.messages(begun(js, f"S{n}"), data) for n in range(restores)]
    stored = [js.engine.transfers.used(StorageType.FILE)]
    while not any(heard):
        js.tick()
        stored.append(js.engine.transfers.used(StorageType.FILE))
    ticks_until(js, lambda: all(heard))
    return [after - before for before, after in itertools.pairwise(stored)]


def test_restores_share_the_turn_and_each_gets_its_part() -> None:
    data = packed_messages(20_000)
    alone, together = growth(EngineHarness(), data, 1), growth(EngineHarness(), data, 8)
    assert max(together) <= max(alone)
    assert len(together) > 3 * len(alone)  # before the first is done, all others are nearly


@pytest.mark.parametrize("block", [b"\x80\x00\x00\x00", encode_chunks(b" ")])
def test_a_turn_reads_only_so_many_blocks_of_a_chunk(block: bytes) -> None:
    """A megabyte of empty blocks is a quarter million of them."""
    js = EngineHarness()
    subject = begun(js)
    head = state(consumer_count=1) + pack_entry(ArchiveEntry(CONSUMER, 0, bytes(50_000)))[:30]
    sent(js, subject, IDENTIFIER + encode_chunks(head))
    heard = js.messages(subject, block * 20_000)
    assert ticks_until(js, lambda: heard) >= 20_000 * restore.BLOCK_WORK // transfers.WORK - 1


def test_a_turn_takes_only_so_many_chunks() -> None:
    js = EngineHarness()
    subject = begun(js)
    heard = js.listen(b"answers")
    for chunk in (IDENTIFIER, *[b"\x80\x00\x00\x00"] * 1000):
        publish(js.index, subject.encode(), b"answers", b"", chunk)
    js.tick()
    assert 0 < len(heard) <= 1 + transfers.WORK // restore.CHUNK_WORK
    ticks_until(js, lambda: len(heard) == 1001)


def consumer_entry(name: str, size: int) -> bytes:
    config = ApiConsumerConfig(durable_name=name, description="x" * 4000, metadata={"x": "y" * size})
    return pack_entry(
        ArchiveEntry(CONSUMER_PREFIX + name, 0, encode(ArchivedConsumer(config, ArchivedState())))
    )


def test_a_turn_reads_and_makes_only_so_many_consumers() -> None:
    js = EngineHarness()
    subject = begun(js)
    entries = b"".join(consumer_entry(f"C{n}", 0) for n in range(100))
    heard = js.messages(subject, IDENTIFIER + encode_chunks(state(consumer_count=100) + entries + END))
    assert ticks_until(js, lambda: heard) >= 100 * restore.CONSUMER_WORK // transfers.WORK
    heard = js.messages(subject)
    assert ticks_until(js, lambda: heard) >= 100 * restore.CONSUMER_WORK // transfers.WORK
    assert json.loads(heard[0][2])["state"]["consumer_count"] == 100


def test_restores_hold_only_so_much_memory_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transfers, "HELD_MAX", 8 * 1024 * 1024)
    memory = transfers.RestoreMemory()
    js, other = (EngineHarness(shared=SharedState(restore_memory=memory)) for _ in range(2))
    small = begun(other)
    sent(other, small, IDENTIFIER + encode_chunks(state(consumer_count=2) + consumer_entry("C", 0)))
    large = [begun(js, f"S{n}") for n in range(4)]
    for n, subject in enumerate(large):
        entry = consumer_entry("C", (100 + n) * 1000)
        sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=100)), *[encode_chunks(entry)] * 6)
    assert [js.engine.transfers.is_restoring(f"S{n}") for n in range(4)] == [True, True, False, True]
    assert other.engine.transfers.is_restoring("S")
    assert "restores hold more than 8388608 bytes" in caplog.text
    assert memory.held <= transfers.HELD_MAX
    assert js.api("STREAM.RESTORE.T", {"config": {"name": "T"}, "state": {}})["error"]["err_code"] == 10023
    js.engine.transfers.stop()
    other.engine.transfers.stop()
    assert memory.held == 0


PENDING = 20_000


def many_pending() -> EngineHarness:
    """A consumer with many messages that wait for their ack."""
    js = EngineHarness()
    js.create("S", "s")
    for _ in range(PENDING):
        js.engine.streams["S"].log.append(b"s", b"", b"", 1)
    config = {"durable_name": "C", "ack_policy": "explicit", "max_ack_pending": -1, "max_deliver": 3}
    js.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    while js.engine.streams["S"].consumers["C"].state.num_pending < PENDING:
        js.messages("$JS.API.CONSUMER.MSG.NEXT.S.C", {"batch": PENDING, "no_wait": True})
    return js


def test_a_consumer_with_many_pending_messages_is_packed_and_made_in_many_turns() -> None:
    """At once, a hundred thousand of them take longer than anybody should wait."""
    consumer = many_pending().engine.streams["S"].consumers["C"]
    parts = list(pack_consumer(consumer, PENDING, 0))
    assert len(parts) > PENDING // snapshot.MESSAGES_SLICE
    taken = archive.take_entry(b"".join(parts), 0, CONSUMER_MAX)
    assert taken is not None
    state = decode(ArchivedConsumer, taken[0].payload).state
    steps = restore.consumer_snapshot(consumer.config, state, PENDING)
    works = []
    while True:
        try:
            works.append(next(steps))
        except StopIteration as end:
            made = AckState(KernelPolicy.ACK_EXPLICIT)
            made.restore(end.value)
            break
    assert made.pending() == consumer.state.pending()
    assert max(works[:-1]) <= transfers.WORK and sum(works) > 10 * transfers.WORK


def test_consumers_of_a_restored_stream_are_opened_in_slices_and_nothing_reaches_it_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 20
    js = EngineHarness()
    subject = begun(js)
    entries = b"".join(consumer_entry(f"C{n}", 0) for n in range(count))
    sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=count) + entries + END))
    heard = js.listen(b"end")
    publish(js.index, subject.encode(), b"end", b"", b"")
    monkeypatch.setattr(opening, "CONSUMER_WORK", transfers.WORK)
    ticks_until(js, lambda: js.engine.transfers.restores["S"]._adopting)
    assert (
        ticks_until(js, lambda: heard or js.api("STREAM.INFO.S")["error"]["err_code"] != 10059) > count // 3
    )
    assert json.loads(heard[0][2])["state"]["consumer_count"] == count
    assert len(js.api("CONSUMER.NAMES.S")["consumers"]) == count


def test_a_server_that_stops_while_a_restored_stream_is_opened_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    js = EngineHarness()
    subject = begun(js)
    entries = b"".join(consumer_entry(f"C{n}", 0) for n in range(20))
    sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=20) + entries + END))
    monkeypatch.setattr(opening, "CONSUMER_WORK", transfers.WORK)
    publish(js.index, subject.encode(), b"end", b"", b"")
    ticks_until(js, lambda: js.engine.transfers.restores["S"]._adopting)
    js.engine.close()
    assert not js.engine.streams and not js.store.stream_names()
    assert not js.index.has_interest(b"$JS.ACK.S.C1.1.1.1.1.1") and not js.index.has_interest(b"S")


@pytest.mark.parametrize(
    ("pending", "why"),
    [
        ("[]", "no object by sequence"),
        ('{"a":{"Sequence":1}}', "archive|can not read|expected"),
        ('{"1":5}', "can not read|expected"),
        ('{"1":{"Sequence":1},"2":{"Sequence":1e400}}', "can not read|expected|range"),
    ],
)
def test_what_is_no_state_of_a_consumer_is_refused(pending: str, why: str) -> None:
    js = EngineHarness()
    subject = begun(js)
    config = '{"durable_name":"C","ack_policy":"explicit"}'
    body = f'{{"config":{config},"state":{{"delivered":{{"stream_seq":1}},"pending":{pending}}}}}'
    entry = pack_entry(ArchiveEntry(CONSUMER, 0, body.encode()))
    sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=1) + entry + END))
    heard = js.messages(subject)
    ticks_until(js, lambda: heard)
    assert re.search(why, json.loads(heard[0][2])["error"]["description"])


@given(
    st.dictionaries(st.integers(1, 1 << 60), st.integers(0, 1 << 60), max_size=50),
    st.integers(1, 60),
    st.sampled_from(["", " ", "\n\t"]),
)
def test_a_state_read_in_pieces_is_the_same_as_read_at_once(
    found: dict[int, int], piece: int, space: str
) -> None:
    counts = json.dumps(found, separators=("," + space, ":" + space))
    values = {seq: {"Sequence": one, "Timestamp": -one} for seq, one in found.items()}
    messages = json.dumps(values, separators=(space + "," + space, ":")).replace("}", space + "}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "PIECE", piece)
        parts = list(archive.pieces(msgspec.Raw(counts.encode()), int))
        assert {seq: one for part in parts for seq, one in part.items()} == found
        states = list(archive.pieces(msgspec.Raw(messages.encode()), archive.PendingMessage))
        assert {seq: one for part in states for seq, one in part.items()} == {
            seq: archive.PendingMessage(one, -one) for seq, one in found.items()
        }
    joined = archive.joined(encode(part) for part in parts)
    assert json.loads(bytes(joined)) == json.loads(counts) if found else joined is msgspec.UNSET
