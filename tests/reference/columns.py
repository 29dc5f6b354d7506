"""ColumnBuilder the obvious way: Python objects for every frame, no buffers, no batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

ADDED_BY_DIRECT_GET = {
    b"Nats-Stream",
    b"Nats-Subject",
    b"Nats-Sequence",
    b"Nats-Time-Stamp",
    b"Nats-Num-Pending",
    b"Nats-Last-Sequence",
    b"Nats-UpTo-Sequence",
}


@dataclass
class Frame:
    """What one frame of the wire says; `op` is MSG, HMSG or the verb of a control frame."""

    op: str
    sid: bytes = b""
    subject: bytes = b""
    reply: bytes = b""
    header: bytes = b""
    payload: bytes = b""

    def encode(self) -> bytes:
        if self.op == "PING":
            return b"PING\r\n"
        if self.op == "INFO":
            return b"INFO " + self.payload + b"\r\n"
        head = [self.op.encode(), self.subject, self.sid]
        if self.reply:
            head.append(self.reply)
        if self.op == "HMSG":
            head.append(str(len(self.header)).encode())
        head.append(str(len(self.header) + len(self.payload)).encode())
        return b" ".join(head) + b"\r\n" + self.header + self.payload + b"\r\n"


@dataclass
class Row:
    subject: bytes
    seq: int
    time_us: int
    headers: list[tuple[bytes, list[bytes]]]
    data: bytes


@dataclass
class ColumnsModel:
    sid: bytes
    direct: bool
    next_seq: int
    end_seq: int
    consumer_seq: int = 0
    pending: int = 0
    rows: list[Row] = field(default_factory=list)

    def take(self, frame: Frame) -> str:
        """What the builder would say about one frame: row, end, gap, status, message or control.

        At `end` the frame was looked at only when the range was not already read.
        """
        if self.next_seq >= self.end_seq:
            return "end"
        if frame.op not in ("MSG", "HMSG"):
            return "control"
        if frame.sid != self.sid:
            return "message"
        row = self.direct_row(frame) if self.direct else self.consumer_row(frame)
        if row is None:
            return "status"
        if not self.direct:
            position = parse_ack(frame.reply)
            assert position is not None
            if position[1] != self.consumer_seq + 1:
                return "gap"
            self.consumer_seq += 1
        if row.seq < self.next_seq:
            return "gap"
        if row.seq >= self.end_seq:
            self.next_seq = self.end_seq
            return "end"
        self.rows.append(row)
        self.next_seq = row.seq + 1
        return "row"

    def consumer_row(self, frame: Frame) -> Row | None:
        position = parse_ack(frame.reply)
        if position is None:
            return None
        seq, _, ts, _ = position
        return Row(frame.subject, seq, ts // 1000, parse_headers(frame.header), frame.payload)

    def direct_row(self, frame: Frame) -> Row | None:
        first = frame.header.split(b"\r\n")[0]
        if first[9:12].isdigit() and first.startswith(b"NATS/1.0 "):
            return None
        found = parse_headers(frame.header)
        last = {name: values[-1] for name, values in found}
        try:
            seq = int(last[b"Nats-Sequence"])
            time_us = parse_time(last[b"Nats-Time-Stamp"].decode())
            subject = last[b"Nats-Subject"]
        except (KeyError, ValueError):
            return None
        own = [(name, values) for name, values in found if name not in ADDED_BY_DIRECT_GET]
        return Row(subject, seq, time_us, own, frame.payload)


def parse_ack(subject: bytes) -> tuple[int, int, int, int] | None:
    """(stream sequence, consumer sequence, time in ns, pending) of an ack subject."""
    tokens = subject.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"]:
        return None
    if len(tokens) == 9:
        numbers = tokens[5:9]
    elif len(tokens) >= 11:
        numbers = tokens[7:11]
    else:
        return None
    if not all(n.isdigit() and len(n) <= 19 and int(n) < 1 << 63 for n in numbers):
        return None
    seq, consumer_seq, ts, pending = map(int, numbers)
    return seq, consumer_seq, ts, pending


def parse_headers(block: bytes) -> list[tuple[bytes, list[bytes]]]:
    """Names in order of appearance, each with its values in order."""
    found: dict[bytes, list[bytes]] = {}
    for line in block.split(b"\n")[1:]:
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and name:
            found.setdefault(name, []).append(value.strip(b" \t"))
    return list(found.items())


def parse_time(text: str) -> int:
    """RFC3339 with up to nanoseconds, in microseconds since the epoch."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + int((fraction + "000000")[:6])
