"""Pull requests that wait for messages, and the status messages that end them.

A request asks for up to `batch` messages (and up to `max_bytes`) and expires after `expires`. Messages
go to the requests round robin. These end as on the official server:

    batch complete                   no status; 409 Batch Completed when bytes of max_bytes are left
    next message exceeds the rest    409 Message Size Exceeds MaxBytes
    expired                          408 Request Timeout
    no_wait and no (more) messages   404 No Messages; with expires it first waits for one message
    pin id no longer valid           423 Nats-Wrong-Pin-Id (groups.py)
    reply subject has no subscriber  nothing is sent

Invariant: every request in the queue can take another message.
"""

from __future__ import annotations

from penstock.errors import JetStreamError
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.kernels.consumer.endpoints import Rotation, Target, TargetEnd
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.protocol import headers
from penstock.protocol.api import ApiConsumerConfig, PullRequest
from penstock.protocol.durations import format_duration
from penstock.protocol.status import (
    BATCH_COMPLETED,
    EXCEEDED_MAX_REQUEST_BATCH,
    EXCEEDED_MAX_REQUEST_EXPIRES,
    EXCEEDED_MAX_REQUEST_MAX_BYTES,
    EXCEEDED_MAX_WAITING,
    HEARTBEAT_TOO_LARGE,
    IDLE_HEARTBEAT,
    MESSAGE_SIZE_EXCEEDS_MAX_BYTES,
    NO_MESSAGES,
    REQUEST_TIMEOUT,
    REQUESTS_PENDING,
    WRONG_PIN_ID,
    Status,
)

# The least time between two searches of a full queue for requests without a subscriber.
SWEEP_NS = 1_000_000_000


class PullRefusedError(JetStreamError):
    """The pull request gets a status instead of messages."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(f"{status.code} {status.text}")


class WaitingRequest(Target):
    """One pull request. `expires` and `heartbeat_due` are in ns since epoch, None for never."""

    __slots__ = ("_heartbeat_ns", "delivered_at_due", "expires", "heartbeat_due", "no_wait")

    def __init__(self, reply: bytes, request: PullRequest, now: int) -> None:
        super().__init__(reply, max(request.batch, 1), max(request.max_bytes, 0))
        self.no_wait = request.no_wait
        self.expires = now + request.expires if request.expires else None
        self._heartbeat_ns = max(request.idle_heartbeat, 0)
        self.heartbeat_due = now + self._heartbeat_ns if self._heartbeat_ns else None
        self.delivered_at_due = 0  # `delivered` when heartbeat_due was set
        self.priority = request.priority
        self.min_pending = request.min_pending
        self.min_ack_pending = request.min_ack_pending
        self.pin = request.id.encode()

    def pending_headers(self) -> list[tuple[str, str]]:
        """The headers with its remaining messages and bytes, for statuses that have them."""
        return [
            (headers.PENDING_MESSAGES, str(max(self.batch, 0))),
            (headers.PENDING_BYTES, str(max(self.bytes_left, 0))),
        ]

    def restart_heartbeat(self, now: int) -> None:
        """Begins a heartbeat interval, after messages or a heartbeat. Only for requests with heartbeats."""
        self.heartbeat_due = now + self._heartbeat_ns
        self.delivered_at_due = self.delivered


def check_request(request: PullRequest, config: ApiConsumerConfig) -> None:
    """Raises PullRefusedError for a request that the consumer's configuration does not allow."""
    if request.idle_heartbeat > 0 and request.idle_heartbeat * 2 > request.expires:
        raise PullRefusedError(HEARTBEAT_TOO_LARGE)
    if 0 < config.max_batch < request.batch:
        raise PullRefusedError(EXCEEDED_MAX_REQUEST_BATCH.format(limit=config.max_batch))
    if 0 < config.max_expires < request.expires:
        limit = format_duration(config.max_expires)
        raise PullRefusedError(EXCEEDED_MAX_REQUEST_EXPIRES.format(limit=limit))
    if 0 < config.max_bytes < request.max_bytes:
        raise PullRefusedError(EXCEEDED_MAX_REQUEST_MAX_BYTES.format(limit=config.max_bytes))


class PullQueue:
    """The waiting requests of one consumer, in the order in which they are served.

    index: has the subscribers of their reply subjects. effects: gets statuses. rotation: selects among them.
    """

    def __init__(
        self, index: SubscriptionIndex, effects: ConsumerEffects, rotation: Rotation, waiting_max: int
    ) -> None:
        self._index = index
        self._effects = effects
        self._rotation = rotation
        self.waiting_max = waiting_max
        self.requests: list[Target] = []  # WaitingRequests; the pump rotates this list
        self._swept_at = 0
        self.last_active = 0  # ns: the last request, delivery or expiry

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def wanted(self) -> int:
        """The number of messages that all requests together still accept."""
        return sum(request.batch for request in self.requests)

    def add(self, reply: bytes, request: PullRequest, messages_pending: int, now: int) -> None:
        """Queues a (checked) request.

        messages_pending: messages that the consumer could deliver now. Raises PullRefusedError when the
        request ends at once.
        """
        self.last_active = now
        if len(self.requests) >= self.waiting_max and now - self._swept_at > SWEEP_NS:
            self.sweep(now)
        if request.no_wait:
            if messages_pending == 0 and not request.expires:
                raise PullRefusedError(NO_MESSAGES)
            if messages_pending > 0 and self.requests:
                self.sweep(now)
                if messages_pending < self.wanted:
                    raise PullRefusedError(REQUESTS_PENDING)
        if len(self.requests) >= self.waiting_max:
            raise PullRefusedError(EXCEEDED_MAX_WAITING)
        self._rotation.add(self.requests, WaitingRequest(reply, request, now))

    def on_end(self, target: Target, why: int) -> None:
        """Called when the pump removed `target` from the queue: adds the status, if there is one."""
        assert isinstance(target, WaitingRequest)
        if why == TargetEnd.END_TOO_LARGE:
            self._effects.status(
                target.subject, MESSAGE_SIZE_EXCEEDS_MAX_BYTES.block(target.pending_headers())
            )
        elif why == TargetEnd.END_BYTES_LEFT:
            self._effects.status(target.subject, BATCH_COMPLETED.block(target.pending_headers()))
        elif why == TargetEnd.END_WRONG_PIN:
            self._effects.status(target.subject, WRONG_PIN_ID.block(target.pending_headers()))

    def sweep(self, now: int) -> None:
        """Drops expired requests (with 408) and those whose reply subject has no subscriber."""
        self._swept_at = now
        remaining: list[Target] = []
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            if request.expires is not None and request.expires <= now:
                self.last_active = max(self.last_active, request.expires)
                self._effects.status(request.subject, REQUEST_TIMEOUT.block(request.pending_headers()))
            elif request.is_wanted(self._index):
                remaining.append(request)
        self.requests[:] = remaining

    def drop_expired(self, now: int) -> None:
        """Ends expired requests before a delivery, in case their timer is late: they get no message."""
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            if request.expires is not None and request.expires <= now:
                self.sweep(now)
                return

    def at_end_of_stream(self, now: int) -> None:
        """All messages are delivered: ends no_wait requests that got a message or would not wait for one
        (404)."""
        remaining: list[Target] = []
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            if request.no_wait and (request.expires is None or request.delivered):
                self.last_active = now
                self._effects.status(request.subject, NO_MESSAGES.block())
            else:
                remaining.append(request)
        if len(remaining) != len(self.requests):
            self.requests[:] = remaining

    def after_delivery(self, now: int) -> None:
        """Restarts the heartbeat intervals of the requests that got messages."""
        self.last_active = now
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            if request.heartbeat_due is not None and request.delivered != request.delivered_at_due:
                request.restart_heartbeat(now)

    def next_deadline(self) -> int | None:
        """When on_time is due, or None."""
        first = None
        for request in self.requests:  # a plain loop: runs in every tick with requests
            assert isinstance(request, WaitingRequest)
            for due in (request.expires, request.heartbeat_due):
                if due is not None and (first is None or due < first):
                    first = due
        return first

    def on_time(self, now: int, last_consumer: int, last_stream: int) -> None:
        """Expires requests and sends idle heartbeats, with the last delivered sequences."""
        self.sweep(now)
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            if request.heartbeat_due is not None and request.heartbeat_due <= now:
                self._effects.status(request.subject, heartbeat_block(last_consumer, last_stream))
                request.restart_heartbeat(now)

    def end_all(self, status: Status, *, with_rest: bool = False) -> None:
        """Ends all requests with `status`. with_rest: add headers with their remaining messages and bytes."""
        for request in self.requests:
            assert isinstance(request, WaitingRequest)
            self._effects.status(
                request.subject, status.block(request.pending_headers() if with_rest else ())
            )
        self.requests.clear()


def heartbeat_block(last_consumer: int, last_stream: int, stalled: bytes = b"") -> bytes:
    """Headers of an idle heartbeat. stalled: the subject of an unanswered flow control request."""
    pairs = [(headers.LAST_CONSUMER, str(last_consumer)), (headers.LAST_STREAM, str(last_stream))]
    if stalled:
        pairs.append((headers.CONSUMER_STALLED, stalled.decode()))
    return IDLE_HEARTBEAT.block(pairs)
