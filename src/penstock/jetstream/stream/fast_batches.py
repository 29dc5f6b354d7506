"""Fast ingest, the server's side (ADR-50): one batch of any size, with flow control in place of acks.

The ingest kernel stores what comes next in an open batch by itself; here is everything else that can happen
to one: its start, gaps, messages that are refused, pings, the end. What is answered waits in the stream's
acks like any ack, so that it leaves after the write; flow acks are made once per run and batch.

Invariants:
- With gap mode `fail` the stored messages are those up to the final ack's `count`: the first gap and the
  first refused message end the batch.
- A message counts as received when it was stored, is a duplicate of a stored one, or (with `ok`) was refused
  or lost; `count` is the highest batch sequence received.
- A batch ends once. Its publisher may ask for the final answer again by a ping; what else comes behind the
  end is refused as of an unknown batch, one message for each batch and tick: up to a window of thousands was
  on its way when the batch ended, and one answer says all.
- The first message makes the batch: the flow ack that says so comes before what becomes of the message.

Where the ADR and the official server differ, the answers satisfy both: `msgs` and `ack_msgs`, a `type` and a
struct that needs none. The final ack of a batch which a refused message ended bears that error, as the ADR
wants it, and is an ordinary pub ack besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.errors import JetStreamApiError
from penstock.jetstream.limits import EngineConfig
from penstock.kernels.ingest.fast_batch import FastBatch, FastBatches, parse
from penstock.kernels.ingest.ingest import acknowledge_fast
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError, PubAck, encode
from penstock.protocol.batch import BATCH_ID_MAX, SUFFIX, Operation

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

FLOW_FIRST = 500  # messages per ack that a batch starts with when it is the only one of its stream
FLOW_SHARED = 4096  # of all batches of a stream together, where their clients allow so much
BACKLOG_BYTES = 8 * 1024 * 1024  # a run of more came in faster than the stream takes it: flows shrink
_SUFFIX = SUFFIX.encode()


class _Err(msgspec.Struct, tag_field="type", tag="err"):
    seq: int
    error: ApiError


class FastOutcome(NamedTuple):
    """What became of a message that was not refused: stored at `seq`, or a duplicate of what is there."""

    seq: int
    duplicate: bool
    value: str


def is_fast(reply: bytes) -> bool:
    """Does the reply subject say that the message belongs to a fast batch?"""
    return reply.endswith(_SUFFIX)


def flow_limit(batches: int, backlog: int) -> int:
    """Messages per ack that each of the batches tends to, when `backlog` bytes came in one run."""
    limit = FLOW_SHARED // max(batches, 1)
    while backlog > BACKLOG_BYTES:
        limit //= 2
        backlog //= 2
    return max(limit, 1)


class FastIngestBatches:
    """The fast batches of one stream.

    may_start: may another batch be opened? config: the engine's. abandoned: told the id of a batch that was
    silent for too long.
    """

    def __init__(self, stream: StreamReplica) -> None:
        self._stream = stream
        self.batches = FastBatches()
        self.may_start: Callable[[], bool] = lambda: True
        self.config: Callable[[], EngineConfig] = EngineConfig
        self.abandoned: Callable[[str], None] = lambda batch_id: None
        self.behind: list[FastBatch] = []  # ended ones, a message of which this tick refused
        self._check_at = 0  # ns; no batch is silent for too long before; 0: none is open

    # --- messages ------------------------------------------------------------------------------

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now: int, ts: int) -> None:
        """One message that the kernel left to us. Its outcome is in the stream's acks afterwards."""
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
        batch.heard_ns = now
        if operation == Operation.PING:
            self._ping(batch, reply, seq)
        elif self._in_order(batch, reply, seq):
            if operation == Operation.EOB:
                self._end(batch, reply)
            else:
                self._append(batch, seq, operation, subject, reply, header, payload, now, ts)

    def acknowledge(self, backlog: int) -> None:
        """The flow acks that a run made due; backlog: its bytes."""
        if self._stream.config.no_ack:
            return
        acknowledge_fast(self.batches, self._stream.acks, flow_limit(self.batches.count, backlog))

    def end_tick(self) -> None:
        """What comes behind the end of a batch is answered once more from now on."""
        for batch in self.behind:
            batch.is_refused = False
        self.behind.clear()

    def _refusal(self, said: tuple[bytes, int, bool, int, int] | None) -> ApiError | None:
        if not self._stream.config.allow_batched:
            return codes.BATCH_PUBLISH_DISABLED
        if said is None:
            return codes.BATCH_PUBLISH_INVALID_PATTERN
        return codes.BATCH_PUBLISH_INVALID_BATCH_ID if len(said[0]) > BATCH_ID_MAX else None

    def _refuse_behind(self, batch: FastBatch, reply: bytes) -> None:
        if not batch.is_refused:
            batch.is_refused = True
            self.behind.append(batch)
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
        """A batch of one message is an ordinary publish, but for its ack. Where refused messages may be
        missing from a batch, it ends without one."""
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
        if not self.may_start():
            self._say(reply, self._refused(codes.BATCH_PUBLISH_TOO_MANY_INFLIGHT))
            return
        # The only one may go as fast as it likes; others find their pace, starting slowly.
        batch = self.batches.start(reply, min(flow, FLOW_FIRST) if not self.batches.count else 1, now)
        if not self._check_at:
            self._check_at = now + self.config().batch_timeout_ns
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
        """Is it a message to be taken? A gap is told, and ends the batch unless gaps are allowed; so does
        a sequence that was there before."""
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
        """`sent` is the highest sequence its publisher used: what is missing up to it is lost."""
        if sent > batch.seq:
            self._say_gap(reply, batch.seq, sent + 1)
            if not batch.gap_ok:
                self._end(batch, reply)
                return
            self.batches.received(batch, sent)
        self._say_flow(batch, reply)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When (ns) `expire` may have something to do; None when never."""
        return self._check_at or None

    def expire(self, now: int) -> None:
        """Forgets the batches that were silent for too long, without a word to their publishers."""
        if not self._check_at or now < self._check_at:
            return
        self._check_at = 0
        for batch in self.batches.open_batches():
            due = batch.heard_ns + self.config().batch_timeout_ns
            if due <= now:
                self.batches.forget(batch)
                self.abandoned(batch.id.decode("utf-8", "replace"))
            elif not self._check_at or due < self._check_at:
                self._check_at = due

    def clear(self) -> None:
        """Forgets every batch: the stream takes none any more."""
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
        if self.config().official_fast_errors:
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
