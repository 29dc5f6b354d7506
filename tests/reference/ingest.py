"""A stream as dumb as it gets: a list of messages, and every rule spelt out over it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.records import counted


@dataclass
class Message:
    seq: int
    subject: bytes
    header: bytes
    payload: bytes
    ts: int


@dataclass
class StreamModel:
    """Limits as in a stream's configuration, -1 for none."""

    name: str = "S"
    max_msgs: int = -1
    max_bytes: int = -1
    max_msg_size: int = -1
    max_msgs_per_subject: int = -1
    discard_new: bool = False
    discard_new_per_subject: bool = False
    allow_rollup: bool = False
    duplicate_window: int = 0
    max_age: int = 0
    storage: str = "file"
    messages: list[Message] = field(default_factory=list)
    last_seq: int = 0
    last_id: bytes = b""
    ids: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # id -> (seq, ts)

    def publish(self, subject: bytes, headers: dict[str, str], payload: bytes, now: int) -> dict[str, object]:
        """What the pub ack says: {"seq": n}, {"seq": n, "duplicate": True} or {"err_code": n}."""
        header = encode(headers)
        if 0 <= self.max_msg_size < len(header) + len(payload):
            return {"err_code": 10054}
        refused = self.check_headers(subject, headers, now)
        if refused:
            return refused
        message = Message(self.last_seq + 1, subject, header, payload, now)
        if self.discard_new and (code := self.check_room(message)):
            return {"err_code": code}
        return self.store(message, headers, now)

    def store(self, message: Message, headers: dict[str, str], now: int) -> dict[str, object]:
        """What follows once nothing refused it."""
        subject = message.subject
        self.last_seq += 1
        self.messages.append(message)
        self.discard_old(subject)
        self.last_id = headers.get("Nats-Msg-Id", "").encode()
        if self.last_id and self.duplicate_window:
            self.ids[self.last_id] = (self.last_seq, now)
        rollup = headers.get("Nats-Rollup", "").lower()
        if rollup:
            self.messages = [
                m
                for m in self.messages
                if m.seq == self.last_seq or (rollup == "sub" and m.subject != subject)
            ]
        return {"seq": self.last_seq}

    def check_headers(self, subject: bytes, headers: dict[str, str], now: int) -> dict[str, object]:
        if headers.get("Nats-Expected-Stream", self.name) != self.name:
            return {"err_code": 10060}
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            last = max((m.seq for m in self.messages if m.subject == subject), default=0)
            if expected != str(last):
                return {"err_code": 10071}
        if headers.get("Nats-Expected-Last-Sequence", str(self.last_seq)) != str(self.last_seq):
            return {"err_code": 10071}
        known = self.ids.get(headers.get("Nats-Msg-Id", "").encode())
        if known is not None and known[1] > now - self.duplicate_window:
            return {"seq": known[0], "duplicate": True}
        if headers.get("Nats-Expected-Last-Msg-Id", self.last_id.decode()) != self.last_id.decode():
            return {"err_code": 10070}
        if headers.get("Nats-Rollup") and not self.allow_rollup:
            return {"err_code": 10111}
        return {}

    def check_room(self, message: Message) -> int:
        of_subject = [m for m in self.messages if m.subject == message.subject]
        replaced = 0
        if 0 < self.max_msgs_per_subject <= len(of_subject):
            if self.discard_new_per_subject:
                return 10077
            replaced = self.size_of(of_subject[0])
        if 0 < self.max_msgs <= len(self.messages) and not replaced:
            return 10077
        size = self.size_of(message)
        if 0 < self.max_bytes < self.bytes + size and size > replaced:
            return 10077
        return 0

    def discard_old(self, subject: bytes) -> None:
        if self.max_msgs_per_subject > 0:
            of_subject = [m.seq for m in self.messages if m.subject == subject]
            gone = set(of_subject[: -self.max_msgs_per_subject])
            self.messages = [m for m in self.messages if m.seq not in gone]
        if self.max_msgs > 0:
            self.messages = self.messages[-self.max_msgs :]
        while self.max_bytes > 0 and self.bytes > self.max_bytes:
            del self.messages[0]

    def expire(self, now: int) -> None:
        if self.max_age:
            self.messages = [m for m in self.messages if m.ts > now - self.max_age]

    @property
    def bytes(self) -> int:
        return sum(map(self.size_of, self.messages))

    def size_of(self, message: Message) -> int:
        return counted(self.storage, message.subject, message.header, message.payload)


def encode(headers: dict[str, str]) -> bytes:
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
