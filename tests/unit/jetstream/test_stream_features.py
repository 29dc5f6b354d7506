"""Transform, republish and counters where no server is needed: numbers, failed writes, updates, chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.stream.counter import format_number, parse_number
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from tests.support.engine import EngineHarness


@given(st.integers())
def test_numbers_of_counters_keep_every_digit(value: int) -> None:
    """counters"""
    assert parse_number(format_number(value).encode()) == value


@pytest.mark.parametrize("digits", [3999, 4000, 4001, 8000, 12_345])
def test_numbers_longer_than_python_converts_at_once(digits: int) -> None:
    """counters"""
    text = "-" + "9" * digits
    value = parse_number(text.encode())
    assert value == 1 - 10**digits
    assert format_number(value) == text
    assert format_number(10**digits) == "1" + "0" * digits


@pytest.mark.feature("stream.subject-transform")
def test_a_random_transform_is_drawn_once_before_the_batch() -> None:
    """What chance decides is input of the stream, not part of it."""
    js = EngineHarness()
    js.create("S", "s.>", subject_transform={"src": "s.>", "dest": "{{random(5)}}.>"})
    draws = iter([3, 1, 4])
    stream = js.engine.streams["S"]
    stream.below = lambda n: next(draws)
    stream._configure()
    for _ in range(3):
        publish(js.index, b"s.x", b"", b"", b"")
    js.tick()
    assert [stream.log.load(seq).subject for seq in (1, 2, 3)] == [b"3.x", b"1.x", b"4.x"]  # type: ignore[union-attr]


@pytest.mark.feature("stream.subject-transform", "stream.republish")
def test_an_update_changes_what_is_stored_and_republished_from_then_on() -> None:
    js = EngineHarness()
    heard = js.listen(b"copy.>")
    js.create("S", "s.>", republish={"src": "s.>", "dest": "copy.>"})
    publish(js.index, b"s.1", b"", b"", b"before")
    answer = js.api(
        "STREAM.UPDATE.S",
        {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.*", "dest": "t.$1"}},
    )
    assert "error" not in answer
    assert js.request("s.2", b"after") == {"stream": "S", "seq": 2}
    assert [(subject, payload) for subject, _, payload in heard] == [(b"copy.1", b"before")]
    assert js.state("S", subjects_filter=">")["subjects"] == {"s.1": 1, "t.2": 1}


@pytest.mark.feature("stream.republish", "stream.message-ttl")
def test_what_expires_leaves_a_marker_that_is_republished() -> None:
    js = EngineHarness()
    heard = js.listen(b"copy.>")
    js.create("S", "s.>", subject_delete_marker_ttl=1_000_000_000, republish={"src": "s.>", "dest": "copy.>"})
    js.request("s.1", b"x", headers.build([("Nats-TTL", "2")]))
    js.wait_until(js.now + 3_000_000_000)
    assert [payload for _, _, payload in heard] == [b"x", b""]
    assert headers.value_of(heard[1][1], headers.MARKER_REASON) == b"MaxAge"


@pytest.mark.feature("stream.subject-transform")
def test_a_million_subjects_are_not_remembered_by_a_transform() -> None:
    """Memory stays bounded."""
    js = EngineHarness()
    js.create("S", "s.>", subject_transform={"src": "s.>", "dest": "t.>"})
    for n in range(5000):
        publish(js.index, b"s.%d" % n, b"", b"", b"")
    js.tick()
    assert js.engine.streams["S"].log.load_last(b"t.4999") is not None
    assert js.state("S")["messages"] == 5000
