"""Roll-ups of very many messages: slices remove them, others are served, and acks keep their promise."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.jetstream import slices
from penstock.jetstream.stream import overflow, rollups
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.protocol import headers
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import Killed, SimDisk
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests", "stream.rollup")

MANY = 2000
PART = 32
SECOND = 1_000_000_000

Contents = list[tuple[int, bytes, bytes]]


@pytest.fixture
def _small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(rollups, "SLICE", PART)
    monkeypatch.setattr(rollups, "TICK_MESSAGES_MAX", PART)


def rollup(kind: str, **more: str) -> bytes:
    return headers.build([(headers.ROLLUP, kind), *more.items()])


def filled(js: EngineHarness, count: int = MANY, **settings: Any) -> EngineHarness:
    """Streams S, of messages S.0 S.1 S.0..., and T."""
    js.create("S", "S.>", allow_rollup_hdrs=True, **settings)
    js.create("T", "T")
    for n in range(count):
        publish(js.index, b"S.%d" % (n % 2), b"", b"", b"x")
    js.tick()
    return js


def contents(js: EngineHarness, name: str = "S") -> Contents:
    log = js.engine.streams[name].log
    found: Contents = []
    seq = log.next_seq(0)
    while seq:
        message = log.load(seq)
        assert message is not None
        found.append((seq, message.subject, message.payload))
        seq = log.next_seq(seq + 1)
    return found


def ask(js: EngineHarness, request: str) -> list[Any]:
    heard = js.listen(b"answer." + request.encode())
    publish(js.index, b"$JS.API." + request.encode(), b"answer." + request.encode(), b"", b"",
            ServiceSink(lambda *message: None))  # fmt: skip
    return heard


@pytest.mark.parametrize("kind", ["sub", "all"])
@pytest.mark.usefixtures("_small_turns")
def test_the_ack_of_a_roll_up_waits_for_slices_between_which_others_are_served(kind: str) -> None:
    js = filled(EngineHarness())
    log = js.engine.streams["S"].log
    acks, others = js.listen(b"ack"), js.listen(b"other")
    publish(js.index, b"S.0", b"ack", rollup(kind), b"new")
    ticks = 0
    while not acks:
        before = log.removals
        publish(js.index, b"T", b"other", b"", b"x")
        info = ask(js, "STREAM.INFO.T")
        js.tick()
        ticks += 1
        assert len(others) == ticks
        assert json.loads(info[-1][2])["state"]["messages"] == ticks
        assert log.removals - before <= 2 * PART
    assert ticks >= MANY // 2 // PART // 2
    assert json.loads(acks[0][2])["seq"] == MANY + 1
    left = [(n + 1, b"S.1", b"x") for n in range(MANY) if n % 2] if kind == "sub" else []
    assert contents(js) == [*left, (MANY + 1, b"S.0", b"new")]
    assert not js.engine.slices and not js.engine.streams["S"].durability.is_rolling_up


@pytest.mark.usefixtures("_small_turns")
def test_publishes_behind_a_roll_up_are_stored_and_acked_behind_it() -> None:
    js = filled(EngineHarness())
    acks = js.listen(b"ack.>")
    log = js.engine.streams["S"].log
    publish(js.index, b"S.0", b"ack.0", b"", b"before")
    publish(js.index, b"S.0", b"ack.1", rollup("all"), b"new")
    publish(js.index, b"S.1", b"ack.2", headers.build([("Nats-Expected-Last-Sequence", str(MANY + 2))]), b"a")
    js.tick()
    publish(js.index, b"S.0", b"ack.3", rollup("sub"), b"b")
    for _ in range(5):
        js.tick()
        assert not acks and log.last_seq == MANY + 2
    while len(acks) < 4:
        js.tick()
    assert [subject for subject, _, _ in acks] == [b"ack.0", b"ack.1", b"ack.2", b"ack.3"]
    assert [json.loads(text)["seq"] for _, _, text in acks] == [MANY + n for n in (1, 2, 3, 4)]
    assert contents(js) == [(MANY + 3, b"S.1", b"a"), (MANY + 4, b"S.0", b"b")]


@pytest.mark.usefixtures("_small_turns")
def test_a_purge_or_delete_of_the_stream_may_come_between_slices() -> None:
    js = filled(EngineHarness())
    acks = js.listen(b"ack.>")
    publish(js.index, b"S.0", b"ack.1", rollup("sub"), b"new")
    publish(js.index, b"S.0", b"ack.2", b"", b"next")
    js.tick()
    assert json.loads(ask(js, "STREAM.PURGE.S")[0][2])["success"]
    for _ in range(5):
        js.tick()
    assert len(acks) == 2 and contents(js) == [(MANY + 2, b"S.0", b"next")]
    js = filled(EngineHarness())
    acks = js.listen(b"ack.>")
    publish(js.index, b"S.0", b"ack.1", rollup("sub"), b"new")
    js.tick()
    assert json.loads(ask(js, "STREAM.DELETE.S")[0][2])["success"]
    for _ in range(5):
        js.tick()
    assert not acks and not js.engine.slices and not js.engine.offline
    js.create("S", "S.>")
    assert js.request("S.0", b"x")["seq"] == 1


@pytest.mark.usefixtures("_small_turns")
def test_what_waits_for_a_roll_up_is_refused_when_its_stream_is_set_aside() -> None:
    js = filled(EngineHarness())
    acks = js.listen(b"ack.>")
    publish(js.index, b"S.0", b"ack.1", rollup("sub"), b"new")
    publish(js.index, b"S.0", b"ack.2", b"", b"rest of the batch")
    js.tick()
    publish(js.index, b"S.0", b"ack.3", b"", b"in the sink")
    js.engine.containment.set_aside(js.engine.streams["S"], "a test wants it")
    codes = {subject: json.loads(text)["error"]["err_code"] for subject, _, text in acks}
    assert codes == dict.fromkeys((b"ack.1", b"ack.2", b"ack.3"), 10194)
    js.tick()


@pytest.mark.usefixtures("_small_turns")
def test_an_engine_that_closes_finishes_roll_ups_and_acks_what_waits(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = filled(EngineHarness(store.account("$G")))
    acks = js.listen(b"ack.>")
    publish(js.index, b"S.0", b"ack.1", rollup("sub"), b"new")
    publish(js.index, b"S.1", b"ack.2", rollup("all"), b"next")
    js.tick()
    assert not acks
    js.engine.close()
    assert [subject for subject, _, _ in acks] == [b"ack.1", b"ack.2"]
    store.close()
    store = FileStore(tmp_path)
    assert contents(EngineHarness(store.account("$G"), now=js.now)) == [(MANY + 2, b"S.1", b"next")]
    store.close()


@pytest.mark.usefixtures("_small_turns")
def test_a_start_finishes_the_roll_up_that_a_stop_interrupted(tmp_path: Path) -> None:
    """Nothing would repeat that of a copy or of a schedule; one with a message id would be a duplicate."""
    store = FileStore(tmp_path)
    js = filled(EngineHarness(store.account("$G")))
    acks = js.listen(b"ack")
    publish(js.index, b"S.0", b"ack", rollup("sub"), b"new")
    for _ in range(5):
        js.tick()
    assert not acks and len(contents(js)) > MANY // 2 + 1
    expected = [*((n + 1, b"S.1", b"x") for n in range(1, MANY, 2)), (MANY + 1, b"S.0", b"new")]
    for _ in range(2):
        store.close()  # and not the engine: as if the process had been killed
        store = FileStore(tmp_path)
        js = EngineHarness(store.account("$G"), now=js.now)
        assert contents(js) == expected
        assert js.request("S.0", b"more")["seq"] == expected[-1][0] + 1
        expected.append((expected[-1][0] + 1, b"S.0", b"more"))
    store.close()


@pytest.mark.usefixtures("_small_turns")
def test_a_roll_up_whose_message_was_not_written_removes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "lost")
    js = filled(EngineHarness(store.account("$G")))
    before = contents(js)
    publish(js.index, b"S.0", b"", rollup("all"), b"new")
    js.engine.tick.apply(js.now)  # and no write
    assert len(contents(js)) < len(before)
    shutil.copytree(tmp_path / "lost", tmp_path / "kept")
    store.close()
    for _ in range(2):
        store = FileStore(tmp_path / "kept")
        js = EngineHarness(store.account("$G"), now=js.now)
        assert contents(js) == before
        js.request("S.1", b"x")
        before.append((before[-1][0] + 1, b"S.1", b"x"))
        store.close()


def restarted(disk: SimDisk, now: int, **settings: Any) -> EngineHarness:
    return EngineHarness(FileStore("/store", disk=disk).account("$G"), now=now, **settings)


def not_undone(js: EngineHarness) -> bool:
    """Whether no message is there that a stored roll-up replaced."""
    found = contents(js)
    kept = {subject: seq for seq, subject, payload in found if payload == b"new"}
    return all(seq >= kept.get(subject, 0) for seq, subject, _ in found)


@pytest.mark.usefixtures("_small_turns")
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("always", [False, True])
def test_no_crash_undoes_a_roll_up_whose_message_is_stored(always: bool, power: bool) -> None:
    """The second one is recorded before the removals of the first one are written, an update before they are
    synced."""
    operation = survived = 0
    while not survived:
        operation += 1
        disk = SimDisk(Random(operation))
        js = filled(restarted(disk, START_NS, sync_always=always), 8 * PART)
        disk.kill_at = disk.ops + operation
        with contextlib.suppress(Killed):
            acks = js.listen(b"ack.>")
            publish(js.index, b"S.0", b"ack.0", rollup("sub"), b"new")
            publish(js.index, b"S.1", b"ack.1", rollup("sub"), b"new")
            js.tick()
            js.engine.streams["S"].store.sync()  # the first message, and few of its removals
            while len(acks) < 2:
                js.tick()
            js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"], "allow_rollup_hdrs": True,
                                       "description": "another"})  # fmt: skip
            survived = disk.kill_at - disk.ops
        disk.lose_power(all_of_it=operation % 2 == 0) if power else disk.restart()
        assert not_undone(restarted(disk, js.now, sync_always=always)), operation
    assert operation > 20


@pytest.mark.usefixtures("_small_turns")
def test_a_roll_up_at_a_start_does_not_undo_one_that_the_start_finished() -> None:
    disk = SimDisk(Random(1))
    js = filled(restarted(disk, START_NS), 8 * PART, allow_msg_schedules=True)
    block = headers.build([
        (headers.SCHEDULE, "@at 2023-11-14T22:13:22Z"),  # two seconds after START_NS
        (headers.SCHEDULE_TARGET, "S.1"), (headers.SCHEDULE_ROLLUP, "sub"),
    ])  # fmt: skip
    assert "error" not in js.request("S.schedule", b"new", block)
    publish(js.index, b"S.0", b"", rollup("sub"), b"new")
    js.tick()
    assert not not_undone(js)
    operations, survived = 0, False
    while not survived:  # a start stores the schedule's message, and is killed
        operations += 1
        killed = copy.deepcopy(disk)
        killed.restart()
        killed.kill_at = killed.ops + operations
        with contextlib.suppress(Killed):
            restarted(killed, START_NS + 3 * SECOND)
            survived = True
        killed.restart()
        assert not_undone(restarted(killed, START_NS)), operations
    assert operations > 10


@pytest.mark.usefixtures("_small_turns")
def test_a_stream_records_finished_roll_ups_until_they_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "FINISHED_MAX", 5)
    disk = SimDisk(Random(1))
    js = filled(restarted(disk, START_NS), 10)
    js.engine.allowance.most = 1
    stream = js.engine.streams["S"]
    for _ in range(30):
        for payload in (b"a", b"b"):
            js.request("S.2", payload)
        acks = js.listen(b"ack")
        publish(js.index, b"S.2", b"ack", rollup("sub"), b"new")
        while not acks:
            js.tick()
        assert len(json.loads(stream.store.meta)["rollups"]) <= 7
    stream.store.sync()
    assert stream.rollups.record() == []


@pytest.mark.usefixtures("_small_turns")
def test_publishes_that_wait_for_a_roll_up_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "MSGS_MAX", 10)
    js = filled(EngineHarness())
    acks = js.listen(b"ack.>")
    publish(js.index, b"S.0", b"ack.first", rollup("sub"), b"new")
    js.tick()
    for n in range(12):
        publish(js.index, b"S.1", b"ack.%d" % n, b"", b"x")
    js.tick()
    refused = [subject for subject, header, _ in acks if b"429" in header]
    assert refused == [b"ack.10", b"ack.11"]
    while len(acks) < 13:
        js.tick()
    assert js.engine.streams["S"].log.last_seq == MANY + 11
    for n in range(12):
        publish(js.index, b"S.1", b"ack.%d" % n, b"", b"x")
    js.tick()
    assert js.engine.streams["S"].log.last_seq == MANY + 23


@pytest.mark.usefixtures("_small_turns")
def test_the_roll_up_of_a_schedule_is_done_in_slices_too() -> None:
    js = filled(EngineHarness(), allow_msg_schedules=True)
    at = "@at 2023-11-14T22:13:22Z"  # two seconds after START_NS
    block = headers.build(
        [(headers.SCHEDULE, at), (headers.SCHEDULE_TARGET, "S.0"), (headers.SCHEDULE_ROLLUP, "sub")]
    )
    assert "error" not in js.request("S.schedule", b"made", block)
    js.now += 3 * SECOND
    log, before, ticks = js.engine.streams["S"].log, 0, 0
    js.engine.tick.on_time(js.now)
    js.tick()
    while js.engine.slices:
        assert log.removals - before <= 2 * PART
        before = log.removals
        js.tick()
        ticks += 1
    assert ticks > MANY // 2 // PART // 2
    js.tick()
    assert [entry[2] for entry in contents(js) if entry[1] == b"S.0"] == [b"made"]
    assert not js.engine.streams["S"].durability.is_rolling_up


@pytest.mark.usefixtures("_small_turns")
def test_copies_behind_a_roll_up_wait_for_it() -> None:
    js = EngineHarness()
    js.create("O", "O.>", allow_rollup_hdrs=False)
    for n in range(MANY):
        publish(js.index, b"O.%d" % (n % 2), b"", b"", b"x")
    js.tick()
    js.create("M", "M", sources=[{"name": "O"}], allow_rollup_hdrs=True)
    while js.engine.streams["M"].log.messages < MANY:
        js.tick()
    assert "error" not in js.api(
        "STREAM.UPDATE.O", {"name": "O", "subjects": ["O.>"], "allow_rollup_hdrs": True}
    )
    publish(js.index, b"O.0", b"", rollup("all"), b"new")
    publish(js.index, b"O.1", b"", b"", b"behind")
    for _ in range(400):
        js.tick()
    assert [entry[1:] for entry in contents(js, "M")] == [(b"O.0", b"new"), (b"O.1", b"behind")]


def random_publishes(rng: Random) -> list[tuple[bytes, bytes, bytes]]:
    """(subject, header, payload); some are roll-ups, in atomic batches or alone, some expect or repeat."""
    found: list[tuple[bytes, bytes, bytes]] = []
    for n in range(120):
        subject, payload = b"S.%d" % rng.randrange(4), b"%d" % n * rng.choice([1, 1, 30])
        kind = rng.random()
        if kind < 0.12:
            found.append((subject, rollup(rng.choice(["sub", "sub", "all"])), payload))
        elif kind < 0.2:
            found.append((subject, rollup("sub", **{"Nats-Msg-Id": str(rng.randrange(9))}), payload))
        elif kind < 0.3:
            block = headers.build([("Nats-Expected-Last-Sequence", str(n + rng.randrange(-3, 1)))])
            found.append((subject, block, payload))
        else:
            found.append((subject, b"", payload))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_msgs": 20},
        {"max_msgs_per_subject": 5},
        {"max_bytes": 2000},
        {"max_msgs": 20, "discard": "new"},
        {"max_msgs_per_subject": 4, "max_msgs": 12, "discard": "new"},
        {"storage": "memory", "max_msgs": 9},
    ],
    ids=str,
)
def test_slices_change_neither_what_is_stored_nor_what_is_answered(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sliced = 0
    for seed in range(30):
        found = []
        for size in (1 << 40, 1):
            monkeypatch.setattr(rollups, "SLICE", size)
            monkeypatch.setattr(slices, "WORK", 1)
            js, rng = EngineHarness(), Random(seed)
            js.engine.allowance.most = size
            js.create("S", "S.>", allow_rollup_hdrs=True, allow_atomic=True, **settings)
            acks = js.listen(b"ack.*")
            for n, (subject, header, payload) in enumerate(random_publishes(rng)):
                publish(js.index, subject, b"ack.%d" % n, header, payload)
                if rng.random() < 0.2:
                    js.tick()
                    sliced += js.engine.streams["S"].durability.is_rolling_up
            while len(acks) < 120:
                js.tick()
            found.append((contents(js), acks))
        assert found[0] == found[1], f"seed {seed}"
    assert sliced > 100


@pytest.mark.usefixtures("_small_turns")
@pytest.mark.parametrize(
    ("rolled_up", "count", "left"),
    [
        (400, 60, {b"S.0": 1, b"S.1": 99, b"S.2": 59}),  # one made room for the roll-up itself
        (100, 150, {b"S.0": 1, b"S.1": 350, b"S.2": 149}),
    ],
)
def test_a_batch_with_roll_ups_pushes_out_only_what_is_too_much_behind_them(
    rolled_up: int, count: int, left: dict[bytes, int]
) -> None:
    """What a roll-up of the batch has yet to remove does not count against the limits."""
    js = EngineHarness()
    js.create("S", "S.>", allow_rollup_hdrs=True, allow_atomic=True, max_msgs=500)
    for n in range(500):
        publish(js.index, b"S.%d" % (n < 500 - rolled_up), b"", b"", b"x")
    js.tick()
    acks = js.listen(b"ack.%d" % count)
    for n in range(1, count + 1):
        pairs = [("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", str(n))]
        pairs += [(headers.ROLLUP, "sub")] if n == 1 else []
        pairs += [("Nats-Batch-Commit", "1")] if n == count else []
        publish(js.index, b"S.0" if n == 1 else b"S.2", b"ack.%d" % n, headers.build(pairs), b"y")
    while not acks:
        js.tick()
    assert json.loads(acks[0][2])["count"] == count
    assert js.engine.streams["S"].log.subjects() == left
