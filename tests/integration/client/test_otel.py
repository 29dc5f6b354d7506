"""OpenTelemetry's contexts in messages, by its API alone; an SDK is the program's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags

import penstock
from penstock.client import Msg, ServiceMsg
from penstock.client.otel import OpenTelemetry
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.tracing")

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = SpanContext(TRACE, 0xB7AD6B7169203331, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class RecordingTracer(trace.NoOpTracer):
    """Its spans have their parent's context, as without an SDK; it notes their settings."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, SpanKind, Any]] = []

    @contextmanager
    def start_as_current_span(self, name: str, **settings: Any) -> Iterator[Any]:  # type: ignore[override]
        self.spans.append((name, settings["kind"], settings["attributes"]["messaging.message.body.size"]))
        with super().start_as_current_span(name, context=settings["context"]) as span:
            yield span


class RecordingProvider(trace.NoOpTracerProvider):
    def __init__(self) -> None:
        self.tracer = RecordingTracer()

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self.tracer


async def test_a_trace_goes_through_a_service_to_a_subscriber(url: str) -> None:
    provider = RecordingProvider()
    traces: list[int] = []

    async def handle(request: ServiceMsg) -> bytes:
        traces.append(trace.get_current_span().get_span_context().trace_id)
        await client.publish("done", b"12")
        return b""

    def note(msg: Msg) -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    async with penstock.connect(url, tracing=OpenTelemetry(provider)) as client:
        await client.subscribe("done", callback=note)
        async with await client.add_service("work", "1.0.0") as service:
            await service.add_endpoint("work", handle)
            await client.flush()
            with trace.use_span(NonRecordingSpan(PARENT)):
                await client.request("work", b"123", headers={"A": "b"})
            await until(lambda: len(traces) == 2)
            await client.request("work", b"")
            await until(lambda: len(traces) == 4)
    assert traces == [TRACE, TRACE, 0, 0]
    assert sorted(provider.tracer.spans[:2]) == [
        ("process done", SpanKind.CONSUMER, 2),
        ("process work", SpanKind.SERVER, 3),
    ]


async def test_headers_of_the_user_stay(url: str) -> None:
    async with penstock.connect(url, tracing=OpenTelemetry()) as client:
        subscription = await client.subscribe("plain")
        with trace.use_span(NonRecordingSpan(PARENT)):
            await client.publish("plain", headers=[("A", "1"), ("A", "2")])
        await client.publish("plain")
        msg = await subscription.next(5)
        assert msg.headers.get_all("A") == ["1", "2"]
        assert msg.headers["traceparent"] == f"00-{TRACE:032x}-b7ad6b7169203331-01"
        assert (await subscription.next(5)).raw[3] is None
