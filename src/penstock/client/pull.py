"""The rules of pulling (ADR-37), without IO: what to request when, what a status means, when it is too quiet.

Theory of operation of a continuous pull: the budget counts what has been requested and not yet handed to the
user (`pending`), in messages and, when the limit is in bytes, in bytes too. Whenever that falls to the
threshold, `next_request` gives the pull request which fills the buffer again. Statuses that end a pull give
back what the server did not deliver (`Nats-Pending-*`). No single pull request is tracked: the sums suffice,
as ADR-37 says.

Invariants: pending counts never go below zero; a request is never for zero messages; at most one of
max_messages and max_bytes bounds the buffer.

Rejected: a pull request per message consumed (a round trip each), and tracking each request's own rest (the
server may end any of several open pulls, and statuses do not say which).
"""

from dataclasses import dataclass
from enum import Enum

from penstock.client.message import RawMessage
from penstock.errors import ConsumerGoneError, JetStreamError, MisuseError, PullError
from penstock.protocol import headers
from penstock.protocol import status as statuses
from penstock.protocol.api import PullRequest
from penstock.protocol.durations import NS_PER_S

UNBOUNDED_BATCH = 1_000_000  # batch of pulls that are limited in bytes (ADR-37)
DEFAULT_MAX_MESSAGES = 500
DEFAULT_EXPIRES_S = 30.0
MIN_EXPIRES_S = 1.0
MIN_HEARTBEAT_S = 0.5
MAX_HEARTBEAT_S = 30.0
# A fetch that waits longer than this asks for heartbeats, to tell a quiet stream from a lost one (ADR-37).
FETCH_HEARTBEAT_ABOVE_S = 30.0
STATUS_BLOCK_BYTES_MIN = len(b"NATS/1.0 100")
SPACE = 0x20


class StatusKind(Enum):
    """What a status message means to the pull it arrives for."""

    HEARTBEAT = "heartbeat"  # nothing but a sign of life
    ENDED = "ended"  # the pull is over, nothing is wrong
    WARNING = "warning"  # the pull is over; the user is told
    TERMINAL = "terminal"  # no further pull can work


_TERMINAL_409 = (statuses.CONSUMER_DELETED.text.lower(), statuses.CONSUMER_IS_PUSH_BASED.text.lower())
_SILENT_409 = (statuses.MESSAGE_SIZE_EXCEEDS_MAX_BYTES.text.lower(), statuses.BATCH_COMPLETED.text.lower())


def classify_status(status: int, description: str) -> StatusKind:
    """The class of a status (ADR-37, "Status handling").

    Leadership Change, Server Shutdown and whatever a newer server may invent are warnings: pulls go on.
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
    if status == 423:  # the pin went to another client: pull on without it (ADR-42)
        return StatusKind.ENDED
    return StatusKind.WARNING


def message_size(raw: RawMessage) -> int:
    """Bytes a message counts for in max_bytes, as the server counts: subject, reply, headers, payload."""
    return len(raw[1]) + len(raw[2] or b"") + len(raw[3] or b"") + len(raw[4])


def status_in(raw: RawMessage) -> tuple[int, str] | None:
    """Code and text of a status message, None for a stream's message. Cheap for the latter."""
    block = raw[3]
    if block is None or len(block) < STATUS_BLOCK_BYTES_MIN or block[8] != SPACE:
        return None
    code, text = headers.status_of(block)
    return None if code is None else (code, text)


def pending_in(raw: RawMessage) -> tuple[int, int]:
    """What a status says of the pull it ended: messages and bytes not delivered; zeros when it does not."""
    block = raw[3] or b""
    messages = headers.value_of(block, headers.PENDING_MESSAGES) or b"0"
    size = headers.value_of(block, headers.PENDING_BYTES) or b"0"
    return (int(messages), int(size)) if messages.isdigit() and size.isdigit() else (0, 0)


def status_error(status: int, description: str, consumer: str) -> JetStreamError:
    """The exception for a status that is an error."""
    lower = description.lower()
    if status == 409 and lower == statuses.CONSUMER_DELETED.text.lower():
        return ConsumerGoneError(f"consumer {consumer!r} was deleted")
    if status == 503:
        return ConsumerGoneError(
            f"nobody answers pull requests of consumer {consumer!r}: it does not exist, or has no leader now"
        )
    return PullError(status, description)


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """What a pull says to a consumer with priority groups (ADR-42).

    group: the group's name. min_pending and min_ack_pending: overflow policy, served only when at least so
    many messages are pending or unacknowledged. priority: prioritized policy, 0 (first) to 9.
    """

    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0


NO_PRIORITY = PriorityOptions()


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Validated options of a continuous pull; make them by `consume_options`. Times in seconds."""

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
    """Fills in ADR-37's defaults and checks its bounds; MisuseError names the option that breaks one."""
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
    # Half, rounded down: a buffer of one message asks for the next when the one was handed out.
    if value is None:
        return limit // 2
    if not 0 <= value <= limit:
        raise MisuseError(f"{name} is {value}; it must be from 0 to the limit it belongs to ({limit})")
    return value


class PullBudget:
    """Counts what a continuous pull has asked for, and says when to ask for more."""

    __slots__ = ("counts_bytes", "options", "pending_bytes", "pending_messages", "pin_id")

    def __init__(self, options: ConsumeOptions) -> None:
        self.options = options
        self.counts_bytes = options.max_bytes > 0
        self.pending_messages = 0
        self.pending_bytes = 0
        self.pin_id = ""  # what the server pinned this client by (ADR-42)

    def needs_request(self) -> bool:
        """Whether what is pending fell to the threshold."""
        options = self.options
        if self.counts_bytes:
            return self.pending_bytes <= options.threshold_bytes and self.pending_bytes < options.max_bytes
        return (
            self.pending_messages <= options.threshold_messages
            and self.pending_messages < options.max_messages
        )

    def next_request(self) -> PullRequest | None:
        """The request that fills the buffer, already counted as pending; None while there is enough."""
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
        """One message of `size` bytes went to the user."""
        self.pending_messages = max(self.pending_messages - 1, 0)
        if self.counts_bytes:
            self.pending_bytes = max(self.pending_bytes - size, 0)

    def given_back(self, messages: int, size: int) -> None:
        """A pull ended with so much of it undelivered (`Nats-Pending-Messages`, `Nats-Pending-Bytes`)."""
        self.pending_messages = max(self.pending_messages - messages, 0)
        self.pending_bytes = max(self.pending_bytes - size, 0)

    def reset(self, buffered_messages: int, buffered_bytes: int) -> None:
        """All open pulls are gone (reconnect, missed heartbeats); what is buffered here still counts."""
        self.pending_messages = buffered_messages
        self.pending_bytes = buffered_bytes if self.counts_bytes else 0


class HeartbeatMonitor:
    """Tells when nothing was heard for two heartbeats. Clock readings come in as arguments, in seconds.

    It is paused while there is no connection: silence is then no news.
    """

    __slots__ = ("_last_heard", "_paused", "interval_s")

    def __init__(self, interval_s: float, now: float) -> None:
        self.interval_s = interval_s
        self._last_heard = now
        self._paused = False

    def heard(self, now: float) -> None:
        """Anything arrived: a message, a status, a heartbeat."""
        self._last_heard = now

    def pause(self) -> None:
        """The connection is gone."""
        self._paused = True

    def resume(self, now: float) -> None:
        """The connection is back; the wait starts anew."""
        self._paused = False
        self._last_heard = now

    @property
    def deadline(self) -> float:
        """When silence becomes a missed heartbeat."""
        return self._last_heard + 2 * self.interval_s

    def missed(self, now: float) -> bool:
        """Whether two heartbeats were missed; if so, the wait starts anew, so that it is told once."""
        if self._paused or now < self.deadline:
            return False
        self._last_heard = now
        return True
