"""Message schedules (ADR-51): messages that make the stream store others at later times, once or repeatedly.

A schedule is the last message of its subject, with a pattern in `Nats-Schedule`. When it is due, the stream
stores its payload (or the last message of `Nats-Schedule-Source`) under `Nats-Schedule-Target`. The produced
message names its schedule and, in `Nats-Schedule-Next`, the time of the next one or `purge`: then the
schedule is removed with it.

Invariants: a subject has one schedule. One that was removed, or is no longer its subject's last message, is
ignored when it is due. What is due follows from the log and the time alone, so a restart loses nothing:
occurrences missed while the server was down happen once, at the start.

Rejected: storing next times separately. They are in the log already, in the produced messages; where those
are gone, the log's last time bounds how far the stream had come. Dropping all stale entries of the queue at
once: with 100,000 schedules that took 100 ms of one publish.
"""

from __future__ import annotations

import heapq
import re
import sys
from collections.abc import Generator, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import JetStreamApiError, MisuseError
from penstock.jetstream.stream import ttl
from penstock.jetstream.stream.header_scan import HeaderMatch, scan_headers, work_of
from penstock.kernels.log.stream_log import StoredRecord, StreamLog
from penstock.kernels.routing.grammar import overlaps_any
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.durations import NS_PER_S, parse_time
from penstock.protocol.schedule_patterns import Occurrence, format_occurrence, load_zone, next_occurrence
from penstock.protocol.subjects import is_valid_subject

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

PURGE = "purge"
RETRY_NS = NS_PER_S  # while the stream cannot be written
QUEUE_MIN = 64  # a shorter queue keeps its stale entries
MOVED_MAX = 8  # entries that leave an old queue per schedule that is added
STALE_MAX = 256  # stale entries that are dropped at once
SCHEDULE_FACTOR = 16  # finding when a schedule is due costs so much more than another header
_NOTHING_STAGED: Mapping[bytes, bool] = {}

# Headers of the schedule or source that a produced message does not copy.
_OWN_HEADERS = re.compile(
    rb"\r\n(?:Nats-Schedule[^:\r\n]*|Nats-Expected-[^:\r\n]*|Nats-Msg-Id|Nats-TTL|Nats-Rollup):[^\r\n]*"
)


class ScheduleRequest(NamedTuple):
    """The request in a publish's schedule headers."""

    header: bytes  # with the roll-up that limits a subject to one schedule
    due: int = 0  # ns: the message is a schedule
    purged: bytes = b""  # the schedule that this message removes


class ScheduledMessage(NamedTuple):
    """A message produced by a schedule."""

    subject: bytes
    header: bytes
    payload: bytes
    scheduler: bytes
    next_due: int  # ns; 0: the schedule is removed


def check_schedule(
    stream: StreamReplica,
    subject: bytes,
    header: bytes,
    now: int,
    staged: Mapping[bytes, bool] = _NOTHING_STAGED,
) -> ScheduleRequest:
    """The schedule request of a publish. staged: subjects written earlier in its batch, and whether by a
    schedule.

    Raises JetStreamApiError: 10188 where schedules are not allowed, 10189 for the pattern, 10223 time zone,
    10191 and 10166 TTL, 10192 roll-up, 10190 target, 10203 source, 10212 for headers of produced messages.
    """
    request = ScheduleRequest(header)
    if headers.SCHEDULE.encode() in header:  # the common prefix of all names
        allowed = stream.config.allow_msg_schedules
        try:
            found = _occurrence(header, now, now)
        except JetStreamApiError:
            if not allowed:
                raise codes.MESSAGE_SCHEDULES_DISABLED.exception() from None
            raise
        if found is not None:
            if not allowed:
                raise codes.MESSAGE_SCHEDULES_DISABLED.exception()
            _check_parts(stream, subject, header)
            request = ScheduleRequest(_rolled_up(header), due=max(found.at, 1))
    return _check_cancel(stream, subject, header, request, staged)


def _occurrence(header: bytes, after: int, now: int) -> Occurrence | None:
    """The next time of a schedule; None without a pattern. Raises JetStreamApiError 10189, 10223."""
    zone = _zone(header)
    pattern = headers.value_of(header, headers.SCHEDULE)
    if not pattern:
        return None
    try:
        return next_occurrence(pattern.decode("utf-8", "replace"), zone, after, now)
    except MisuseError:
        raise codes.MESSAGE_SCHEDULES_PATTERN_INVALID.exception() from None


def _zone(header: bytes) -> tzinfo | None:
    name = headers.value_of(header, headers.SCHEDULE_TIME_ZONE)
    if name is None:
        return None
    try:
        return load_zone(name.decode("utf-8", "replace"))
    except MisuseError:
        raise codes.MESSAGE_SCHEDULES_TIME_ZONE_INVALID.exception() from None


def _check_parts(stream: StreamReplica, subject: bytes, header: bytes) -> None:
    ttl_text = headers.value_of(header, headers.SCHEDULE_TTL)
    if ttl_text:
        try:
            ttl.parse_ttl(ttl_text)
        except JetStreamApiError:
            raise codes.MESSAGE_SCHEDULES_TTL_INVALID.exception() from None
    rollup = headers.value_of(header, headers.SCHEDULE_ROLLUP)
    if rollup and rollup != b"sub":
        raise codes.MESSAGE_SCHEDULES_ROLLUP_INVALID.exception()
    if ttl_text and not stream.config.allow_msg_ttl:
        raise codes.MESSAGE_TTL_DISABLED.exception()
    target = headers.value_of(header, headers.SCHEDULE_TARGET) or b""
    source = headers.value_of(header, headers.SCHEDULE_SOURCE) or b""
    if not _is_subject(target) or target == subject:
        raise codes.MESSAGE_SCHEDULES_TARGET_INVALID.exception()
    if source and (source in (target, subject) or not _is_subject(source)):
        raise codes.MESSAGE_SCHEDULES_SOURCE_INVALID.exception()
    if not _is_taken(stream, target):
        raise codes.MESSAGE_SCHEDULES_TARGET_INVALID.exception()
    if source and not _is_taken(stream, source):
        raise codes.MESSAGE_SCHEDULES_SOURCE_INVALID.exception()


def _is_subject(subject: bytes) -> bool:
    return is_valid_subject(subject.decode("utf-8", "replace"))


def _is_taken(stream: StreamReplica, subject: bytes) -> bool:
    return overlaps_any(stream.config.subjects, subject.decode("utf-8", "replace"))


def _rolled_up(header: bytes) -> bytes:
    rollup = headers.value_of(header, headers.ROLLUP)
    if not rollup:
        return headers.with_value(header, headers.ROLLUP, "sub")
    if rollup.lower() != b"sub":
        raise codes.MESSAGE_SCHEDULES_ROLLUP_INVALID.exception()
    return header


def _check_cancel(
    stream: StreamReplica,
    subject: bytes,
    header: bytes,
    request: ScheduleRequest,
    staged: Mapping[bytes, bool],
) -> ScheduleRequest:
    """Handles `Nats-Schedule-Next: purge` of a client, which removes a schedule by a message of its own."""
    scheduler = headers.value_of(header, headers.SCHEDULER)
    after = headers.value_of(header, headers.SCHEDULE_NEXT)
    if not after:
        if scheduler:
            raise codes.MESSAGE_SCHEDULES_SCHEDULER_INVALID.exception()
        return request
    if after != PURGE.encode() or not scheduler or scheduler == subject or not _is_subject(scheduler):
        raise codes.MESSAGE_SCHEDULES_SCHEDULER_INVALID.exception()
    if not stream.config.allow_msg_schedules:
        raise codes.MESSAGE_SCHEDULES_DISABLED.exception()
    is_schedule = staged.get(scheduler)
    if is_schedule is None:
        last = stream.log.load_last(scheduler)
        is_schedule = last is None or bool(headers.value_of(last.header, headers.SCHEDULE))
    if not is_schedule:
        raise codes.MESSAGE_SCHEDULES_SCHEDULER_INVALID.exception()
    return request._replace(purged=scheduler)


class MessageSchedules:
    """The due times of a stream's schedules. is_used: there was one since the start."""

    def __init__(self, log: StreamLog) -> None:
        self.is_used = False
        self._log = log
        self._due: dict[bytes, tuple[int, int]] = {}  # subject -> (ns, sequence)
        # Heaps of (ns, sequence, subject). Entries that are not in `_due` any more are stale.
        self._queue: list[tuple[int, int, bytes]] = []
        self._old: list[tuple[int, int, bytes]] = []  # had many stale entries; the others move to `_queue`

    def __len__(self) -> int:
        return len(self._due)

    def add(self, subject: bytes, seq: int, due: int) -> None:
        """Adds the message at `seq` as its subject's schedule, due at `due` (ns)."""
        self.is_used = True
        self._due[subject] = (due, seq)
        heapq.heappush(self._queue, (due, seq, subject))
        self._drop_stale()

    def dump(self) -> list[tuple[bytes, int, int]]:
        """The state, for restore(): subjects, sequences and due times."""
        return [(subject, seq, due) for subject, (due, seq) in self._due.items()]

    def restore(self, schedules: list[tuple[bytes, int, int]]) -> None:
        """Takes over the state of another replica."""
        for subject, seq, due in schedules:
            self.add(subject, seq, due)

    def _drop_stale(self) -> None:
        """Moves some entries of the old queue that are not stale to the new one. The old one is empty before
        enough schedules are added to make the new one as long."""
        if not self._old and len(self._queue) > max(QUEUE_MIN, 4 * len(self._due)):
            self._old, self._queue = self._queue, []
        for _ in range(min(MOVED_MAX, len(self._old))):
            entry = self._old.pop()  # a heap without its last entry is a heap
            if self._is_current(entry):
                heapq.heappush(self._queue, entry)

    def _is_current(self, entry: tuple[int, int, bytes]) -> bool:
        due, seq, subject = entry
        return self._due.get(subject) == (due, seq)

    def _first(self) -> list[tuple[int, int, bytes]]:
        """The heap with the earliest entry, without most stale entries before it; empty if both are."""
        for _ in range(STALE_MAX):
            queue = self._earlier()
            if not queue or self._is_current(queue[0]):
                return queue
            heapq.heappop(queue)
        return self._earlier()

    def _earlier(self) -> list[tuple[int, int, bytes]]:
        if self._old and (not self._queue or self._old[0] < self._queue[0]):
            return self._old
        return self._queue

    def next_deadline(self) -> int | None:
        """When (ns) the next schedule is due at the earliest, or None. Many stale entries make it too early:
        take_due() then drops more of them."""
        if not self._queue and not self._old:
            return None  # most streams: runs in every tick that changes the stream
        queue = self._first()
        return queue[0][0] if queue else None

    def _take_first(self, until: int) -> tuple[int, int, bytes] | None:
        """Takes the first entry if it is due at `until` (ns) and not stale."""
        queue = self._first()
        if not queue or queue[0][0] > until or not self._is_current(queue[0]):
            return None
        return heapq.heappop(queue)

    def postpone(self, until: int) -> None:
        """Delays everything due before `until` (ns): the stream cannot be written now."""
        while (entry := self._take_first(until - 1)) is not None:
            _, seq, subject = entry
            self.add(subject, seq, until)

    def take_due(self, now: int, most: int = sys.maxsize) -> list[ScheduledMessage]:
        """Removes the schedules that are due and returns their messages, in order of their sequences. most:
        at most so many, the earliest due first."""
        made: list[tuple[int, ScheduledMessage]] = []
        for _ in range(most):
            entry = self._take_first(now)
            if entry is None:
                break
            due, seq, subject = entry
            del self._due[subject]
            produced = self._produce(subject, seq, due, now)
            if produced is None:
                continue
            made.append((seq, produced))
            if produced.next_due:
                self.add(subject, seq, produced.next_due)
        return [produced for _, produced in sorted(made, key=lambda item: item[0])]

    def _produce(self, subject: bytes, seq: int, due: int, now: int) -> ScheduledMessage | None:
        message = self._alive(subject, seq)
        if message is None:
            return None
        occurrence = _occurrence(message.header, due, now)
        assert occurrence is not None, f"message {seq} was a schedule when it was stored"
        zone = _zone(message.header)
        origin = message
        source = headers.value_of(message.header, headers.SCHEDULE_SOURCE)
        if source:
            origin = self._log.load_last(source) or message
        following = format_occurrence(occurrence.at, zone) if occurrence.repeats else PURGE
        header = _OWN_HEADERS.sub(b"", origin.header)
        header = headers.with_value(header, headers.SCHEDULER, subject)
        header = headers.with_value(header, headers.SCHEDULE_NEXT, following)
        for wanted, name in ((headers.SCHEDULE_TTL, headers.TTL), (headers.SCHEDULE_ROLLUP, headers.ROLLUP)):
            value = headers.value_of(message.header, wanted)
            if value:
                header = headers.with_value(header, name, value)
        target = headers.value_of(message.header, headers.SCHEDULE_TARGET)
        assert target, f"schedule {seq} was stored without a target"
        return ScheduledMessage(
            target, header, origin.payload, subject, occurrence.at if occurrence.repeats else 0
        )

    def _alive(self, subject: bytes, seq: int) -> StoredRecord | None:
        return self._log.load(seq) if self._log.last_seq_of(subject) == seq else None

    def recover(self) -> Generator[int, None, None]:
        """Finds the schedules in the log, and their last occurrences; yields work."""
        for found in scan_headers(self._log, headers.SCHEDULE):
            for seq, ts, _ in found:
                self._recover_schedule(seq, ts)
            yield work_of(found) * SCHEDULE_FACTOR
        for found in scan_headers(self._log, headers.SCHEDULE_NEXT):
            for produced in found:
                self._recover_next(produced)
            yield work_of(found) * SCHEDULE_FACTOR

    def _recover_schedule(self, seq: int, ts: int) -> None:
        log = self._log
        message = log.load(seq)
        if message is None or log.last_seq_of(message.subject) != seq:
            return
        try:
            first = _occurrence(message.header, ts, ts)
        except JetStreamApiError:
            return  # stored before the stream allowed schedules, when the header had no effect
        if first is not None:
            due = self._past_the_log(message, first.at) if first.repeats else first.at
            self.add(message.subject, seq, max(due, 1))

    def _recover_next(self, found: HeaderMatch) -> None:
        """Continues a schedule after a message that it produced."""
        log = self._log
        seq, _, value = found
        produced = log.load(seq)
        scheduler = headers.value_of(produced.header, headers.SCHEDULER) if produced is not None else None
        known = self._due.get(scheduler or b"")
        if scheduler is None or known is None or known[1] > seq:
            return
        if value == PURGE.encode():
            # The process ended between the produced message and the removal of its schedule.
            log.purge(scheduler)
            del self._due[scheduler]
            return
        due = parse_time(value.decode())
        # messages that it produced may have been removed
        if log.count_from(seq + 1) < log.last_seq - seq:
            schedule = log.load(known[1])
            assert schedule is not None, f"schedule {known[1]} was found above"
            due = self._past_the_log(schedule, due)
        self.add(scheduler, known[1], due)

    def _past_the_log(self, schedule: StoredRecord, due: int) -> int:
        """The next time (ns) of a repeating schedule that was due at `due`, and whose messages may be
        gone."""
        reached = self._log.last_ts
        if due > reached:
            return due
        following = _occurrence(schedule.header, reached, reached)
        return following.at if following is not None else due
