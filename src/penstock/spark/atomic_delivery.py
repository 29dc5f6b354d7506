"""Writes a task's rows by atomic batches (ADR-50), each of which carries a progress marker.

A batch holds up to `atomicRows` rows and, as its last message, the task's marker: the micro-batch number and
the count of its rows stored so far. The marker is published with the expected last sequence of the previous
marker. Therefore the stream stores a batch together with its marker or not at all; of two attempts of one
task only one can store a batch, however late the older attempt runs; and a restarted task reads the marker
and continues after it. None of this depends on the duplicate window.

If the stream allows rollups, the task's last marker rolls up the earlier ones. Only the last one does: the
server checks every message of a batch with a rollup separately, at ten times the cost.

Invariants: the stored rows of one micro-batch and partition are a prefix; `epoch` never decreases.
Rejected: one marker per micro-batch (a micro-batch may have more rows than an atomic batch may hold).
"""

from __future__ import annotations

import secrets
from collections import deque

from penstock import errors
from penstock.kernels.spark.row_frames import Rows
from penstock.kernels.wire.output import OutBuffer
from penstock.protocol import api
from penstock.protocol import headers as names
from penstock.protocol.batch import batch_exception
from penstock.spark.delivery import Written, check_given_up, oversize, refusal
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.sink_options import SinkOptions
from penstock.spark.task_identity import Marker, TaskIdentity
from penstock.spark.wire import BlockingConnection

OUT_MAX = 1 << 40  # no limit: a batch is sent in one write


class AtomicDelivery:
    """Atomic delivery. Call `start` first, then `send` and `finish` as for SinkDelivery."""

    def __init__(
        self,
        options: SinkOptions,
        connection: ReconnectingConnection,
        identity: TaskIdentity,
        *,
        rollup: bool,
    ) -> None:
        assert options.marker_subject is not None
        self.options = options
        self.connection = connection
        self.identity = identity
        self.rollup = rollup  # the stream allows rollups: only the task's last marker remains
        self.subject = f"{options.marker_subject}.{identity.query}.{identity.partition}"
        self.done = 0  # rows stored in the stream
        self.skipped = 0  # of these, rows stored by an earlier attempt
        self._marker_seq = 0
        self._last_seq = 0
        self._uncommitted: deque[tuple[Rows, int]] = deque()  # rows, index of the first uncommitted one
        self._uncommitted_rows = 0

    def start(self) -> int:
        """Read the marker and return how many rows of this task are stored.

        Raises MisuseError if a later micro-batch was already written.
        """
        self.connection.call(self._read_marker)
        self.skipped = self.done
        return self.done

    def _read_marker(self, connection: BlockingConnection) -> None:
        found = connection.last_message(self.options.stream, self.subject)
        self.done, self._marker_seq = 0, 0
        if found is not None:
            marker = Marker.decode(found.data, self.subject)
            self.identity.check(marker.epoch, f"its marker on {self.subject!r}")
            self._marker_seq = found.seq
            self.done = marker.next if marker.epoch == self.identity.epoch else 0

    def send(self, rows: Rows) -> None:
        """Queue the next rows and commit every full batch.

        Raises JetStreamApiError if the server rejects a batch, MaxPayloadError, and the last connection
        error after `retrySeconds` without progress.
        """
        self._uncommitted.append((rows, 0))
        self._uncommitted_rows += len(rows)
        while self._uncommitted_rows > self.options.atomic_rows:  # `finish` needs a last batch
            self._commit(self.options.atomic_rows)

    def finish(self) -> Written:
        """Commit the remaining rows as the task's last batch. Raises what `send` raises."""
        if self._uncommitted_rows:
            self._commit(self._uncommitted_rows, last=True)
        return Written(self.done - self.skipped, self.skipped, self._last_seq)

    def _commit(self, count: int, *, last: bool = False) -> None:
        """Commit the next `count` rows as one batch. last: it is the task's last batch."""
        target = self.done + count
        while self.done < target:
            with self.connection.trying(self.done):
                connection = self.connection.current()
                before = self.done
                try:
                    self._try(connection, count, last=last)
                except errors.WrongLastSequenceError:
                    # Another attempt of this task stored the batch, or this one did before its connection
                    # broke and the ack was lost. The marker tells which rows are stored.
                    self._read_marker(connection)
                    if self.done not in (before, target):
                        raise errors.JetStreamError(
                            f"another writer of {self.identity} is at row {self.done} where this one is at "
                            f"{before}: is one checkpoint used by two queries?"
                        ) from None
        self._drop(count)

    def _try(self, connection: BlockingConnection, count: int, *, last: bool) -> None:
        batch_id = secrets.token_hex(11)
        out = OutBuffer()
        head = f"{names.BATCH_ID}: {batch_id}\r\n{names.EXPECTED_STREAM}: {self.options.stream}\r\n".encode()
        numbered = f"{names.BATCH_SEQUENCE}: ".encode()
        seq, left = 1, count
        for rows, at in self._uncommitted:
            take = min(left, len(rows) - at)
            wrote = rows.encode(
                out, at, take, number=seq, fixed=head, numbered=numbered, out_max=OUT_MAX,
                max_payload=connection.info.max_payload,
            )  # fmt: skip
            if wrote < take:
                raise oversize(rows, at + wrote, connection)
            seq += take
            left -= take
            if not left:
                break
        lines = [
            f"{names.BATCH_ID}: {batch_id}",
            f"{names.BATCH_SEQUENCE}: {seq}",
            f"{names.BATCH_COMMIT}: 1",
            f"{names.EXPECTED_LAST_SUBJECT_SEQUENCE}: {self._marker_seq}",
            *([f"{names.ROLLUP}: sub"] if self.rollup and last else []),
        ]
        marker = Marker(epoch=self.identity.epoch, next=self.done + count).encode()
        connection.send(out.take())
        block = "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()
        ack = api.decode(api.PubAck, connection.publish(self.options.stream, self.subject, marker, block))
        if ack.error is not None:
            first, at = self._uncommitted[0]
            subject = first.subject(at).decode("utf-8", "replace")
            rejected = batch_exception(ack.error, self.subject)
            if isinstance(rejected, errors.WrongLastSequenceError):
                raise rejected
            check_given_up(rejected)
            raise refusal(rejected, self.options.stream, subject, self.done)
        self._last_seq = self._marker_seq = ack.seq
        self.done += count

    def _drop(self, count: int) -> None:
        self._uncommitted_rows -= count
        while count:
            rows, at = self._uncommitted.popleft()
            take = min(count, len(rows) - at)
            count -= take
            if at + take < len(rows):
                self._uncommitted.appendleft((rows, at + take))
