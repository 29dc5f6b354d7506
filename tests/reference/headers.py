"""Which header blocks ask for a message's trace: line by line."""

from __future__ import annotations


def asks_for_trace(block: bytes, parent: bool) -> bool:
    lines = block.split(b"\n")[1:]
    if any(line.startswith(b"Nats-Trace-Dest:") for line in lines):
        return True
    return parent and any(line[:12].lower() == b"traceparent:" for line in lines)
