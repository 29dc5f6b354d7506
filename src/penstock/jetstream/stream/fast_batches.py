"""Server side of fast ingest (ADR-50): batches of any size, with flow control instead of acks.

The ingest kernel stores the next messages of open batches itself. This module handles everything else:
starts, gaps, rejected messages, pings and ends. Responses are collected with the stream's acks, so they leave
after the write; a run makes one flow ack per batch.

Invariants:
- With gap mode `fail` the stored messages are those up to the final ack's `count`: the first gap and the
  first rejected message end the batch.
- A message counts as received when it was stored, is a duplicate of a stored one, or (with `ok`) was rejected
  or lost; `count` is the highest batch sequence received.
- A batch ends once. Its publisher may request the final ack again by a ping. Other messages after the end are
  rejected as those of an unknown batch, with one response per batch and tick: a window of thousands may be in
  flight when the batch ends.
- The first message creates the batch: the flow ack about that precedes the outcome of the message.

Where the ADR and the official server differ, responses satisfy both: they have `msgs` and `ack_msgs`, a
`type`, and a structure that decodes without it. The final ack of a batch that a rejected message ended has
that error, as in the ADR, and is also an ordinary pub ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import JetStreamApiError
from penstock.kernels.ingest.batches import FastBatch, FastBatches, parse
from penstock.kernels.ingest.ingest import acknowledge_fast
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError, PubAck, encode
from penstock.protocol.batch import BATCH_ID_MAX, SUFFIX, Operation

if TYPE_CHECKING:
    from penstock.jetstream.inflight import BatchContext
    from penstock.jetstream.stream.stream_replica import StreamReplica

FLOW_FIRST = 500  # messages per ack at the start of a batch that is the only one of its stream
FLOW_SHARED = 4096  # of all batches of a stream together, if their clients allow as many
# a larger run means that messages arrive faster than they are stored: flows shrink
BACKLOG_BYTES = 8 * 1024 * 1024
_SUFFIX = SUFFIX.encode()


class _Err(msgspec.Struct, tag_field="type", tag="err"):
    seq: int
    error: ApiError


class FastOutcome(NamedTuple):
    """The outcome of an accepted message: stored at `seq`, or a duplicate of the message there."""

    seq: int
    duplicate: bool
    value: str


def is_fast(reply: bytes) -> bool:
    """Whether the reply subject marks a message of a fast batch."""
    return reply.endswith(_SUFFIX)


def flow_limit(batches: int, backlog: int) -> int:
    """The messages per ack that each batch should reach, when `backlog` bytes came in one run."""
    limit = FLOW_SHARED // max(batches, 1)
    while backlog > BACKLOG_BYTES:
        limit //= 2
        backlog //= 2
    return max(limit, 1)


class FastIngestBatches:
    """The fast batches of one stream."""

    def __init__(self, stream: StreamReplica, context: BatchContext) -> None:
        self._stream = stream
        self._context = context
        self.batches = FastBatches()
        self._check_at = 0  # ns: no batch times out before; 0: none is open

    # --- messages ------------------------------------------------------------------------------

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now: int, ts: int) -> None:
        """Handles a message that the kernel did not store itself. Its outcome is added to the stream's
        acks."""
        said = parse(reply)
        error = self._refusal(said)
        if error is not None or said is None:
            self._say(reply, self._refused(error or codes.BATCH_PUBLISH_INVALID_PATTERN))
            return
        _, flow, _, seq, operation = said
        batch = self.batches.find(reply)
        if batch is not None and batch.final is not None:
            if operation == Operation.PING:
                self._say(reply, batch.final)
                return
            if seq > 1:
                self._refuse_behind(batch, reply)
                return
            self.batches.forget(batch)
            batch = None
        if batch is None:
            if seq != 1 or operation == Operation.PING:
                self._say(reply, self._refused(codes.BATCH_PUBLISH_UNKNOWN_BATCH_ID))
            elif operation == Operation.COMMIT:
                self._publish_single(said, subject, reply, header, payload, now, ts)
            else:
                self._start(flow, subject, reply, header, payload, now, ts)
            return
        batch.heard(now)
        if operation == Operation.PING:
            self._ping(batch, reply, seq)
        elif self._in_order(batch, reply, seq):
            if operation == Operation.EOB:
                self._end(batch, reply)
            else:
                self._append(batch, seq, operation, subject, reply, header, payload, now, ts)

    def acknowledge(self, backlog: int) -> None:
        """Adds the flow acks that are due after a run; backlog: its bytes."""
        if self._stream.config.no_ack:
            return
        acknowledge_fast(self.batches, self._stream.acks, flow_limit(self.batches.count, backlog))

    def _refusal(self, said: tuple[bytes, int, bool, int, int] | None) -> ApiError | None:
        if not self._stream.config.allow_batched:
            return codes.BATCH_PUBLISH_DISABLED
        if said is None:
            return codes.BATCH_PUBLISH_INVALID_PATTERN
        return codes.BATCH_PUBLISH_INVALID_BATCH_ID if len(said[0]) > BATCH_ID_MAX else None

    def _refuse_behind(self, batch: FastBatch, reply: bytes) -> None:
        if not batch.is_refused:
            self._stream.effects.refused(batch)
            self._say(reply, self._refused(codes.BATCH_PUBLISH_UNKNOWN_BATCH_ID))

    def _publish_single(
        self,
        said: tuple[bytes, int, bool, int, int],
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        now: int,
        ts: int,
    ) -> None:
        """A batch of one message is an ordinary publish with another ack. With gap mode `ok`, a rejected one
        ends the batch without the error."""
        batch_id, _, gap_ok, seq, _ = said
        try:
            stored = self._store(subject, header, payload, now, ts)
        except JetStreamApiError as raised:
            error = ApiError.from_exception(raised)
            if gap_ok:
                self._say(reply, encode(_Err(seq, error)))
                self._say(reply, self._final(batch_id, 0, 0))
            else:
                self._say(reply, self._refused(error))
            return
        self._say(reply, self._final(batch_id, stored.seq, 1, duplicate=stored.duplicate))

    def _store(self, subject: bytes, header: bytes, payload: bytes, now: int, ts: int) -> FastOutcome:
        return self._stream.store_publish(subject, header, payload, now, ts, in_fast_batch=True)

    def _start(
        self, flow: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now: int, ts: int
    ) -> None:
        if self.batches.count >= self._stream.batch_limits.fast_end:
            self._say(reply, self._refused(codes.BATCH_PUBLISH_TOO_MANY_INFLIGHT))
            return
        # A single batch starts at its full rate; several start slowly and adapt.
        batch = self.batches.start(reply, min(flow, FLOW_FIRST) if not self.batches.count else 1, now)
        if not self._check_at:
            self._check_at = now + self._stream.batch_limits.timeout_ns
        try:
            stored = self._store(subject, header, payload, now, ts)
        except JetStreamApiError as raised:
            error = ApiError.from_exception(raised)
            self._say_flow(batch, reply)
            if batch.gap_ok:
                self._say(reply, encode(_Err(1, error)))
                self.batches.received(batch, 1)
            else:
                self.batches.forget(batch)
                self._say(reply, self._refused(error))
            return
        self._say_flow(batch, reply)
        self.batches.received(batch, 1, stored.seq, stored.duplicate)

    def _append(
        self,
        batch: FastBatch,
        seq: int,
        operation: int,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        now: int,
        ts: int,
    ) -> None:
        commits = operation == Operation.COMMIT
        try:
            stored = self._store(subject, header, payload, now, ts)
        except JetStreamApiError as raised:
            error = ApiError.from_exception(raised)
            self._say(reply, encode(_Err(seq, error)))
            if batch.gap_ok and not commits:
                self.batches.received(batch, seq)
            else:
                self._end(batch, reply, None if batch.gap_ok else error)
            return
        self.batches.received(batch, seq, stored.seq, stored.duplicate)
        if commits:
            self._end(batch, reply)

    def _in_order(self, batch: FastBatch, reply: bytes, seq: int) -> bool:
        """Whether the message is accepted. Reports a gap, which ends the batch unless gaps are allowed. A
        repeated sequence ends it too."""
        if seq == batch.seq + 1:
            return True
        self._say_gap(reply, batch.seq, seq)
        if batch.gap_ok and seq > batch.seq:
            if seq - 1 > batch.seq:
                self.batches.received(batch, seq - 1)
            return True
        self._end(batch, reply)
        return False

    def _ping(self, batch: FastBatch, reply: bytes, sent: int) -> None:
        """Handles a ping. `sent` is the publisher's highest sequence: messages missing up to it are lost."""
        if sent > batch.seq:
            self._say_gap(reply, batch.seq, sent + 1)
            if not batch.gap_ok:
                self._end(batch, reply)
                return
            self.batches.received(batch, sent)
        self._say_flow(batch, reply)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When (ns) `expire` may have work, or None."""
        return self._check_at or None

    def expire(self, now: int) -> None:
        """Drops timed out batches, without a message to their publishers."""
        if not self._check_at or now < self._check_at:
            return
        self._check_at = 0
        for batch in self.batches.open_batches():
            due = batch.heard_ns + self._stream.batch_limits.timeout_ns
            if due <= now:
                self.batches.forget(batch)
                self._stream.effects.abandoned(batch.id, "timeout")
            elif not self._check_at or due < self._check_at:
                self._check_at = due

    def dump(self) -> Any:
        """The state, for restore()."""
        return self.batches.dump()

    def restore(self, dump: Any, check_at: int) -> None:
        """Takes over the state of another replica. Raises ValueError."""
        self.batches.load(*dump)
        self._check_at = check_at

    def clear(self) -> None:
        """Drops all batches, when the stream no longer allows them."""
        self.batches.clear()
        self._check_at = 0

    # --- answers -------------------------------------------------------------------------------

    def _end(self, batch: FastBatch, reply: bytes, error: ApiError | None = None) -> None:
        final = self._final(batch.id, batch.stream_seq, batch.seq, error=error)
        self.batches.end(batch, final)
        self._say(reply, final)

    def _final(
        self,
        batch_id: bytes,
        seq: int,
        count: int,
        *,
        duplicate: bool = False,
        error: ApiError | None = None,
    ) -> bytes:
        return encode(
            PubAck(
                error=error,
                stream=self._stream.name,
                seq=seq,
                domain=self._stream.domain,
                duplicate=duplicate,
                batch=batch_id.decode("utf-8", "replace"),
                count=count,
            )
        )

    def _refused(self, error: ApiError) -> bytes:
        if self._context.config().official_fast_errors:
            error = codes.OFFICIAL.get(error, error)
        return encode(PubAck(error=error, stream=self._stream.name))

    def _say_flow(self, batch: FastBatch, reply: bytes) -> None:
        text = b'{"type":"ack","seq":%d,"msgs":%d,"ack_msgs":%d}'
        self._say(reply, text % (batch.acked, batch.msgs, batch.msgs))

    def _say_gap(self, reply: bytes, last_seq: int, seq: int) -> None:
        self._say(reply, b'{"type":"gap","last_seq":%d,"seq":%d}' % (last_seq, seq))

    def _say(self, reply: bytes, text: bytes) -> None:
        if not self._stream.config.no_ack:
            self._stream.acks.add(reply, text)
