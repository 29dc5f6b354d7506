"""State of one origin of a stream: of its mirror, or of one source.

`apply` makes a command of a batch of copied messages, and `store` applies it. A mirror keeps sequences and
times; messages of a source get the stream's own. Like publishes, copies change a stream only here, depending
on the batch, the state and `now`. A rejected copy (no room, too large) ends the batch: it is retried later,
and later copies do not overtake it.

The position in an origin is part of the target's state: a mirror's last sequence; for a source, the header of
its last message or, without that message, the recorded position (source_positions.py).

Invariant: `seq` never runs ahead of what is in the target's log.

In a replicated stream, the leader's reader fills the batch, and `submit` proposes it. One command at a time
is in flight: what is behind a rejected copy must not be proposed before the rejection is known. A new leader
begins with the position that is committed (`begin_leading`), so that nothing is left out or stored twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import JetStreamApiError
from penstock.jetstream.commands import MoveSource, StoreCopies
from penstock.jetstream.limits import HEADER_MAX
from penstock.jetstream.stream import counter, publish_checks
from penstock.jetstream.stream.source_config import filters_of, header_line, index_name, mapper_of, start_ns
from penstock.kernels.ingest.copying import CopyBatch, apply_mirrored, apply_sourced
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import ApiError, StreamSource

if TYPE_CHECKING:
    from penstock.jetstream.group_commands import GroupCommands
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.log.stream_log import StreamLog

_PURGE = b"purge"


class SourceState:
    """State of one origin of `stream`. batch: copies that wait to be applied; the reader of the origin fills
    it."""

    def __init__(self, stream: StreamReplica, source: StreamSource, *, is_mirror: bool) -> None:
        self.source = source
        self.is_mirror = is_mirror
        self.index_name = index_name(source)
        self.filters = filters_of(source)
        self.ident = ""  # identity of the origin that `seq` counts in; unknown for a mirror
        self.refusal: ApiError | None = None  # why the last batch ended early
        self.batch = CopyBatch()
        self.mapper = mapper_of(source, stream.below)
        self.is_in_flight = False  # the stream's group has yet to commit copies, or a position
        self._stream = stream
        self._seq = 0

    def reconfigure(self, source: StreamSource) -> None:
        """Takes an update of the origin's configuration that keeps its position."""
        self.source = source

    @property
    def reads_log(self) -> bool:
        """Whether the origin is local and is read without a named consumer."""
        return self.source.external is None and self.source.consumer is None

    @property
    def seq(self) -> int:
        """The last sequence taken from the origin; 0 before the first."""
        return self._stream.log.last_seq if self.is_mirror else self._seq

    def begin(self, ident: str) -> bool:
        """Continues to read the origin at `seq`; a source restarts when the origin was recreated, because its
        sequences differ. ident: identity of the origin, "" when unknown. Returns False when the stream's
        group has to commit the position first: the reader calls again when the stream has changed."""
        if self.is_in_flight:
            return False
        if not self.is_mirror and ident != self.ident:
            self.move_to(0 if ident and self.ident else self._seq, ident)
            if self.is_in_flight:
                return False
        self.batch = CopyBatch(None if self.is_mirror else header_line(self.source, self.ident))
        return True

    def begin_after(self, origin: StreamLog) -> int:
        """The sequence of a local origin after which to read. A mirror whose origin starts later continues
        behind the gap."""
        before = self.first_wanted(origin) - 1
        if self.is_mirror and before > self._stream.log.last_seq:
            self.batch.place(before)
        return before

    def first_wanted(self, origin: StreamLog) -> int:
        """The sequence of a local origin from which the stream reads at its present position."""
        first = max(origin.first_seq, 1)
        if self.seq:
            return max(self.seq + 1, first)
        if self.source.opt_start_seq:
            return max(self.source.opt_start_seq, first)
        since = start_ns(self.source)
        if not since:
            return first
        if not self.is_mirror:
            since = max(since, self._stream.log.last_ts)  # older messages were already removed here
        return min(max(origin.seq_at_time(since), first), origin.last_seq + 1)

    def first_ever(self, origin: StreamLog) -> int:
        """The sequence of a local origin at which the configuration starts the source."""
        since = start_ns(self.source)
        return origin.seq_at_time(since) if since else max(self.source.opt_start_seq, 1)

    def move_to(self, seq: int, ident: str) -> None:
        """Continues at another position: the origin is not the one that was read."""
        if self._stream.group is not None:
            self._propose(self._stream.group, MoveSource(self.index_name, seq, ident), self._stream.now)
        else:
            self._stream.apply(MoveSource(self.index_name, seq, ident), self._stream.now)

    def place(self, seq: int, ident: str) -> None:
        """Applies move_to()."""
        self._seq, self.ident = seq, ident

    def resume_at(self, seq: int, ident: str) -> None:
        """Sets the position after a restart, or of a source that is added again."""
        self._seq, self.ident = seq, ident

    def accept_again(self) -> None:
        """Ends a rejection: its reader reads the rejected copies again."""
        self.refusal = None

    def apply(self, now: int) -> None:
        """Stores the copies in the batch at `now` (ns)."""
        if not self.batch.count:
            return
        self._stream.apply(StoreCopies(self.index_name, self.batch), now)
        if not self._stream.rollups.unfinished:  # else the rest is another command, when they are done
            self.batch.clear()

    def begin_leading(self) -> None:
        """The stream's leader is this server now: nothing is in flight."""
        self.batch.clear()
        self.refusal = None
        self.is_in_flight = False

    @property
    def may_submit(self) -> bool:
        """Whether copies wait to be proposed."""
        return bool(self.batch.count) and not self.is_in_flight

    def submit(self, group: GroupCommands, now: int) -> None:
        """Proposes the copies in the batch at `now` (ns), unless others are in flight."""
        if self.may_submit:
            self._propose(group, StoreCopies(self.index_name, self.batch), now)
            self.batch.clear()  # they are encoded

    def _propose(self, group: GroupCommands, command: StoreCopies | MoveSource, now: int) -> None:
        if not self.is_in_flight:
            self.is_in_flight = True
            group.submit(command, now)
            group.when_committed(self._committed)

    def _committed(self) -> None:
        """What was in flight is applied."""
        self.is_in_flight = False
        if self.refusal is not None:
            self.batch.clear()  # what follows a rejected copy is read again
        elif self.batch.count:
            self._stream.sink.mark()

    def store(self, batch: CopyBatch, now: int) -> None:
        """Stores copies at `now` (ns), up to one that is refused or that begins a long roll-up."""
        stream = self._stream
        self.refusal = stream.refuse_all
        while self.refusal is None and not stream.rollups.unfinished:
            if self._apply_plain(batch, now):
                self._seq = batch.reached
            taken = batch.take_one()
            if taken is None:
                break
            try:
                self._apply_one(*taken, now)
            except JetStreamApiError as error:
                self.refusal = ApiError.from_exception(error)
            else:
                self._seq = taken[0]

    def _apply_plain(self, batch: CopyBatch, now: int) -> int:
        stream = self._stream
        if self.is_mirror:
            return apply_mirrored(batch, stream.log, stream.limits, stream.ids, stream.republisher)
        ts = max(now, stream.log.last_ts)
        return apply_sourced(batch, stream.log, stream.limits, stream.ids, now, ts, stream.republisher)

    def _apply_one(self, seq: int, ts: int, subject: bytes, header: bytes, payload: bytes, now: int) -> None:
        """Checks one copy and stores it. Raises JetStreamApiError when it is rejected."""
        stream, config = self._stream, self._stream.config
        ts = max(ts if self.is_mirror else now, stream.log.last_ts)
        _check_size(stream, header, payload)
        msg_id = (headers.value_of(header, headers.MSG_ID) or b"") if header else b""
        if msg_id and not self.is_mirror and stream.ids.find(msg_id, now):
            return
        if config.allow_msg_counter:
            header, payload = counter.sourced(counter.last_of(stream, subject), subject, header, payload)
            _check_size(stream, header, payload)
        may_roll_up = config.allow_rollup_hdrs and not config.deny_purge
        rollup = publish_checks.check_rollup(stream, header) if may_roll_up and header else ""
        ttl_ns = 0
        if config.allow_msg_ttl:
            ttl_ns, header = publish_checks.own_ttl(stream, header)
        if stream.is_wanted(subject):
            publish_checks.check_room(stream, subject, header, len(payload))
        purged = b""
        if may_roll_up and header and headers.value_of(header, headers.SCHEDULE_NEXT) == _PURGE:
            purged = headers.value_of(header, headers.SCHEDULER) or b""
        decision = publish_checks.Decision(
            header, msg_id, ttl_ns=ttl_ns, rollup=rollup, purged_schedule=purged
        )
        stored = stream.store_decided(subject, decision, payload, ts)
        if msg_id:
            stream.ids.add(msg_id, stored, ts)


def _check_size(stream: StreamReplica, header: bytes, payload: bytes) -> None:
    if stream.config.sealed:
        raise codes.STREAM_SEALED.exception()
    if 0 <= stream.config.max_msg_size < len(header) + len(payload):
        raise codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.exception()
    if len(header) > HEADER_MAX:
        raise codes.STREAM_HEADER_EXCEEDS_MAXIMUM.exception()
