"""Fast batches the slow way: the grammar as one expression, and one batch's flow control."""

from __future__ import annotations

import re
from dataclasses import dataclass

SUBJECT = re.compile(
    rb"(?P<prefix>.+)\.(?P<id>[^.]+)\.(?P<flow>[^.]*)\.(?P<gap>ok|fail)\.(?P<seq>[0-9]+)\.(?P<op>[0-4])\.\$FI",
    re.DOTALL,
)


def parse(reply: bytes) -> tuple[bytes, int, bool, int, int] | None:
    found = SUBJECT.fullmatch(reply)
    if found is None:
        return None
    seq, operation = int(found["seq"]), int(found["op"])
    if not 0 < seq < 2**64 - 1:
        return None
    if (operation == 0 and seq != 1) or (operation in (1, 3) and seq == 1):
        return None
    flow = int(found["flow"]) if found["flow"].isdigit() else 0
    return found["id"], min(flow or 10, 65535), found["gap"] == b"ok", seq, operation


@dataclass
class BatchModel:
    """A batch whose every message arrives in order."""

    flow: int
    msgs: int
    seq: int = 0
    acked: int = 0

    @property
    def is_due(self) -> bool:
        return self.seq - self.acked >= self.msgs

    def ack(self, limit: int) -> tuple[int, int]:
        """(acked, msgs) of the flow ack."""
        while self.seq - self.acked >= self.msgs:
            self.acked += self.msgs
        limit = max(1, min(limit, self.flow))
        if self.msgs < limit:
            self.msgs = min(self.msgs * 2, limit)
        elif self.msgs > limit:
            self.msgs = max(self.msgs // 2, limit)
            while self.seq - self.acked >= self.msgs:
                self.acked += self.msgs
        return self.acked, self.msgs
