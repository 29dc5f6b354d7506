"""Trace contexts travel with messages: through publishes, requests, services, streams and their consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

import penstock
from penstock.client import Client, Headers, JsMsg, Msg, ServiceMsg, Stream
from penstock.client.message import HeadersLike
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.tracing")

CURRENT: ContextVar[str] = ContextVar("current", default="")


class Recorder:
    """A tracer whose context is one text. handled: contexts and subjects of the messages that were handled,
    and what their blocks raised."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, str, str]] = []

    def inject(self, headers: HeadersLike | None) -> HeadersLike | None:
        if not CURRENT.get():
            return headers
        made = Headers(headers.pairs() if isinstance(headers, Headers) else headers or ())
        made["traceparent"] = CURRENT.get()
        return made

    @contextmanager
    def handling(self, msg: Msg) -> Iterator[None]:
        token = CURRENT.set(msg.headers.get("traceparent", "none"))
        raised = ""
        try:
            yield
        except Exception as error:
            raised = type(error).__name__
            raise
        finally:
            self.handled.append((CURRENT.get(), msg.subject, raised))
            CURRENT.reset(token)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def traced(url: str, recorder: Recorder) -> AsyncIterator[Client]:
    async with penstock.connect(url, tracing=recorder, on_error=lambda *_: None) as client:
        yield client


async def test_a_context_goes_from_a_request_through_a_service_into_a_stream_and_out_of_it(
    traced: Client, recorder: Recorder, stream: Stream
) -> None:
    js = traced.jetstream(timeout=10)
    seen: list[tuple[str, int]] = []

    async def handle(request: ServiceMsg) -> bytes:
        await js.publish("s.one", b"1", headers={"A": "b"})
        async with js.publisher() as publisher:
            await publisher.publish("s.two", b"2")
        return b"stored"

    def consumed(msg: JsMsg) -> None:
        assert (msg.headers.get("A") == "b") == (msg.subject == "s.one")
        seen.append((CURRENT.get(), int(msg.data)))

    async with await traced.add_service("store", "1.0.0") as service:
        await service.add_endpoint("store", handle)
        await traced.flush()
        token = CURRENT.set("trace-1")
        try:
            assert (await traced.request("store", b"x", headers=[("B", "c")])).data == b"stored"
        finally:
            CURRENT.reset(token)
    consumer = await js.create_consumer(stream.name)
    async with consumer.consume(consumed):
        await until(lambda: len(seen) == 2)
    pushed = await js.subscribe("s.>", callback=consumed)
    await until(lambda: len(seen) == 4)
    await pushed.unsubscribe()
    assert seen == [("trace-1", 1), ("trace-1", 2)] * 2
    subjects = ["store", "s.one", "s.two", "s.one", "s.two"]
    assert recorder.handled == [("trace-1", subject, "") for subject in subjects]


async def test_what_a_callback_raises_passes_its_tracer(traced: Client, recorder: Recorder) -> None:
    async def fail(msg: Msg) -> None:
        await asyncio.sleep(0)
        raise ValueError("the callback failed")

    await traced.subscribe("fail", callback=fail)
    await traced.publish("fail")
    await until(lambda: bool(recorder.handled))
    assert recorder.handled == [("none", "fail", "ValueError")]


async def test_read_messages_are_handled_in_a_block_of_the_user(traced: Client, recorder: Recorder) -> None:
    subscription = await traced.subscribe("read.*", callback=None)
    await traced.subscribe("ask", callback=lambda msg: msg.respond(CURRENT.get()))
    token = CURRENT.set("trace-2")
    await traced.publish("read.one", b"", headers={"A": "b"})
    answers = [msg.data async for msg in traced.request_many("ask", max_messages=1)]
    CURRENT.reset(token)
    assert answers == [b"trace-2"]
    msg = await subscription.next(5)
    with recorder.handling(msg):
        assert (CURRENT.get(), msg.headers["A"]) == ("trace-2", "b")
    assert CURRENT.get() == ""


async def test_without_a_context_no_header_is_added(traced: Client) -> None:
    subscription = await traced.subscribe("plain")
    await traced.publish("plain")
    assert (await subscription.next(5)).raw[3] is None
