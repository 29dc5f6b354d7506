"""Streams whose payloads need more than Arrow to read, for the Spark tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping

from tests.support.protobuf_shop import shop_class
from tests.support.spark import Feed


def header_block(headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def protobuf_stream(feed: Feed, name: str, count: int) -> None:
    """Orders 0 to count-1, gzipped, with a payload between them that is none."""
    feed.create(name, [f"{name}.>"])
    make = shop_class()
    messages = []
    for i in range(count):
        order = make(id=i, name=f"order {i}", state=i % 2, numbers=range(i % 3))
        order.lines.add(sku=f"s{i}", count=i)
        order.at.FromSeconds(1_767_225_600 + i)
        messages.append((f"{name}.{i}", gzip.compress(order.SerializeToString())))
    feed.publish([*messages, (f"{name}.bad", b"none")])


def event_stream(feed: Feed, name: str) -> None:
    """Two events, one in each mode, and a message that is none."""
    feed.create(name, [f"{name}.>"])
    binary = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/shop",
        "ce-type": "order.paid",
        "ce-time": "2026-01-31T12:00:00Z",
        "ce-tenant": "a%20b",
    }
    event = {"specversion": "1.0", "id": "2", "source": "/shop", "type": "order.sent", "data": {"n": 2}}
    structured = {"Content-Type": "application/cloudevents+json"}
    feed.publish(
        [
            (f"{name}.a", b'{"n": 1}', header_block(binary)),
            (f"{name}.b", json.dumps(event).encode(), header_block(structured)),
            (f"{name}.c", b'{"n": 3}'),
        ]
    )
