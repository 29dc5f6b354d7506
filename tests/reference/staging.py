"""Atomic batches as dumb as they get: dicts and lists, and what a commit without odd headers may store."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.ingest import Message, StreamModel, encode
from tests.reference.records import counted

Headers = dict[str, str]
Staged = tuple[bytes, Headers, bytes]  # subject, headers, payload

KNOWN = {
    "Nats-Batch-Id",
    "Nats-Batch-Sequence",
    "Nats-Batch-Commit",
    "Nats-Msg-Id",
    "Nats-Expected-Stream",
    "Nats-Expected-Last-Sequence",
    "Nats-Expected-Last-Subject-Sequence",
    "Nats-Expected-Last-Msg-Id",
}


def is_plain(headers: Headers) -> bool:
    """Does the kernel understand the block?"""
    names = [name for name in headers if name.startswith("Nats-")]
    batched = {name for name in names if name.startswith("Nats-Batch-")}
    seq = headers.get("Nats-Batch-Sequence", "1")
    return (
        set(names) <= KNOWN
        and (not batched or {"Nats-Batch-Id", "Nats-Batch-Sequence"} <= batched)
        and headers.get("Nats-Batch-Id", "x") != ""
        and seq.isascii()
        and seq.isdigit()
        and len(seq) <= 9
    )


def size_of(staged: Staged) -> int:
    """Bytes of the record."""
    subject, headers, payload = staged
    return counted("file", subject, encode(headers), payload)


@dataclass
class StagingModel:
    messages_max: int
    size_max: int
    check_at: int
    open: dict[str, list[Staged]] = field(default_factory=dict)

    def take(self, staged: Staged, now: int) -> bool:
        """Is it simply the next message of an open batch? Then it is taken."""
        headers = staged[1]
        if not is_plain(headers) or "Nats-Batch-Commit" in headers or now >= self.check_at:
            return False
        batch = self.open.get(headers.get("Nats-Batch-Id", ""))
        if batch is None or int(headers["Nats-Batch-Sequence"]) != len(batch) + 1:
            return False
        if len(batch) == self.messages_max or sum(map(size_of, [*batch, staged])) > self.size_max:
            return False
        batch.append(staged)
        return True


def may_store(stream: StreamModel, batch: list[Staged], now: int) -> bool:
    """Would every message be stored, each checked against the stream as it is before the batch?"""
    ids: set[str] = set()
    written: set[bytes] = set()
    if not batch or not all(is_plain(headers) for _, headers, _ in batch):
        return False
    if stream.discard_new:
        if 0 < stream.max_msgs < len(stream.messages) + len(batch):
            return False
        messages = (Message(0, subject, encode(headers), payload, now) for subject, headers, payload in batch)
        if 0 < stream.max_bytes < stream.bytes + sum(map(stream.size_of, messages)):
            return False
    for n, (subject, headers, _) in enumerate(batch):
        if headers.get("Nats-Expected-Last-Msg-Id") or (n and headers.get("Nats-Expected-Last-Sequence")):
            return False
        if headers.get("Nats-Expected-Last-Subject-Sequence") and subject in written:
            return False
        msg_id = headers.get("Nats-Msg-Id", "")
        if msg_id and msg_id in ids:
            return False
        if stream.check_headers(subject, {name: value for name, value in headers.items() if value}, now):
            return False
        ids.add(msg_id)
        written.add(subject)
    return True
