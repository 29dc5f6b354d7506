"""What a request costs grows with its size, whatever it holds: no client waits long for another's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.jetstream.limits import BACKOFFS_MAX, SOURCES_MAX, SUBJECTS_MAX, TRANSFORMS_MAX
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests")

Call = Callable[[], Any]


def named(count: int, shape: str = "a.%d") -> list[str]:
    return [shape % n for n in range(count)]


def seconds(make: Callable[[], Call]) -> float:
    """CPU time of what `make` returns, the least of three."""
    found = []
    for _ in range(3):
        call = make()
        start = time.process_time()
        answer = call()
        found.append(time.process_time() - start)
        assert "error" not in answer, answer["error"]
    return min(found)


def consumer(count: int) -> Call:
    js = EngineHarness()
    js.create("S", "a.>")
    config = {"durable_name": "C", "ack_policy": "explicit", "filter_subjects": named(count)}
    return lambda: js.api("CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": config})


def stream(count: int) -> Call:
    js = EngineHarness()
    return lambda: js.api("STREAM.CREATE.S", {"name": "S", "subjects": named(count)})


def second_stream(count: int) -> Call:
    js = EngineHarness()
    js.create("T", *named(count, "b.%d"))
    return stream_in(js, count)


def stream_in(js: EngineHarness, count: int) -> Call:
    return lambda: js.api("STREAM.CREATE.S", {"name": "S", "subjects": named(count)})


def updated_stream(count: int) -> Call:
    js = EngineHarness()
    js.create("S", *named(count, "b.%d"))
    return lambda: js.api("STREAM.UPDATE.S", {"name": "S", "subjects": named(count)})


def work_queue_consumer(count: int) -> Call:
    js = EngineHarness()
    js.create("S", "a.>", "b.>", retention="workqueue")
    for name, shape in (("B", "b.%d"), ("C", "a.%d")):
        filters = named(count, shape)
        config = {"durable_name": name, "ack_policy": "explicit", "filter_subjects": filters}
        create = {"stream_name": "S", "config": config}
        if name == "B":
            js.api("CONSUMER.DURABLE.CREATE.S.B", create)
    return lambda: js.api("CONSUMER.DURABLE.CREATE.S.C", create)


@pytest.mark.parametrize("make", [consumer, stream, second_stream, updated_stream, work_queue_consumer])
def test_ten_times_the_subjects_take_little_more_than_ten_times_as_long(make: Callable[[int], Call]) -> None:
    """Pair by pair, they take a hundred times as long."""
    assert seconds(lambda: make(4000)) < 40 * seconds(lambda: make(400))


def with_transforms(kind: str, count: int) -> Call:
    js = EngineHarness()
    origin = {"name": "O", "subject_transforms": [{"src": one, "dest": "x"} for one in named(count)]}
    config = {"mirror": origin} if kind == "mirror" else {"sources": [origin]}
    return lambda: js.api("STREAM.CREATE.S", {"name": "S", **config})


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_ten_times_the_transforms_take_little_more_than_ten_times_as_long(kind: str) -> None:
    many = seconds(lambda: with_transforms(kind, TRANSFORMS_MAX))
    assert many < 30 * seconds(lambda: with_transforms(kind, TRANSFORMS_MAX // 10))


def test_lists_that_are_too_long_are_refused_with_the_most_there_may_be() -> None:
    js = EngineHarness()
    js.create("S", "a.>")
    many = named(SUBJECTS_MAX + 1)
    consumer = {"durable_name": "C", "ack_policy": "explicit", "filter_subjects": many}
    refused = [
        ("CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": consumer}, 10012, SUBJECTS_MAX),
        (
            "CONSUMER.DURABLE.CREATE.S.C",
            {"stream_name": "S", "config": {"durable_name": "C", "backoff": [1] * (BACKOFFS_MAX + 1)}},
            10012,
            BACKOFFS_MAX,
        ),
        ("STREAM.CREATE.T", {"name": "T", "subjects": named(SUBJECTS_MAX + 1, "t.%d")}, 10052, SUBJECTS_MAX),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": many}, 10052, SUBJECTS_MAX),
        (
            "STREAM.CREATE.T",
            {"name": "T", "sources": [{"name": one} for one in named(SOURCES_MAX + 1, "s%d")]},
            10052,
            SOURCES_MAX,
        ),
        (
            "STREAM.CREATE.T",
            {
                "name": "T",
                "sources": [
                    {"name": f"s{n}", "subject_transforms": [{"src": "a", "dest": "b"}]}
                    for n in range(SOURCES_MAX)
                ]
                + [{"name": "o", "subject_transforms": [{"src": one, "dest": "b"} for one in named(2)]}],
            },
            10052,
            SOURCES_MAX,
        ),
        (
            "STREAM.CREATE.T",
            {
                "name": "T",
                "mirror": {
                    "name": "O",
                    "subject_transforms": [{"src": one, "dest": "b"} for one in named(TRANSFORMS_MAX + 1)],
                },
            },
            10052,
            TRANSFORMS_MAX,
        ),
    ]
    for subject, body, code, most in refused:
        error = js.api(subject, body)["error"]
        assert error["err_code"] == code, error
        assert f"at most {most} are allowed" in error["description"]


def test_filters_that_only_pairs_can_compare_are_refused_and_change_nothing() -> None:
    js = EngineHarness()
    crossing = [*named(2000, "a%d.x"), *named(2000, "*.y%d")]
    error = js.api("STREAM.CREATE.S", {"name": "S", "subjects": crossing, "no_ack": True})["error"]
    assert error["err_code"] == 10052
    assert "use fewer, or fewer with wildcards" in error["description"]
    js.create("S", *crossing[:2000])
    error = js.api("STREAM.CREATE.T", {"name": "T", "subjects": crossing[2000:], "no_ack": True})["error"]
    assert error["err_code"] == 10052
    js.create("T", "*.z", no_ack=True)


def layers_of_sources(js: EngineHarness, layers: int) -> None:
    """Each layer has two streams, and each of them both of the layer below as its sources."""
    js.create("L0x", "x")
    js.create("L0y", "y")
    for layer in range(1, layers):
        below = [{"name": f"L{layer - 1}{side}"} for side in "xy"]
        for side in "xy":
            answer = js.api(f"STREAM.CREATE.L{layer}{side}", {"name": f"L{layer}{side}", "sources": below})
            assert "error" not in answer, answer["error"]


def test_streams_that_share_origins_are_visited_once_each() -> None:
    """Visiting them once for each way there doubles the work with each layer: these would take hours."""
    js = EngineHarness()
    layers_of_sources(js, 30)
    circle = {"name": "L0x", "subjects": ["x"], "sources": [{"name": "L29y"}]}
    assert "detected cycle" in js.api("STREAM.UPDATE.L0x", circle)["error"]["description"]


def test_the_subjects_of_a_stream_are_free_once_it_gives_them_up() -> None:
    js = EngineHarness()
    js.create("S", "a.*", "b")

    def taken(subject: str) -> bool:
        answer = js.api("STREAM.CREATE.T", {"name": "T", "subjects": [subject], "no_ack": True})
        js.api("STREAM.DELETE.T")
        return "error" in answer and bool(answer["error"]["err_code"] == 10065)

    assert [taken(one) for one in ("a.x", ">", "*", "b", "a")] == [True, True, True, True, False]
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["a.y", "c"]})
    assert [taken(one) for one in ("a.x", "a.y", "b", "c", "*.y")] == [False, True, False, True, True]
    assert js.api("STREAM.NAMES", {"subject": "*.y"})["streams"] == ["S"]
    assert js.api("STREAM.NAMES", {"subject": "b"})["streams"] == []
    js = js.restart()
    assert taken("c")
    js.api("STREAM.DELETE.S")
    assert not taken("c")


def direct_get(filters: list[str]) -> Call:
    """Of the last messages of many subjects, up to an early sequence, so that few of them are found."""
    js = EngineHarness()
    js.create("S", "s.>", allow_direct=True)
    log = js.engine.streams["S"].log
    for n in range(2000):
        log.append(b"s.%d" % n, b"", b"", 1)
    body = {"multi_last": filters, "up_to_seq": 5, "batch": 10}

    def call() -> dict[str, str]:
        answers = js.messages("$JS.API.DIRECT.GET.S", body)
        assert [answer[1] for answer in answers[:-1]] and b"Nats-Num-Pending: 0" in answers[-1][1]
        assert len(answers) == 6
        return {}

    return call


def test_a_filter_that_finds_nothing_more_costs_no_look_at_the_subjects() -> None:
    """A hundred filters that each match all subjects take a hundred times as long to look for as one does."""
    many = ["s.*", "s.>"] * 500 + [f"s.{n}" for n in range(500)]
    assert seconds(lambda: direct_get(many)) < 30 * seconds(lambda: direct_get(["s.*"]))
