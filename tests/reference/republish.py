"""What a republished message looks like, said plainly."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RepublishModel:
    """`destinations` maps stored subjects to the ones to publish under."""

    stream: bytes
    destinations: dict[bytes, bytes]
    headers_only: bool
    last_seqs: dict[bytes, int] = field(default_factory=dict)
    sent: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)

    def stored(self, subject: bytes, header: bytes, payload: bytes, seq: int, time: bytes) -> None:
        previous = self.last_seqs.get(subject, 0)
        self.last_seqs[subject] = seq
        if subject not in self.destinations:
            return
        lines = header.split(b"\r\n")[:-2] if header else [b"NATS/1.0"]
        lines += [
            b"Nats-Stream: " + self.stream,
            b"Nats-Subject: " + subject,
            b"Nats-Sequence: %d" % seq,
            b"Nats-Time-Stamp: " + time,
            b"Nats-Last-Sequence: %d" % previous,
        ]
        if self.headers_only:
            lines.append(b"Nats-Msg-Size: %d" % len(payload))
            payload = b""
        self.sent.append((self.destinations[subject], b"\r\n".join([*lines, b"", b""]), payload))
