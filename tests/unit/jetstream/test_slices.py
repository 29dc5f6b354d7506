"""Requests whose work is long: a slice a tick, answers in order, and what changes in between."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream import slices
from penstock.jetstream.api import pages
from penstock.jetstream.group_commands import PARKED
from penstock.jetstream.stream import purge
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests")

MANY = 20_000
NOT_FOUND, SEALED = 10059, 10109


def client() -> Sink:
    """A client whose requests are distinguished from others'."""
    return ServiceSink(lambda *message: None)


def filled(count: int = MANY, subject: str = "s.%d", **settings: Any) -> EngineHarness:
    js = EngineHarness()
    js.create("S", "s.>", **settings)
    for n in range(count):
        js.engine.streams["S"].log.append(subject.encode() % n, b"", b"x", 1)
    return js


class Asked:
    """A request in progress. answers: what came so far; ticks: those that it took."""

    def __init__(
        self, js: EngineHarness, subject: str, body: Any, name: str = "", by: Sink | None = None
    ) -> None:
        inbox = f"answer.{name or id(self)}".encode()
        self.ticks = 0
        self.heard = js.listen(inbox)
        self._js = js
        publish(js.index, b"$JS.API." + subject.encode(), inbox, b"", json.dumps(body).encode(), by)

    def answer(self) -> Any:
        while not self.heard:
            self._js.tick()
            self.ticks += 1
        assert len(self.heard) == 1
        return json.loads(self.heard[0][2])


def longest_slice(js: EngineHarness, subject: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most work that one step of a request did."""
    found = [0]
    begin = slices.Slices.begin

    def watched(self: slices.Slices, owner: Any, steps: slices.Steps, *then: Any) -> None:
        def counted() -> slices.Steps:
            while True:
                try:
                    work = next(steps)
                except StopIteration as end:
                    return end.value
                found[0] = max(found[0], work)
                yield work

        begin(self, owner, counted(), *then)

    monkeypatch.setattr(slices.Slices, "begin", watched)
    assert "error" not in Asked(js, subject, body).answer()
    return found[0]


PURGES = [
    {"keep": 10},
    {"filter": "s.*"},
    {"filter": "s.1*", "keep": 1},
    {"filter": "s.*", "keep": 10},
    {"seq": MANY},
]


@pytest.mark.parametrize("body", PURGES)
def test_a_purge_of_many_messages_takes_more_ticks_and_not_longer_ones(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "WORK", 64 * 1024)
    assert longest_slice(filled(), "STREAM.PURGE.S", body, monkeypatch) <= slices.WORK


def test_a_purge_has_removed_a_slice_after_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", purge.SLICE_WORK)
    js = filled()
    log = js.engine.streams["S"].log
    asked, before = Asked(js, "STREAM.PURGE.S", {"keep": 10}), MANY
    while not asked.heard:
        assert before - purge.SLICE <= log.messages < before
        before = log.messages
        js.tick()
    assert asked.answer()["purged"] == MANY - 10 and log.messages == 10


def test_messages_that_come_during_a_purge_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(5000)
    asked = Asked(js, "STREAM.PURGE.S", {"filter": "s.*"})
    assert js.request("s.new", b"x")["seq"] == 5001
    answer = asked.answer()
    assert answer["purged"] == 5000 and js.state("S")["messages"] == 1


def test_a_purge_keeps_as_many_as_asked_where_limits_remove_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(5000)
    log = js.engine.streams["S"].log
    asked = Asked(js, "STREAM.PURGE.S", {"keep": 1000})
    js.tick()
    removed = sum(log.remove(seq) for seq in range(4000, 4500))
    assert removed == 500
    assert asked.answer()["purged"] == 3500 and log.messages == 1000


@pytest.mark.parametrize(
    ("other", "body", "code"),
    [
        ("STREAM.DELETE.S", {}, NOT_FOUND),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "sealed": True}, SEALED),
    ],
)
def test_a_purge_ends_with_an_error_when_its_stream_is_deleted_or_sealed_meanwhile(
    other: str, body: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(5000)
    asked = Asked(js, "STREAM.PURGE.S", {"keep": 10}, by=client())
    assert "error" not in Asked(js, other, body, by=client()).answer() and not asked.heard
    assert asked.answer()["error"]["err_code"] == code
    assert not js.engine.slices and not js.engine.offline


def test_subjects_of_an_info_are_as_they_were_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(3000)
    asked = Asked(js, "STREAM.INFO.S", {"subjects_filter": "s.>"})
    js.engine.streams["S"].log.purge()
    answer = asked.answer()
    assert asked.ticks > 3
    assert list(answer["state"]["subjects"].items()) == sorted((f"s.{n}", 1) for n in range(3000))
    assert (answer["total"], answer["offset"], answer["limit"]) == (3000, 0, 100_000)
    assert answer["state"]["messages"] == 3000


def test_a_page_of_subjects_begins_at_its_offset() -> None:
    js = filled(300)
    names = sorted(f"s.{n}" for n in range(300))
    for offset in (0, 7, 299, 300, 1000):
        answer = js.api("STREAM.INFO.S", {"subjects_filter": ">", "offset": offset})
        assert list(answer["state"].get("subjects", {})) == names[offset:] and answer["offset"] == offset


def test_answers_leave_in_the_order_of_a_clients_requests_and_others_are_served_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(3000)
    heard = js.listen(b"answer.>")
    one, other = client(), client()
    Asked(js, "STREAM.INFO.S", {"subjects_filter": ">"}, "first", one)
    Asked(js, "STREAM.NAMES", {}, "second", one)
    Asked(js, "STREAM.INFO.S", {"subjects_filter": "s.1*"}, "third", one)
    Asked(js, "STREAM.PURGE.S", {"filter": "s.1"}, "fourth", one)
    Asked(js, "STREAM.NAMES", {}, "other", other)
    assert [subject for subject, _, _ in heard] == [b"answer.other"]
    while len(heard) < 5:
        js.tick()
    assert [subject for subject, _, _ in heard[1:]] == [
        b"answer.first", b"answer.second", b"answer.third", b"answer.fourth",
    ]  # fmt: skip
    assert not js.engine.slices and one not in js.engine.slices.owners


def test_unfinished_requests_have_turns_and_a_tick_does_the_work_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "WORK", 64 * 1024)
    js = filled()
    asked = [Asked(js, "STREAM.INFO.S", {"subjects_filter": ">"}, by=client()) for _ in range(4)]
    alone = Asked(filled(), "STREAM.INFO.S", {"subjects_filter": ">"})
    alone.answer()
    for one in asked:
        one.answer()
    ticks = sum(one.ticks for one in asked)
    assert 3 * alone.ticks < ticks < 6 * alone.ticks
    assert asked[0].ticks > 2 * alone.ticks  # and did not have all ticks for itself


def test_too_many_unfinished_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(slices, "UNFINISHED_MAX", 2)
    js = filled(100)
    asked = [Asked(js, "STREAM.INFO.S", {"subjects_filter": ">"}, by=client()) for _ in range(3)]
    assert asked[2].answer()["error"] == {
        "code": 503,
        "err_code": 10023,
        "description": "insufficient resources",
    }
    assert [len(one.answer()["state"]["subjects"]) for one in asked[:2]] == [100, 100]


def test_what_a_later_slice_raises_is_answered_with_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(3000)
    asked = Asked(js, "STREAM.INFO.S", {"subjects_filter": ">"})
    monkeypatch.setattr("penstock.jetstream.api.stream_requests.SUBJECTS_SLICE", 0)  # range() raises
    assert "internal error" in asked.answer()["error"]["description"]
    assert "error" not in js.api("STREAM.INFO.S")
    assert [str(fault) for fault in noted_faults] == ["range() arg 3 must not be zero"]
    noted_faults.clear()


def test_pages_of_large_infos_end_early_and_lead_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 20_000)
    js = EngineHarness()
    for n in range(10):
        js.create(f"S{n}", f"s{n}", metadata={"a": "x" * 6000})
        config = {"durable_name": f"C{n}", "ack_policy": "explicit", "metadata": {"a": "x" * 6000}}
        js.api(f"CONSUMER.DURABLE.CREATE.S0.C{n}", {"stream_name": "S0", "config": config})

    def paged(subject: str, field: str) -> list[Any]:
        found: list[Any] = []
        while len(found) < 10:
            answer = js.api(subject, {"offset": len(found)})
            assert 1 <= len(answer[field]) <= 3 and answer["total"] == 10
            found += answer[field]
        return found

    assert [one["config"]["name"] for one in paged("STREAM.LIST", "streams")] == [f"S{n}" for n in range(10)]
    assert [one["name"] for one in paged("CONSUMER.LIST.S0", "consumers")] == [f"C{n}" for n in range(10)]


def test_an_engine_that_stops_answers_unfinished_requests_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(3000)
    asked = Asked(js, "STREAM.PURGE.S", {"keep": 1})
    js.engine.close()
    assert not asked.heard and not js.engine.slices


@pytest.mark.parametrize(
    ("subject", "body"),
    [("STREAM.INFO.none", {}), ("STREAM.INFO.S", {"subjects_filter": 5}), ("STREAM.PURGE.S", {"keep": 10})],
)
def test_what_refused_a_request_is_not_kept(subject: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback holds the frames below it, and so the read buffer of the client's connection."""
    monkeypatch.setattr(slices, "WORK", 1)
    js = filled(3000)
    gc.collect()
    gc.disable()

    def errors() -> list[JetStreamApiError]:
        return [one for one in gc.get_objects() if isinstance(one, JetStreamApiError)]

    others = errors()  # constants of other tests' modules
    try:
        asked = Asked(js, subject, body, by=client())
        if "PURGE" in subject:
            Asked(js, "STREAM.DELETE.S", {}, by=client())
        assert "error" in asked.answer()
        assert [one for one in errors() if not any(one is other for other in others)] == []
    finally:
        gc.enable()


# --- several side by side -------------------------------------------------------------------------


class Job:
    """Steps that say when they run. waits: how many of them are parked."""

    def __init__(self, ran: list[str], name: str, waits: int = 0, error: Exception | None = None) -> None:
        self.ran, self.name, self.waits, self.error = ran, name, waits, error
        self.is_closed = False

    def steps(self) -> slices.Steps:
        try:
            for _ in range(self.waits):
                yield PARKED
            self.ran.append(self.name)
            if self.error is not None:
                raise self.error
            yield 5
        finally:
            self.is_closed = True


def test_several_run_side_by_side_and_are_parked_when_all_of_them_are() -> None:
    ran: list[str] = []
    jobs = [Job(ran, "slow", 2), Job(ran, "quick"), Job(ran, "later", 2)]
    work = list(slices.side_by_side((one.steps() for one in jobs), 2))
    assert ran == ["quick", "slow", "later"]
    assert work.count(PARKED) == 1, "when only one that waits was left"
    steps = sorted(one for one in work if one != PARKED)
    assert steps == 3 * [slices.STEP] + 3 * [5 + slices.STEP], "a step that ends is work, too"


def test_no_more_begin_than_may_run_at_once() -> None:
    ran: list[str] = []
    begun: list[str] = []
    jobs = [Job(ran, name, 1) for name in "abc"]

    def all_steps() -> Iterator[slices.Steps]:
        for one in jobs:
            begun.append(one.name)
            yield one.steps()

    steps = slices.side_by_side(all_steps(), 2)
    assert (next(steps), begun) == (PARKED, ["a", "b"])
    assert sum(1 for one in steps if one != PARKED) == 6
    assert ran == ["a", "b", "c"]


def test_an_exception_of_one_ends_the_others() -> None:
    ran: list[str] = []
    jobs = [Job(ran, "a", 9), Job(ran, "b", 1, ValueError("b")), Job(ran, "c")]
    with pytest.raises(ValueError, match="b"):
        list(slices.side_by_side((one.steps() for one in jobs), 2))
    assert [one.is_closed for one in jobs] == [True, True, False]
    assert ran == ["b"]
