"""Scheduled messages: publishes with `delay` or `at`, and the schedules in a stream (ADR-51).

A stream stores a scheduled message under a subject of its own until it stores it under its target subject.
The client generates that subject below the token `_schedules`: in the stream's subject filter that contains
the token (such as `_schedules.>`), or else below the `>` filter that matches the target
(`orders._schedules.<id>` for `orders.>`).

Rejected: requiring a schedule subject from the user (every program would need the same code); a separate
stream for schedules (a schedule must be in the stream that will hold the message).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.client.config import StreamConfig, plain_value
from penstock.client.publishing import PublishOptions
from penstock.client.requests import new_nuid
from penstock.errors import MessageNotFoundError, MisuseError, NoStreamError
from penstock.protocol import headers as names
from penstock.protocol.headers import Headers
from penstock.protocol.subjects import matches

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream
    from penstock.client.stream import Stream

AREA = "_schedules"
AREAS_MAX = 1024  # size of the cache of target subjects

_NOT_WITH_DELAY = (
    "expected_last_subject_sequence",
    "expected_last_subject_sequence_subject",
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scheduled message in a stream.

    subject: unique subject of the schedule. pattern: `@at <time>`, `@every 1h30m` or six cron fields.
    target: subject of the messages it produces. seq: stream sequence of the schedule.
    """

    stream: str
    subject: str
    pattern: str
    target: str
    seq: int
    headers: Headers
    data: bytes


def area_for(config: StreamConfig, target: str) -> str:
    """Prefix of the schedule subjects for a target. Raises MisuseError if the stream has no such subject."""
    for subject in config.subjects:
        tokens = subject.split(".")
        if AREA in tokens and tokens[-1] in (">", "*") and "*" not in tokens[:-1]:
            return ".".join(tokens[:-1])
    for subject in config.subjects:
        if subject.endswith(".>") and "*" not in subject and matches(subject, target):
            return subject[:-1] + AREA
    raise MisuseError(
        f"stream {config.name!r} has no subject where messages for later can wait: add"
        f" `{AREA}.{config.name}.>` to its subjects (it has {', '.join(config.subjects)})"
    )


def areas_of(config: StreamConfig) -> list[str]:
    """Filters for all schedule subjects that `area_for` can choose in this stream."""
    own = [subject for subject in config.subjects if AREA in subject.split(".")]
    below = [subject for subject in config.subjects if subject.endswith(".>") and "*" not in subject]
    return own or [f"{subject[:-1]}{AREA}.>" for subject in below]


async def delayed_publish(
    js: JetStream,
    areas: dict[str, str],
    subject: str,
    options: PublishOptions,
    delay: timedelta | float | None,
    at: datetime | None,
) -> tuple[str, PublishOptions]:
    """Subject and options of the publish that stores the schedule.

    areas: cache of prefixes by target. Raises MisuseError, NoStreamError.
    """
    if delay is not None and at is not None:
        raise MisuseError("publish takes delay or at, not both")
    for name in _NOT_WITH_DELAY:
        if options.get(name) is not None:
            raise MisuseError(f"publish with delay or at takes no {name}: it would be about another subject")
    if delay is not None:
        at = datetime.now(UTC) + (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))
    area = areas.get(subject)
    if area is None:
        found = await js.stream_names(subject)
        if not found:
            raise NoStreamError(subject)
        area = area_for((await js.stream_info(found[0])).config, subject)
        if len(areas) >= AREAS_MAX:
            areas.clear()
        areas[subject] = area
    made = Headers(options.get("headers") or {})
    made[names.SCHEDULE] = f"@at {plain_value(at)}"
    made[names.SCHEDULE_TARGET] = subject
    ttl = options.get("ttl")
    if ttl is not None:
        made[names.SCHEDULE_TTL] = str(ttl)
    later = options.copy()
    later["headers"] = made
    later["ttl"] = None
    return f"{area}.{new_nuid()}", later


async def schedules_of(stream: Stream, subject: str) -> AsyncIterator[Schedule]:
    """Yield the schedules whose subject matches the filter; "" means those of delayed publishes."""
    filters = [subject] if subject else areas_of((await stream.info()).config)
    for wanted in filters:
        for found in (await stream.info(subjects_filter=wanted)).state.subjects:
            try:
                message = await stream.get_last_message(found)
            except MessageNotFoundError:
                continue  # it fired meanwhile
            pattern = message.headers.get(names.SCHEDULE)
            if pattern:
                target = message.headers.get(names.SCHEDULE_TARGET, "")
                yield Schedule(
                    stream.name, found, pattern, target, message.seq, message.headers, message.data
                )
