"""TTLs of single messages and the markers in place of what expired, as the official server has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream.stream.ttl import NEVER, TTL_MAX_NS, is_marker, parse_ttl
from penstock.kernels.log.stream_log import StoredRecord
from penstock.protocol import headers
from penstock.store.file import FileStore
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.message-ttl")

SECOND = 1_000_000_000


def block(**values: str) -> bytes:
    return headers.build((name.replace("_", "-"), value) for name, value in values.items())


def subjects(js: EngineHarness) -> dict[str, int]:
    found: dict[str, int] = js.state("T", subjects_filter=">").get("subjects", {})
    return found


def last(js: EngineHarness, subject: str) -> StoredRecord:
    message = js.engine.streams["T"].log.load_last(subject.encode())
    assert message is not None
    return message


def after(js: EngineHarness, seconds: float) -> dict[str, int]:
    """What is left that long after the start (and one grain of expiry)."""
    js.wait_until(START_NS + int(seconds * SECOND) + 20_000_000)
    return subjects(js)


@pytest.mark.parametrize(
    ("value", "ttl_ns"),
    [
        (b"1", SECOND),
        (b"1s", SECOND),
        (b"1500ms", 1_500_000_000),
        (b"1h", 3600 * SECOND),
        (b"never", NEVER),
        (b"NEVER", NEVER),
        (b"1000000000000", TTL_MAX_NS),
    ],
)
def test_ttls_are_seconds_durations_or_never(value: bytes, ttl_ns: int) -> None:
    assert parse_ttl(value) == ttl_ns


@pytest.mark.parametrize(
    "value", [b"0", b"-1", b"500ms", b"x", b"1.5", b"9999999999999999999", b"+1", b"0s", b"\xff"]
)
def test_what_is_no_ttl_is_refused(value: bytes) -> None:
    with pytest.raises(JetStreamApiError) as caught:
        parse_ttl(value)
    assert caught.value.err_code == 10165


def test_an_invalid_ttl_is_refused_after_every_other_header_and_before_the_limits() -> None:
    js = EngineHarness()
    js.create("T", "t.>", allow_msg_ttl=True, discard="new", max_msgs=1)
    js.request("t.1", b"x", block(Nats_Msg_Id="1"))
    assert js.request("t.1", b"x", block(Nats_TTL="x"))["error"]["err_code"] == 10165
    assert js.request("t.1", b"x", block(Nats_TTL="x", Nats_Rollup="sub"))["error"]["err_code"] == 10111
    assert js.request("t.1", b"x", block(Nats_TTL="x", Nats_Msg_Id="1"))["duplicate"] is True


def test_a_message_leaves_when_its_time_is_up() -> None:
    js = EngineHarness()
    js.create("T", "t.>", allow_msg_ttl=True)
    for subject, ttl in (("a", "2"), ("b", "1"), ("c", "never"), ("d", "")):
        js.request(f"t.{subject}", b"x", block(Nats_TTL=ttl))
    assert after(js, 0.9) == {"t.a": 1, "t.b": 1, "t.c": 1, "t.d": 1}
    assert after(js, 1) == {"t.a": 1, "t.c": 1, "t.d": 1}
    assert after(js, 2) == {"t.c": 1, "t.d": 1}


def test_never_outlives_the_age_of_the_stream_and_other_ttls_do_not() -> None:
    js = EngineHarness()
    js.create("T", "t.>", allow_msg_ttl=True, max_age=2 * SECOND)
    js.request("t.kept", b"x", block(Nats_TTL="never"))
    js.request("t.long", b"x", block(Nats_TTL="10"))
    js.request("t.plain", b"x")
    js.request("t.kept2", b"x", block(Nats_TTL="never"))
    js.now += SECOND
    js.request("t.later", b"x")
    assert after(js, 2) == {"t.kept": 1, "t.kept2": 1, "t.later": 1}
    assert after(js, 4) == {"t.kept": 1, "t.kept2": 1}
    js.request("t.new", b"x")
    assert after(js, 20) == {"t.kept": 1, "t.kept2": 1}
    js.wait_until(START_NS + 200 * SECOND)
    assert js.engine.tick.next_deadline() is None


def test_what_was_replaced_before_its_time_takes_nothing_with_it() -> None:
    js = EngineHarness()
    js.create("T", "t.>", allow_msg_ttl=True, max_msgs_per_subject=1)
    js.request("t.a", b"old", block(Nats_TTL="1"))
    js.request("t.a", b"new")
    assert after(js, 5) == {"t.a": 1}
    assert last(js, "t.a").payload == b"new"


def test_the_last_message_of_a_subject_leaves_a_marker() -> None:
    js = EngineHarness()
    js.create("T", "t.>", subject_delete_marker_ttl=30 * SECOND, max_age=2 * SECOND, max_msgs_per_subject=1)
    for name, values in {
        "del_ttl": {"KV_Operation": "DEL", "Nats_TTL": "1"},
        "purge_ttl": {"KV_Operation": "PURGE", "Nats_TTL": "1"},
        "purge_age": {"KV_Operation": "PURGE"},
        "del_age": {"KV_Operation": "DEL"},
        "mark_age": {"Nats_Marker_Reason": "Remove"},
        "mark_ttl": {"Nats_Marker_Reason": "Remove", "Nats_TTL": "1"},
        "plain_ttl": {"Nats_TTL": "1"},
        "plain_age": {},
    }.items():
        js.request(f"t.{name}", b"", block(**values) if values else b"")
    js.wait_until(START_NS + 2 * SECOND + 20_000_000)
    assert subjects(js) == {"t.del_ttl": 1, "t.plain_ttl": 1, "t.del_age": 1, "t.plain_age": 1}
    marker = last(js, "t.plain_age")
    assert (marker.payload, is_marker(marker.header)) == (b"", True)
    assert marker.header == (
        b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 30s\r\nNats-Rollup: sub\r\n\r\n"
    )
    # A marker goes by the stream's age as well, and leaves nothing behind.
    assert after(js, 5) == {}


def test_a_subject_with_older_messages_left_gets_no_marker() -> None:
    js = EngineHarness()
    js.create("T", "t.>", subject_delete_marker_ttl=SECOND)
    js.request("t.x", b"1")
    js.request("t.x", b"2", block(Nats_TTL="1"))
    js.request("t.y", b"1", block(Nats_TTL="1"))
    js.request("t.y", b"2", block(Nats_TTL="2"))
    assert after(js, 1) == {"t.x": 1, "t.y": 1}
    assert last(js, "t.y").payload == b"2"
    after(js, 2)
    assert is_marker(last(js, "t.y").header)
    assert after(js, 4) == {"t.x": 1}


@pytest.mark.parametrize(("per_subject", "kept"), [(-1, "5"), (1, "2")])
def test_a_ttl_below_the_markers_is_raised_to_it(per_subject: int, kept: str) -> None:
    js = EngineHarness()
    settings: dict[str, Any] = {"max_msgs_per_subject": per_subject}
    js.create("T", "t.>", subject_delete_marker_ttl=5 * SECOND, **settings)
    js.request("t.q", b"x", block(Nats_TTL="2"))
    assert headers.value_of(last(js, "t.q").header, "Nats-TTL") == kept.encode()
    js.request("t.q", b"x", block(Nats_TTL="9"))
    assert headers.value_of(last(js, "t.q").header, "Nats-TTL") == b"9"


def test_consumers_see_markers_as_messages() -> None:
    js = EngineHarness()
    js.create("T", "t.>", subject_delete_marker_ttl=SECOND)
    heard = js.listen(b"deliver")
    config = {"deliver_subject": "deliver", "ack_policy": "none", "name": "c"}
    assert "error" not in js.api("CONSUMER.CREATE.T.c", {"stream_name": "T", "config": config})
    js.request("t.a", b"x", block(Nats_TTL="1"))
    js.wait_until(START_NS + SECOND + 20_000_000)
    assert [payload for _, _, payload in heard] == [b"x", b""]
    assert is_marker(heard[1][1])


def test_ttls_are_known_after_a_restart(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("T", "t.>", allow_msg_ttl=True, max_age=5 * SECOND)
    for subject, ttl in (("a", "1"), ("b", "3"), ("c", "never"), ("d", "")):
        js.request(f"t.{subject}", b"x", block(Nats_TTL=ttl))
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"), now=START_NS + 2 * SECOND)
    assert subjects(js) == {"t.b": 1, "t.c": 1, "t.d": 1}
    assert after(js, 3) == {"t.c": 1, "t.d": 1}
    assert after(js, 5) == {"t.c": 1}
    store.close()


def test_many_replaced_messages_do_not_pile_up() -> None:
    js = EngineHarness()
    js.create("T", "t.>", allow_msg_ttl=True, max_msgs_per_subject=1)
    stream = js.engine.streams["T"]
    for _ in range(3000):
        js.request("t.a", b"x", block(Nats_TTL="100"))
    stream.expire(js.now)
    assert len(stream.expiry.ttls._queue) <= 1
