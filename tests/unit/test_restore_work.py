"""What a restore costs, whatever its archive says: work for each turn, and memory of all together."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.jetstream import restore, transfers
from penstock.kernels.dispatch import publish
from penstock.protocol.api import ConsumerConfig, StorageType, StreamState, encode
from penstock.protocol.archive import (
    CONSUMER_MAX,
    CONSUMER_PREFIX,
    END,
    MARK,
    NAME_MAX,
    STATE_MAX,
    STATE_NAME,
    ArchivedConsumer,
    ArchivedState,
    Entry,
    pack_entry,
)
from penstock.protocol.s2 import IDENTIFIER, encode_chunks
from tests.reference import archive as model
from tests.support.engine import EngineHarness

CONSUMER = CONSUMER_PREFIX + "C"


def state(**fields: Any) -> bytes:
    return MARK + pack_entry(Entry(STATE_NAME, 0, encode(StreamState(**fields))))


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
    head = pack_entry(Entry(CONSUMER, 0, bytes(CONSUMER_MAX)))[: gathered + 40]
    sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=1)), encode_chunks(head))
    return lambda: sent(js, subject, *(encode_chunks(b" ") for _ in range(100)))


def test_a_chunk_costs_the_same_however_much_of_its_entry_came_before() -> None:
    assert seconds(lambda: trickling(CONSUMER_MAX - 1000)) < 5 * seconds(lambda: trickling(1000))


@pytest.mark.parametrize(
    ("entries", "most"),
    [
        ([Entry("x" * (NAME_MAX + 1), 0, b"")], NAME_MAX),
        ([Entry(STATE_NAME, 0, bytes(STATE_MAX + 1))], STATE_MAX),
        ([Entry(CONSUMER, 0, bytes(CONSUMER_MAX + 1))], CONSUMER_MAX),
    ],
)
def test_an_entry_that_no_backup_has_is_refused_when_it_is_announced(entries: list[Entry], most: int) -> None:
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
    head = state(consumer_count=1) + pack_entry(Entry(CONSUMER, 0, bytes(50_000)))[:30]
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
    config = ConsumerConfig(durable_name=name, description="x" * 4000, metadata={"x": "y" * size})
    return pack_entry(Entry(CONSUMER_PREFIX + name, 0, encode(ArchivedConsumer(config, ArchivedState()))))


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
    js, other = EngineHarness(), EngineHarness()
    other.engine.transfers.memory = js.engine.transfers.memory
    small = begun(other)
    sent(other, small, IDENTIFIER + encode_chunks(state(consumer_count=2) + consumer_entry("C", 0)))
    large = [begun(js, f"S{n}") for n in range(4)]
    for n, subject in enumerate(large):
        entry = consumer_entry("C", (100 + n) * 1000)
        sent(js, subject, IDENTIFIER + encode_chunks(state(consumer_count=100)), *[encode_chunks(entry)] * 6)
    assert [js.engine.transfers.is_restoring(f"S{n}") for n in range(4)] == [True, True, False, True]
    assert other.engine.transfers.is_restoring("S")
    assert "restores hold more than 8388608 bytes" in caplog.text
    assert js.engine.transfers.memory.held <= transfers.HELD_MAX
    assert js.api("STREAM.RESTORE.T", {"config": {"name": "T"}, "state": {}})["error"]["err_code"] == 10023
    js.engine.transfers.stop()
    other.engine.transfers.stop()
    assert js.engine.transfers.memory.held == 0
