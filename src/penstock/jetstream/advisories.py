"""Advisories and metrics: JSON events about assets and API requests, published only to existing subscribers.

Subjects and types are those of the official server. Publisher, ids and time are passed in, so that a repeated
run produces the same advisories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.api import encode
from penstock.protocol.durations import format_time

PREFIX = "$JS.EVENT.ADVISORY."
TYPE_PREFIX = "io.nats.jetstream.advisory.v1."
METRIC_PREFIX = "$JS.EVENT.METRIC."
METRIC_TYPE_PREFIX = "io.nats.jetstream.metric.v1."


class Advisories:
    """Publishes into one account. clock: ns since epoch; new_id: an unused id."""

    def __init__(
        self,
        index: SubscriptionIndex,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        domain: str = "",
    ) -> None:
        self._index = index
        self._clock = clock
        self._new_id = new_id
        self._domain = domain

    def wanted(self, suffix: str) -> bool:
        """Whether `$JS.EVENT.ADVISORY.<suffix>` has a subscriber."""
        return self._index.has_interest((PREFIX + suffix).encode())

    def publish(self, suffix: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Publishes an advisory of type `kind` (without the common prefix) to
        `$JS.EVENT.ADVISORY.<suffix>`."""
        if self.wanted(suffix):
            self._publish(PREFIX + suffix, TYPE_PREFIX + kind, fields)

    def metric_wanted(self, suffix: str) -> bool:
        """Whether `$JS.EVENT.METRIC.<suffix>` has a subscriber."""
        return self._index.has_interest((METRIC_PREFIX + suffix).encode())

    def metric(self, suffix: str, kind: str, fields: Mapping[str, Any]) -> None:
        """Publishes a metric of type `kind` (without the common prefix) to `$JS.EVENT.METRIC.<suffix>`."""
        self._publish(METRIC_PREFIX + suffix, METRIC_TYPE_PREFIX + kind, fields)

    def _publish(self, subject: str, kind: str, fields: Mapping[str, Any]) -> None:
        body = {
            "type": kind,
            "id": self._new_id(),
            "timestamp": format_time(self._clock()),
            **fields,
        }
        if self._domain:
            body["domain"] = self._domain
        publish(self._index, subject.encode(), b"", b"", encode(body))

    def stream_action(self, stream: str, action: str) -> None:
        """Reports that a stream was created ("create"), updated ("modify") or deleted ("delete")."""
        suffix = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
        self.publish(f"STREAM.{suffix}.{stream}", "stream_action", {"stream": stream, "action": action})

    def consumer_action(self, stream: str, consumer: str, action: str) -> None:
        """Reports that a consumer was created ("create") or deleted ("delete")."""
        suffix = {"create": "CREATED", "delete": "DELETED"}[action]
        self.publish(
            f"CONSUMER.{suffix}.{stream}.{consumer}",
            "consumer_action",
            {"stream": stream, "consumer": consumer, "action": action},
        )

    def batch_abandoned(self, stream: str, batch: str, reason: str) -> None:
        """Reports an abandoned batch; reason: "timeout", "incomplete", "large" or "unsupported" (ADR-50)."""
        self.publish(
            f"STREAM.BATCH_ABANDONED.{stream}",
            "batch_abandoned",
            {"stream": stream, "batch": batch, "reason": reason},
        )
