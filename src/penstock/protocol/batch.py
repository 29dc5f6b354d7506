"""Batch publishing (ADR-50): reply subjects of fast ingest, and the server's answers.

A fast batch message carries its role in its reply subject:

    <prefix>.<batch id>.<flow>.<ok|fail>.<sequence>.<operation>.$FI

The server answers on these subjects: flow acks, gaps, refused messages, and one final pub ack. Two dialects
exist, and `parse_answer` reads both: the ADR's single struct without a type, and the official server's three
typed structs. This server writes objects that satisfy both.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.errors import (
    BatchIncompleteError,
    BatchNotEnabledError,
    BatchUnknownError,
    JetStreamApiError,
    MisuseError,
)
from penstock.protocol.api import ApiError, DecodeError, PubAck, decode

SUFFIX = ".$FI"
BATCH_ID_MAX = 64
FLOW_MAX = 65535


class Operation(IntEnum):
    """The second last token of a reply subject."""

    START = 0
    APPEND = 1
    COMMIT = 2
    EOB = 3
    PING = 4


class FlowAck(NamedTuple):
    """Everything up to batch sequence `seq` has arrived. The next ack follows after `msgs` messages."""

    seq: int
    msgs: int


class BatchGap(NamedTuple):
    """Messages after `last_seq` and before batch sequence `seq` were lost. (Some servers set last_seq to the
    first lost message, so do not compute with it.)"""

    last_seq: int
    seq: int


class BatchRefused(NamedTuple):
    """The message with batch sequence `seq` was not stored."""

    seq: int
    error: ApiError


FastAnswer = FlowAck | BatchGap | BatchRefused | PubAck


class _Answer(msgspec.Struct):
    type: str = ""
    seq: int = 0
    msgs: int = 0
    ack_msgs: int = 0
    last_seq: int = 0
    error: ApiError | None = None
    stream: str = ""
    domain: str = ""
    duplicate: bool = False
    val: str = ""
    batch: str = ""
    count: int = 0


def parse_answer(payload: bytes) -> FastAnswer:
    """Parses the server's answer for a fast batch. Raises DecodeError."""
    found = decode(_Answer, payload)
    if found.type == "ack":
        return FlowAck(found.seq, found.msgs or found.ack_msgs)
    if found.type == "gap":
        return BatchGap(found.last_seq, found.seq)
    if found.type == "err" and found.error is not None:
        return BatchRefused(found.seq, found.error)
    if found.stream or found.batch or (found.error is not None and not found.seq):
        return PubAck(
            error=found.error, stream=found.stream, seq=found.seq, domain=found.domain,
            duplicate=found.duplicate, val=found.val, batch=found.batch, count=found.count,
        )  # fmt: skip
    if found.error is not None:
        return BatchRefused(found.seq, found.error)
    if found.ack_msgs:
        return FlowAck(found.seq, found.ack_msgs)
    if found.seq:
        return BatchGap(found.last_seq, found.seq)
    raise DecodeError(f"neither a flow ack nor a pub ack: {payload[:100]!r}")


def check_batch_id(batch_id: str) -> str:
    """Checks that an id is one subject token of at most 64 characters, and returns it. Raises MisuseError."""
    if not 0 < len(batch_id.encode()) <= BATCH_ID_MAX:
        raise MisuseError(
            f"a batch id has 1 to {BATCH_ID_MAX} bytes, {batch_id!r} has {len(batch_id.encode())}"
        )
    if any(char in batch_id for char in ".*> \t\r\n"):
        raise MisuseError(f"batch id {batch_id!r} is part of a subject: no dots, wildcards or whitespace")
    return batch_id


def reply_prefix(inbox: str, batch_id: str, flow: int, *, gap_ok: bool) -> bytes:
    """`<inbox>.<id>.<flow>.<gap>.`, the prefix for `reply_end`."""
    return f"{inbox}.{batch_id}.{flow}.{'ok' if gap_ok else 'fail'}.".encode()


def reply_end(seq: int, operation: Operation) -> bytes:
    """`<sequence>.<operation>.$FI`."""
    return b"%d.%d.$FI" % (seq, operation)


# The ADR and the official server use different err_codes for fast ingest, but the same texts.
_BY_DESCRIPTION: dict[str, type[JetStreamApiError]] = {
    "atomic publish is disabled": BatchNotEnabledError,
    "batch publish is disabled": BatchNotEnabledError,
    "batch publish not enabled on stream": BatchNotEnabledError,
    "batch publish id unknown": BatchUnknownError,
    "batch publish id is unknown": BatchUnknownError,
    "atomic publish batch is incomplete": BatchIncompleteError,
    "batch publish is incomplete and was abandoned": BatchIncompleteError,
}


def batch_exception(error: ApiError, subject: str) -> JetStreamApiError:
    """The exception for a refusal, the same in both dialects."""
    kind = _BY_DESCRIPTION.get(error.description.lower())
    if kind is None:
        return JetStreamApiError.of(error.code, error.err_code, error.description, request=subject)
    return kind(error.code, error.err_code, error.description, request=subject)
