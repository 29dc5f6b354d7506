"""Counters (ADR-49): a publish with `Nats-Incr` is stored as the new sum of its subject.

The body of a stored message is `{"val":"<decimal>"}`, of any size. The parts of the sum by origin
(`Nats-Counter-Sources`) are copied from each message of a subject to its next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.protocol import error_codes as codes
from penstock.protocol import headers

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

# Arithmetic and formatting of long numbers take time quadratic in their digits, so increments are limited.
_INCREMENT = re.compile(rb"[+-]?[0-9]{1,10000}")
_NUMBER = re.compile(rb"[+-]?[0-9]{1,20000}")  # a sum: no feasible number of increments exceeds it
_NOT_WITH_INCR = (
    headers.ROLLUP,
    headers.EXPECTED_STREAM,
    headers.EXPECTED_LAST_MSG_ID,
    headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    headers.EXPECTED_LAST_SEQUENCE,
    headers.EXPECTED_LAST_SUBJECT_SEQUENCE,
)
# Python converts only some thousand digits at once, to bound the time of a conversion.
_DIGITS_AT_ONCE = 4000
_CHUNK = 10**_DIGITS_AT_ONCE


class LastCounter(NamedTuple):
    """What the next sum of a subject is computed from."""

    header: bytes
    payload: bytes


class CounterValue(msgspec.Struct):
    """The body of a message of a counter stream."""

    val: str = ""


def check_increment(stream: StreamReplica, header: bytes, payload_len: int) -> int | None:
    """The increment of a publish, or None.

    Raises JetStreamApiError: 10171 for an invalid number, or one beside a roll-up or an expectation, 10168
    when the stream does not allow counters, 10170 with a payload.
    """
    value = headers.exact_value_of(header, headers.INCR)
    if not value:
        return None
    if _INCREMENT.fullmatch(value) is None:
        raise codes.MESSAGE_INCR_INVALID.exception()
    if not stream.config.allow_msg_counter:
        raise codes.MESSAGE_INCR_DISABLED.exception()
    if payload_len:
        raise codes.MESSAGE_INCR_PAYLOAD.exception()
    if any(headers.value_of(header, name) for name in _NOT_WITH_INCR):
        raise codes.MESSAGE_INCR_INVALID.exception()
    return parse_number(value)


def last_of(stream: StreamReplica, subject: bytes) -> LastCounter | None:
    """The subject's last message in the stream."""
    stored = stream.log.load_last(subject)
    return LastCounter(stored.header, stored.payload) if stored is not None else None


def added(last: LastCounter | None, header: bytes, increment: int) -> tuple[bytes, bytes, str]:
    """Returns (header block, payload, value) of the message that stores a subject's sum plus the increment.

    last: the message before it. Raises JetStreamApiError 10172 when that is not a counter.
    """
    total = increment
    if last is not None:
        total += _value_of(last.payload)
        sources = headers.value_of(last.header, headers.COUNTER_SOURCES) if last.header else None
        if sources:
            header = headers.with_value(header, headers.COUNTER_SOURCES, sources)
    value = format_number(total)
    return header, b'{"val":"%s"}' % value.encode(), value


def sourced(last: LastCounter | None, subject: bytes, header: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """Returns (header block, payload) of the message that adds a sourced counter to a subject's sum.

    The increment is the difference between the origin's sum and its sum when it was last sourced, which is in
    the `Nats-Counter-Sources` of the subject's last message. So a message that is missed or repeated changes
    nothing in the end. Raises JetStreamApiError: 10169 without an increment, 10172 when a sum is invalid.
    """
    if not _NUMBER.fullmatch(headers.value_of(header, headers.INCR) or b""):
        raise codes.MESSAGE_INCR_MISSING.exception()
    fields = (
        (headers.value_of(header, headers.STREAM_SOURCE) or b"").decode("utf-8", "surrogateescape").split(" ")
    )
    origin_subject = fields[4] if len(fields) > 4 else subject.decode("utf-8", "surrogateescape")
    sources = _sources_of(last)
    total = _value_of(payload)
    of_origin = sources.setdefault(fields[0], {})
    increment = total - parse_number(of_origin.get(origin_subject, "0").encode())
    of_origin[origin_subject] = format_number(total)
    header = headers.with_value(header, headers.INCR, format_number(increment))
    before = _value_of(last.payload) if last is not None else 0
    value = format_number(before + increment)
    ordered = {name: dict(sorted(values.items())) for name, values in sorted(sources.items())}
    header = headers.with_value(header, headers.COUNTER_SOURCES, msgspec.json.encode(ordered))
    return header, b'{"val":"%s"}' % value.encode()


def _sources_of(last: LastCounter | None) -> dict[str, dict[str, str]]:
    text = (
        headers.value_of(last.header, headers.COUNTER_SOURCES) if last is not None and last.header else None
    )
    if not text:
        return {}
    try:
        sources = msgspec.json.decode(text, type=dict[str, dict[str, str]])
    except msgspec.DecodeError:
        raise codes.MESSAGE_COUNTER_BROKEN.exception() from None
    if not all(_NUMBER.fullmatch(value.encode()) for values in sources.values() for value in values.values()):
        raise codes.MESSAGE_COUNTER_BROKEN.exception()
    return sources


def _value_of(payload: bytes) -> int:
    try:
        value = msgspec.json.decode(payload, type=CounterValue).val.encode()
    except msgspec.DecodeError:
        raise codes.MESSAGE_COUNTER_BROKEN.exception() from None
    if not value:
        return 0
    if _NUMBER.fullmatch(value) is None:
        raise codes.MESSAGE_COUNTER_BROKEN.exception()
    return parse_number(value)


def parse_number(text: bytes) -> int:
    """Parses decimal digits with an optional sign, of any length."""
    digits = text.lstrip(b"+-")
    value = 0
    for at in range(0, len(digits), _DIGITS_AT_ONCE):
        chunk = digits[at : at + _DIGITS_AT_ONCE]
        value = value * 10 ** len(chunk) + int(chunk)
    return -value if text.startswith(b"-") else value


def format_number(value: int) -> str:
    """Formats a number of any length in decimal."""
    rest = abs(value)
    chunks: list[str] = []
    while rest >= _CHUNK:
        rest, low = divmod(rest, _CHUNK)
        chunks.append(f"{low:0{_DIGITS_AT_ONCE}d}")
    return ("-" if value < 0 else "") + str(rest) + "".join(reversed(chunks))
