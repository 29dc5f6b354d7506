"""Bringing a task's rows into a stream by atomic batches (ADR-50) that carry their own marker.

Each batch holds up to `atomicRows` rows and, as its last message, the task's marker: which micro-batch it
belongs to and how many of its rows are in the stream by then. The marker is published under the condition
that the marker before it is still the last one. So a batch is in the stream with its marker or not at all;
two tries of one task can't both write it, however late the older one is; and a task that is run again reads
the marker and goes on behind it. None of that depends on a duplicate window.

Where the stream takes rollups, the task's last marker rolls up those before it. Only the last one: for a
roll-up the server looks at every message of its batch by itself, at ten times the cost.

Invariants: rows of one micro-batch and partition are in the stream as a prefix; `epoch` never goes back.
Rejected: a marker per micro-batch alone (a micro-batch has more rows than an atomic batch may have).
"""

from __future__ import annotations

import secrets
from collections import deque

from penstock import errors
from penstock.kernels.spark.row_frames import Rows
from penstock.kernels.wire.buffers import OutBuffer
from penstock.protocol import api
from penstock.protocol import headers as names
from penstock.protocol.batch import batch_exception
from penstock.spark.delivery import Written
from penstock.spark.last_message import last_message
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.sink_options import SinkOptions
from penstock.spark.task_identity import Marker, TaskIdentity
from penstock.spark.wire import BlockingConnection

OUT_MAX = 1 << 40  # a whole batch goes out at once


class AtomicDelivery:
    """`start` says how many rows are there already; then `send` and `finish` as those of Delivery."""

    def __init__(
        self, options: SinkOptions, link: ReconnectingConnection, identity: TaskIdentity, *, rollup: bool
    ) -> None:
        assert options.marker_subject is not None
        self.options = options
        self.link = link
        self.identity = identity
        self.rollup = rollup  # the stream takes rollups: one marker is left of a task
        self.subject = f"{options.marker_subject}.{identity.query}.{identity.partition}"
        self.done = 0  # rows in the stream
        self.skipped = 0  # of them, those an earlier try wrote
        self._marker_seq = 0
        self._last_seq = 0
        self._kept: deque[tuple[Rows, int]] = deque()  # rows, and where to go on in them
        self._waiting = 0

    def start(self) -> int:
        """Reads the marker; returns how many rows of this task are stored. Raises MisuseError when a later
        micro-batch was written."""
        self.link.ask(self._read_marker)
        self.skipped = self.done
        return self.done

    def _read_marker(self, connection: BlockingConnection) -> None:
        found = last_message(connection, self.options.stream, self.subject)
        self.done, self._marker_seq = 0, 0
        if found is not None:
            marker = Marker.decode(found.data, self.subject)
            self.identity.check(marker.epoch, f"its marker on {self.subject!r}")
            self._marker_seq = found.seq
            self.done = marker.next if marker.epoch == self.identity.epoch else 0

    def send(self, rows: Rows) -> None:
        """Rows that follow those there are. Raises JetStreamApiError for a batch the server refuses,
        MaxPayloadError, and the last connection error after `retrySeconds` without progress."""
        self._kept.append((rows, 0))
        self._waiting += len(rows)
        while self._waiting > self.options.atomic_rows:  # one batch at least is left to be the last
            self._commit(self.options.atomic_rows)

    def finish(self) -> Written:
        if self._waiting:
            self._commit(self._waiting, last=True)
        return Written(self.done - self.skipped, self.skipped, self._last_seq)

    def _commit(self, count: int, *, last: bool = False) -> None:
        """One batch of the next `count` rows; the `last` one of the task."""
        target = self.done + count
        while self.done < target:
            with self.link.trying(self.done):
                connection = self.link.connection()
                before = self.done
                try:
                    self._try(connection, count, last=last)
                except errors.WrongLastSequenceError:
                    # Another try of this task, or this one before its connection broke, was faster.
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
        for rows, at in self._kept:
            take = min(left, len(rows) - at)
            wrote = rows.encode(
                out, at, take, number=seq, fixed=head, numbered=numbered, out_max=OUT_MAX,
                max_payload=connection.info.max_payload,
            )  # fmt: skip
            if wrote < take:
                raise errors.MaxPayloadError(rows.size(at + wrote), connection.info.max_payload)
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
        ack = api.decode(api.PubAck, connection.request(self.subject, marker, header=block))
        if ack.error is not None:
            raise batch_exception(ack.error, self.subject)
        self._last_seq = self._marker_seq = ack.seq
        self.done += count

    def _drop(self, count: int) -> None:
        self._waiting -= count
        while count:
            rows, at = self._kept.popleft()
            take = min(count, len(rows) - at)
            count -= take
            if at + take < len(rows):
                self._kept.appendleft((rows, at + take))
