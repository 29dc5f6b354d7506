"""Where a read begins and ends in each of its streams, as the options say it.

A position is `earliest`, `latest`, a stream sequence, or a time. Like Kafka's offsets, an end is the first
one not read; only the option `endingSequence` names the last one that is.

Rejected: Kafka's default of `latest` for streaming (a first run that silently skips what is stored surprises
people).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from penstock.errors import ConfigError

SEQUENCE_MAX = (1 << 63) - 1

# Kafka's numbers for the ends of a partition, in its JSON of offsets.
_KAFKA_LATEST, _KAFKA_EARLIEST = -1, -2


@dataclass(frozen=True)
class Position:
    """A place in a stream. `sequence` and `time` (RFC3339, UTC) are set for positions of that kind."""

    kind: Literal["earliest", "latest", "sequence", "time"]
    sequence: int = 0
    time: str = ""


EARLIEST = Position("earliest")
LATEST = Position("latest")


@dataclass(frozen=True)
class Positions:
    """One position for all streams, and those of streams that have one of their own."""

    default: Position
    by_stream: tuple[tuple[str, Position], ...] = ()

    def of(self, stream: str) -> Position:
        return dict(self.by_stream).get(stream, self.default)

    def all(self) -> list[Position]:
        return [self.default, *(position for _, position in self.by_stream)]


def parse_positions(
    option: str, text: str, default: Position, streams: tuple[str, ...], *, times: bool = False
) -> Positions:
    """What `option` says for `streams`: one position, or a JSON object {"ORDERS": position, …}; streams it
    leaves out have the `default`. With `times`, numbers are milliseconds since the epoch, not sequences.

    Raises ConfigError when it can't be read or names a stream that is not read.
    """
    read = _time if times else _position
    if not text.strip().startswith("{"):
        return Positions(read(option, text.strip()))
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option!r} is no JSON object of streams: {error}") from None
    unknown = sorted(set(given) - set(streams))
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
    raise ConfigError(
        f"option {option!r} is {value!r}: earliest or latest, a sequence, a time (2026-01-31T12:00:00Z), "
        'or these per stream as JSON ({"ORDERS": 17})'
    )


def _time(option: str, value: Any) -> Position:
    return Position("time", time=parse_time(str(value), option))


def parse_time(text: str, option: str = "startingTime") -> str:
    """A time as RFC3339 in UTC, which the server understands; ConfigError when it is none."""
    text = text.strip()
    try:
        if text.lstrip("-").isdigit():
            when = datetime.fromtimestamp(int(text) / 1000, UTC)
        else:
            when = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"option {option!r} is {text!r}: ISO 8601 (2026-01-31T12:00:00Z) or epoch milliseconds"
        ) from None
    return format_time(when)


def format_time(when: datetime) -> str:
    """RFC3339 in UTC; a time without a zone is UTC."""
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def resolve(position: Position, first_seq: int, last_seq: int, sequence_at: Callable[[str], int]) -> int:
    """The sequence a position means in a stream that holds [first_seq, last_seq]. `sequence_at`: the first
    sequence stored at or after a time. What is before the first message is not brought back: a start there
    means the first message."""
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
    """The one of these options that is given; ConfigError when two are."""
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(given)} contradict each other: give one of them")
    return given[0] if given else None
