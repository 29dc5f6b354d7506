"""Numbers that peers wrote: digits of other scripts, and thousands of digits, are none."""

from __future__ import annotations

import pytest

from penstock.errors import MisuseError
from penstock.protocol import headers, schedule_patterns
from penstock.protocol.durations import parse_duration
from penstock.protocol.numbers import natural
from penstock.routing.imports_exports import wildcard_of
from tests.support.engine import EngineHarness

LONG_NUMBER = "1" * 5000


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "1.0", "²", "١", LONG_NUMBER, "1" * 19])
def test_what_is_no_number(text: str) -> None:
    assert natural(text) is None
    assert natural(text.encode()) is None


def test_numbers_keep_their_leading_zeros_out() -> None:
    assert natural("007") == 7
    assert natural(b"9" * 18) == 10**18 - 1
    assert natural("9" * 20, 20) == 10**20 - 1


def test_a_status_of_thousands_of_digits_is_a_text() -> None:
    assert headers.status_of(f"NATS/1.0 {LONG_NUMBER}\r\n\r\n".encode()) == (None, LONG_NUMBER)


def test_a_wildcard_of_thousands_of_digits_is_none() -> None:
    assert wildcard_of("$" + LONG_NUMBER) == wildcard_of("{{wildcard(" + LONG_NUMBER + ")}}") == 0


@pytest.mark.parametrize("text", [LONG_NUMBER + "h", "1h" * 200, "0." + LONG_NUMBER + "s"])
def test_a_duration_is_bounded_in_length(text: str) -> None:
    with pytest.raises(MisuseError, match=r"is no duration: \d+ characters"):
        parse_duration(text)


def test_a_schedule_is_bounded_in_length() -> None:
    every = ",".join(map(str, range(60)))
    pattern = f"{every} {every} {','.join(map(str, range(24)))} * * *"
    assert schedule_patterns.next_occurrence(pattern, None, 0, 0).at == 10**9
    with pytest.raises(MisuseError, match="the most is 1000"):
        schedule_patterns.next_occurrence(f"{'0-59,' * 300} * * * * *", None, 0, 0)


@pytest.mark.parametrize("level", [LONG_NUMBER, "²", "1e400"])
def test_a_required_api_level_that_is_no_number_is_refused(level: str) -> None:
    js = EngineHarness()
    js.create("S", "s.>", allow_atomic=True)
    header = headers.build([(headers.REQUIRED_API_LEVEL, level)])
    assert js.api("STREAM.INFO.S", header=header)["error"]["err_code"] == 10185
    assert js.request("s.1", b"x", header)["error"]["err_code"] == 10185
    batch = headers.build(
        [(headers.BATCH_ID, "b"), (headers.BATCH_SEQUENCE, "1"), (headers.BATCH_COMMIT, "1")]
    )
    assert js.request("s.1", b"x", batch[:-2] + header[10:])["error"]["err_code"] == 10185


@pytest.mark.parametrize("percent", ["²", LONG_NUMBER, LONG_NUMBER + "%"])
def test_a_sample_frequency_that_is_no_number_is_refused(percent: str) -> None:
    js = EngineHarness()
    js.create("S", "s.>")
    config = {"durable_name": "c", "ack_policy": "explicit", "sample_freq": percent}
    answer = js.api("CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": config})
    assert "invalid syntax" in answer["error"]["description"]


def test_increments_of_counters_are_bounded_in_digits() -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_msg_counter=True)

    def add(digits: str) -> dict[str, object]:
        answer: dict[str, object] = js.request("c.1", b"", headers.build([(headers.INCR, digits)]))
        return answer

    assert add("9" * 10_000)["val"] == "9" * 10_000
    assert add("9" * 10_000)["val"] == "1" + "9" * 9_999 + "8"
    assert "error" in add("9" * 10_001)
