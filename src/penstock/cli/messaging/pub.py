"""`penstock pub SUBJECT [BODY]`: publishes a message, or each line of an input, also as a batch (ADR-50).

    penstock pub orders.new '{"id": 1}'
    penstock pub sensors.a --input readings.jsonl --batch fast
    psql -Atc 'select * from users' | penstock pub users --batch atomic

Exit status: 0 published (with a batch or --jetstream: stored), 1 rejected or not acked, 2 wrong usage or
unreadable input.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO

from penstock.cli.framework.cli_output import Progress
from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count, existing_file, moment, seconds
from penstock.cli.messaging.bodies import (
    FORCE_STDIN,
    HEADER,
    TEMPLATES,
    TEMPLATES_HELP,
    lines_of,
    opened_input,
    whole_input,
)
from penstock.cli.messaging.templates import expanded, has_templates
from penstock.client import Headers
from penstock.protocol import headers as names

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.protocol.api import PubAck

SCHEDULES = (
    Option(names=("--schedule-after",), convert=seconds, help="Deliver after this time"),
    Option(names=("--schedule-at",), convert=moment, help="Deliver at this time"),
    Option(names=("--schedule-every",), convert=seconds, help="Deliver again and again, so far apart"),
    Option(names=("--schedule-cron",), metavar="CRON", help="Deliver at the times of six cron fields"),
    Option(names=("--schedule-dest",), metavar="SUBJECT", help="Deliver to this subject"),
    Option(
        names=("--schedule-source",), metavar="SUBJECT", help="Deliver the newest message of this subject"
    ),
    Option(names=("--schedule-ttl",), convert=seconds, help="TTL of what is delivered"),
)


async def _pub(run: CommandRun) -> None:
    values = run.values
    if values.given("body") and values.given("input"):
        raise UsageError("a message comes from BODY or from --input, not from both")
    body = None if values.flag("force-stdin") or not values.given("body") else values.text("body")
    headers = Headers(values.value("header"))
    for name, value in schedule_headers(run).items():
        headers[name] = value
    with opened_input(values.path("input") if body is None else None) as (source, size):
        job = _PublishJob(run, headers, source, body, size if body is None else None)
        await job.publish()


def schedule_headers(run: CommandRun) -> dict[str, str]:
    """Headers that make a publish a schedule (ADR-51). Raises UsageError for options that contradict each
    other."""
    values = run.values
    given = values.any_given("schedule-after", "schedule-at", "schedule-every", "schedule-cron")
    if not given:
        if values.any_given("schedule-dest", "schedule-source", "schedule-ttl"):
            raise UsageError("--schedule-dest, -source and -ttl need --schedule-after, -at, -every or -cron")
        return {}
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} are both given; a schedule has one of them")
    if not values.given("schedule-dest"):
        raise UsageError(f"--{given[0]} needs --schedule-dest, the subject that the message is delivered to")
    pattern = values.text("schedule-cron")
    if given[0] == "schedule-every":
        pattern = f"@every {values.seconds('schedule-every'):g}s"
    elif given[0] != "schedule-cron":
        when = values.value("schedule-at")
        if given[0] == "schedule-after":
            when = datetime.now(UTC) + timedelta(seconds=values.seconds("schedule-after"))
        pattern = f"@at {when.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    found = {names.SCHEDULE: pattern, names.SCHEDULE_TARGET: values.text("schedule-dest")}
    if values.given("schedule-source"):
        found[names.SCHEDULE_SOURCE] = values.text("schedule-source")
    if values.given("schedule-ttl"):
        found[names.SCHEDULE_TTL] = f"{values.seconds('schedule-ttl'):g}s"
    return found


class _PublishJob:
    """One run of the command. size: bytes of the input, None if unknown."""

    def __init__(
        self, run: CommandRun, headers: Headers, source: BinaryIO, body: str | None, size: int | None
    ) -> None:
        values = run.values
        self._run = run
        self._subject = values.text("subject")
        self._headers = headers
        self._source = source
        self._body = body
        self._count = values.number("count")
        self._size = size
        self._bar = Progress()
        self._templates = (
            values.flag("templates", default=True)
            and body is not None
            and (has_templates(body) or has_templates(self._subject))
        )
        self._stored: list[PubAck] = []
        self.messages = 0
        self.bytes = 0

    async def publish(self) -> None:
        """Connect, publish and print the result."""
        run, values = self._run, self._run.values
        batch = "atomic" if values.flag("atomic") else values.text("batch")
        acked = values.flag("jetstream") or names.SCHEDULE in self._headers
        shown: bool | None = values.value("progress")
        if shown is None:
            shown = sys.stderr.isatty() and (self._body is None or self._count > 1) and not run.output.as_json
        total = self._size if self._body is None else self._count
        async with run.connect() as client:
            with run.output.progress(self._subject, total, shown=shown) as self._bar:
                ack: PubAck | None = None
                if batch == "atomic":
                    ack = await self._atomic(client)
                elif batch == "fast":
                    ack = await self._fast(client)
                elif acked:
                    await self._to_stream(client)
                else:
                    await self._plain(client)
        self._report(ack)

    def _report(self, ack: PubAck | None) -> None:
        output = self._run.output
        if output.as_json:
            found = {"subject": self._subject, "messages": self.messages, "bytes": self.bytes}
            acks = [ack] if ack is not None else self._stored
            output.json(found | ({"acks": acks} if acks else {}))
            return
        if self._run.values.flag("quiet"):
            return
        if self.messages == 1 and ack is None and self._body is not None:
            output.line(f'Published {self.bytes} bytes to "{self._subject}"')
        else:
            text = f"published {self.messages:,} message{'s' * (self.messages != 1)} to {self._subject}"
            if ack is not None:
                text += (
                    f": stream {ack.stream}, last sequence {ack.seq:,}, batch {ack.batch} of {ack.count:,}"
                )
            output.line(text)
        for one in self._stored[-1:]:
            again = " (a duplicate of an earlier message)" if one.duplicate else ""
            output.line(f"Stored in Stream: {one.stream} Sequence: {one.seq}{again}")

    async def _plain(self, client: Client) -> None:
        async for subject, payload in self._paced():
            await client.publish(
                subject, payload, reply=self._run.values.text("reply"), headers=self._headers or None
            )
        await client.flush()
        self._run.refusals.raise_first()

    async def _to_stream(self, client: Client) -> None:
        async with self._run.jetstream_of(client).publisher() as publisher:
            waiting = []
            async for subject, payload in self._paced():
                waiting.append(await publisher.publish(subject, payload, headers=self._headers or None))
                if len(waiting) > 1 and self._count > 1 and not self._run.output.as_json:
                    waiting = waiting[-1:]
            await publisher.flush()
            self._stored = [await one for one in waiting]

    async def _atomic(self, client: Client) -> PubAck | None:
        async with self._run.jetstream_of(client).atomic_batch() as batch:
            await self._add_all(batch.add_many, batch.add)
            return await batch.commit_eob() if self.messages else None

    async def _fast(self, client: Client) -> PubAck | None:
        warn, path = self._run.output.warn, self._run.path

        def lost(last_seq: int, seq: int) -> None:
            warn(f"{path}: messages behind {last_seq:,} and before {seq:,} got lost")

        def refused(seq: int, error: Exception) -> None:
            warn(f"{path}: message {seq:,} was refused: {error}")

        values = self._run.values
        batch = self._run.jetstream_of(client).fast_ingest(
            gap="ok" if values.text("gap") == "ok" else "fail",
            flow=values.number("flow"),
            on_gap=lost,
            on_error=refused,
        )
        async with batch:
            await self._add_all(batch.add_many, batch.add)
            return await batch.commit_eob() if self.messages else None

    async def _add_all(
        self, add_many: Callable[..., Awaitable[object]], add: Callable[..., Awaitable[object]]
    ) -> None:
        if self._headers or self._templates:
            async for subject, payload in self._paced():
                await add(subject, payload, headers=self._headers or None)
            return
        async for payloads in self._payloads():
            await add_many(payloads, self._subject)

    async def _paced(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield subject and payload of each message, with the pauses of --sleep and --jitter between them."""
        sleep_s, jitter_s = self._run.values.seconds("sleep"), self._run.values.seconds("jitter")
        done = 0
        async for payloads in self._payloads():
            for payload in payloads:
                if done and (sleep_s or jitter_s):
                    await asyncio.sleep(sleep_s + random.random() * jitter_s)
                done += 1
                yield (expanded(self._subject, done) if self._templates else self._subject), payload

    async def _payloads(self) -> AsyncIterator[list[bytes]]:
        """Yield the messages in groups, as they are read."""
        if self._body is not None:
            payload = self._body.encode("utf-8", "surrogateescape")
            for done in range(0, self._count, 1000):
                size = min(1000, self._count - done)
                if self._templates:
                    texts = (expanded(self._body, done + number + 1) for number in range(size))
                    yield self._counted([text.encode("utf-8", "surrogateescape") for text in texts], size)
                else:
                    yield self._counted([payload] * size, size)
        elif self._run.values.text("send-on") == "eof":
            data = await whole_input(self._source)
            yield self._counted([data], len(data))
        else:
            async for lines, read in lines_of(self._source):
                yield self._counted(lines, read)

    def _counted(self, payloads: list[bytes], done: int) -> list[bytes]:
        self.messages += len(payloads)
        self.bytes += sum(map(len, payloads))
        self._bar.advance(done, f"{self.messages:,} messages")
        return payloads


PUB = Command(
    name="pub",
    summary="Publish a message, or each line of an input, also as one atomic or fast batch.",
    run=_pub,
    arguments=(
        Argument(name="subject", help="Subject to publish to"),
        Argument(name="body", help="The message; without it, each line of stdin is one", required=False),
    ),
    options=(
        Option(names=("--reply",), metavar="SUBJECT", help="Reply subject of the messages"),
        HEADER,
        Option(names=("--count",), convert=count, default=1, help="Publish BODY so many times"),
        Option(names=("--sleep",), convert=seconds, help="Pause between messages"),
        Option(names=("--jitter",), convert=seconds, help="Random further pause of up to this"),
        Option(names=("--input", "-i"), convert=existing_file, help="A file in place of stdin"),
        Option(
            names=("--send-on",),
            choices=("newline", "eof"),
            default="newline",
            help="eof: the whole input is one message",
        ),
        FORCE_STDIN,
        Option(names=("--jetstream", "-J"), convert=bool, help="Wait until a stream has stored each message"),
        Option(
            names=("--batch",),
            choices=("none", "atomic", "fast"),
            default="none",
            help="Store all messages or none (atomic), or as fast as possible (fast)",
        ),
        Option(names=("--atomic",), convert=bool, help="The same as --batch atomic"),
        Option(
            names=("--gap",),
            choices=("fail", "ok"),
            default="fail",
            help="Fast batch: whether a lost or refused message ends it",
        ),
        Option(names=("--flow",), convert=count, default=1000, help="Fast batch: most messages of an ack"),
        TEMPLATES,
        Option(names=("--quiet", "-q"), convert=bool, help="Print nothing"),
        Option(
            names=("--progress",), convert=bool, negatable=True, help="Show progress (default: at a terminal)"
        ),
        *SCHEDULES,
    ),
    aliases=("publish",),
    details=TEMPLATES_HELP
    + "\n\nWithout BODY each line of the input is a message. The official command line publishes the whole "
    "input as one message: --send-on eof does that.",
    examples=(
        "pub orders.new '{\"id\": 1}'",
        "pub orders.new 'order {{Count}}' --count 10 --sleep 1s",
        "pub orders.new hello --jetstream -H Nats-Msg-Id:1",
        "pub sensors --input readings.jsonl --batch fast",
    ),
)
