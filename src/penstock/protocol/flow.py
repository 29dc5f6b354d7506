"""Flow control of a fast batch publisher (ADR-50), without IO.

The server acks every `msgs` messages and states in each ack the value of `msgs` from then on. The client
allows at most `outstanding` acks to be missing. An ack covers everything before it, so the next ack makes up
for a lost one. If the last ack is lost, the client sends a ping, which the server answers with its latest
ack.

Invariants: `acked <= sent`; nothing may be sent before the first answer, nor after the final one (`is_over`).
A ping does not change `sent`, so that a lost ping is no gap.

Why it cannot stall: while `room` is 0 and the batch is not over, the server has sent or will send an ack once
it has everything sent so far, or a ping makes it repeat its latest ack. After either, `acked` and `msgs`
equal the server's values. The server has acked all multiples of its `msgs` that it received, and `outstanding
>= 1`, so there is room again.
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
    """The window of one batch.

    Args:
        flow: largest number of messages per ack that the client accepts.
        outstanding: number of acks that may be missing, 1 to 3.
        gap_ok: whether the batch continues after lost messages.
    """

    def __init__(self, flow: int, outstanding: int, *, gap_ok: bool) -> None:
        if not 1 <= flow <= FLOW_MAX:
            raise MisuseError(f"flow is {flow}; an ack is for 1 to {FLOW_MAX} messages")
        if not 1 <= outstanding <= OUTSTANDING_MAX:
            raise MisuseError(f"outstanding_acks is {outstanding}; it may be 1, 2 or 3")
        self._flow = flow
        self._outstanding = outstanding
        self._gap_ok = gap_ok
        self.sent = 0  # the highest batch sequence used
        self.acked = 0  # the highest batch sequence the server has confirmed
        self.msgs = 0  # per ack; 0 before the first answer
        self.is_ending = (
            False  # a message was lost or refused in a batch without gap_ok: only the final answer is missing
        )
        self.final: PubAck | None = None
        self.gaps: list[BatchGap] = []
        self.refused: ApiError | None = None  # error of the last refused message

    @property
    def is_over(self) -> bool:
        return self.final is not None

    @property
    def room(self) -> int:
        """Number of messages that may be sent now."""
        if self.is_over or self.is_ending:
            return 0
        if not self.msgs:
            return 0 if self.sent else 1
        return max(0, self.acked + self.msgs * self._outstanding - self.sent)

    def take(self, count: int = 1) -> int:
        """Takes the next `count` batch sequences; returns the first."""
        first = self.sent + 1
        self.sent += count
        return first

    def lost_commit(self, subject: bytes, answer: FastAnswer) -> bool:
        """Whether the answer, received on `subject`, means that the commit (the last message sent) was lost
        while the batch continues. That is a gap, or a flow ack for a ping sent after the commit: had the
        commit arrived, the ping's answer would be the pub ack."""
        if not self._gap_ok:
            return False
        if isinstance(answer, BatchGap):
            return answer.seq > self.sent
        return isinstance(answer, FlowAck) and subject.endswith(b"." + reply_end(self.sent, Operation.PING))

    def on_answer(self, answer: FastAnswer) -> None:
        """Processes an answer of the server. Acks may arrive late or twice; the newest one counts."""
        if self.final is not None:
            return  # answer to a message after the end: batch unknown
        if isinstance(answer, FlowAck):
            if answer.seq > self.sent:
                return  # not for a message of this client
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
            # A final answer with an error and a batch id still counts the messages stored before the error.
            if answer.error is None or answer.batch:
                self.acked = max(self.acked, min(answer.count, self.sent))
