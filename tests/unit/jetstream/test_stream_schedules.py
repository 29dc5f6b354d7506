"""Schedules of a stream on a clock that is set: what fires when, once, and what a restart makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.stream import message_schedules
from penstock.jetstream.stream.message_schedules import MOVED_MAX, STALE_MAX, MessageSchedules
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.store.file import FileStore
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.schedules")

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def started(**settings: Any) -> EngineHarness:
    js = EngineHarness()
    js.create("S", "s.>", "t.>", allow_msg_schedules=True, **settings)
    return js


def schedule(
    js: EngineHarness, subject: str, pattern: str, target: str, body: bytes = b"x", **more: str
) -> dict[str, Any]:
    pairs = [("Nats-Schedule", pattern), ("Nats-Schedule-Target", target)]
    pairs += [(name.replace("_", "-"), value) for name, value in more.items()]
    answer: dict[str, Any] = js.request(subject, body, headers.build(pairs))
    assert "error" not in answer, answer
    return answer


def counts(js: EngineHarness) -> dict[str, int]:
    found: dict[str, int] = js.state("S", subjects_filter=">").get("subjects", {})
    return found


def header_of(js: EngineHarness, subject: bytes, name: str) -> bytes | None:
    message = js.engine.streams["S"].log.load_last(subject)
    assert message is not None
    return headers.value_of(message.header, name)


def after(js: EngineHarness, ns: int) -> dict[str, int]:
    js.wait_until(START_NS + ns)
    return counts(js)


def test_a_schedule_for_a_certain_time_happens_then_and_is_gone() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@at " + format_time(START_NS + 5 * SECOND), "t.1", A="b")
    assert after(js, 5 * SECOND - 1) == {"s.1": 1}
    assert after(js, 5 * SECOND) == {"t.1": 1}
    assert header_of(js, b"t.1", "Nats-Schedule-Next") == b"purge"
    assert header_of(js, b"t.1", "A") == b"b"
    due = js.engine.tick.next_deadline()
    assert due is None or due > js.now


def test_a_time_that_passed_happens_at_once() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@at 1970-01-01T00:00:00Z", "t.1")
    assert after(js, 0) == {"t.1": 1}


def test_a_repeating_schedule_stays_and_each_message_says_when_the_next_one_comes() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@every 10s", "t.1")
    assert after(js, 35 * SECOND) == {"s.1": 1, "t.1": 3}
    assert header_of(js, b"t.1", "Nats-Schedule-Next") == format_time(START_NS + 40 * SECOND).encode()
    assert header_of(js, b"t.1", "Nats-Scheduler") == b"s.1"


@pytest.mark.feature("stream.rollup")
def test_a_new_schedule_replaces_the_one_of_its_subject() -> None:
    js = started()
    schedule(js, "s.1", "@every 10s", "t.1")
    schedule(js, "s.1", "@every 1h", "t.2")
    assert after(js, HOUR + SECOND) == {"s.1": 1, "t.2": 1}


@pytest.mark.parametrize("way", ["delete", "purge", "other message", "purge header"])
def test_a_schedule_that_was_removed_does_not_happen(way: str) -> None:
    """schedules"""
    js = started()
    seq = schedule(js, "s.1", "@every 10s", "t.1")["seq"]
    if way == "delete":
        js.api("STREAM.MSG.DELETE.S", {"seq": seq})
    elif way == "purge":
        js.api("STREAM.PURGE.S", {"filter": "s.1"})
    elif way == "other message":
        js.request("s.1", b"plain")
    else:
        block = headers.build([("Nats-Scheduler", "s.1"), ("Nats-Schedule-Next", "purge")])
        assert js.request("t.other", b"", block)["seq"] == 2
    assert "t.1" not in after(js, HOUR)


def test_the_last_message_of_a_source_is_sampled_each_time() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@every 10s", "t.1", b"own", Nats_Schedule_Source="t.src")
    after(js, 10 * SECOND)
    log = js.engine.streams["S"].log
    assert log.load_last(b"t.1").payload == b"own"  # type: ignore[union-attr]
    js.request("t.src", b"sample", headers.build([("Nats-Msg-Id", "1"), ("B", "c")]))
    after(js, 20 * SECOND)
    assert log.load_last(b"t.1").payload == b"sample"  # type: ignore[union-attr]
    assert header_of(js, b"t.1", "Nats-Msg-Id") is None
    assert header_of(js, b"t.1", "B") == b"c"


@pytest.mark.feature("stream.rollup", "stream.message-ttl")
def test_what_is_produced_has_its_own_ttl_and_rolls_up() -> None:
    js = started(allow_msg_ttl=True)
    schedule(js, "s.1", "@every 10s", "t.1", Nats_Schedule_TTL="5s", Nats_Schedule_Rollup="sub")
    assert after(js, 21 * SECOND) == {"s.1": 1, "t.1": 1}
    assert after(js, 26 * SECOND) == {"s.1": 1}


@pytest.mark.feature("stream.subject-transform", "stream.republish")
def test_a_transformed_stream_stores_what_is_produced_under_the_transformed_subject() -> None:
    js = started(subject_transform={"src": "t.*", "dest": "u.$1"}, republish={"src": "u.>", "dest": "copy.>"})
    heard = js.listen(b"copy.>")
    schedule(js, "s.1", "@every 10s", "t.1")
    assert after(js, 11 * SECOND) == {"s.1": 1, "u.1": 1}
    assert [subject for subject, _, _ in heard] == [b"copy.1"]


def test_cron_in_a_time_zone() -> None:
    """schedules"""
    js = started()  # at 22:13:20 UTC
    schedule(js, "s.1", "0 0 8 * * *", "t.1", Nats_Schedule_Time_Zone="Asia/Tokyo")
    assert "t.1" not in after(js, 46 * 60 * SECOND)
    assert after(js, 47 * 60 * SECOND)["t.1"] == 1
    assert header_of(js, b"t.1", "Nats-Schedule-Next") == b"2023-11-16T08:00:00+09:00"


class OnFiles:
    """An engine on files, which can be stopped and started at another time."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._store = FileStore(self._path)
        self.js = EngineHarness(self._store.account("$G"))

    def restart(self, now: int) -> EngineHarness:
        self.close()
        self._store = FileStore(self._path)
        self.js = EngineHarness(self._store.account("$G"), now=now)
        return self.js

    def close(self) -> None:
        self.js.engine.close()
        self._store.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OnFiles]:
    server = OnFiles(tmp_path)
    yield server
    server.close()


@pytest.mark.parametrize("produced_is_removed", [False, True])
def test_missed_times_happen_once_after_a_restart(files: OnFiles, produced_is_removed: bool) -> None:
    """schedules"""
    js = files.js
    js.create("S", "s.>", "t.>", allow_msg_schedules=True)
    schedule(js, "s.1", "@every 10s", "t.1")
    schedule(js, "s.2", "@hourly", "t.2")
    schedule(js, "s.3", "@at " + format_time(START_NS + 30 * SECOND), "t.3")
    assert after(js, 12 * SECOND) == {"s.1": 1, "s.2": 1, "s.3": 1, "t.1": 1}
    if produced_is_removed:
        js.api("STREAM.PURGE.S", {"filter": "t.1"})
    again = files.restart(START_NS + 5 * HOUR)
    before = 0 if produced_is_removed else 1
    assert counts(again) == {"s.1": 1, "s.2": 1, "t.1": before + 1, "t.2": 1, "t.3": 1}
    assert after(again, 5 * HOUR + 11 * SECOND)["t.1"] == before + 2
    assert after(again, 6 * HOUR)["t.2"] == 2


def test_a_restart_repeats_nothing_that_was_produced_and_removed(files: OnFiles) -> None:
    """schedules"""
    js = files.js
    js.create("S", "s.>", "t.>", allow_msg_schedules=True)
    schedule(js, "s.1", "@daily", "t.1")
    after(js, 2 * HOUR)  # midnight was there
    assert js.api("STREAM.PURGE.S", {"filter": "t.1"})["purged"] == 1
    again = files.restart(START_NS + 3 * HOUR)
    assert after(again, 20 * HOUR) == {"s.1": 1}
    assert after(again, 26 * HOUR) == {"s.1": 1, "t.1": 1}


def test_a_restart_repeats_nothing_when_only_the_last_that_was_produced_was_removed(files: OnFiles) -> None:
    """schedules"""
    js = files.js
    js.create("S", "s.>", "t.>", allow_msg_schedules=True)
    schedule(js, "s.1", "@every 10s", "t.1")
    assert after(js, 11 * SECOND) == {"s.1": 1, "t.1": 1}
    assert after(js, 21 * SECOND) == {"s.1": 1, "t.1": 2}
    assert js.api("STREAM.MSG.DELETE.S", {"seq": 3})["success"]
    again = files.restart(START_NS + 22 * SECOND)
    assert after(again, 23 * SECOND) == {"s.1": 1, "t.1": 1}
    assert after(again, 32 * SECOND) == {"s.1": 1, "t.1": 2}


def test_a_schedule_whose_end_was_not_written_ends_at_the_start(files: OnFiles) -> None:
    """schedules: the process ended between the produced message and the end of its schedule."""
    js = files.js
    js.create("S", "s.>", "t.>", allow_msg_schedules=True)
    schedule(js, "s.1", "@at 2099-01-01T00:00:00Z", "t.1")
    stream = js.engine.streams["S"]
    block = headers.build([("Nats-Scheduler", "s.1"), ("Nats-Schedule-Next", "purge")])
    stream.log.append(b"t.1", block, b"x", js.now)
    js.engine.pending.touch_stream(stream)
    js.tick()
    again = files.restart(START_NS)
    assert counts(again) == {"t.1": 1}
    assert again.engine.streams["S"].timers.next_deadline() is None


def test_schedules_wait_while_the_stream_can_not_be_written() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@every 10s", "t.1")
    stream = js.engine.streams["S"]
    stream.write_failed("no space")
    js.engine.commit.note(stream)
    js.engine.tick.on_time(START_NS + 10 * SECOND)
    assert stream.log.last_seq == 1
    assert stream.timers.next_deadline() == START_NS + 11 * SECOND
    js.now = START_NS + 10 * SECOND
    js.tick()  # it can be written again
    assert after(js, 11 * SECOND)["t.1"] == 1


def test_schedules_wait_while_the_account_is_full_and_need_no_publish_to_go_on() -> None:
    """schedules"""
    js = EngineHarness(max_storage=300)
    js.create("S", "s.>", "t.>", allow_msg_schedules=True)
    js.create("B", "b")
    schedule(js, "s.1", "@every 10s", "t.1")
    js.request("b", b"x" * 300)
    assert js.request("t.2", b"x")["error"]["err_code"] == 10023
    assert "t.1" not in after(js, 30 * SECOND)
    js.api("STREAM.PURGE.B")
    assert after(js, 32 * SECOND)["t.1"] == 1


def test_many_replacements_leave_no_trace() -> None:
    """schedules: memory stays bounded."""
    js = started()
    for _ in range(500):
        schedule(js, "s.1", "@every 1h", "t.1")
    table = js.engine.streams["S"].schedules
    assert len(table) == 1
    assert len(table._queue) <= 65
    assert counts(js) == {"s.1": 1}


@pytest.mark.parametrize("earliest_stays", [True, False])
def test_a_change_among_many_schedules_looks_at_few_of_them(
    earliest_stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    is_current = MessageSchedules._is_current

    def counted(schedules: MessageSchedules, entry: tuple[int, int, bytes]) -> bool:
        nonlocal looked
        looked += 1
        return is_current(schedules, entry)

    monkeypatch.setattr(MessageSchedules, "_is_current", counted)
    table, subjects, seq = MessageSchedules(StreamLog()), 2000, 0
    if earliest_stays:  # the stale entries behind it are dropped only when they are many
        table.add(b"first", 0, 1)
    for round_ in range(1, 12):
        for number in reversed(range(subjects)):
            seq, looked = seq + 1, 0
            table.add(b"s.%d" % number, seq, round_ * HOUR + number)
            table.next_deadline()
            assert looked <= MOVED_MAX + STALE_MAX
    assert len(table._queue) + len(table._old) <= 8 * subjects
    expected = 1 if earliest_stays else round_ * HOUR
    while (due := table.next_deadline()) != expected:  # the stale entries before it are dropped in parts
        assert due is not None
        assert due < expected


@given(
    st.lists(st.tuples(st.sampled_from(["add", "take", "postpone"]), st.integers(0, 9), st.integers(0, 99)))
)
def test_schedules_are_taken_when_they_are_due_whatever_the_queue_holds(
    steps: list[tuple[str, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("QUEUE_MIN", 3), ("MOVED_MAX", 1), ("STALE_MAX", 2)):
            patch.setattr(message_schedules, name, value)
        table, model, seq = MessageSchedules(StreamLog()), dict[bytes, int](), 0
        for what, number, at in steps:
            if what == "add":
                seq += 1
                model[b"s.%d" % number] = at
                table.add(b"s.%d" % number, seq, at)
            elif what == "postpone":
                model = {subject: max(due, at) for subject, due in model.items()}
                while (due := table.next_deadline()) is not None and due < at:
                    table.postpone(at)
            else:
                model = {subject: due for subject, due in model.items() if due > at}
                while (due := table.next_deadline()) is not None and due <= at:
                    table.take_due(at)
            assert {subject: due for subject, (due, _) in table._due.items()} == model
            due = table.next_deadline()
            assert (due is None) == (not model)
            assert due is None or due <= min(model.values())


def test_sealed_streams_produce_nothing() -> None:
    """schedules"""
    js = started()
    schedule(js, "s.1", "@every 10s", "t.1")
    answer = js.api(
        "STREAM.UPDATE.S",
        {"name": "S", "subjects": ["s.>", "t.>"], "allow_msg_schedules": True, "sealed": True},
    )
    assert "error" in answer or after(js, HOUR) == {"s.1": 1}
