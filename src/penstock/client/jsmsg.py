"""A message delivered by a consumer, and its acknowledgement.

Invariants: a message is settled (acked, naked, terminated) at most once by this client; delivery metadata is
parsed on first access. Acks are sent with the next write; only `ack_sync` waits for the server.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.client.config import to_ns
from penstock.client.message import Msg
from penstock.errors import MisuseError
from penstock.protocol import acks
from penstock.protocol.acks import AckSubject
from penstock.protocol.durations import NS_PER_S


class JsMsg(Msg):
    """A message delivered by a consumer."""

    _delivery: AckSubject | None = None
    _settled: bool = False

    @property
    def metadata(self) -> AckSubject:
        """Stream, consumer, sequences, time and counts of this delivery.

        Raises MisuseError if no consumer delivered the message.
        """
        delivery = self._delivery
        if delivery is None:
            delivery = self._delivery = acks.parse_reply(self.reply)
            if delivery is None:
                raise MisuseError(f"{self!r} has no JetStream metadata: it did not come from a consumer")
        return delivery

    @property
    def seq(self) -> int:
        """Stream sequence."""
        return self.metadata.stream_seq

    @property
    def time(self) -> datetime:
        """Store time in UTC, with microseconds; `metadata.timestamp_ns` has nanoseconds."""
        return datetime.fromtimestamp(self.metadata.timestamp_ns // NS_PER_S, tz=UTC) + timedelta(
            microseconds=self.metadata.timestamp_ns % NS_PER_S // 1000
        )

    @property
    def is_settled(self) -> bool:
        """Whether this client acked, naked or terminated it."""
        return self._settled

    def _settle(self) -> bytes:
        reply = self._raw[2]
        if not reply:
            raise MisuseError(f"{self!r} can not be acknowledged: it has no ack subject")
        if self._settled:
            raise MisuseError(f"{self!r} is already acknowledged")
        self._settled = True
        return reply

    async def ack(self) -> None:
        """Ack the message. Raises MisuseError if it is already settled, and what `Client.publish` raises."""
        await self._session.publish(self._settle(), None, None, acks.ACK)

    async def ack_sync(self, timeout: float | None = None) -> None:
        """Ack the message and wait for the server's confirmation. timeout: seconds.

        Raises RequestTimeoutError without a confirmation: the server may have processed the ack or not.
        """
        reply = self._settle()
        try:
            await self._session.request(reply, b"", acks.ACK, timeout)
        except BaseException:
            self._settled = False
            raise

    async def nak(self, delay: float | timedelta = 0.0) -> None:
        """Reject: the server redelivers it, at once or after `delay` (seconds or a timedelta)."""
        delay_ns = to_ns(delay, "delay")
        if delay_ns < 0:
            raise MisuseError(f"the delay of a nak is {delay!r}; it must not be negative")
        await self._session.publish(self._settle(), None, None, acks.build_nak(delay_ns))

    async def term(self, reason: str = "") -> None:
        """Terminate: the server never redelivers it. reason: included in the server's advisory."""
        await self._session.publish(self._settle(), None, None, acks.build_term(reason))

    async def in_progress(self) -> None:
        """Restart the ack wait. May be called repeatedly."""
        if self._settled or not self._raw[2]:
            self._settle()  # raises, saying why
        await self._session.publish(self._raw[2] or b"", None, None, acks.PROGRESS)
