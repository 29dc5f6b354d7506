"""Reads (part of) a range over one connection, by a pull consumer or by direct gets.

Consumer (the default): an ephemeral memory consumer without acks that starts at the first sequence not yet
read. Two pull requests are outstanding, so that the server never waits for the client. Direct: batches of
direct gets, for streams that allow them. It needs no permission to create consumers and works on work queues,
with at most one filter.

Invariants:
- A session that ends early raises; a session that returns has read its range to the end. Hints that the end
  is reached (`num_pending` 0, 404, a heartbeat instead of messages) are verified with a request to the
  stream's leader, because a lagging replica may answer a direct get.
- The consumer is deleted at the end. If the task is killed, the server removes it after
  INACTIVE_THRESHOLD_NS without a pull.

Rejected: a push consumer (it needs flow control), a durable one (there is no state to keep between tasks),
one request per message.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock import errors
from penstock.kernels.spark.columns import ColumnBuffer, ColumnBuilder, Event
from penstock.protocol import api
from penstock.spark.offsets import DataLossError, SequenceRange, StreamBounds
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

Batch = tuple[int, dict[str, tuple[ColumnBuffer, ...]]]

PULLS_OUTSTANDING = 2
PULL_EXPIRES_NS = 30_000_000_000
HEARTBEAT_NS = 5_000_000_000
HEARTBEATS_MISSED_MAX = 2
SETTLE_S = 5.0
SETTLE_PAUSE_S = 0.1
QUIET_S = HEARTBEATS_MISSED_MAX * HEARTBEAT_NS / 1e9
INACTIVE_THRESHOLD_NS = 60_000_000_000
DATA_SID = b"2"


def stream_bounds(connection: BlockingConnection, stream: str) -> StreamBounds:
    """The current bounds of `stream`. Raises what `BlockingConnection.stream_info` raises."""
    return bounds_of(stream, connection.stream_info(stream))


def bounds_of(stream: str, info: api.StreamInfoResponse) -> StreamBounds:
    """The bounds in a stream info response."""
    last = info.state.last_seq
    first = max(1, info.state.first_seq) if info.state.messages else last + 1
    size = info.state.bytes / info.state.messages if info.state.messages else 1.0
    group = info.cluster
    names = (
        () if group is None else tuple(filter(None, (group.leader, *(one.name for one in group.replicas))))
    )
    return StreamBounds(stream, info.created, first, last, size, names)


def sequence_at_time(connection: BlockingConnection, stream: str, when: str) -> int:
    """The first sequence stored at or after `when` (RFC3339); last_seq + 1 if there is none.

    Creates a consumer that starts at that time and reads its start sequence, which works with every server
    version.
    """
    config = api.ApiConsumerConfig(
        name=new_consumer_name(),
        deliver_policy=api.DeliverPolicy.BY_START_TIME,
        opt_start_time=when,
        ack_policy=api.AckPolicy.NONE,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=INACTIVE_THRESHOLD_NS,
    )
    info = create_consumer(connection, stream, config)
    delete_consumer(connection, stream, info.name)
    return info.delivered.stream_seq + 1


@dataclass
class PullWindow:
    """A pull request in flight. left: messages it may still deliver."""

    number: int
    left: int


class RangeSession(ABC):
    """Reads the rest of a range. `batches` returns at its end and raises before it."""

    def __init__(
        self,
        options: SourceOptions,
        span: SequenceRange,
        builder: ColumnBuilder,
        connection: BlockingConnection,
    ) -> None:
        self.options = options
        self.span = span
        self.builder = builder
        self.connection = connection
        self.inbox = f"_INBOX.{secrets.token_hex(11)}"
        # Must hold the largest message, else the server can never answer a request.
        self.request_bytes = max(options.batch_bytes, 2 * connection.info.max_payload)

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Batches of at least one row."""

    @abstractmethod
    def send_requests(self) -> None:
        """Keep enough requests in flight.

        Called whenever all received data is consumed and before a batch is yielded.
        """

    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether the range may be read completely. Called when all received data is consumed."""

    @abstractmethod
    def handle_status(self, status: int, text: str, number: bytes) -> bool:
        """Handle a status for request `number`. True if the range may be read completely."""

    def subscribe(self) -> None:
        """Subscribe to the inbox for deliveries."""
        self.builder.restart(self.builder.next_seq, self.span.end)
        self.connection.send(b"SUB %s.* %s\r\n" % (self.inbox.encode(), DATA_SID))

    def receive(self) -> Iterator[Batch]:
        """Event loop over the kernel's events until the end of the range."""
        builder, connection = self.builder, self.connection
        while True:
            event = builder.feed(connection.parser)
            if event == Event.EVENT_NEED_MORE:
                if self.is_at_end() and self.is_exhausted():
                    break
                self.send_requests()
                if not connection.receive(QUIET_S):
                    raise errors.ConsumerGoneError(
                        f"stream {self.span.stream!r}: neither a message nor a heartbeat within {QUIET_S:g} s"
                    )
            elif event == Event.EVENT_FULL:
                self.send_requests()
                yield builder.take()
            elif event == Event.EVENT_END:
                break
            elif event == Event.EVENT_STATUS:
                _, inbox, _, header, _ = builder.message
                text = header.split(b"\r\n", 1)[0][13:].decode(errors="replace").strip()
                number = inbox.rpartition(b".")[2]
                if self.handle_status(builder.status, text, number) and self.is_exhausted():
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
        yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        """The last, partly filled batch, if any."""
        if self.builder.rows:
            yield self.builder.take()

    def is_stream_there(self) -> bool:
        """False if no message of the range is left. Raises DataLossError (failOnDataLoss)."""
        bounds = self._settled_bounds()
        loss = self._loss_at_end(bounds)
        if not loss and bounds.first_seq > self.builder.next_seq:
            loss = f"its first sequence is now {bounds.first_seq}"
        self._check_loss(loss)
        return bounds.created == self.span.created and bounds.last_seq >= self.builder.next_seq

    def _settled_bounds(self) -> StreamBounds:
        """The bounds of the stream, which ended after the range when the range was planned. A leader that was
        just elected may not have applied its last messages yet: it gets SETTLE_S to do so."""
        until = time.monotonic() + SETTLE_S
        while True:
            bounds = stream_bounds(self.connection, self.span.stream)
            is_behind = bounds.created == self.span.created and bounds.last_seq < self.span.end - 1
            if not is_behind or time.monotonic() >= until:
                return bounds
            time.sleep(SETTLE_PAUSE_S)

    def _loss_at_end(self, bounds: StreamBounds) -> str:
        """What shows that the end of the range is lost; "" = it is there."""
        if bounds.created != self.span.created:
            return f"it was recreated at {bounds.created}"
        if bounds.last_seq < self.span.end - 1:
            return f"its last sequence is now {bounds.last_seq}"
        return ""

    def _check_loss(self, loss: str) -> None:
        if loss and self.options.fail_on_data_loss:
            raise DataLossError(
                f"stream {self.span.stream!r} lost messages while sequences {self.builder.next_seq} to "
                f"{self.span.end - 1} were to be read: {loss}. "
                "Set failOnDataLoss to false to go on without them"
            )

    def is_exhausted(self) -> bool:
        """Whether no matching message is left in the range, according to the stream's leader. Raises
        DataLossError (failOnDataLoss): the stream itself ends before the range."""
        self._check_loss(self._loss_at_end(self._settled_bounds()))
        for subject in self.options.subjects or (">",):
            found = self.next_message(subject)
            if found is not None and found < self.builder.end_seq:
                return False
        return True

    def next_message(self, subject: str) -> int | None:
        """The first matching sequence at or after the current one; None if there is none."""
        request = api.MsgGetRequest(seq=self.builder.next_seq, next_by_subj=subject)
        try:
            answer = self.connection.api(api.MsgGetResponse, f"STREAM.MSG.GET.{self.span.stream}", request)
        except errors.MessageNotFoundError:
            return None
        return None if answer.message is None else answer.message.seq


class ConsumerSession(RangeSession):
    """Reads through an ephemeral pull consumer."""

    def __init__(
        self,
        options: SourceOptions,
        span: SequenceRange,
        builder: ColumnBuilder,
        connection: BlockingConnection,
        *,
        headers_only: bool,
    ) -> None:
        super().__init__(options, span, builder, connection)
        self.headers_only = headers_only
        self.consumer = new_consumer_name()
        self.pulls: deque[PullWindow] = deque()
        self.pull_number = 0
        self.pull_records_max = options.pull_records
        self.counted = 0  # deliveries already subtracted from the pulls

    def batches(self) -> Iterator[Batch]:
        if not self.is_stream_there():
            yield from self.flush()
            return
        try:
            if self.start_consumer() == 0 and self.is_exhausted():
                yield from self.flush()
                return
            self.subscribe()
            yield from self.receive()
        finally:
            with contextlib.suppress(errors.PenstockError):
                delete_consumer(self.connection, self.span.stream, self.consumer)

    def is_at_end(self) -> bool:
        return self.builder.delivered > 0 and self.builder.pending == 0

    def start_consumer(self) -> int:
        """Create the consumer and return how many messages match."""
        options = self.options
        config = api.ApiConsumerConfig(
            name=self.consumer,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.builder.next_seq,
            ack_policy=api.AckPolicy.NONE,
            filter_subject=options.filter_subject,
            filter_subjects=options.filter_subjects,
            headers_only=self.headers_only,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=INACTIVE_THRESHOLD_NS,
        )
        info = create_consumer(self.connection, self.span.stream, config)
        return info.num_pending

    def send_requests(self) -> None:
        """Keep two pulls outstanding, unless one already covers the rest of the range."""
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
                max_bytes=self.request_bytes,
                expires=PULL_EXPIRES_NS,
                idle_heartbeat=HEARTBEAT_NS,
            )
        )
        subject = f"{self.options.connection.api_prefix}.CONSUMER.MSG.NEXT.{self.span.stream}.{self.consumer}"
        reply = f"{self.inbox}.{self.pull_number}"
        self.connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body))
        self.pulls.append(PullWindow(self.pull_number, batch))

    def handle_status(self, status: int, text: str, number: bytes) -> bool:
        """Handle a pull status: heartbeat, end of a pull, limits. Raises ConsumerGoneError, PullError."""
        if status == 100:
            return True
        if status in (404, 408) or (status == 409 and text.startswith(("Batch Completed", "Message Size"))):
            self.end_pull(number)
            return status != 409
        if status == 409 and text.startswith("Exceeded"):
            self.lower_batch(text)
            self.end_pull(number)
            return False
        if status in (409, 503):
            why = text or "no responders"
            raise errors.ConsumerGoneError(f"the consumer on stream {self.span.stream!r} is gone: {why}")
        raise errors.PullError(status, text)

    def end_pull(self, number: bytes) -> None:
        # The server serves pulls in order, so earlier deliveries belong to the oldest pull.
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
        """Lower the batch size after `409 Exceeded MaxRequestBatch of N`. Raises PullError otherwise."""
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


class DirectSession(RangeSession):
    """Reads by batches of direct gets, one at a time: a batch starts where the previous one ended."""

    request_number = 0
    is_waiting = False

    def batches(self) -> Iterator[Batch]:
        if not self.is_stream_there():
            yield from self.flush()
            return
        self.subscribe()
        yield from self.receive()

    def send_requests(self) -> None:
        if self.is_waiting:
            return
        self.is_waiting = True
        self.request_number += 1
        builder = self.builder
        body = api.encode(
            api.MsgGetRequest(
                seq=builder.next_seq,
                next_by_subj=self.options.subjects[0] if self.options.subjects else ">",
                batch=min(self.options.pull_records, builder.end_seq - builder.next_seq),
                max_bytes=self.request_bytes,
            )
        )
        subject = f"{self.options.connection.api_prefix}.DIRECT.GET.{self.span.stream}"
        reply = f"{self.inbox}.{self.request_number}"
        self.connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body))

    def is_at_end(self) -> bool:
        return False  # the final status of a batch tells

    def handle_status(self, status: int, text: str, number: bytes) -> bool:
        """Handle 204 (end of batch), 404 (no further message) and errors."""
        self.is_waiting = False
        if status == 204:
            return self.builder.pending == 0
        if status == 404:
            return True
        if status == 503:
            raise errors.JetStreamApiError(
                400,
                0,
                f"stream {self.span.stream!r} does not answer direct gets: "
                "set its allow_direct, or leave the option 'access' at 'consumer'",
            )
        raise errors.PullError(status, text)


def new_consumer_name() -> str:
    """A name that no other consumer has."""
    return f"spark-{secrets.token_hex(8)}"


def create_consumer(
    connection: BlockingConnection, stream: str, config: api.ApiConsumerConfig
) -> api.ConsumerCreateResponse:
    """Create an ephemeral consumer. Raises what `BlockingConnection.api` raises."""
    request = api.ConsumerCreateRequest(stream_name=stream, config=config, action=api.ConsumerAction.CREATE)
    return connection.api(api.ConsumerCreateResponse, f"CONSUMER.CREATE.{stream}.{config.name}", request)


def delete_consumer(connection: BlockingConnection, stream: str, name: str) -> None:
    """Delete a consumer. Raises what `BlockingConnection.api` raises."""
    connection.api(api.SuccessResponse, f"CONSUMER.DELETE.{stream}.{name}")
