"""What a consumer's configuration may say. Codes are those the official server (2.15) answers with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.consumers import ConsumerHarness

pytestmark = pytest.mark.feature("consumer.create-update")


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"filter_subject": "s.a", "filter_subjects": ["s.b"]}, 10136),
        ({"filter_subjects": [""]}, 10139),
        ({"filter_subjects": ["s.a", "s.>"]}, 10138),
        ({"filter_subjects": ["s.a", "s.a"]}, 10138),
        ({"filter_subject": "s..a"}, 10052),
        ({"idle_heartbeat": 10**9}, 10088),
        ({"flow_control": True}, 10089),
        ({"rate_limit_bps": 10}, 10086),
        ({"direct": True}, 10090),
        ({"max_expires": 5}, 10115),
        ({"deliver_subject": "d.*"}, 10079),
        ({"deliver_subject": "d..e"}, 10112),
        ({"deliver_subject": "s.q"}, 10081),
        ({"deliver_subject": "d", "max_waiting": 3}, 10080),
        ({"deliver_subject": "d", "idle_heartbeat": 10}, 10083),
        ({"deliver_subject": "d", "flow_control": True}, 10108),
        ({"deliver_subject": "d", "ack_policy": "none", "max_ack_pending": 5}, 10082),
        ({"ack_wait": -5}, 10183),
        ({"backoff": [-5]}, 10184),
        ({"backoff": [1, 2], "max_deliver": 1}, 10116),
        ({"deliver_policy": "by_start_sequence"}, 10094),
        ({"deliver_policy": "by_start_time"}, 10094),
        ({"deliver_policy": "all", "opt_start_seq": 3}, 10094),
        ({"deliver_policy": "new", "opt_start_time": "2024-01-01T00:00:00Z"}, 10094),
        ({"deliver_policy": "last_per_subject"}, 10094),
        ({"deliver_policy": "by_start_time", "opt_start_time": "yesterday"}, 10025),
        ({"ack_policy": "sometimes"}, 10025),
        ({"num_replicas": -1}, 10133),
        ({"num_replicas": 3}, 10074),
        ({"sample_freq": "abc"}, 10095),
        ({"durable_name": "other"}, 10017),
        ({"description": "d" * 4097}, 10107),
        ({"metadata": {"k": "v" * 128 * 1024}}, 10135),
        ({"priority_groups": ["a"]}, 10196),
        ({"priority_timeout": 5}, 10197),
        ({"priority_policy": "overflow"}, 10159),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161),
        ({"deliver_subject": "d", "priority_policy": "overflow", "priority_groups": ["a"]}, 10178),
        # What this server does not have is refused, never accepted and ignored.
        ({"pause_until": "some day"}, 10025),
        ({"ack_policy": "flow_control"}, 10218),
        ({"deliver_subject": "d", "ack_policy": "flow_control", "max_ack_pending": -1}, 10220),
        ({"deliver_subject": "d", "ack_policy": "flow_control", "ack_wait": 5}, 10221),
        ({"deliver_subject": "d", "ack_policy": "flow_control", "max_deliver": 1}, 10222),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(config: dict[str, Any], err_code: int) -> None:
    bench = ConsumerHarness()
    answer = bench.define("x", **{"ack_policy": "explicit", **config})
    assert answer["error"]["err_code"] == err_code
    assert bench.engine.streams["S"].consumers == {}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {},
            {
                "ack_wait": 30 * 10**9,
                "max_ack_pending": 1000,
                "max_waiting": 512,
                "inactive_threshold": 5 * 10**9,
            },
        ),
        ({"durable_name": "x"}, {"inactive_threshold": None, "durable_name": "x"}),
        ({"ack_policy": "none"}, {"ack_wait": None, "max_ack_pending": None, "max_deliver": -1}),
        ({"backoff": [7, 9], "max_deliver": 4}, {"ack_wait": 7, "backoff": [7, 9]}),
        ({"deliver_subject": "d"}, {"max_waiting": None}),
        ({"sample_freq": "50%"}, {"sample_freq": "50%"}),
        ({"max_waiting": -3, "max_ack_pending": -7}, {"max_waiting": 512, "max_ack_pending": -1}),
        ({"filter_subjects": ["s.*.a", "s.b.*"]}, {"filter_subjects": ["s.*.a", "s.b.*"]}),
    ],
)
def test_what_is_left_open_gets_its_default(config: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = ConsumerHarness().define("x", **{"ack_policy": "explicit", **config})
    assert {key: answer["config"].get(key) for key in expected} == expected


def test_pedantic_requests_are_not_corrected() -> None:
    bench = ConsumerHarness()
    body = {"stream_name": "S", "config": {"name": "x", "max_ack_pending": -7}, "pedantic": True}
    assert bench.api("CONSUMER.CREATE.S.x", body)["error"]["err_code"] == 10157


def test_limits_of_the_stream_bound_and_fill_in_the_consumers() -> None:
    limits = {"max_ack_pending": 50, "inactive_threshold": 10**9}
    bench = ConsumerHarness(stream={"consumer_limits": limits})
    made = bench.define("x", ack_policy="explicit")["config"]
    assert (made["max_ack_pending"], made["inactive_threshold"]) == (50, 10**9)
    assert bench.define("y", ack_policy="explicit", max_ack_pending=51)["error"]["err_code"] == 10121
    assert (
        bench.define("y", ack_policy="explicit", inactive_threshold=2 * 10**9)["error"]["err_code"] == 10153
    )


PULL = {"ack_policy": "explicit", "durable_name": "x"}
PUSH = {"ack_policy": "explicit", "durable_name": "x", "deliver_subject": "d", "idle_heartbeat": 10**9}


@pytest.mark.parametrize(
    ("present", "change", "text"),
    [
        (PULL, {"deliver_policy": "last"}, "deliver policy can not be updated"),
        (PULL, {"ack_policy": "all"}, "ack policy can not be updated"),
        (PULL, {"mem_storage": True}, "storage type can not be updated"),
        (PULL, {"max_waiting": 7}, "max waiting can not be updated"),
        (PULL, {"deliver_subject": "d"}, "can not update pull consumer to push based"),
        (PUSH, {"deliver_subject": "", "idle_heartbeat": 0}, "heart beats can not be updated"),
        (PUSH, {"idle_heartbeat": 2 * 10**9}, "heart beats can not be updated"),
        (PUSH, {"flow_control": True}, "flow control can not be updated"),
    ],
)
def test_what_may_not_change_stays(present: dict[str, Any], change: dict[str, Any], text: str) -> None:
    bench = ConsumerHarness()
    before = bench.define("x", **present)["config"]
    error = bench.define("x", **{**present, **change})["error"]
    assert (error["err_code"], error["description"]) == (10012, text)
    assert bench.info("x")["config"] == before


def test_what_may_change_changes_and_is_kept() -> None:
    bench = ConsumerHarness()
    bench.define("x", **PULL)
    change = {
        "ack_wait": 10**9,
        "max_deliver": 5,
        "max_ack_pending": 7,
        "filter_subject": "s.a",
        "description": "new",
        "headers_only": True,
        "inactive_threshold": 10**10,
        "metadata": {"k": "v"},
    }
    answer = bench.define("x", action="update", **{**PULL, **change})
    assert "error" not in answer
    config = bench.restarted().info("x")["config"]
    assert {**config, "metadata": {"k": config["metadata"]["k"]}}.items() >= change.items()


def test_the_deliver_subject_moves_only_while_no_client_listens_there() -> None:
    bench = ConsumerHarness()
    bench.define("x", **PUSH)
    bench.listen(b"d")
    assert bench.define("x", **{**PUSH, "deliver_subject": "e"})["error"]["err_code"] == 10013
    bench = ConsumerHarness()
    bench.define("x", **PUSH)
    assert bench.define("x", **{**PUSH, "deliver_subject": "e"})["config"]["deliver_subject"] == "e"
