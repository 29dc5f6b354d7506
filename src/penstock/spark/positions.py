"""Start and end positions of a read, parsed from the options.

A position is `earliest`, `latest`, a stream sequence, or a time. As with Kafka's offsets, an end is
exclusive; only option `endingSequence` is inclusive.

Rejected: Kafka's default of `latest` for streaming (a first run would silently skip stored messages).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from penstock.errors import ConfigError
from penstock.protocol.durations import parse_iso8601

SEQUENCE_MAX = (1 << 63) - 1

# Kafka's encoding of latest and earliest in JSON offsets.
_KAFKA_LATEST, _KAFKA_EARLIEST = -1, -2


@dataclass(frozen=True)
class Position:
    """A position in a stream. `sequence` or `time` (RFC3339, UTC) is set if `kind` says so."""

    kind: Literal["earliest", "latest", "sequence", "time"]
    sequence: int = 0
    time: str = ""


EARLIEST = Position("earliest")
LATEST = Position("latest")


@dataclass(frozen=True)
class Positions:
    """A default position, and overrides for single streams."""

    default: Position
    by_stream: tuple[tuple[str, Position], ...] = ()

    def of(self, stream: str) -> Position:
        return dict(self.by_stream).get(stream, self.default)

    def all(self) -> list[Position]:
        return [self.default, *(position for _, position in self.by_stream)]


def parse_positions(
    option: str, text: str, default: Position, streams: tuple[str, ...], *, times: bool = False
) -> Positions:
    """Parse the value of `option`: one position, or a JSON object {"ORDERS": position, …}.

    Streams missing in the object get `default`; `streams` is empty if a pattern selects them. With `times`,
    numbers are milliseconds since the epoch, not sequences.

    Raises ConfigError for a malformed value or a stream that is not read.
    """
    read = _time if times else _position
    if not text.strip().startswith("{"):
        return Positions(read(option, text.strip()))
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option!r} is no JSON object of streams: {error}") from None
    unknown = sorted(set(given) - set(streams)) if streams else []  # none: a pattern names them
    if unknown:
        raise ConfigError(
            f"option {option!r} names stream {unknown[0]!r}, which option 'stream' does not: "
            f"it reads {', '.join(streams)}"
        )
    return Positions(default, tuple((name, read(option, value)) for name, value in given.items()))


def _position(option: str, value: Any) -> Position:
    lowered = value.lower() if isinstance(value, str) else value
    if lowered in ("earliest", _KAFKA_EARLIEST):
        return EARLIEST
    if lowered in ("latest", _KAFKA_LATEST):
        return LATEST
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= SEQUENCE_MAX:
            raise ConfigError(f"option {option!r} is {value}: a sequence is 0 to {SEQUENCE_MAX}")
        return Position("sequence", sequence=value)
    if isinstance(value, str) and value[:1].isdigit():
        return _time(option, value)
    if isinstance(value, dict):
        raise ConfigError(
            f"option {option!r} has partitions ({value!r}), which Kafka's topics have: give each stream one "
            'sequence ({"ORDERS": 17}), earliest or latest'
        )
    raise ConfigError(
        f"option {option!r} is {value!r}: earliest or latest, a sequence, a time (2026-01-31T12:00:00Z), "
        'or these per stream as JSON ({"ORDERS": 17})'
    )


def _time(option: str, value: Any) -> Position:
    if isinstance(value, dict):
        raise ConfigError(
            f"option {option!r} has partitions ({value!r}), which Kafka's topics have: give each stream one "
            'time ({"ORDERS": 1769860800000})'
        )
    return Position("time", time=parse_time(str(value), option))


def parse_time(text: str, option: str = "startingTime") -> str:
    """Convert ISO 8601 or epoch milliseconds to RFC3339 in UTC. Raises ConfigError."""
    text = text.strip()
    try:
        if text.lstrip("-").isdigit():
            when = datetime.fromtimestamp(int(text) / 1000, timezone.utc)
        else:
            when = parse_iso8601(text)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"option {option!r} is {text!r}: ISO 8601 (2026-01-31T12:00:00Z) or epoch milliseconds"
        ) from None
    return format_time(when)


def format_time(when: datetime) -> str:
    """RFC3339 in UTC. A time without a zone is taken as UTC."""
    when = when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when.astimezone(timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def resolve(position: Position, first_seq: int, last_seq: int, sequence_at: Callable[[str], int]) -> int:
    """The sequence of a position in a stream that holds [first_seq, last_seq].

    sequence_at: returns the first sequence stored at or after a time. A given sequence is returned as it is,
    even before the first message; callers clamp it.
    """
    match position.kind:
        case "earliest":
            return first_seq
        case "latest":
            return last_seq + 1
        case "sequence":
            return position.sequence
        case "time":
            return sequence_at(position.time)


def only_one(values: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The one of the options `names` that is given, or None. Raises ConfigError for more than one."""
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(given)} contradict each other: give one of them")
    return given[0] if given else None
