"""Consumer acks: the ack reply subject, which identifies a delivery, and the ack bodies.

    v1  $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts ns>.<pending>                  9 tokens
    v2  $JS.ACK.<domain or _>.<account hash>.<stream>.<consumer>.<...as above>[.<extra>...]    11 or more

The server sends v1 and accepts both.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.api.base import DecodeError, decode
from penstock.protocol.api.consumers import PullRequest
from penstock.protocol.durations import parse_duration
from penstock.protocol.json_names import with_declared_names

PREFIX = "$JS.ACK."

ACK = b"+ACK"
OK = b"+OK"
NAK = b"-NAK"
PROGRESS = b"+WPI"
NEXT = b"+NXT"
TERM = b"+TERM"


class AckSubject(NamedTuple):
    """The fields of an ack reply subject."""

    stream: str
    consumer: str
    delivered: int  # number of deliveries, including this one
    stream_seq: int
    consumer_seq: int
    timestamp_ns: int
    pending: int
    domain: str = ""
    account_hash: str = ""


def build_reply(
    stream: str,
    consumer: str,
    delivered: int,
    stream_seq: int,
    consumer_seq: int,
    timestamp_ns: int,
    pending: int,
) -> str:
    """The ack reply subject of a delivery, version 1."""
    return f"$JS.ACK.{stream}.{consumer}.{delivered}.{stream_seq}.{consumer_seq}.{timestamp_ns}.{pending}"


def build_reply_v2(delivery: AckSubject) -> str:
    """The ack reply subject of a delivery, version 2."""
    return f"$JS.ACK.{delivery.domain or '_'}.{delivery.account_hash}." + ".".join(map(str, delivery[:7]))


def parse_reply(subject: str) -> AckSubject | None:
    """Parses the reply subject of a delivered message; None when it is not an ack subject."""
    if not subject.startswith(PREFIX):
        return None
    tokens = subject.split(".")
    if len(tokens) == 9:
        domain = account_hash = ""
        names, numbers = tokens[2:4], tokens[4:9]
    elif len(tokens) >= 11:
        domain, account_hash = ("" if tokens[2] == "_" else tokens[2]), tokens[3]
        names, numbers = tokens[4:6], tokens[6:11]
    else:
        return None
    if not all(number.isascii() and number.isdigit() and len(number) <= 20 for number in numbers):
        return None
    values = [int(number) for number in numbers]
    return AckSubject(
        names[0], names[1], values[0], values[1], values[2], values[3], values[4], domain, account_hash
    )


class AckKind(Enum):
    ACK = "ack"
    NAK = "nak"
    PROGRESS = "progress"
    NEXT = "next"
    TERM = "term"


class AckBody(NamedTuple):
    """A parsed ack. `delay_ns` is set for NAK, `pull` for NEXT, `reason` for TERM."""

    kind: AckKind
    delay_ns: int = 0
    pull: PullRequest | None = None
    reason: str = ""


_PLAIN_ACK = AckBody(AckKind.ACK)


def parse_body(body: bytes) -> AckBody | None:
    """Parses an ack body; None for a body that is not an ack and must be ignored.

    As in the official server, an invalid NAK delay counts as no delay.
    """
    if not body or body == ACK or body == OK:
        return _PLAIN_ACK
    if body == PROGRESS:
        return AckBody(AckKind.PROGRESS)
    if body.startswith(NAK):
        return AckBody(AckKind.NAK, delay_ns=_nak_delay_ns(body[len(NAK) :].strip()))
    if body.startswith(NEXT):
        try:
            return AckBody(AckKind.NEXT, pull=parse_pull(body[len(NEXT) :]))
        except DecodeError:
            return AckBody(AckKind.NEXT, pull=PullRequest(batch=1))
    if body.startswith(TERM):
        return AckBody(AckKind.TERM, reason=body[len(TERM) :].strip().decode("utf-8", "replace"))
    return None


def build_nak(delay_ns: int = 0) -> bytes:
    """A negative ack. With a delay (ns) the message is redelivered only after it."""
    return b'-NAK {"delay": %d}' % delay_ns if delay_ns > 0 else NAK


def build_term(reason: str = "") -> bytes:
    """Tells the server not to redeliver the message. The server puts the reason into its advisory."""
    return b"+TERM " + reason.encode() if reason else TERM


def parse_pull(body: bytes) -> PullRequest:
    """Parses the body of a pull request: empty = one message, a number = that many, else JSON.

    As in the official server, text that is no number requests one message. The batch of a JSON body is not
    changed (0 when absent). Raises DecodeError for invalid JSON.
    """
    text = body.strip()
    if text.startswith(b"{"):
        return decode(PullRequest, with_declared_names(PullRequest, text))
    if text.isdigit() and len(text) <= 18:
        return PullRequest(batch=int(text))
    return PullRequest(batch=1)


DELAY_MAX_NS = 2**62  # later than any clock; the sum with a time still fits 64 bits


class _Nak(msgspec.Struct):
    """The body of a NAK; `delay` in ns. Decoding skips other fields without building them."""

    delay: int = 0


def _nak_delay_ns(text: bytes) -> int:
    if not text:
        return 0
    try:
        if text.startswith(b"{"):
            delay_ns = decode(_Nak, with_declared_names(_Nak, text)).delay
        else:
            delay_ns = parse_duration(text.decode("utf-8", "replace"))
    except (DecodeError, MisuseError):
        return 0
    return min(max(0, delay_ns), DELAY_MAX_NS)
