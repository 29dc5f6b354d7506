"""What only a consumer that ended needed leaves its stream in slices, however much there is to look at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream import reviews, slices
from penstock.kernels.wire.dispatch import ServiceSink, publish
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests")

MANY = 2000
PART = 20  # messages that one part looks at, at most


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(reviews, "PART_WORK", PART * 48)


def furnished(filters: dict[str, str], count: int = MANY) -> EngineHarness:
    """A stream of interest with consumers, by name, and messages S.0 S.1 S.2 S.0 S.1..."""
    js = EngineHarness()
    js.create("S", "S.>", retention="interest")
    for name, filter_subject in filters.items():
        consumer(js, name, filter_subject)
    for n in range(count):
        publish(js.index, b"S.%d" % (n % 3), b"", b"", b"x")
    js.tick()
    return js


def consumer(js: EngineHarness, name: str, filter_subject: str) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": filter_subject}
    js.api(f"CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": config})


def ask(js: EngineHarness, request: str, body: Any = None) -> list[Any]:
    """The answers to a request of another client, as they come."""
    inbox = b"answer." + request.encode()
    heard = js.listen(inbox)
    payload = json.dumps(body).encode() if body is not None else b""
    publish(js.index, b"$JS.API." + request.encode(), inbox, b"", payload, ServiceSink(lambda *message: None))
    return heard


def test_what_only_an_ended_consumer_needed_goes_in_slices() -> None:
    js = furnished({"a": "S.0", "b": "S.1", "c": "S.2"})
    log = js.engine.streams["S"].log
    answer, before, ticks = ask(js, "CONSUMER.DELETE.S.a"), MANY, 0
    while not answer:
        assert before - log.messages <= 2 * PART
        before = log.messages
        js.tick()
        ticks += 1
    assert json.loads(answer[0][2])["success"] and ticks >= MANY // PART
    assert log.subjects() == {b"S.1": MANY // 3 + 1, b"S.2": MANY // 3}
    assert not js.engine.slices


def test_needs_that_go_during_a_review_are_reviewed_too() -> None:
    js = furnished({"a": "S.0", "b": "S.1", "c": "S.2"})
    first = ask(js, "CONSUMER.DELETE.S.a")
    for _ in range(10):
        js.tick()
    second = ask(js, "CONSUMER.DELETE.S.b")
    publish(js.index, b"S.2", b"", b"", b"new")
    while js.engine.slices:
        js.tick()
    assert json.loads(first[0][2])["success"] and json.loads(second[0][2])["success"]
    assert js.engine.streams["S"].log.subjects() == {b"S.2": MANY // 3 + 1}


def test_other_filters_let_go_in_slices() -> None:
    js = furnished({"a": "S.0", "b": "S.1"})
    log = js.engine.streams["S"].log
    before = log.messages
    config = {"durable_name": "a", "ack_policy": "explicit", "filter_subject": "S.0.none"}
    ask(js, "CONSUMER.DURABLE.CREATE.S.a", {"stream_name": "S", "config": config})
    while js.engine.slices:
        assert before - log.messages <= PART
        before = log.messages
        js.tick()
    assert log.subjects() == {b"S.1": MANY // 3 + 1}


@pytest.mark.parametrize("end", ["STREAM.DELETE.S", "retention"])
def test_a_review_ends_with_its_stream_or_retention(end: str) -> None:
    js = furnished({"a": "S.0", "b": "S.1"})
    answer = ask(js, "CONSUMER.DELETE.S.a")
    js.tick()
    if end == "retention":
        js.engine.streams["S"].interest_state = None
    else:
        ask(js, end)
    for _ in range(10):
        js.tick()
    assert json.loads(answer[0][2])["success"] and not js.engine.slices and not js.engine.offline
