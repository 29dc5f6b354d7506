"""Checks of an atomic batch's messages at its commit, in the official server's order.

Messages are checked against the stream as it was before the batch. Effects of earlier messages in the batch
are either counted (increments, discard-new limits) or rejected: a batch cannot expect sequences that it wrote
itself, roll up its own messages, or contain a message id twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.jetstream.limits import HEADER_MAX
from penstock.jetstream.stream import counter, message_schedules, publish_checks, ttl
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import DiscardPolicy

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


class StagedMessage(NamedTuple):
    """A message of a batch that waits for the commit."""

    subject: bytes
    header: bytes
    payload: bytes


class Checked(NamedTuple):
    """A message of a batch that passed the checks."""

    subject: bytes
    decision: publish_checks.Decision
    payload: bytes


class BatchCheck:
    """The checks of one commit at `now` (ns). Call decide() for the messages in order."""

    def __init__(self, stream: StreamReplica, now: int) -> None:
        self._stream = stream
        self._now = now
        self._ids: set[bytes] = set()
        self._written: dict[bytes, int] = {}  # subject -> its messages in the batch so far
        self._is_schedule: dict[bytes, bool] = {}  # subject -> whether its last message is a schedule
        self._counters: dict[bytes, counter.LastCounter] = {}
        self._messages = 0
        self._bytes = 0

    def decide(self, message: StagedMessage) -> Checked:
        """Decides about the next message. Raises JetStreamApiError: the batch is rejected."""
        subject, header, payload = message
        stream = self._stream
        if headers.value_of(header, headers.EXPECTED_LAST_MSG_ID):
            name = headers.EXPECTED_LAST_MSG_ID
            raise codes.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH.exception(header=name)
        if len(header) > HEADER_MAX:
            raise codes.STREAM_HEADER_EXCEEDS_MAXIMUM.exception()
        increment = counter.check_increment(stream, header, len(payload))
        expected = headers.value_of(header, headers.EXPECTED_STREAM)
        if expected and expected != stream.name.encode():
            raise codes.STREAM_NOT_MATCH.exception()
        self._check_ttl(header)
        msg_id = self._check_msg_id(header)
        if headers.value_of(header, headers.STREAM_SOURCE):
            raise codes.MESSAGE_SOURCE_HDR_NOT_ALLOWED.exception()
        if stream.config.allow_msg_counter:
            header, payload = self._counted(subject, header, increment)
        self._check_expected_sequences(subject, header)
        request = message_schedules.check_schedule(stream, subject, header, self._now, self._is_schedule)
        rollup = self._check_rollup(subject, request.header)
        self._count(subject, request.header, payload, is_schedule=bool(request.due))
        self._check_room(subject, rollup)
        ttl_ns, stored_header = publish_checks.own_ttl(stream, publish_checks.as_stored(request.header))
        decision = publish_checks.Decision(
            stored_header,
            msg_id,
            rollup=rollup,
            ttl_ns=ttl_ns,
            schedule_due=request.due,
            purged_schedule=request.purged,
        )
        return Checked(subject, decision, payload)

    def _check_ttl(self, header: bytes) -> None:
        value = headers.value_of(header, headers.TTL)
        if not value:
            return
        if not self._stream.config.allow_msg_ttl:
            raise codes.MESSAGE_TTL_DISABLED.exception()
        ttl.parse_ttl(value)

    def _check_msg_id(self, header: bytes) -> bytes:
        msg_id = headers.value_of(header, headers.MSG_ID) or b""
        if not msg_id:
            return b""
        if msg_id in self._ids or self._stream.ids.find(msg_id, self._now):
            raise codes.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE.exception()
        self._ids.add(msg_id)
        return msg_id

    def _counted(self, subject: bytes, header: bytes, increment: int | None) -> tuple[bytes, bytes]:
        if increment is None:
            raise codes.MESSAGE_INCR_MISSING.exception()
        last = self._counters.get(subject) or counter.last_of(self._stream, subject)
        header, payload, _ = counter.added(last, header, increment)
        if 0 <= self._stream.config.max_msg_size < len(header) + len(payload):
            raise codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.exception()
        if len(header) > HEADER_MAX:
            raise codes.STREAM_HEADER_EXCEEDS_MAXIMUM.exception()
        self._counters[subject] = counter.LastCounter(header, payload)
        return header, payload

    def _check_expected_sequences(self, subject: bytes, header: bytes) -> None:
        log = self._stream.log
        expected = headers.value_of(header, headers.EXPECTED_LAST_SEQUENCE)
        if expected:
            publish_checks.compare_expected(expected, log.last_seq + self._messages)
            if self._messages:
                raise codes.STREAM_WRONG_LAST_SEQUENCE_CONSTANT.exception()
        expected = headers.value_of(header, headers.EXPECTED_LAST_SUBJECT_SEQUENCE)
        of_subject = headers.value_of(header, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT)
        if expected:
            if (of_subject or subject) in self._written:
                raise codes.STREAM_WRONG_LAST_SEQUENCE_CONSTANT.exception()
            publish_checks.compare_expected(expected, log.last_seq_of(of_subject or subject))
        elif of_subject:
            raise codes.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID.exception()

    def _check_rollup(self, subject: bytes, header: bytes) -> str:
        rollup = publish_checks.check_rollup(self._stream, header)
        if rollup == publish_checks.ROLLUP_SUBJECT and subject in self._written:
            raise codes.STREAM_ROLLUP_FAILED.exception(err="batch rollup sub invalid")
        if rollup == publish_checks.ROLLUP_ALL and self._messages:
            raise codes.STREAM_ROLLUP_FAILED.exception(err="batch rollup all invalid")
        return rollup

    def _count(self, subject: bytes, header: bytes, payload: bytes, *, is_schedule: bool) -> None:
        self._written[subject] = self._written.get(subject, 0) + 1
        self._is_schedule[subject] = is_schedule
        self._messages += 1
        self._bytes += self._stream.log.cost_of(len(subject), len(header), len(payload))

    def _check_room(self, subject: bytes, rollup: str) -> None:
        """Rejects (10077) a message that exceeds the limits of a discard-new stream together with the batch
        so far."""
        config, log = self._stream.config, self._stream.log
        if config.discard is not DiscardPolicy.NEW:
            return
        if 0 < config.max_msgs < log.messages + self._messages:
            raise codes.STREAM_STORE_FAILED.exception(err="maximum messages exceeded")
        if 0 < config.max_bytes < log.bytes + self._bytes:
            raise codes.STREAM_STORE_FAILED.exception(err="maximum bytes exceeded")
        if config.discard_new_per_subject and not rollup:
            of_subject = log.count_matching(subject) + self._written[subject]
            if 0 < config.max_msgs_per_subject < of_subject:
                raise codes.STREAM_STORE_FAILED.exception(err="maximum messages per subject exceeded")
