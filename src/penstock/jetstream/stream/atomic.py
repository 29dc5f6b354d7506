"""Atomic batches (ADR-50): messages that are stored all together, one behind the other, or not at all.

A message says in its headers which batch it belongs to, and its place there. Until the commit, messages wait
outside the stream, in memory: a restart abandons them, and the client is told so by its next message. The
commit is one step of the stream's state machine: every message is checked (`staged.py`), then all are stored
as one unit that the disk gives back whole or not at all.

Invariants: `open` is ordered by when something came of each batch last; every open batch counts once in the
server's total. Answers and advisories are those of the official server; so is the order of the checks.

Rejected: staging in files as the official server does (what is lost with the process was not acked as stored,
and the client has to be told either way); giving sequences before the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.limits import ATOMIC_INFLIGHT_PER_STREAM, ATOMIC_INFLIGHT_TOTAL
from penstock.jetstream.stream.ingest import record_size
from penstock.jetstream.stream.staged import BatchCheck, Checked, StagedMessage
from penstock.kernels.streamlog import BATCH_BYTES_MAX
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import encode
from penstock.protocol.batch import BATCH_ID_MAX

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream import Stream

TIMEOUT = "timeout"
INCOMPLETE = "incomplete"
LARGE = "large"
UNSUPPORTED = "unsupported"

EOB = b"eob"
_SEQ_DIGITS_MAX = 20
# What the checks add to headers (a roll-up, a TTL that is raised, a commit) has to fit too.
STAGED_BYTES_MAX = BATCH_BYTES_MAX // 2


class _OpenBatch:
    __slots__ = ("last_ns", "messages", "seq", "size")

    def __init__(self) -> None:
        self.messages: list[StagedMessage] = []
        self.seq = 0  # of the last message in the batch
        self.size = 0  # bytes of their records
        self.last_ns = 0


class AtomicBatches:
    """The open atomic batches of one stream."""

    def __init__(self, stream: Stream, context: BatchContext) -> None:
        self._stream = stream
        self._context = context
        self.open: dict[bytes, _OpenBatch] = {}

    def take(self, batch_id: bytes, message: StagedMessage, now: int) -> bytes:
        """One message of a batch, at `now` (ns); returns what it is answered with: nothing, or the pub ack.

        Raises JetStreamApiError: 10109 sealed, 10054 size, 10174 when the stream takes no batches, 10179 and
        10175 for id and sequence, 10210 for too many open ones, 10200, 10185, 10176, 10199; and on a commit
        what `staged.py` refuses.
        """
        config = self._stream.config
        if config.sealed:
            raise codes.STREAM_SEALED.exception()
        if 0 <= config.max_msg_size < len(message.header) + len(message.payload):
            raise codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.exception()
        if not config.allow_atomic:
            raise codes.ATOMIC_PUBLISH_DISABLED.exception()
        if len(batch_id) > BATCH_ID_MAX:
            raise codes.ATOMIC_PUBLISH_INVALID_BATCH_ID.exception()
        seq = _sequence(message.header)
        if seq is None:
            raise codes.ATOMIC_PUBLISH_MISSING_SEQ.exception()
        self.expire(now)  # of what time ended, no message may be taken
        commit = headers.value_of(message.header, headers.BATCH_COMMIT)
        size = seq - (commit == EOB)
        batch = self.open.pop(batch_id, None)
        if batch is None:
            self._check_opening(seq, size)
            self._context.inflight.atomic += 1
            batch = _OpenBatch()
        self._context.inflight.atomic -= 1  # unless it stays open
        message = self._checked(batch, batch_id, message, seq, commit)
        if commit is None:
            batch.last_ns = now
            self.open[batch_id] = batch
            self._context.inflight.atomic += 1
            return b""
        return self._commit(batch_id, batch, now, eob=commit == EOB)

    def _check_opening(self, seq: int, size: int) -> None:
        config = self._context.config()
        if seq != 1:
            if size > config.batch_messages_max:
                raise codes.ATOMIC_PUBLISH_TOO_LARGE_BATCH.exception(size=config.batch_messages_max)
            raise codes.ATOMIC_PUBLISH_INCOMPLETE_BATCH.exception()
        of_stream = config.batch_inflight_per_stream_max or ATOMIC_INFLIGHT_PER_STREAM
        total = config.batch_inflight_total_max or ATOMIC_INFLIGHT_TOTAL
        if len(self.open) >= of_stream or self._context.inflight.atomic >= total:
            raise codes.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT.exception()

    def _checked(
        self, batch: _OpenBatch, batch_id: bytes, message: StagedMessage, seq: int, commit: bytes | None
    ) -> StagedMessage:
        """Adds the message to the batch, or raises: then the batch is gone."""
        if commit not in (None, EOB, b"1"):
            raise codes.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT.exception()
        required = headers.value_of(message.header, headers.REQUIRED_API_LEVEL)
        if required:
            if not (required.isdigit() and int(required) <= self._stream.api_level):
                self._tell(batch_id, UNSUPPORTED)
                raise codes.REQUIRED_API_LEVEL.exception()
            message = message._replace(header=headers.without(message.header, headers.REQUIRED_API_LEVEL))
        batch.seq += 1
        if batch.seq != seq or (commit == EOB and seq == 1):
            self._tell(batch_id, INCOMPLETE)
            raise codes.ATOMIC_PUBLISH_INCOMPLETE_BATCH.exception()
        if commit == EOB:
            return message
        batch.messages.append(message)
        batch.size += record_size(message.subject, message.header, len(message.payload))
        most = self._context.config().batch_messages_max
        if len(batch.messages) > most or batch.size > STAGED_BYTES_MAX:
            self._tell(batch_id, LARGE)
            raise codes.ATOMIC_PUBLISH_TOO_LARGE_BATCH.exception(size=most)
        return message

    def _commit(self, batch_id: bytes, batch: _OpenBatch, now: int, *, eob: bool) -> bytes:
        check = BatchCheck(self._stream, now)
        messages = batch.messages
        if eob:  # before the checks: the stream has to have room for the header too
            header = headers.with_value(messages[-1].header, headers.BATCH_COMMIT, "1")
            messages[-1] = messages[-1]._replace(header=header)
        checked = [check.decide(message) for message in messages]
        seq = self._stream.store_batch(checked, now)
        ack = encode({"batch": batch_id.decode("utf-8", "replace"), "count": len(checked)})
        return b"%s%d,%s" % (self._stream.ack_prefix, seq, ack[1:])

    def expire(self, now: int) -> None:
        """Abandons the batches of which nothing came for too long."""
        if not self.open:
            return
        timeout_ns = self._context.config().batch_timeout_ns
        for batch_id, batch in list(self.open.items()):
            if batch.last_ns + timeout_ns > now:
                return
            del self.open[batch_id]
            self._context.inflight.atomic -= 1
            self._tell(batch_id, TIMEOUT)

    def next_deadline(self) -> int | None:
        """When (ns) `expire` has work; None when nothing is open."""
        for batch in self.open.values():
            return batch.last_ns + self._context.config().batch_timeout_ns
        return None

    def drop(self) -> None:
        """Forgets all open batches: the stream is closed, or takes no more."""
        self._context.inflight.atomic -= len(self.open)
        self.open.clear()

    def _tell(self, batch_id: bytes, reason: str) -> None:
        self._context.abandoned(self._stream.name, batch_id.decode("utf-8", "replace"), reason)


def bytes_of(checked: list[Checked]) -> int:
    """Bytes the records of a batch take."""
    return sum(record_size(one.subject, one.decision.header, len(one.payload)) for one in checked)


def _sequence(header: bytes) -> int | None:
    value = headers.value_of(header, headers.BATCH_SEQUENCE)
    if value is None or not value.isdigit() or len(value) > _SEQ_DIGITS_MAX:
        return None
    return int(value)
