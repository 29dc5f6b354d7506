"""What the client says to a caller who passes the wrong thing, forgets to close, or whose callback raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock.client
from penstock.client import Headers
from penstock.client.message import encode_payload
from penstock.client.publishing import encode_publish_headers
from penstock.client.queue import MessageQueue
from penstock.client.subscription import SLOW_REPORT_INTERVAL_S, Subscription
from penstock.errors import SlowConsumerError

pytestmark = pytest.mark.feature("client.misuse")


@pytest.mark.parametrize("payload", [5, 1.5, None, [1, 2], {"a": 1}, object()])
def test_a_payload_of_another_type_is_a_type_error_that_says_so(payload: Any) -> None:
    with pytest.raises(TypeError, match=f"bytes, bytearray, memoryview or str, not {type(payload).__name__}"):
        encode_payload(payload)


@pytest.mark.parametrize("payload", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_payloads_are_bytes_of_any_kind_or_text(payload: Any) -> None:
    assert encode_payload(payload) == b"ab"


@pytest.mark.parametrize("value", [5, b"x", None, [5], {"a": "b"}])
def test_a_header_value_that_is_no_text_is_a_type_error_that_names_the_header(value: Any) -> None:
    with pytest.raises(TypeError, match="header Count: a value is str"):
        Headers({"Count": value})
    with pytest.raises(TypeError, match="header Count: a value is str"):
        Headers()["Count"] = value


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: penstock.client.connect(error_cb=print), "use on_error"),
        (lambda: penstock.client.connect(max_reconnect_attempts=3), "use max_reconnects"),
        (lambda: penstock.client.connect(reconect=False), "did you mean reconnect?"),
        (lambda: encode_publish_headers({"msgid": "1"}), "did you mean msg_id?"),
        (lambda: encode_publish_headers({"stream": "S"}), "use expected_stream"),
    ],
)
def test_an_unknown_keyword_names_the_one_that_was_meant(call: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert "unexpected keyword argument" in str(caught.value)
    assert text in str(caught.value)


def test_a_forgotten_await_on_connect_says_so() -> None:
    client: Any = penstock.client.connect()
    with pytest.raises(AttributeError, match=r"client = await connect\(\.\.\.\)"):
        client.publish("a", b"")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = client.nonsense
    holder = [client]
    del client
    with pytest.warns(RuntimeWarning, match="never awaited"):
        holder.clear()


class _Loop:
    """A loop's clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


class _Session:
    """What a subscription asks of its session."""

    def __init__(self, loop: _Loop) -> None:
        self.loop = loop
        self.reported: list[Exception] = []

    def report(self, error: Exception) -> None:
        self.reported.append(error)


async def test_a_subscription_that_stays_full_reports_its_drops_again_with_the_count() -> None:
    loop = _Loop()
    session = _Session(loop)
    made = Subscription(session, "s", "", 1, max_pending_messages=1, max_pending_bytes=99)  # type: ignore[arg-type]
    assert isinstance(made, MessageQueue)

    def drops() -> list[int]:
        assert all(isinstance(error, SlowConsumerError) for error in session.reported)
        return [error.dropped for error in session.reported if isinstance(error, SlowConsumerError)]

    message = (1, b"s", None, None, b"")
    for _ in range(5):
        made.receive(message)
    assert drops() == [1]
    loop.now += SLOW_REPORT_INTERVAL_S
    for _ in range(3):
        made.receive(message)
    assert drops() == [1, 5]
    await made.__anext__()
    made.receive(message)
    assert (made.dropped, drops()) == (7, [1, 5])
