"""Atomic batches (ADR-50): messages that are stored contiguously, all or none.

Headers name the batch of a message and its position there. Until the commit, messages wait outside the
stream, in memory (kernels/ingest/batches.pyx): a restart abandons them, and the client learns it from the
response to its next message. The kernel stages plain further messages without Python; this module handles the
rest. A commit is one step of the stream's state machine: every message is checked, by the kernel where its
headers are ordinary (kernels/ingest/batches.pyx), else by `staged.py`. Then all are stored as one
unit, which recovery restores as a whole or not at all.

Invariants: every open batch counts once in the server's total. Responses, advisories and the order of checks
are those of the official server. In addition, all open batches of the server together hold at most
`batch_bytes_max` bytes; a message above that is rejected like a batch above the maximum count.

Rejected: staging in files, as the official server does (messages lost with the process were not acked as
stored, and the client needs the error either way); assigning sequences before the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import JetStreamApiError
from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.stream.staged import BatchCheck, Checked, StagedMessage
from penstock.kernels.ingest.batches import StagedBatch, StagedBatches, StagedTotal
from penstock.kernels.log.records import size_of
from penstock.kernels.log.stream_log import BATCH_BYTES_MAX
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import encode
from penstock.protocol.batch import BATCH_ID_MAX

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

TIMEOUT = "timeout"
INCOMPLETE = "incomplete"
LARGE = "large"
UNSUPPORTED = "unsupported"

EOB = b"eob"
_SEQ_DIGITS_MAX = 20
# Room for what the checks add to headers: a roll-up, a raised TTL, a commit.
STAGED_BYTES_MAX = BATCH_BYTES_MAX // 2


class AtomicBatches:
    """The open atomic batches of one stream. `staged` holds their messages."""

    def __init__(self, stream: StreamReplica, context: BatchContext) -> None:
        self._stream = stream
        self._context = context
        self.staged = StagedBatches()
        self.total = StagedTotal(whole=context.inflight.staged)

    def take(self, batch_id: bytes, message: StagedMessage, now: int) -> bytes:
        """Handles one message of a batch, at `now` (ns). Returns the response: nothing, or the pub ack.

        Raises JetStreamApiError: 10109 sealed, 10054 size, 10174 when the stream does not allow batches,
        10179 and 10175 for id and sequence, 10210 for too many open batches or staged bytes, 10200, 10185,
        10176, 10199; and on a commit those of `staged.py`.
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
        self.expire(now)  # a batch that timed out accepts no message
        commit = headers.value_of(message.header, headers.BATCH_COMMIT)
        batch = self.staged.find(batch_id) or self._open(batch_id, seq, seq - (commit == EOB), now)
        try:
            self._stage(batch, message, seq, commit)
            if commit is not None:
                return self._commit(batch, now, eob=commit == EOB)
        except JetStreamApiError:
            self._close(batch)
            raise
        self.staged.heard(batch, now, self._stream.batch_limits.timeout_ns)
        return b""

    def _open(self, batch_id: bytes, seq: int, size: int, now: int) -> StagedBatch:
        limits = self._stream.batch_limits
        if seq != 1:
            if size > limits.messages_max:
                raise codes.ATOMIC_PUBLISH_TOO_LARGE_BATCH.exception(size=limits.messages_max)
            raise codes.ATOMIC_PUBLISH_INCOMPLETE_BATCH.exception()
        if self.staged.count >= limits.atomic_end:
            raise codes.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT.exception()
        self._context.inflight.opened()
        batch = self.staged.open(batch_id, self.total, limits.messages_max, STAGED_BYTES_MAX)
        self.staged.heard(batch, now, limits.timeout_ns)
        return batch

    def _close(self, batch: StagedBatch) -> None:
        self.staged.close(batch)
        self._context.inflight.closed()

    def _stage(self, batch: StagedBatch, message: StagedMessage, seq: int, commit: bytes | None) -> None:
        """Adds the message to the batch. An error abandons the batch."""
        if commit not in (None, EOB, b"1"):
            raise codes.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT.exception()
        header = message.header
        required = headers.value_of(header, headers.REQUIRED_API_LEVEL)
        if required:
            if not headers.api_level_suffices(header, self._stream.api_level):
                self._tell(batch, UNSUPPORTED)
                raise codes.REQUIRED_API_LEVEL.exception()
            header = headers.without(header, headers.REQUIRED_API_LEVEL)
        if batch.next_seq() != seq or (commit == EOB and seq == 1):
            self._tell(batch, INCOMPLETE)
            raise codes.ATOMIC_PUBLISH_INCOMPLETE_BATCH.exception()
        if commit == EOB:
            return
        batch.append(message.subject, header, message.payload)
        most = self._stream.batch_limits.messages_max
        if batch.count > most or batch.size > STAGED_BYTES_MAX:
            self._tell(batch, LARGE)
            raise codes.ATOMIC_PUBLISH_TOO_LARGE_BATCH.exception(size=most)
        if batch.total.bytes > batch.total.bytes_max:
            if seq > 1:
                self._tell(batch, LARGE)
            raise codes.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT.exception()

    def _commit(self, batch: StagedBatch, now: int, *, eob: bool) -> bytes:
        stream = self._stream
        count = batch.count
        if eob:  # before the checks: the header counts towards the size limits
            batch.replace_last_header(headers.with_value(batch.last_header, headers.BATCH_COMMIT, "1"))
        if stream.may_store_staged(batch, now):
            seq = stream.store_staged(batch, now)
        else:
            check = BatchCheck(stream, now)
            checked = [check.decide(StagedMessage(*message)) for message in batch.messages()]
            seq = stream.store_batch(checked, now)
        self._close(batch)
        ack = encode({"batch": batch.id.decode("utf-8", "replace"), "count": count})
        return b"%s%d,%s" % (stream.ack_prefix, seq, ack[1:])

    def restore(
        self,
        batches: list[tuple[bytes, int, int, list[tuple[bytes, bytes, bytes]]]],
        check_at: int,
        bytes_max: int,
    ) -> None:
        """Takes over the open batches of another replica: (id, sequence, last message at, messages). Raises
        ValueError."""
        limits = self._stream.batch_limits
        for batch_id, seq, heard_ns, messages in batches:
            self._context.inflight.opened()
            batch = self.staged.open(batch_id, self.total, limits.messages_max, bytes_max)
            for message in messages:
                batch.append(*message)
            if seq > len(messages) + 1:
                raise ValueError(f"batch {batch_id!r} of {len(messages)} messages is at {seq}")
            while batch.seq < seq:
                batch.next_seq()
            self.staged.heard(batch, heard_ns, limits.timeout_ns)
        self.staged.check_from(check_at)

    def expire(self, now: int) -> None:
        """Abandons batches without a message for the timeout."""
        if now < self.staged.check_at:
            return
        timeout_ns = self._stream.batch_limits.timeout_ns
        for batch in self.staged.all():
            if batch.heard_ns + timeout_ns > now:
                self.staged.check_from(batch.heard_ns + timeout_ns)
                return
            self._close(batch)
            self._tell(batch, TIMEOUT)

    def next_deadline(self) -> int | None:
        """When (ns) `expire` is due; None without open batches."""
        return self.staged.check_at if self.staged.count else None

    def drop(self) -> None:
        """Drops all open batches: the stream is closed, or no longer allows them."""
        for batch in self.staged.all():
            self._close(batch)

    def _tell(self, batch: StagedBatch, reason: str) -> None:
        self._stream.effects.abandoned(batch.id, reason)


def bytes_of(checked: list[Checked]) -> int:
    """Bytes of a batch's records."""
    return sum(size_of(len(one.subject), len(one.decision.header), len(one.payload)) for one in checked)


def _sequence(header: bytes) -> int | None:
    value = headers.value_of(header, headers.BATCH_SEQUENCE)
    if value is None or not value.isdigit() or len(value) > _SEQ_DIGITS_MAX:
        return None
    return int(value)
