"""Fast batches the slow way: frames of appends, and a server's side of the flow control."""

from __future__ import annotations

from dataclasses import dataclass


def appends(subject: bytes, prefix: bytes, seq: int, payloads: list[bytes]) -> bytes:
    frames = [
        b"PUB %b %b%d.1.$FI %d\r\n%b\r\n" % (subject, prefix, seq + i, len(payload), payload)
        for i, payload in enumerate(payloads)
    ]
    return b"".join(frames)


@dataclass
class FlowServer:
    """Acks when `msgs` messages came since the last ack, with a `msgs` that changes as the test says."""

    msgs: int
    received: int = 0
    acked: int = 0

    def first(self) -> tuple[int, int]:
        return 0, self.msgs

    def receive(self, msgs_next: int) -> tuple[int, int] | None:
        """One message; the ack (seq, msgs) it makes, if any."""
        self.received += 1
        if self.received < self.acked + self.msgs:
            return None
        self.acked, self.msgs = self.received, msgs_next
        return self.acked, self.msgs

    def ping(self) -> tuple[int, int]:
        return self.acked, self.msgs
