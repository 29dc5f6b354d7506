"""The publisher's side of a fast batch's flow control (ADR-50), without IO: how much may be sent, what was
said.

The server acks every `msgs` messages and says in each ack what `msgs` is from then on; the client lets at
most `outstanding` such acks be missing. An ack speaks for everything before it, so a lost one is made up for
by the next. When the last one is lost there is none: then a ping, which the server answers with its latest
ack.

Invariants: `acked <= sent`; nothing may be sent before the first answer, nor after the last one
(`is_over`). A ping never changes `sent`, so that a lost ping is no gap.

Theory of the absence of stalls: while `room` is 0 and the batch is not over, there is an ack that the server
has sent or will send once it has everything sent so far, or a ping will make it send its latest. After either
`acked` is what the server has acked and `msgs` what it uses. The server has acked all multiples of its `msgs`
that it received, and `outstanding >= 1`: room is there again.
"""

from __future__ import annotations

from penstock.errors import MisuseError
from penstock.protocol.api import ApiError, PubAck
from penstock.protocol.batch import (
    FLOW_MAX,
    BatchGap,
    BatchRefused,
    FastAnswer,
    FlowAck,
    Operation,
    reply_end,
)

OUTSTANDING_MAX = 3


class FlowWindow:
    """flow: the largest number of messages per ack this client wants; outstanding: acks that may be missing,
    1 to 3; gap_ok: lost messages don't end the batch."""

    def __init__(self, flow: int, outstanding: int, *, gap_ok: bool) -> None:
        if not 1 <= flow <= FLOW_MAX:
            raise MisuseError(f"flow is {flow}; an ack is for 1 to {FLOW_MAX} messages")
        if not 1 <= outstanding <= OUTSTANDING_MAX:
            raise MisuseError(f"outstanding_acks is {outstanding}; it may be 1, 2 or 3")
        self._flow = flow
        self._outstanding = outstanding
        self._gap_ok = gap_ok
        self.sent = 0  # the highest batch sequence used
        self.acked = 0  # the highest one the server has confirmed
        self.msgs = 0  # per ack; 0 before the first answer
        self.is_ending = (
            False  # a message was lost or refused and the mode is fail: only the last word is missing
        )
        self.final: PubAck | None = None
        self.gaps: list[BatchGap] = []
        self.refused: ApiError | None = None  # why the server did not take a message; the last one

    @property
    def is_over(self) -> bool:
        return self.final is not None

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        if self.is_over or self.is_ending:
            return 0
        if not self.msgs:
            return 0 if self.sent else 1
        return max(0, self.acked + self.msgs * self._outstanding - self.sent)

    def take(self, count: int = 1) -> int:
        """Uses the next `count` batch sequences; returns the first."""
        first = self.sent + 1
        self.sent += count
        return first

    def lost_commit(self, subject: bytes, answer: FastAnswer) -> bool:
        """Does the answer, which came on `subject`, mean that the commit (the last message sent) was lost in
        a batch that goes on? A gap says so, or the flow ack that a ping sent behind it got: had the commit
        arrived, the ping would have got the pub ack."""
        if not self._gap_ok:
            return False
        if isinstance(answer, BatchGap):
            return answer.seq > self.sent
        return isinstance(answer, FlowAck) and subject.endswith(b"." + reply_end(self.sent, Operation.PING))

    def on_answer(self, answer: FastAnswer) -> None:
        """What the server said. Acks may come late or twice; the newest counts."""
        if self.final is not None:
            return  # a message behind the end is answered too: no batch of that id is known
        if isinstance(answer, FlowAck):
            if answer.seq > self.sent:
                return  # not about what this client sent
            if answer.seq >= self.acked:
                self.acked = answer.seq
                self.msgs = min(max(answer.msgs, 1), self._flow)
        elif isinstance(answer, BatchGap):
            self.gaps.append(answer)
            self.is_ending = self.is_ending or not self._gap_ok
        elif isinstance(answer, BatchRefused):
            self.refused = answer.error
            self.is_ending = self.is_ending or not self._gap_ok
        else:
            self.final = answer
            if answer.error is None or answer.batch:  # the last word may name the error that ended the batch
                self.acked = max(self.acked, min(answer.count, self.sent))
