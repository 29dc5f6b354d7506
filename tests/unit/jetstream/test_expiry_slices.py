"""Very many messages that expire together: a bounded number in each tick, and all of it in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import engine_tick as tick
from penstock.jetstream.stream.retention import (
    AGED,
    AGED_WORK,
    BYTES_A_UNIT,
    LOOKS_MAX,
    REMOVAL_WORK,
    SWEEP_WORK,
)
from penstock.jetstream.stream.stream_timers import ID_WORK
from penstock.jetstream.stream.ttl import MessageTtls
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.store.file import FileStore
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.max-age", "stream.long-requests")

SECOND = 1_000_000_000
MANY = 3000
DUE = START_NS + 6 * SECOND


def ttl(value: str) -> bytes:
    return headers.build([(headers.TTL, value)])


def filled(
    js: EngineHarness, name: str = "S", count: int = MANY, header: bytes = b"", **settings: Any
) -> None:
    js.create(name, f"{name}.>", **settings)
    for n in range(count):
        publish(js.index, f"{name}.{n}".encode(), b"", header, b"x")
    js.tick()


def ticks_at(js: EngineHarness, now: int) -> Iterator[int]:
    """What stream S holds after each call of the timer, while something is due at that time."""
    js.now = now
    while (due := js.engine.tick.next_deadline()) is not None and due <= now:
        js.engine.tick.on_time(now)
        js.tick()
        yield js.engine.streams["S"].log.messages


@pytest.mark.parametrize(
    ("settings", "header", "each"),
    [
        ({"max_age": 5 * SECOND}, b"", AGED_WORK),
        ({"allow_msg_ttl": True}, ttl("5"), REMOVAL_WORK),
        ({"allow_msg_ttl": True, "max_age": 5 * SECOND, "subject_delete_marker_ttl": 60 * SECOND}, b"",
         REMOVAL_WORK),
    ],
    ids=["max_age", "ttl", "markers"],
)  # fmt: skip
def test_messages_that_expire_together_go_in_slices(
    settings: dict[str, Any], header: bytes, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 100 * each)
    js = EngineHarness()
    filled(js, header=header, **settings)
    log = js.engine.streams["S"].log
    removed = 0
    for _ in ticks_at(js, DUE):
        assert log.removals - removed <= 100 + AGED
        removed = log.removals
    assert removed == MANY and log.first_seq == MANY + 1


def test_a_stream_with_much_to_expire_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 100 * AGED_WORK)
    js = EngineHarness()
    filled(js, "S", max_age=5 * SECOND)
    js.now += SECOND // 2  # the other is due later
    filled(js, "T", count=10, max_age=5 * SECOND)
    left = next(ticks_at(js, DUE))
    assert js.engine.streams["T"].log.messages == 10
    left = next(ticks_at(js, DUE))
    assert js.engine.streams["T"].log.messages == 0
    assert left > MANY - 300


def test_what_did_not_have_its_turn_before_a_stop_expires_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 100 * AGED_WORK)
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    filled(js, max_age=5 * SECOND)
    assert 0 < next(ticks_at(js, DUE)) < MANY
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"), now=DUE)
    state = js.state("S")
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, MANY + 1, MANY)
    store.close()


class CountedSet(set[int]):
    """Counts how often it is asked."""

    asked = 0

    def __contains__(self, one: object) -> bool:
        self.asked += 1
        return super().__contains__(one)


@pytest.mark.parametrize("count", [LOOKS_MAX // 2, MANY])
def test_messages_that_never_expire_are_looked_at_once(count: int) -> None:
    js = EngineHarness()
    filled(js, count=count, header=ttl("never"), allow_msg_ttl=True, max_age=5 * SECOND)
    expiry = js.engine.streams["S"].expiry
    expiry.ttls._never = never = CountedSet(expiry.ttls._never)
    publish(js.index, b"S.last", b"", b"", b"x")
    for _ in range(10):
        before = never.asked
        js.tick()
        assert never.asked - before <= 2 * (LOOKS_MAX + 2)
    assert [*ticks_at(js, DUE)][-1] == count
    assert never.asked <= 3 * (count + 2) + 20 * LOOKS_MAX
    before = never.asked
    for _ in range(100):
        expiry.next_deadline(5 * SECOND)
    assert never.asked - before <= 300


def test_entries_of_removed_messages_are_swept_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep of a million entries took a third of a second. Meanwhile TTLs hold as before."""
    js = EngineHarness()
    js.create("S", "S.>", allow_msg_ttl=True, max_age=50 * SECOND)
    for value, count in (("1", 1), ("30", MANY), ("never", MANY), ("3", 5), ("20", 5), ("never", 5)):
        for _ in range(count):
            publish(js.index, b"S.gone" if count == MANY else b"S.kept", b"", ttl(value), b"x")
    js.tick()
    stream = js.engine.streams["S"]
    ttls, looks = stream.expiry.ttls, [0]
    sweep = ttls.sweep

    def counted(log: StreamLog, most: int) -> int:
        looks.append(sweep(log, most))
        return looks[-1]

    monkeypatch.setattr(ttls, "sweep", counted)
    monkeypatch.setattr(tick, "EXPIRY_WORK", 100 * SWEEP_WORK)
    assert js.api("STREAM.PURGE.S", {"filter": "S.gone"})["purged"] == 2 * MANY
    for seconds, left in ((2, 15), (4, 10), (21, 5), (49, 5), (60, 5)):
        for _ in ticks_at(js, START_NS + seconds * SECOND):
            assert max(looks) <= 100
        assert stream.log.messages == left
    assert sum(looks) >= 2 * MANY and len(ttls._never) == 5 and not ttls._queue


def test_messages_expire_in_order_while_a_sweep_goes_on() -> None:
    js = EngineHarness()
    js.create("S", "S.>", allow_msg_ttl=True)
    log = js.engine.streams["S"].log
    for _ in range(MANY):
        log.append(b"S.x", b"", b"", START_NS)
    ttls = MessageTtls()
    due = {seq: (seq * 7919) % MANY for seq in range(1, MANY + 1)}
    for seq, at in due.items():
        ttls.add(seq, 0, at)
    for seq in [seq for seq in due if seq % 4]:
        log.remove(seq)
    ttls.add(0, 0, MANY)
    expected = [seq for seq in sorted(due, key=lambda seq: due[seq]) if seq % 4 == 0]
    found: list[int] = []
    while len(found) < len(expected):
        assert ttls.sweep(log, 10) <= 10
        seq = ttls.take_due(MANY - 1)
        if log.next_seq(seq) == seq:
            found.append(seq)
    assert found == expected


def test_message_ids_that_leave_the_window_together_go_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 100 * ID_WORK)
    js = EngineHarness()
    js.create("S", "S.>", duplicate_window=SECOND, max_age=5 * SECOND)
    for n in range(MANY):
        publish(js.index, b"S.x", b"", headers.build([(headers.MSG_ID, f"id{n}")]), b"x")
    js.tick()
    ids, left = js.engine.streams["S"].ids, MANY
    for _ in ticks_at(js, START_NS + 2 * SECOND):
        assert left - 102 <= len(ids) <= left
        left = len(ids)
    assert left == 0 and js.engine.streams["S"].log.messages == MANY
    assert [*ticks_at(js, DUE)][-1] == 0


def test_schedules_that_are_due_together_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 1)
    js = EngineHarness()
    js.create("S", "S.>", allow_msg_schedules=True)
    at = "@at 2023-11-14T22:13:22Z"  # two seconds after START_NS
    for n in range(10):
        block = headers.build([(headers.SCHEDULE, at), (headers.SCHEDULE_TARGET, f"S.made.{n}")])
        js.request(f"S.{n}", b"x", block)
    log = js.engine.streams["S"].log
    made = 10
    for _ in ticks_at(js, DUE):
        assert log.last_seq <= made + 1
        made = log.last_seq
    assert made == 20


def test_large_messages_make_a_turn_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "EXPIRY_WORK", 1000 * AGED_WORK)
    js = EngineHarness()
    js.create("S", "S.>", max_age=5 * SECOND)
    for n in range(200):
        publish(js.index, b"S.%d" % n, b"", b"", bytes(1000 * AGED_WORK * BYTES_A_UNIT // AGED))
    js.tick()
    lefts = [*ticks_at(js, DUE)]
    assert lefts[:2] == [200 - AGED, 200 - 2 * AGED] and lefts[-1] == 0
