"""Advisories, metrics and server events as text.

Every event is a JSON object with a `type` such as `io.nats.jetstream.advisory.v1.max_deliver`. Known types
have a summary of one line; any other one is shown by its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.cli.framework.value_texts import duration_text, time_text

Event = Mapping[str, Any]


def _client(event: Event) -> str:
    client = event.get("client") or {}
    name = client.get("name") or client.get("user") or f"cid {client.get('id', '')}"
    return f"{name} of account {client.get('acc', '')} from {client.get('host', '')}"


def _consumer(event: Event) -> str:
    return f"{event.get('stream', '')} > {event.get('consumer', '')}"


_SUMMARIES: dict[str, Callable[[Event], str]] = {
    "client_connect": lambda event: f"{_client(event)} connected",
    "client_disconnect": lambda event: f"{_client(event)} disconnected: {event.get('reason', '')}",
    "api_audit": lambda event: f"{event.get('subject', '')} by {_client(event)}",
    "stream_action": lambda event: f"{event.get('action', '')} of stream {event.get('stream', '')}",
    "consumer_action": lambda event: f"{event.get('action', '')} of consumer {_consumer(event)}",
    "max_deliver": lambda event: (
        f"{_consumer(event)}: message {event.get('stream_seq')} was delivered {event.get('deliveries')} times"
    ),
    "nak": lambda event: f"{_consumer(event)}: message {event.get('stream_seq')} was rejected",
    "terminated": lambda event: (
        f"{_consumer(event)}: message {event.get('stream_seq')} was terminated {event.get('reason', '')}"
    ).rstrip(),
    "consumer_ack": lambda event: (
        f"{_consumer(event)}: message {event.get('stream_seq')} was acked after "
        f"{duration_text(event.get('ack_time', 0) / 1e9)}"
    ),
    "stream_leader_elected": lambda event: (
        f"stream {event.get('stream', '')} is led by {event.get('leader', '')}"
    ),
    "consumer_leader_elected": lambda event: f"{_consumer(event)} is led by {event.get('leader', '')}",
    "stream_quorum_lost": lambda event: f"stream {event.get('stream', '')} has lost its quorum",
    "consumer_quorum_lost": lambda event: f"{_consumer(event)} has lost its quorum",
}


def event_kind(event: Event) -> str:
    """The last part of an event's type: `max_deliver`; "" for an object without a type."""
    return str(event.get("type", "")).rpartition(".")[2]


def event_title(event: Event) -> str:
    """`Max deliver`."""
    return event_kind(event).replace("_", " ").capitalize() or "Event"


def event_line(subject: str, event: Event) -> str:
    """An event on one line: its time, kind and summary."""
    when = time_text(str(event.get("timestamp", "")))
    make = _SUMMARIES.get(event_kind(event))
    return f"[{when}] [{event_title(event)}] {make(event) if make is not None else subject}"


def event_rows(event: Event, prefix: str = "") -> list[tuple[str, object]]:
    """All fields of an event but its type, id and time, nested ones with dots."""
    rows: list[tuple[str, object]] = []
    for key, value in event.items():
        if not prefix and key in ("type", "id", "timestamp"):
            continue
        if isinstance(value, Mapping):
            rows += event_rows(value, f"{prefix}{key}.")
        elif value not in ("", None, []):
            rows.append((f"{prefix}{key}", value))
    return rows


def cloud_event(event: Event) -> dict[str, Any]:
    """An event as a CloudEvent (version 1.0)."""
    return {
        "type": event.get("type", ""),
        "time": event.get("timestamp", ""),
        "id": event.get("id", ""),
        "source": "urn:nats",
        "specversion": "1.0",
        "subject": "event",
        "data": event,
    }
