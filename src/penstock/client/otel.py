"""OpenTelemetry for the client: `penstock.connect(url, tracing=OpenTelemetry())` (extra `[otel]`).

Publishes and requests carry the current context (`traceparent`, `tracestate`, `baggage`: whatever the
configured propagator writes). Each handled message gets a span of its own, a child of its publisher's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.client.message import HeadersLike, Msg, merge_headers
from penstock.client.service_endpoints import ServiceMsg
from penstock.extras import need

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider


class OpenTelemetry:
    """A `Tracing` that uses OpenTelemetry's API.

    tracer_provider, propagator: default the global ones. Raises MissingExtraError.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        need("tracing by OpenTelemetry", "otel")
        from opentelemetry import propagate, trace

        self._kinds = trace.SpanKind
        self._tracer = trace.get_tracer("penstock.client", tracer_provider=tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()

    def inject(self, headers: HeadersLike | None) -> HeadersLike | None:
        """The headers with the current context."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return merge_headers(headers, carrier) if carrier else headers

    @contextmanager
    def handling(self, msg: Msg) -> Iterator[Any]:
        """A span for processing the message: of kind SERVER for a service's request, else CONSUMER."""
        headers = msg.headers
        parent = self._propagator.extract({name: headers[name] for name in headers})
        is_request = isinstance(msg, ServiceMsg)
        with self._tracer.start_as_current_span(
            f"process {msg.subject}",
            context=parent,
            kind=self._kinds.SERVER if is_request else self._kinds.CONSUMER,
            attributes={
                "messaging.system": "nats",
                "messaging.operation.type": "process",
                "messaging.destination.name": msg.subject,
                "messaging.message.body.size": len(msg.data),
            },
        ) as span:
            yield span
