"""Checks of publishes with headers that change their behaviour, in the official server's order.

`check` decides and changes nothing; the stream stores the decision. The order was found by publishing every
pair of offending headers to the official server: size, header size, API level, batch, counter, expected
stream, TTL, expected subject sequence, expected sequence, schedules, source, duplicate, expected message id,
rollup, an invalid TTL; the discard-new limits come last (`check_room`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import JetStreamApiError
from penstock.jetstream.limits import HEADER_MAX
from penstock.jetstream.stream import counter, message_schedules, ttl
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import DiscardPolicy
from penstock.protocol.durations import NS_PER_S

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.log.stream_log import StoredRecord, StreamLog

ROLLUP_SUBJECT = "sub"
ROLLUP_ALL = "all"

_NATS_NAMES = re.compile(rb"\r\n(Nats-[^:\r\n]*):")
_SEQ_MAX = 2**64


class Decision(NamedTuple):
    """What to do with an accepted publish."""

    header: bytes  # the header block to store: without headers addressed to the server
    msg_id: bytes = b""
    duplicate_of: int = 0  # its sequence when it was stored before; then nothing is stored
    payload: bytes | None = None  # replaces the payload; None: store the one that came
    value: str = ""  # of a counter, for the pub ack
    rollup: str = ""  # "sub" or "all": older messages are removed
    ttl_ns: int = 0  # the message's own TTL; ttl.NEVER; 0: none
    schedule_due: int = 0  # ns: the message is a schedule
    purged_schedule: bytes = b""  # the subject of a schedule to remove


def check(
    stream: StreamReplica,
    subject: bytes,
    header: bytes,
    payload_len: int,
    now: int,
    *,
    in_fast_batch: bool = False,
) -> Decision:
    """Decides about one publish at `now` (ns). Raises JetStreamApiError when it is rejected.

    in_fast_batch: atomic batch headers are stored and have no effect.
    """
    config = stream.config
    if config.sealed:
        raise codes.STREAM_SEALED.exception()
    if 0 <= config.max_msg_size < len(header) + payload_len:
        raise codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.exception()
    if len(header) > HEADER_MAX:
        raise codes.STREAM_HEADER_EXCEEDS_MAXIMUM.exception()
    names = _NATS_NAMES.findall(header) if header else ()
    if not names:
        if config.allow_msg_counter:
            raise codes.MESSAGE_INCR_MISSING.exception()
        return Decision(_without_status_line(header) if header else b"")
    _check_api_level(stream, header)
    if not in_fast_batch and headers.value_of(header, headers.BATCH_ID):
        raise codes.ATOMIC_PUBLISH_DISABLED.exception()
    increment = _check_features(stream, header, payload_len)
    _check_expected_sequences(stream, subject, header)
    request = message_schedules.check_schedule(stream, subject, header, now)
    header = request.header
    if headers.value_of(header, headers.STREAM_SOURCE):
        raise codes.MESSAGE_SOURCE_HDR_NOT_ALLOWED.exception()
    decision = _check_duplicate(stream, header, now)
    if decision.duplicate_of:
        return decision
    _check_expected_msg_id(stream, header)
    rollup = check_rollup(stream, header)
    if config.allow_msg_counter:
        return _counted(stream, subject, decision, increment)
    ttl_ns, stored_header = own_ttl(stream, decision.header)
    return decision._replace(
        header=stored_header,
        rollup=rollup,
        ttl_ns=ttl_ns,
        schedule_due=request.due,
        purged_schedule=request.purged,
    )


def _counted(stream: StreamReplica, subject: bytes, decision: Decision, increment: int | None) -> Decision:
    """Replaces the increment by the sum, which must meet the limits too. Counter streams have no TTLs."""
    if increment is None:
        raise codes.MESSAGE_INCR_MISSING.exception()
    last = counter.last_of(stream, subject)
    header, payload, value = counter.added(last, decision.header, increment)
    if 0 <= stream.config.max_msg_size < len(header) + len(payload):
        raise codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.exception()
    if len(header) > HEADER_MAX:
        raise codes.STREAM_HEADER_EXCEEDS_MAXIMUM.exception()
    own_ttl(stream, header)
    return decision._replace(header=header, payload=payload, value=value)


def check_room(stream: StreamReplica, subject: bytes, header: bytes, payload_len: int) -> None:
    """Rejects (10077) a message that exceeds the limits of a stream with discard policy new.

    A message whose subject is at max_msgs_per_subject replaces that subject's oldest: it needs room only for
    what it is larger. With discard_new_per_subject it is rejected.
    """
    config = stream.config
    log = stream.log
    if config.discard is not DiscardPolicy.NEW:
        return
    size = log.cost_of(len(subject), len(header), payload_len)
    replaced_size = 0
    if 0 < config.max_msgs_per_subject <= log.count_matching(subject):
        if config.discard_new_per_subject:
            raise codes.STREAM_STORE_FAILED.exception(err="maximum messages per subject exceeded")
        oldest = _replaced(log, subject, config.max_msgs_per_subject)
        if oldest is not None:
            replaced_size = log.cost_of(len(subject), len(oldest.header), len(oldest.payload))
    if 0 < config.max_msgs <= log.messages and not replaced_size:
        raise codes.STREAM_STORE_FAILED.exception(err="maximum messages exceeded")
    if 0 < config.max_bytes < log.bytes + size and not size <= replaced_size:
        raise codes.STREAM_STORE_FAILED.exception(err="maximum bytes exceeded")


def _replaced(log: StreamLog, subject: bytes, subject_max: int) -> StoredRecord | None:
    """The oldest message of a subject that is at its limit. None when reading shows that messages were lost
    on the disk, and that those that are left are fewer than the limit."""
    while subject_max <= log.count_matching(subject):
        lost = log.lost
        oldest = log.load_next(subject, 1)
        if log.lost == lost:
            return oldest
    return None


def _without_status_line(header: bytes) -> bytes:
    """Stored blocks have no status: one that came with a code keeps only its headers, if any."""
    if headers.status_of(header) == (None, ""):
        return header
    end = header.find(b"\r\n")
    rest = header[end + 2 :] if end >= 0 else b""
    return headers.VERSION_LINE + rest if rest.strip(b"\r\n") else b""


def as_stored(header: bytes) -> bytes:
    """The block to store, without headers that are addressed to the server."""
    header = _without_status_line(header)
    for name in (headers.REQUEST_INFO, headers.REQUIRED_API_LEVEL):
        if headers.value_of(header, name) is not None:
            header = headers.without(header, name)
    if headers.value_of(header, headers.TRACE_DEST):
        header = headers.trace_disabled(header)  # a delivery of the stored message is not traced again
    return header


def _check_api_level(stream: StreamReplica, header: bytes) -> None:
    if not headers.api_level_suffices(header, stream.api_level):
        raise codes.REQUIRED_API_LEVEL.exception()


def _check_features(stream: StreamReplica, header: bytes, payload_len: int) -> int | None:
    """Checks headers of features that this stream does not have, and the expected stream; returns the
    increment."""
    increment = counter.check_increment(stream, header, payload_len)
    expected = headers.value_of(header, headers.EXPECTED_STREAM)
    if expected and expected != stream.name.encode():
        raise codes.STREAM_NOT_MATCH.exception()
    if not stream.config.allow_msg_ttl and _has_ttl(header):
        raise codes.MESSAGE_TTL_DISABLED.exception()
    return increment


def _check_expected_sequences(stream: StreamReplica, subject: bytes, header: bytes) -> None:
    expected = headers.value_of(header, headers.EXPECTED_LAST_SUBJECT_SEQUENCE)
    of_subject = headers.value_of(header, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT)
    if expected:
        compare_expected(expected, stream.log.last_seq_of(of_subject or subject))
    elif of_subject:
        raise codes.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID.exception()
    expected = headers.value_of(header, headers.EXPECTED_LAST_SEQUENCE)
    if expected:
        compare_expected(expected, stream.log.last_seq)


def compare_expected(expected: bytes, actual: int) -> None:
    """Rejects (10071) an expectation of another sequence. An invalid sequence matches none."""
    if not (expected.isdigit() and len(expected) <= 20 and int(expected) == actual < _SEQ_MAX):
        raise codes.STREAM_WRONG_LAST_SEQUENCE.exception(seq=actual)


def _check_duplicate(stream: StreamReplica, header: bytes, now: int) -> Decision:
    msg_id = headers.value_of(header, headers.MSG_ID) or b""
    seq = stream.ids.find(msg_id, now) if msg_id else 0
    return Decision(as_stored(header), msg_id, duplicate_of=seq)


def _check_expected_msg_id(stream: StreamReplica, header: bytes) -> None:
    expected = headers.value_of(header, headers.EXPECTED_LAST_MSG_ID)
    last_id = stream.ids.last_id
    if expected and expected != last_id:
        raise codes.STREAM_WRONG_LAST_MSG_ID.exception(id=last_id.decode("utf-8", "replace"))


def _has_ttl(header: bytes) -> bool:
    """Whether there is a valid TTL. An invalid one is rejected (10165) at the end, also where TTLs are
    off."""
    value = headers.value_of(header, headers.TTL)
    try:
        return bool(value) and ttl.parse_ttl(value or b"") != 0
    except JetStreamApiError:
        return False


def own_ttl(stream: StreamReplica, header: bytes) -> tuple[int, bytes]:
    """A message's TTL (ns; 0: none) and its header block. A TTL below that of the delete marker that would
    follow is raised, unless each subject holds one message and the marker replaces it at once."""
    value = headers.value_of(header, headers.TTL) if header else None
    if not value:
        return 0, header
    ttl_ns = ttl.parse_ttl(value)
    marker_ns = stream.config.subject_delete_marker_ttl
    if ttl_ns != ttl.NEVER and ttl_ns < marker_ns and stream.config.max_msgs_per_subject != 1:
        seconds = -(-marker_ns // NS_PER_S)
        return seconds * NS_PER_S, headers.with_value(header, headers.TTL, str(seconds))
    return ttl_ns, header


def check_rollup(stream: StreamReplica, header: bytes) -> str:
    """The roll-up of a publish: "sub", "all" or "". Raises JetStreamApiError 10111."""
    value = (headers.value_of(header, headers.ROLLUP) or b"").decode("utf-8", "replace").lower()
    if not value:
        return ""
    if not stream.config.allow_rollup_hdrs or stream.config.deny_purge:
        raise codes.STREAM_ROLLUP_FAILED.exception(err="rollup not permitted")
    if value not in (ROLLUP_SUBJECT, ROLLUP_ALL):
        raise codes.STREAM_ROLLUP_FAILED.exception(err=f'rollup value invalid: "{value}"')
    return value
