"""Reads one range of a stream's sequences over the wire, as column buffers.

How: an ephemeral consumer in the server's memory, without acks, starting at the range's first sequence; pull
requests, two outstanding, so that the server never waits for us; the kernel turns what arrives into columns.

Invariants:
- Every live message of [start, end) that a filter matches comes out exactly once, in order. The kernel sees a
  missing delivery (the consumer's own count jumps) and an early end is checked against the stream itself:
  `num_pending` is only a hint that it is worth asking.
- After a disconnect, a lost consumer or a missed heartbeat reading goes on at the first sequence not seen,
  with a new connection and a new consumer; without progress for `retrySeconds` the task fails with the cause.
- The consumer is deleted at the end; where that can't be (killed task), the server drops it after
  INACTIVE_THRESHOLD_NS without a pull.

Rejected: a push consumer (the server would have to be slowed down by flow control), a durable one (tasks die
and repeat; there is nothing to keep), one request per message.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock import errors
from penstock.kernels.columns import ColumnBuffer, ColumnBuilder, Event
from penstock.protocol import api
from penstock.spark.offsets import DataLossError, SequenceRange, StreamBounds
from penstock.spark.options import SourceOptions
from penstock.spark.wire import Connection

Batch = tuple[int, dict[str, tuple[ColumnBuffer, ...]]]

PULLS_OUTSTANDING = 2
PULL_EXPIRES_NS = 30_000_000_000
HEARTBEAT_NS = 5_000_000_000
HEARTBEATS_MISSED_MAX = 2
INACTIVE_THRESHOLD_NS = 60_000_000_000
RETRY_PAUSE_FIRST_S = 0.05
RETRY_PAUSE_MAX_S = 2.0
DATA_SID = b"2"

# What a new connection and a new consumer may cure.
_RETRYABLE = (
    errors.DisconnectedError,
    errors.NoServersError,
    errors.RequestTimeoutError,
    errors.ConsumerGoneError,
    errors.ConsumerNotFoundError,
    errors.ProtocolError,
)


def stream_bounds(connection: Connection, stream: str) -> StreamBounds:
    """What `stream` holds now. Raises StreamNotFoundError and what `Connection.api` raises."""
    info = connection.api(api.StreamInfoResponse, f"STREAM.INFO.{stream}")
    last = info.state.last_seq
    first = max(1, info.state.first_seq) if info.state.messages else last + 1
    return StreamBounds(stream, info.created, first, last)


def sequence_at_time(connection: Connection, stream: str, when: str) -> int:
    """The first sequence stored at or after `when` (RFC3339); last_seq + 1 when there is none.

    A consumer that starts at a time knows where it starts; this works with every server version.
    """
    config = api.ConsumerConfig(
        name=_consumer_name(),
        deliver_policy=api.DeliverPolicy.BY_START_TIME,
        opt_start_time=when,
        ack_policy=api.AckPolicy.NONE,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=INACTIVE_THRESHOLD_NS,
    )
    info = _create_consumer(connection, stream, config)
    _delete_consumer(connection, stream, info.name)
    return info.delivered.stream_seq + 1


@dataclass
class Pull:
    """A pull request under way: how many messages it may still bring."""

    number: int
    left: int


class RangeReader:
    """Reads `span` of a stream. `columns` are those the kernel builds; `batches` may be iterated once."""

    def __init__(self, options: SourceOptions, span: SequenceRange, columns: Sequence[str]) -> None:
        self.options = options
        self.span = span
        self.builder = ColumnBuilder(
            columns, sid=DATA_SID, rows_max=options.batch_rows, bytes_max=options.batch_bytes
        )
        self.builder.restart(span.start, span.end)
        # Payloads nobody wants need not cross the wire. With headers wanted they must: the server's
        # Nats-Msg-Size would show up among the publisher's own.
        self.headers_only = "data" not in columns and "headers" not in columns

    def batches(self) -> Iterator[Batch]:
        """Batches of at least one row until the range is read.

        Raises DataLossError (failOnDataLoss), StreamNotFoundError, AuthorizationError, PermissionsError at
        once, and the last connection error after `retrySeconds` without progress.
        """
        progress_s, seen, pause_s = time.monotonic(), self.builder.next_seq, RETRY_PAUSE_FIRST_S
        while True:
            try:
                with Connection.open(self.options.connection) as connection:
                    yield from _Session(self, connection).batches()
                return
            except _RETRYABLE:
                now = time.monotonic()
                if self.builder.next_seq > seen:
                    progress_s, seen, pause_s = now, self.builder.next_seq, RETRY_PAUSE_FIRST_S
                elif now - progress_s > self.options.connection.retry_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)


class _Session:
    """One connection's and one consumer's part of reading a range."""

    def __init__(self, reader: RangeReader, connection: Connection) -> None:
        self.options = reader.options
        self.span = reader.span
        self.builder = reader.builder
        self.connection = connection
        self.headers_only = reader.headers_only
        self.consumer = _consumer_name()
        self.inbox = f"_INBOX.{secrets.token_hex(11)}"
        self.pulls: deque[Pull] = deque()
        self.pull_number = 0
        self.pull_records_max = reader.options.pull_records
        self.counted = 0  # deliveries already subtracted from the pulls
        # Must hold the largest message, or the server can never answer a pull.
        self.pull_bytes = max(reader.options.batch_bytes, 2 * connection.info.max_payload)

    def batches(self) -> Iterator[Batch]:
        if not self.stream_is_there():
            yield from self.rest()
            return
        try:
            pending = self.start_consumer()
            if pending == 0 and self.exhausted():
                yield from self.rest()
                return
            self.subscribe()
            yield from self.receive()
        finally:
            with contextlib.suppress(errors.PenstockError):
                _delete_consumer(self.connection, self.span.stream, self.consumer)

    def rest(self) -> Iterator[Batch]:
        if self.builder.rows:
            yield self.builder.take()

    def stream_is_there(self) -> bool:
        """False when the range is gone with its stream and failOnDataLoss is off."""
        bounds = stream_bounds(self.connection, self.span.stream)
        lost = None
        if bounds.created != self.span.created:
            lost = f"it was made anew at {bounds.created}"
        elif bounds.first_seq > self.builder.next_seq:
            lost = f"its first sequence is now {bounds.first_seq}"
        if lost and self.options.fail_on_data_loss:
            raise DataLossError(
                f"stream {self.span.stream!r} lost messages while sequences {self.builder.next_seq} to "
                f"{self.span.end - 1} were to be read: {lost}. "
                "Set failOnDataLoss to false to go on without them"
            )
        return bounds.created == self.span.created and bounds.last_seq >= self.builder.next_seq

    def start_consumer(self) -> int:
        """Returns how many messages match from the first one on."""
        filters = self.options.subjects
        config = api.ConsumerConfig(
            name=self.consumer,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.builder.next_seq,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=list(filters) if len(filters) > 1 else [],
            headers_only=self.headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=INACTIVE_THRESHOLD_NS,
        )
        info = _create_consumer(self.connection, self.span.stream, config)
        return info.num_pending

    def subscribe(self) -> None:
        self.builder.restart(self.builder.next_seq, self.span.end)
        self.connection.send(b"SUB %s.* %s\r\n" % (self.inbox.encode(), DATA_SID))
        self.keep_pulling()

    def receive(self) -> Iterator[Batch]:
        """The one loop: kernel events until the range's end."""
        builder, connection = self.builder, self.connection
        quiet_s = HEARTBEATS_MISSED_MAX * HEARTBEAT_NS / 1e9
        while True:
            event = builder.feed(connection.parser)
            if event == Event.EVENT_NEED_MORE:
                if builder.delivered and builder.pending == 0 and self.exhausted():
                    break
                self.keep_pulling()
                if not connection.receive(quiet_s):
                    raise errors.ConsumerGoneError(
                        f"stream {self.span.stream!r}: neither a message nor a heartbeat within {quiet_s:g} s"
                    )
            elif event == Event.EVENT_FULL:
                self.keep_pulling()
                yield builder.take()
            elif event == Event.EVENT_END:
                break
            elif event == Event.EVENT_STATUS:
                if self.handle_status():
                    break
            elif event == Event.EVENT_CONTROL:
                connection.handle_control(builder.op, builder.body)
            elif event == Event.EVENT_GAP:
                raise errors.ConsumerGoneError(
                    f"stream {self.span.stream!r}: a delivery from sequence {builder.next_seq} on is missing"
                )
            elif event == Event.EVENT_ERROR:
                raise connection.broken()
            else:
                assert event == Event.EVENT_MESSAGE  # a late answer to a request that timed out
        yield from self.rest()

    def keep_pulling(self) -> None:
        """Two pulls are outstanding, unless one already asks for everything that is left."""
        self.count_arrivals()
        missing = self.builder.end_seq - self.builder.next_seq - sum(pull.left for pull in self.pulls)
        while len(self.pulls) < PULLS_OUTSTANDING and missing > 0:
            batch = min(self.pull_records_max, missing)
            missing -= batch
            self.send_pull(batch)

    def send_pull(self, batch: int) -> None:
        self.pull_number += 1
        body = api.encode(
            api.PullRequest(
                batch=batch,
                max_bytes=self.pull_bytes,
                expires=PULL_EXPIRES_NS,
                idle_heartbeat=HEARTBEAT_NS,
            )
        )
        subject = f"{self.options.connection.api_prefix}.CONSUMER.MSG.NEXT.{self.span.stream}.{self.consumer}"
        reply = f"{self.inbox}.{self.pull_number}"
        self.connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body))
        self.pulls.append(Pull(self.pull_number, batch))

    def handle_status(self) -> bool:
        """A status of one of our pulls (wire_facts 6.3); True when the range turns out to be read."""
        status = self.builder.status
        _, inbox, _, header, _ = self.builder.message
        text = header.split(b"\r\n", 1)[0][13:].decode(errors="replace").strip()
        number = inbox.rpartition(b".")[2]
        if status == 100:
            return self.exhausted()
        if status in (404, 408) or (status == 409 and text.startswith(("Batch Completed", "Message Size"))):
            self.end_pull(number)
            return status != 409 and self.exhausted()
        if status == 409 and text.startswith("Exceeded"):
            self.lower_batch(text)
            self.end_pull(number)
            return False
        if status in (409, 503):
            why = text or "no responders"
            raise errors.ConsumerGoneError(f"the consumer on stream {self.span.stream!r} is gone: {why}")
        raise errors.PullError(status, text)

    def end_pull(self, number: bytes) -> None:
        # Deliveries come in the order of the pulls, so what arrived before this status belongs to the front.
        self.count_arrivals()
        self.pulls = deque(pull for pull in self.pulls if str(pull.number).encode() != number)

    def count_arrivals(self) -> None:
        arrived = self.builder.delivered - self.counted
        self.counted = self.builder.delivered
        while arrived and self.pulls:
            used = min(arrived, self.pulls[0].left)
            self.pulls[0].left -= used
            arrived -= used
            if self.pulls[0].left == 0:
                self.pulls.popleft()

    def lower_batch(self, text: str) -> None:
        """409 Exceeded MaxRequestBatch of N: the account allows less than we asked for."""
        what, _, limit = text.rpartition(" ")
        if (
            what == "Exceeded MaxRequestBatch of"
            and limit.isdigit()
            and 0 < int(limit) < self.pull_records_max
        ):
            self.pull_records_max = int(limit)
            return
        raise errors.PullError(
            409, f"{text}: set options pullRecords and batchBytes below the server's limits"
        )

    def exhausted(self) -> bool:
        """Is there no matching message left in the range? Asks the stream itself."""
        for subject in self.options.subjects or (">",):
            found = self.next_message(subject)
            if found is not None and found < self.builder.end_seq:
                return False
        return True

    def next_message(self, subject: str) -> int | None:
        """The first sequence from where we are whose subject matches, None when there is none."""
        request = api.MsgGetRequest(seq=self.builder.next_seq, next_by_subj=subject)
        try:
            answer = self.connection.api(api.MsgGetResponse, f"STREAM.MSG.GET.{self.span.stream}", request)
        except errors.MessageNotFoundError:
            return None
        return None if answer.message is None else answer.message.seq


def _consumer_name() -> str:
    return f"spark-{secrets.token_hex(8)}"


def _create_consumer(
    connection: Connection, stream: str, config: api.ConsumerConfig
) -> api.ConsumerCreateResponse:
    request = api.ConsumerCreateRequest(stream_name=stream, config=config, action=api.ConsumerAction.CREATE)
    return connection.api(api.ConsumerCreateResponse, f"CONSUMER.CREATE.{stream}.{config.name}", request)


def _delete_consumer(connection: Connection, stream: str, name: str) -> None:
    connection.api(api.SuccessResponse, f"CONSUMER.DELETE.{stream}.{name}")
