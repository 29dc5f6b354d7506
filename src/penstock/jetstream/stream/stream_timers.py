"""What time does to a stream: message ids, batches and messages expire, and schedules store messages.

All of it is the command Expire, whose time and amount of work are the same on every replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import JetStreamApiError
from penstock.jetstream.deadlines import earliest
from penstock.jetstream.stream import publish_checks, ttl
from penstock.jetstream.stream.message_schedules import RETRY_NS, ScheduledMessage
from penstock.jetstream.stream.subject_transforms import make_mapper
from penstock.kernels.log.records import xxh64_digest
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.protocol import headers

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

SCHEDULE_WORK = 32 * 1024  # the cost of a scheduled message, in the units of slices.py
ID_WORK = 64  # ... and of dropping a message id


class StreamTimers:
    """The timers of one stream. is_behind: run() stopped at its limit, and is due again at once."""

    def __init__(self, stream: StreamReplica) -> None:
        self._stream = stream
        self._mapper: SubjectMapper | None = None
        self.is_behind = False
        self._behind_since = stream.created

    def configure(self) -> None:
        """Follows a change of the stream's configuration."""
        config = self._stream.config
        # What a command produces is mapped when it is applied: the same on all replicas, also by chance.
        self._mapper = make_mapper(config.subject_transform, self._below_by_seq)
        self._stream.expiry.configure(self._leave_marker if config.subject_delete_marker_ttl else None)

    def asked(self, now: int) -> None:
        """Records that a run begins at `now` (ns): what it leaves is due again at that time."""
        self._behind_since = now

    def restore(self, *, is_behind: bool) -> None:
        """Takes over the state of another replica."""
        self.is_behind = is_behind

    def run(self, now: int, work: int) -> int:
        """Does what is due at `now` (ns), up to `work` units each; returns the work done."""
        stream = self._stream
        done = stream.ids.prune(now, work // ID_WORK + 1) * ID_WORK
        stream.fast.expire(now)
        stream.atomic.expire(now)
        if stream.config.sealed:
            return done
        done += stream.expiry.run(stream.config.max_age, now, work - done)
        done += self._run_schedules(now, work - done)
        self.is_behind = done >= work
        return done

    def _run_schedules(self, now: int, work: int) -> int:
        """Stores messages of due schedules; returns the work done."""
        stream = self._stream
        if stream.refuse_all is not None:
            stream.schedules.postpone(now + RETRY_NS)
            return 0
        ts = max(now, stream.log.last_ts)
        made = stream.schedules.take_due(now, max(0, work) // SCHEDULE_WORK + 1)
        # Schedules, and messages that theirs replace, were acked: on a full disk they stay until the
        # replacements are written. Expired messages are removed regardless, which frees space.
        stream.log.begin_storing()
        try:
            for produced in made:
                self._store_scheduled(produced, ts)
        finally:
            stream.log.end_storing()
        return len(made) * SCHEDULE_WORK

    def _store_scheduled(self, produced: ScheduledMessage, ts: int) -> None:
        stream = self._stream
        mapper = self._mapper
        subject = mapper.map(produced.subject) if mapper is not None else produced.subject
        ttl_ns, header = publish_checks.own_ttl(stream, produced.header)
        decision = publish_checks.Decision(
            header,
            ttl_ns=ttl_ns,
            rollup=publish_checks.ROLLUP_SUBJECT if headers.value_of(header, headers.ROLLUP) else "",
            purged_schedule=b"" if produced.next_due else produced.scheduler,
        )
        stream.store_decided(subject, decision, produced.payload, ts)

    def _below_by_seq(self, n: int) -> int:
        """A number in 0..n-1 that follows from the next sequence."""
        return xxh64_digest(b"%d" % (self._stream.log.last_seq + 1)) % n

    def _leave_marker(self, subject: bytes) -> None:
        """Stores a delete marker for a subject whose last message expired.

        A stream with discard policy new discards the marker when it does not fit: a marker can be larger than
        the message, and max_bytes is a hard limit for its owner.
        """
        stream = self._stream
        if not stream.is_wanted(subject):
            return
        ttl_ns = stream.config.subject_delete_marker_ttl
        header = ttl.marker_header(ttl_ns)
        try:
            publish_checks.check_room(stream, subject, header, 0)
        except JetStreamApiError:
            return
        ts = max(stream.now, stream.log.last_ts)
        seq = stream.store_unchecked(subject, header, b"", ts)
        stream.expiry.ttls.add(seq, ts, ttl_ns)
        stream.ids.note_last(b"")

    def next_deadline(self) -> int | None:
        """When (ns) `StreamReplica.expire` is due, or None."""
        # Runs in every tick that changes the stream, and most streams have none of these but ids: attributes
        # tell so without calls.
        stream = self._stream
        if stream.group is not None and not stream.group.may_expire:
            return None  # the leader's Expire is the same for all replicas, and one at a time is enough
        config = stream.config
        first = stream.ids.next_deadline()
        if stream.takes_batches:
            first = earliest(first, stream.fast.next_deadline(), stream.atomic.next_deadline())
        if config.sealed:
            return first
        if self.is_behind:
            return self._behind_since  # not earlier, so that others that are due run first
        if config.max_age > 0 or stream.expiry.ttls.is_used:
            first = earliest(first, stream.expiry.next_deadline(config.max_age))
        if stream.schedules.is_used:
            first = earliest(first, stream.schedules.next_deadline())
        return first
