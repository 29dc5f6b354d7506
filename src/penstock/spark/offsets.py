"""Offsets of a streaming query, as stored in Spark's checkpoint, and range planning.

An offset is `{"v": 1, "streams": {"ORDERS": {"next": 123, "created": "2026-…Z"}}}`: per stream the next
sequence to read and the stream's creation time. Offsets are sequences, not counts, so they denote the same
messages after restarts, deletions and filter changes. The creation time distinguishes a stream from a later
one of the same name, whose sequences denote other messages.

Invariants: an end offset is never before its start for the same stream (equal `created`), unless the stream
itself went backwards and failOnDataLoss is off; ranges cover [start, end) exactly once, without overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.errors import ConfigError, JetStreamError

OFFSET_VERSION = 1


class DataLossError(JetStreamError):
    """Messages were removed before the query read them, and failOnDataLoss is on."""


@dataclass(frozen=True)
class StreamPosition:
    """next: the first sequence not yet read. created: the stream's creation time (RFC3339)."""

    next: int
    created: str


@dataclass(frozen=True)
class StreamBounds:
    """First and last sequence of a stream. Empty streams have first_seq == last_seq + 1."""

    name: str
    created: str
    first_seq: int
    last_seq: int
    record_bytes: float = 1.0
    """Mean stored size of a message, bytes."""
    replicas: tuple[str, ...] = ()
    """Names of the servers that have the stream; () where there is no cluster."""


@dataclass(frozen=True)
class SequenceRange:
    """The sequences [start, end) of one stream; one task reads one range. replicas: see StreamBounds."""

    stream: str
    created: str
    start: int
    end: int
    replicas: tuple[str, ...] = ()


Offset = dict[str, StreamPosition]


def encode_offset(offset: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """The offset as JSON objects for Spark's checkpoint."""
    return {
        "v": OFFSET_VERSION,
        "streams": {name: {"next": p.next, "created": p.created} for name, p in sorted(offset.items())},
    }


def decode_offset(raw: Mapping[str, Any]) -> Offset:
    """Parse an offset from the checkpoint. Raises ConfigError for another format or version."""
    version = raw.get("v")
    if version != OFFSET_VERSION:
        raise ConfigError(
            f"the checkpoint holds an offset of version {version!r}, this release reads version "
            f"{OFFSET_VERSION}: use the release that wrote it, or a new checkpoint"
        )
    try:
        return {
            str(name): StreamPosition(int(p["next"]), str(p["created"])) for name, p in raw["streams"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"the checkpoint's offset can't be read: {raw!r}; use a new checkpoint") from None


def resume_at(bounds: StreamBounds, position: StreamPosition | None, *, fail_on_data_loss: bool) -> int:
    """The sequence at which to resume. A stream without a position is read from its first message.

    Raises DataLossError if messages after the position are gone: the stream was recreated, was purged or
    trimmed past the position, or ends before it. Without fail_on_data_loss, returns the nearest sequence from
    which no message is missing.
    """
    if position is None:
        return bounds.first_seq
    loss = None
    at = position.next
    if position.created != bounds.created:
        at = bounds.first_seq
        loss = f"it was created {bounds.created}, the checkpoint is of the one created {position.created}"
    elif position.next > bounds.last_seq + 1:
        at = bounds.last_seq + 1
        loss = f"its last sequence is {bounds.last_seq}, the checkpoint is at {position.next}"
    elif position.next < bounds.first_seq:
        at = bounds.first_seq
        loss = f"its first sequence is {bounds.first_seq}, sequence {position.next} was still to be read"
    if loss and fail_on_data_loss:
        raise DataLossError(
            f"stream {bounds.name!r} lost messages this query had not read: {loss}. "
            "Set failOnDataLoss to false to go on with what is there, or start with a new checkpoint"
        )
    return at


def cap(
    available: Mapping[str, tuple[int, int]], limit: int | None, sizes: Mapping[str, float] | None = None
) -> dict[str, int]:
    """The end of the next micro-batch per stream.

    available: (start, end) per stream. limit: sequences in total, None for no limit; with `sizes` (mean
    message size per stream) it is bytes. The limit is shared evenly, and the share that one stream does not
    use goes to the others. The stream with the largest backlog comes last and gets at least one sequence.
    The number of sequences is an upper bound for the number of rows.
    """
    if limit is None:
        return {name: end for name, (_, end) in available.items()}
    ends: dict[str, int] = {}
    left = float(limit)
    by_size = sorted(available.items(), key=lambda item: item[1][1] - item[1][0])
    for i, (name, (start, end)) in enumerate(by_size):
        size = 1.0 if sizes is None else max(1.0, sizes[name])
        share = int(left // (len(by_size) - i) // size)
        if i == len(by_size) - 1 and left == limit:
            share = max(1, share)  # make progress even if one message exceeds the limit
        take = min(end - start, share)
        ends[name] = start + take
        left -= max(take, 0) * size
    return ends


def split(span: SequenceRange, *, parts_min: int, records_max: int) -> list[SequenceRange]:
    """Split `span` into contiguous ranges of nearly equal length.

    parts_min: least number of ranges, if there are that many sequences. records_max: longest range.
    """
    length = span.end - span.start
    if length <= 0:
        return []
    parts = min(length, max(parts_min, -(-length // records_max)))
    cuts = [span.start + length * i // parts for i in range(parts + 1)]
    return [replace(span, start=a, end=b) for a, b in pairwise(cuts)]
