"""Numbers that no field holds: requests with them are refused; none ends a connection by an exception."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.jetstream.limits import SEQ_MAX
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.api-errors")

NUMBERS = (2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64, -1, -(2**31) - 1, -(2**63) - 1)
STREAM_FIELDS = (
    "max_consumers", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size",
    "num_replicas", "duplicate_window", "first_seq", "subject_delete_marker_ttl",
)  # fmt: skip
CONSUMER_FIELDS = (
    "opt_start_seq", "ack_wait", "max_deliver", "rate_limit_bps", "max_waiting", "max_ack_pending",
    "max_batch", "max_expires", "max_bytes", "idle_heartbeat", "inactive_threshold", "num_replicas",
    "priority_timeout",
)  # fmt: skip
REQUESTS = (
    ("STREAM.MSG.GET.S", "seq"),
    ("STREAM.MSG.DELETE.S", "seq"),
    ("STREAM.PURGE.S", "seq"),
    ("STREAM.PURGE.S", "keep"),
    ("STREAM.INFO.S", "offset"),
    ("STREAM.NAMES", "offset"),
    ("STREAM.LIST", "offset"),
    ("CONSUMER.NAMES.S", "offset"),
    ("CONSUMER.RESET.S.c", "seq"),
)


def harness() -> EngineHarness:
    js = EngineHarness()
    js.create("S", "s", allow_direct=True)
    js.request("s", b"x")
    config = {"name": "c", "ack_policy": "explicit"}
    assert "error" not in js.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    return js


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", STREAM_FIELDS)
def test_a_stream_with_any_number_is_made_or_refused(name: str, number: int) -> None:
    js = EngineHarness()
    answer = js.api("STREAM.CREATE.A", {"name": "A", name: number})
    if "error" in answer:
        assert answer["error"]["err_code"] in (10025, 10052, 10074, 10133, 10047)
        assert js.store.stream_names() == []
    else:
        js.request("A", b"x")


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", CONSUMER_FIELDS)
def test_a_consumer_with_any_number_is_made_or_refused(name: str, number: int, push: bool) -> None:
    js = harness()
    config: dict[str, Any] = {"name": "d", "ack_policy": "explicit", name: number}
    if push:
        config["deliver_subject"] = "d"
    if name == "opt_start_seq":
        config["deliver_policy"] = "by_start_sequence"
    answer = js.api("CONSUMER.CREATE.S.d", {"stream_name": "S", "config": config})
    if "error" not in answer:
        js.messages("$JS.API.CONSUMER.MSG.NEXT.S.d", b"1")
        assert js.api("CONSUMER.INFO.S.d")["name"] == "d"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("request_name", "field"), REQUESTS)
def test_a_request_with_any_number_is_answered(request_name: str, field: str, number: int) -> None:
    js = harness()
    assert "type" in js.api(request_name, {field: number})
    assert "error" not in js.request("s", b"x")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", ["batch", "expires", "max_bytes", "min_pending", "priority"])
def test_a_pull_with_any_number_is_served_or_refused(field: str, number: int) -> None:
    js = harness()
    js.messages("$JS.API.CONSUMER.MSG.NEXT.S.c", {"batch": 1, "expires": 10**9, field: number})
    assert js.api("CONSUMER.INFO.S.c")["name"] == "c"


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", ["seq", "up_to_seq", "batch", "max_bytes"])
def test_a_direct_get_with_any_number_is_answered(field: str, number: int) -> None:
    js = harness()
    body: dict[str, Any] = {"multi_last": ["s"]} if field == "up_to_seq" else {"seq": 1}
    assert js.messages("$JS.API.DIRECT.GET.S", body | {field: number})


@pytest.mark.feature("stream.purge", "stream.first-seq")
def test_sequences_stay_where_records_have_room_for_them() -> None:
    """Errors 10052 and 10110."""
    js = EngineHarness()
    answer = js.api("STREAM.CREATE.A", {"name": "A", "first_seq": SEQ_MAX})
    assert answer["error"]["err_code"] == 10052
    js.create("A", first_seq=SEQ_MAX - 1)
    assert js.request("A", b"x")["seq"] == SEQ_MAX - 1
    js.create("B")
    assert js.api("STREAM.PURGE.B", {"seq": SEQ_MAX + 1})["error"]["err_code"] == 10110
    assert js.request("B", b"x")["seq"] == 1


def test_an_unknown_field_is_refused_at_any_depth() -> None:
    """A misspelt filter of a purge must not purge everything."""
    js = harness()
    answer = js.api("STREAM.PURGE.S", {"filters": "nothing"})
    assert answer["error"]["description"] == 'invalid JSON: json: unknown field "filters"'
    assert js.state("S")["messages"] == 1
    body = {"stream_name": "S", "config": {"name": "x", "ack_waits": 5}}
    assert js.api("CONSUMER.CREATE.S.x", body)["error"]["err_code"] == 10025
