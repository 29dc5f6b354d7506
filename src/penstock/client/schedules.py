"""Messages for later: publishes with `delay` or `at`, and the schedules a stream holds (ADR-51).

A stream keeps a message for later under a subject of its own, one a schedule, until it stores it under the
subject it is for. Which subject that is need not concern who publishes: the client makes one up below the
token `_schedules`, in the stream's subject filter that holds this token (`_schedules.>`, say), or else below
the `>` filter the message itself falls under (`orders._schedules.<id>` for `orders.>`).

Rejected: asking for a subject for each (everybody would write the same lines); a stream of its own for what
waits (the message has to be in the stream that will hold it).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.client.config import StreamConfig, plain_value
from penstock.client.nuid import new_nuid
from penstock.client.publishing import PublishOptions
from penstock.errors import MessageNotFoundError, MisuseError, NoStreamError
from penstock.protocol import headers as names
from penstock.protocol.headers import Headers
from penstock.protocol.subjects import matches

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream
    from penstock.client.stream import Stream

AREA = "_schedules"
AREAS_MAX = 1024  # subjects whose area is remembered

_NOT_FOR_LATER = (
    "expected_last_subject_sequence",
    "expected_last_subject_sequence_subject",
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A message that waits in a stream until its time comes.

    subject: of the schedule itself, one a schedule. pattern: `@at <time>`, `@every 1h30m` or six cron fields.
    target: the subject of what it produces. seq: where the schedule is stored.
    """

    stream: str
    subject: str
    pattern: str
    target: str
    seq: int
    headers: Headers
    data: bytes


def area_for(config: StreamConfig, target: str) -> str:
    """Where schedules for a target go: a subject up to its last token. Raises MisuseError: nowhere."""
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
    """Filters of all subjects `area_for` could choose for this stream."""
    own = [subject for subject in config.subjects if AREA in subject.split(".")]
    below = [subject for subject in config.subjects if subject.endswith(".>") and "*" not in subject]
    return own or [f"{subject[:-1]}{AREA}.>" for subject in below]


async def for_later(
    js: JetStream,
    areas: dict[str, str],
    subject: str,
    options: PublishOptions,
    delay: timedelta | float | None,
    at: datetime | None,
) -> tuple[str, PublishOptions]:
    """Subject and options of the publish that makes the stream store a message later.

    areas: what was found out about targets before. Raises MisuseError, NoStreamError.
    """
    if delay is not None and at is not None:
        raise MisuseError("publish takes delay or at, not both")
    for name in _NOT_FOR_LATER:
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
    """The schedules whose own subject matches; "" = those of delayed publishes."""
    filters = [subject] if subject else areas_of((await stream.info()).config)
    for wanted in filters:
        for found in (await stream.info(subjects_filter=wanted)).state.subjects:
            try:
                message = await stream.get_last_message(found)
            except MessageNotFoundError:
                continue  # its time came meanwhile
            pattern = message.headers.get(names.SCHEDULE)
            if pattern:
                target = message.headers.get(names.SCHEDULE_TARGET, "")
                yield Schedule(
                    stream.name, found, pattern, target, message.seq, message.headers, message.data
                )
