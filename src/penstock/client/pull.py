"""Pull logic without IO (ADR-37): when to request, how to classify statuses, heartbeat monitoring.

Theory of operation of a continuous pull: the budget counts what was requested and not yet returned to the
user (`pending`), in messages and, for a limit in bytes, also in bytes. When it falls to the threshold,
`next_request` returns the pull request that refills the buffer. A status that ends a pull releases what the
server did not deliver (`Nats-Pending-*`). Single pull requests are not tracked: the sums suffice (ADR-37).

Invariants: pending counts never go below zero; a request is never for zero messages; at most one of
max_messages and max_bytes bounds the buffer.

Rejected: a pull request per message (a round trip each), and tracking the rest of each request (the server
may end any of several open pulls, and statuses do not identify them).
"""

from dataclasses import dataclass
from enum import Enum

from penstock.client.message import RawMessage
from penstock.errors import ConsumerGoneError, JetStreamError, MisuseError, PullError
from penstock.protocol import headers
from penstock.protocol import status as statuses
from penstock.protocol.api import PullRequest
from penstock.protocol.durations import NS_PER_S
from penstock.protocol.numbers import natural

UNBOUNDED_BATCH = 1_000_000  # batch of pulls that are limited in bytes (ADR-37)
DEFAULT_MAX_MESSAGES = 500
DEFAULT_EXPIRES_S = 30.0
MIN_EXPIRES_S = 1.0
MIN_HEARTBEAT_S = 0.5
MAX_HEARTBEAT_S = 30.0
# A fetch that waits longer requests heartbeats, to distinguish an idle stream from a lost one (ADR-37).
FETCH_HEARTBEAT_ABOVE_S = 30.0
STATUS_BLOCK_BYTES_MIN = len(b"NATS/1.0 100")
SPACE = 0x20


class StatusKind(Enum):
    """Effect of a status message on the pull."""

    HEARTBEAT = "heartbeat"  # idle heartbeat
    ENDED = "ended"  # the pull ended normally
    WARNING = "warning"  # the pull ended; report it to the user
    TERMINAL = "terminal"  # no further pull can succeed


_TERMINAL_409 = (statuses.CONSUMER_DELETED.text.lower(), statuses.CONSUMER_IS_PUSH_BASED.text.lower())
_SILENT_409 = (statuses.MESSAGE_SIZE_EXCEEDS_MAX_BYTES.text.lower(), statuses.BATCH_COMPLETED.text.lower())


def classify_status(status: int, description: str) -> StatusKind:
    """The class of a status (ADR-37, "Status handling").

    Leadership Change, Server Shutdown and unknown statuses are warnings: pulling continues.
    """
    text = description.lower()
    if status == 100:
        return StatusKind.HEARTBEAT
    if status in (204, 404, 408):
        return StatusKind.ENDED
    if status in (400, 412):
        return StatusKind.TERMINAL
    if status == 409 and text.startswith(_TERMINAL_409):
        return StatusKind.TERMINAL
    if status == 409 and text.startswith(_SILENT_409):
        return StatusKind.ENDED
    if status == 423:  # another client is pinned: continue without the pin id (ADR-42)
        return StatusKind.ENDED
    return StatusKind.WARNING


def message_size(raw: RawMessage) -> int:
    """Size of a message toward max_bytes, as the server counts: subject, reply, headers, payload."""
    return len(raw[1]) + len(raw[2] or b"") + len(raw[3] or b"") + len(raw[4])


def status_in(raw: RawMessage) -> tuple[int, str] | None:
    """Code and text of a status message, None for other messages, which are not parsed."""
    block = raw[3]
    if block is None or len(block) < STATUS_BLOCK_BYTES_MIN or block[8] != SPACE:
        return None
    code, text = headers.status_of(block)
    return None if code is None else (code, text)


def pending_in(raw: RawMessage) -> tuple[int, int]:
    """Undelivered messages and bytes of the pull that a status ended; zeros if the status has no counts."""
    block = raw[3] or b""
    messages = natural(headers.value_of(block, headers.PENDING_MESSAGES) or b"0")
    size = natural(headers.value_of(block, headers.PENDING_BYTES) or b"0")
    return (0, 0) if messages is None or size is None else (messages, size)


def status_error(status: int, description: str, consumer: str) -> JetStreamError:
    """The exception for an error status."""
    lower = description.lower()
    if status == 409 and lower == statuses.CONSUMER_DELETED.text.lower():
        return ConsumerGoneError(f"consumer {consumer!r} was deleted")
    if status == 503:
        return ConsumerGoneError(
            f"no response to pull requests of consumer {consumer!r}: it does not exist, or has no leader now"
        )
    return PullError(status, description)


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """Options of a pull from a consumer with priority groups (ADR-42).

    group: name of the group. min_pending, min_ack_pending: with policy overflow, serve only if at least so
    many messages are pending or unacknowledged. priority: with policy prioritized, 0 (first) to 9.
    """

    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0


NO_PRIORITY = PriorityOptions()


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Validated options of a continuous pull, created by `consume_options`. Times in seconds."""

    max_messages: int
    max_bytes: int  # 0: the buffer is bounded in messages
    threshold_messages: int
    threshold_bytes: int
    expires_s: float
    heartbeat_s: float
    priority: PriorityOptions = NO_PRIORITY


def consume_options(
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    expires: float | None = None,
    heartbeat: float | None = None,
    threshold_messages: int | None = None,
    threshold_bytes: int | None = None,
    priority: PriorityOptions = NO_PRIORITY,
) -> ConsumeOptions:
    """Apply the defaults and bounds of ADR-37. Raises MisuseError, which names the invalid option."""
    if max_messages is not None and max_bytes is not None:
        raise MisuseError("consume takes max_messages or max_bytes, not both: the buffer has one limit")
    messages = UNBOUNDED_BATCH if max_bytes is not None else max_messages or DEFAULT_MAX_MESSAGES
    if messages < 1 or (max_messages is not None and max_messages < 1):
        raise MisuseError(f"max_messages is {max_messages}; it must be at least 1")
    if max_bytes is not None and max_bytes < 1:
        raise MisuseError(f"max_bytes is {max_bytes}; it must be at least 1")
    expires_s = DEFAULT_EXPIRES_S if expires is None else expires
    if expires_s < MIN_EXPIRES_S:
        raise MisuseError(f"expires is {expires_s:g} s; a continuous pull needs at least {MIN_EXPIRES_S:g} s")
    heartbeat_s = (
        min(max(expires_s / 2, MIN_HEARTBEAT_S), MAX_HEARTBEAT_S) if heartbeat is None else heartbeat
    )
    if not MIN_HEARTBEAT_S <= heartbeat_s <= MAX_HEARTBEAT_S or heartbeat_s * 2 > expires_s:
        raise MisuseError(
            f"heartbeat is {heartbeat_s:g} s; it must be from {MIN_HEARTBEAT_S:g} to {MAX_HEARTBEAT_S:g} s "
            f"and at most half of expires ({expires_s:g} s)"
        )
    bytes_max = max_bytes or 0
    low_messages = _threshold("threshold_messages", threshold_messages, messages)
    low_bytes = _threshold("threshold_bytes", threshold_bytes, bytes_max)
    return ConsumeOptions(
        messages, bytes_max, low_messages, low_bytes, expires_s, heartbeat_s, priority=priority
    )


def _threshold(name: str, value: int | None, limit: int) -> int:
    # Half, rounded down: a buffer of one message requests the next after returning the first.
    if value is None:
        return limit // 2
    if not 0 <= value <= limit:
        raise MisuseError(f"{name} is {value}; it must be from 0 to the limit it belongs to ({limit})")
    return value


class PullBudget:
    """Counts what a continuous pull has requested, and decides when to request more."""

    __slots__ = ("counts_bytes", "options", "pending_bytes", "pending_messages", "pin_id")

    def __init__(self, options: ConsumeOptions) -> None:
        self.options = options
        self.counts_bytes = options.max_bytes > 0
        self.pending_messages = 0
        self.pending_bytes = 0
        self.pin_id = ""  # pin id from the server (ADR-42)

    def needs_request(self) -> bool:
        """Whether the pending count fell to the threshold."""
        options = self.options
        if self.counts_bytes:
            return self.pending_bytes <= options.threshold_bytes and self.pending_bytes < options.max_bytes
        return (
            self.pending_messages <= options.threshold_messages
            and self.pending_messages < options.max_messages
        )

    def next_request(self) -> PullRequest | None:
        """The request that refills the buffer, counted as pending; None if none is needed."""
        if not self.needs_request():
            return None
        options = self.options
        batch = max(options.max_messages - self.pending_messages, 1)
        max_bytes = options.max_bytes - self.pending_bytes if self.counts_bytes else 0
        self.pending_messages += batch
        self.pending_bytes += max_bytes
        return PullRequest(
            batch=batch,
            max_bytes=max_bytes,
            expires=int(options.expires_s * NS_PER_S),
            idle_heartbeat=int(options.heartbeat_s * NS_PER_S),
            group=options.priority.group,
            min_pending=options.priority.min_pending,
            min_ack_pending=options.priority.min_ack_pending,
            priority=options.priority.priority,
            id=self.pin_id,
        )

    def handed_out(self, size: int) -> None:
        """Count one message of `size` bytes as returned to the user."""
        self.pending_messages = max(self.pending_messages - 1, 0)
        if self.counts_bytes:
            self.pending_bytes = max(self.pending_bytes - size, 0)

    def released(self, messages: int, size: int) -> None:
        """Release the undelivered part of a pull (`Nats-Pending-Messages`, `Nats-Pending-Bytes`)."""
        self.pending_messages = max(self.pending_messages - messages, 0)
        self.pending_bytes = max(self.pending_bytes - size, 0)

    def reset(self, buffered_messages: int, buffered_bytes: int) -> None:
        """Forget all open pulls (reconnect, missed heartbeats); buffered messages still count."""
        self.pending_messages = buffered_messages
        self.pending_bytes = buffered_bytes if self.counts_bytes else 0


class HeartbeatMonitor:
    """Detects two missed heartbeats. Clock readings are arguments, in seconds.

    It is paused while disconnected.
    """

    __slots__ = ("_last_heard", "_paused", "interval_s")

    def __init__(self, interval_s: float, now: float) -> None:
        self.interval_s = interval_s
        self._last_heard = now
        self._paused = False

    def heard(self, now: float) -> None:
        """Record that a message, status or heartbeat arrived."""
        self._last_heard = now

    def pause(self) -> None:
        """Pause: the connection is lost."""
        self._paused = True

    def resume(self, now: float) -> None:
        """Resume with a new deadline: the connection is restored."""
        self._paused = False
        self._last_heard = now

    @property
    def deadline(self) -> float:
        """The time at which heartbeats count as missed."""
        return self._last_heard + 2 * self.interval_s

    def missed(self, now: float) -> bool:
        """Whether two heartbeats were missed. If so, restarts the deadline, so that it is reported once."""
        if self._paused or now < self.deadline:
            return False
        self._last_heard = now
        return True
