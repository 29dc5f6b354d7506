"""Writes a task's rows to a stream, by publishes with a window of acks or by fast ingest.

Both number the rows, keep each row until it is acked, and after a lost connection resume at the first unacked
row. The server drops rows that arrive twice by their message ids (`exactlyOnce`). A row counts as written
only after its ack.

- `publish`: every row is a publish with a reply subject, with up to `ackWindow` rows and 16 MiB in flight.
  Works with every server and stream.
- `fast`: one fast batch (ADR-50) per connection, in gap mode fail, with flow control by the server. A flow
  ack is cumulative, so there are few of them.

Rejected: one request per row; reading acks on a second thread (they fit into the socket's buffer).
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock import errors
from penstock.kernels.spark.row_frames import AckEvent, AckWindow, Rows
from penstock.kernels.wire.frames import Op
from penstock.kernels.wire.output import OutBuffer
from penstock.protocol import api
from penstock.protocol.batch import (
    BatchRefused,
    Operation,
    batch_exception,
    parse_answer,
    reply_end,
    reply_prefix,
)
from penstock.protocol.flow import FlowWindow
from penstock.spark.connection_options import ConnectionOptions
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.sink_options import SinkOptions
from penstock.spark.wire import BlockingConnection

ACK_SID = b"3"
SEND_BYTES = 1 << 20
IN_FLIGHT_BYTES_MAX = 16 << 20
OUTSTANDING_ACKS = 2


@dataclass(frozen=True)
class Written:
    """Result of a task. rows: rows in the stream. duplicates: rows stored by an earlier attempt. last_seq:
    stream sequence of the last row."""

    rows: int
    duplicates: int
    last_seq: int


class SinkDelivery(ABC):
    """Delivers rows in order. `send` may buffer; when `finish` returns, every row is stored."""

    def __init__(self, options: SinkOptions, connection: ReconnectingConnection) -> None:
        self.options = options
        self.connection = connection
        self.out = OutBuffer()
        self.total = 0  # rows accepted; they are numbered from 0
        self.next = 0  # number of the next row to send
        self._unacked: deque[tuple[int, Rows]] = deque()  # number of the first row, rows
        self._prepared: BlockingConnection | None = None  # the connection `begin` was called for

    @property
    @abstractmethod
    def base(self) -> int:
        """Every row below this number is acked."""

    @abstractmethod
    def begin(self, connection: BlockingConnection) -> None:
        """Prepare a new connection. `next` equals `base`."""

    @abstractmethod
    def step(self, connection: BlockingConnection) -> None:
        """Send rows if the window allows it, else wait for an answer."""

    @abstractmethod
    def finish(self) -> Written:
        """Wait until every row is acked. Raises what `send` raises."""

    def send(self, rows: Rows) -> None:
        """Queue rows and return when they are sent, not necessarily acked.

        Raises JetStreamApiError for a rejected row, MaxPayloadError, NoStreamError, and the last connection
        error after `retrySeconds` without progress.
        """
        if not len(rows):
            return
        self._unacked.append((self.total, rows))
        self.total += len(rows)
        self.run(lambda: self.next >= self.total)

    def run(self, done: Callable[[], bool]) -> None:
        """Call `step` until `done` returns true; reconnect and resume at `base` when needed."""
        while not done():
            with self.connection.trying(self.base):
                connection = self.connection.current()
                if connection is not self._prepared:
                    self.out.clear()
                    self.next = self.base
                    self.begin(connection)
                    self._prepared = connection
                self.step(connection)
            while self._unacked and self._unacked[0][0] + len(self._unacked[0][1]) <= self.base:
                self._unacked.popleft()

    def encode(
        self,
        connection: BlockingConnection,
        count: int,
        *,
        reply: bytes,
        number: int,
        end: bytes,
        fixed: bytes,
    ) -> int:
        """Encode up to `count` rows from `next` on into `out` and return how many.

        Raises MaxPayloadError if the next row exceeds the server's limit.
        """
        wrote = 0
        for first, rows in self._unacked:
            at = self.next + wrote - first
            if at >= len(rows):
                continue
            asked = min(count - wrote, len(rows) - at)
            done = rows.encode(
                self.out, at, asked, reply=reply, number=number + wrote, end=end, fixed=fixed,
                max_payload=connection.info.max_payload, out_max=SEND_BYTES,
            )  # fmt: skip
            wrote += done
            if done < asked:
                if not wrote:
                    raise oversize(rows, at, connection)
                break
            if wrote == count:
                break
        return wrote

    def _subject_of(self, number: int) -> str:
        for first, rows in self._unacked:
            if first <= number < first + len(rows):
                return rows.subject(number - first).decode("utf-8", "replace")
        return "of an earlier row"

    def expect_stream(self) -> bytes:
        """Header line that makes the server reject rows whose subject belongs to another stream."""
        return f"Nats-Expected-Stream: {self.options.stream}\r\n".encode()


def oversize(rows: Rows, at: int, connection: BlockingConnection) -> errors.MaxPayloadError:
    """The error for a row that exceeds the server's max_payload."""
    subject = rows.subject(at).decode("utf-8", "replace")
    return errors.MaxPayloadError(rows.size(at), connection.info.max_payload, subject=subject)


def refusal(
    error: errors.JetStreamApiError, stream: str, subject: str, row: int | None = None
) -> errors.JetStreamApiError:
    """The error for a row that the server rejected, of the same type, with stream, subject and row."""
    where = f"stream {stream!r}, subject {subject!r}" + ("" if row is None else f", row {row} of this task")
    description = f"{error.description}: {where}"
    if type(error) in (errors.BatchNotEnabledError, errors.BatchUnknownError, errors.BatchIncompleteError):
        return type(error)(error.code, error.err_code, description, stream=stream)
    return errors.JetStreamApiError.of(error.code, error.err_code, description, stream=stream)


def check_given_up(error: errors.JetStreamApiError) -> None:
    """Raises DisconnectedError, after which what is not acknowledged is sent again, if the server lacks what
    came before in the batch: a new leader may."""
    if isinstance(error, errors.BatchUnknownError | errors.BatchIncompleteError):
        raise errors.DisconnectedError(f"the server gave the batch up: {error}")


def _inbox(options: ConnectionOptions) -> str:
    return f"_INBOX.{secrets.token_hex(11)}"


class PublishDelivery(SinkDelivery):
    """One publish per row, with a window of acks."""

    def __init__(self, options: SinkOptions, connection: ReconnectingConnection) -> None:
        super().__init__(options, connection)
        self._acks = AckWindow(ACK_SID, options.stream.encode(), options.window)
        self._reply = b""
        self._in_flight: deque[tuple[int, int]] = deque()  # number after the last row, bytes
        self._in_flight_bytes = 0

    @property
    def base(self) -> int:
        return self._acks.base

    def begin(self, connection: BlockingConnection) -> None:
        inbox = _inbox(self.options.connection)
        self._reply = f"{inbox}.".encode()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        connection.send(b"SUB %s.* %s\r\n" % (inbox.encode(), ACK_SID))

    def step(self, connection: BlockingConnection) -> None:
        room = self._acks.size - (self.next - self._acks.base)
        if self.next < self.total and room and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX:
            fixed = self.expect_stream()
            wrote = self.encode(connection, room, reply=self._reply, number=self.next, end=b"", fixed=fixed)
            size = self.out.size
            self.next += wrote
            self._acks.sent(max(0, self.next - self._acks.end))
            self._in_flight.append((self.next, size))
            self._in_flight_bytes += size
            connection.send(self.out.take())
        else:
            self._receive(connection)

    def _receive(self, connection: BlockingConnection) -> None:
        timeout = self.options.connection.request_timeout_s
        if not connection.receive(timeout):
            raise errors.RequestTimeoutError(f"{connection.address}: no ack of a row within {timeout:g} s")
        while (event := self._acks.feed(connection.parser)) != AckEvent.ACKS_NEED_MORE:
            if event == AckEvent.ACKS_CONTROL:
                connection.handle_control(self._acks.op, self._acks.payload)
            elif event == AckEvent.ACKS_ERROR:
                raise connection.broken()
            else:
                self._take_other(connection)
        while self._in_flight and self._in_flight[0][0] <= self._acks.base:
            self._in_flight_bytes -= self._in_flight.popleft()[1]

    def _take_other(self, connection: BlockingConnection) -> None:
        """Handle an answer other than a plain pub ack."""
        acks, stream = self._acks, self.options.stream
        if acks.header.startswith(b"NATS/1.0 503"):
            raise connection.unanswered(stream, self._subject_of(acks.number))
        try:
            ack = api.decode_response(api.PubAck, acks.payload)
        except errors.JetStreamApiError as error:
            raise refusal(error, stream, self._subject_of(acks.number), acks.number) from None
        if ack.stream != stream:
            raise errors.ConfigError(
                f"row {acks.number} was stored in stream {ack.stream!r}, option 'stream' says {stream!r}: "
                f"its subject {self._subject_of(acks.number)!r} is not one of that stream"
            )
        acks.acknowledge(acks.number, ack.duplicate, ack.seq)

    def finish(self) -> Written:
        self.run(lambda: self._acks.base >= self.total)
        return Written(self.total, self._acks.duplicates, self._acks.last_seq)


class FastDelivery(SinkDelivery):
    """Fast ingest (ADR-50), one batch per connection."""

    def __init__(self, options: SinkOptions, connection: ReconnectingConnection) -> None:
        super().__init__(options, connection)
        self._base = 0
        self._last_seq = 0
        self._first = 0  # number of the row with batch sequence 1
        self._flow = self._new_flow()
        self._reply = b""
        self._subject = b""
        self._refusal: errors.JetStreamApiError | None = None
        self._ending = False

    def _new_flow(self) -> FlowWindow:
        return FlowWindow(self.options.flow, OUTSTANDING_ACKS, gap_ok=False)

    @property
    def base(self) -> int:
        return self._base

    def begin(self, connection: BlockingConnection) -> None:
        inbox, batch_id = _inbox(self.options.connection), secrets.token_hex(11)
        self._reply = reply_prefix(inbox, batch_id, self.options.flow, gap_ok=False)
        self._flow = self._new_flow()
        self._first = self._base
        self._refusal = None
        connection.send(b"SUB %s.> %s\r\n" % (inbox.encode(), ACK_SID))

    def step(self, connection: BlockingConnection) -> None:
        flow = self._flow
        if flow.is_over:
            self._on_end(connection)
        elif self.next < self.total and flow.room:
            self._send_rows(connection)
        elif self._ending and self.next == self.total and flow.room and flow.sent:
            seq = flow.take()
            self.next += 1  # past `total`: the end-of-batch message is sent once and is not a row
            self._send_end(connection, seq)
        else:
            self._receive(connection)

    def _send_rows(self, connection: BlockingConnection) -> None:
        flow = self._flow
        start = flow.sent == 0
        operation = Operation.START if start else Operation.APPEND
        wrote = self.encode(
            connection, 1 if start else flow.room, reply=self._reply, number=flow.sent + 1,
            end=b".%d.$FI" % operation, fixed=self.expect_stream() if start else b"",
        )  # fmt: skip
        flow.take(wrote)
        self.next += wrote
        frames = self.out.take()
        if start:
            self._subject = frames.split(b" ", 2)[1]
        connection.send(frames)

    def _send_end(self, connection: BlockingConnection, seq: int) -> None:
        reply = self._reply + reply_end(seq, Operation.EOB)
        connection.send(b"PUB %s %s 0\r\n\r\n" % (self._subject, reply))

    def _receive(self, connection: BlockingConnection) -> None:
        timeout = self.options.connection.request_timeout_s
        while True:
            frame = connection.parser.next_frame()
            if frame is not None:
                break
            if not connection.receive(timeout):
                raise errors.RequestTimeoutError(f"{connection.address}: no flow ack within {timeout:g} s")
        if frame.op == Op.OP_ERROR:
            raise connection.broken()
        if frame.op not in (Op.OP_MSG, Op.OP_HMSG):
            connection.handle_control(frame.op, frame.payload or b"")
        elif frame.sid == ACK_SID:
            if frame.header is not None and frame.header.startswith(b"NATS/1.0 503"):
                raise connection.unanswered(self.options.stream, self._subject.decode("utf-8", "replace"))
            self._on_answer(frame.payload or b"")

    def _on_answer(self, payload: bytes) -> None:
        answer = parse_answer(payload)
        if isinstance(answer, BatchRefused):
            row = self._first + answer.seq - 1
            rejected = batch_exception(answer.error, "")
            self._refusal = refusal(rejected, self.options.stream, self._subject_of(row), row)
        self._flow.on_answer(answer)
        if isinstance(answer, api.PubAck):
            self._last_seq = max(self._last_seq, answer.seq)
            if answer.error is not None and not answer.batch:
                ended = batch_exception(answer.error, "")
                check_given_up(ended)
                raise refusal(ended, self.options.stream, self._subject_of(self._base))
        self._base = max(self._base, min(self._first + self._flow.acked, self.total))

    def _on_end(self, connection: BlockingConnection) -> None:
        """Handle the end of the batch, requested or not.

        Rows the server did not store are sent in a new batch, unless it rejected a row.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._base < self.total or not self._ending:
            raise errors.DisconnectedError(f"{connection.address}: the server ended the batch early")

    def _is_finished(self) -> bool:
        """Whether every row is stored and no batch is open on the connection."""
        return self._base >= self.total and (
            self._flow.is_over or not self._flow.sent or not self.connection.is_up
        )

    def finish(self) -> Written:
        self._ending = True
        self.run(self._is_finished)
        return Written(self.total, 0, self._last_seq)
