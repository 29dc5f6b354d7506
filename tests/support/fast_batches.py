"""A publisher of one fast batch in the test's own hands, on an EngineHarness."""

from __future__ import annotations

import json
from typing import Any

from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness

START, APPEND, COMMIT, EOB, PING = range(5)


class FastPublisher:
    """Sends what the test asks for, in order or not; `heard` are the answers since the last look."""

    def __init__(
        self,
        harness: EngineHarness,
        batch_id: str = "id",
        *,
        gap: str = "fail",
        flow: int = 10,
        prefix: str = "_INBOX.p",
        subject: str = "s.a",
    ) -> None:
        self.harness = harness
        self.subject = subject.encode()
        self.head = f"{prefix}.{batch_id}.{flow}.{gap}."
        self._heard = harness.listen(f"{prefix}.{batch_id}.>".encode())

    def send(self, seq: int, operation: int, payload: bytes = b"x", header: bytes = b"") -> None:
        """One message; nothing happens to it before the next tick."""
        publish(
            self.harness.index, self.subject, f"{self.head}{seq}.{operation}.$FI".encode(), header, payload
        )

    def append(self, first: int, last: int) -> None:
        """Ordinary messages first..last."""
        for seq in range(first, last + 1):
            self.send(seq, APPEND, b"%d" % seq)

    def heard_raw(self) -> list[tuple[bytes, bytes]]:
        """The tick, and what was answered: subjects and texts."""
        self.harness.tick()
        found = [(subject, payload) for subject, _, payload in self._heard]
        self._heard.clear()
        return found

    def heard(self) -> list[dict[str, Any]]:
        """The tick, and what was answered."""
        return [json.loads(payload) for _, payload in self.heard_raw()]

    def ask(
        self, seq: int, operation: int, payload: bytes = b"x", header: bytes = b""
    ) -> list[dict[str, Any]]:
        """One message, and the answers of its tick."""
        self.send(seq, operation, payload, header)
        return self.heard()


def flow(seq: int, msgs: int) -> dict[str, Any]:
    """A flow ack."""
    return {"type": "ack", "seq": seq, "msgs": msgs, "ack_msgs": msgs}


def gap(last_seq: int, seq: int) -> dict[str, Any]:
    """A gap message."""
    return {"type": "gap", "last_seq": last_seq, "seq": seq}


def final(seq: int, count: int, batch: str = "id", **more: Any) -> dict[str, Any]:
    """The last pub ack."""
    return {"stream": "S", "seq": seq, "batch": batch, "count": count, **more}
