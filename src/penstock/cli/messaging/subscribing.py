"""`penstock sub SUBJECT...`: prints messages as they come, from subjects or from a stream.

Options such as --stream, --all, --last and --since read a stream with an ordered consumer, which leaves
nothing behind; --durable uses a durable pull consumer, and creates it if it is missing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count, seconds, whole
from penstock.cli.framework.value_texts import duration_text, number_text, size_text
from penstock.cli.messaging.merging import merged_messages
from penstock.cli.messaging.message_texts import header_lines, message_object
from penstock.cli.messaging.translation import TRANSLATE, translated
from penstock.client import Client, JsMsg, Msg, Stream
from penstock.errors import ConsumerNotFoundError, RequestTimeoutError
from penstock.protocol.subjects import matches

BATCH_MESSAGES = 256
END_WAIT_S = 1.0
LONG_WAIT_S = 30.0

_STARTS = ("all", "new", "last", "last-per-subject", "start-sequence", "since")
_FROM_STREAM = (*_STARTS, "stream", "durable", "terminate-at-end", "direct")


async def _sub(run: CommandRun) -> None:
    values = run.values
    subjects = values.texts("subjects")
    if values.flag("inbox"):
        subjects = []
    elif not subjects and not values.given("stream"):
        raise UsageError("subjects is missing: give a subject, --inbox or --stream; see --help")
    starts = values.any_given(*_STARTS)
    if len(starts) > 1:
        raise UsageError(f"--{starts[0]} and --{starts[1]} are both given; a subscription has one start")
    async with run.connect() as client:
        printer = MessagePrinter(run, time.monotonic())
        if values.any_given(*_FROM_STREAM):
            source: AsyncGenerator[Msg, None] = _stream_messages(run, client, subjects)
        else:
            source = _messages(run, client, subjects or [client.new_inbox()])
        try:
            async with aclosing(source) as msgs:
                async for msg in msgs:
                    if any(matches(one, msg.subject) for one in values.texts("ignore-subject")):
                        continue
                    await printer.print(msg)
                    if values.given("count") and printer.received >= values.number("count"):
                        break
        finally:
            printer.end()


async def _messages(run: CommandRun, client: Client, subjects: list[str]) -> AsyncGenerator[Msg, None]:
    """Messages of subscriptions, in the order in which they come.

    Raises PermissionsError when the server has refused every subscription.
    """
    values = run.values
    wait_s = values.seconds("wait") or None
    subscriptions = [await client.subscribe(subject, queue=values.text("queue")) for subject in subjects]
    await client.flush()
    run.output.note(f"{time.strftime('%H:%M:%S')} Subscribing on {' '.join(subjects)}")
    async with aclosing(merged_messages(subscriptions, wait_s)) as msgs:
        async for msg in msgs:
            yield msg


async def _stream_of(run: CommandRun, client: Client, subjects: list[str]) -> Stream:
    js = run.jetstream_of(client)
    name = run.values.text("stream")
    if name:
        return await js.stream(name)
    found = await js.stream_names(subjects[0])
    if len(found) != 1:
        names = ", ".join(found) or "no stream"
        raise CommandFailed(f"{names} has the subject {subjects[0]!r}; name one with --stream")
    return await js.stream(found[0])


def _start(run: CommandRun) -> dict[str, Any]:
    """Settings of the consumer that say where it begins."""
    values = run.values
    if values.flag("new"):
        return {"deliver_policy": "new"}
    if values.flag("last"):
        return {"deliver_policy": "last"}
    if values.flag("last-per-subject"):
        return {"deliver_policy": "last_per_subject"}
    if values.given("start-sequence"):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": values.number("start-sequence")}
    if values.given("since"):
        start = datetime.now(UTC) - timedelta(seconds=values.seconds("since"))
        return {"deliver_policy": "by_start_time", "opt_start_time": start}
    return {"deliver_policy": "all"}


async def _stream_messages(run: CommandRun, client: Client, subjects: list[str]) -> AsyncGenerator[Msg, None]:
    """Messages of a stream by a consumer, acked after they are printed if it is durable."""
    values = run.values
    stream = await _stream_of(run, client, subjects)
    settings = _start(run)
    if len(subjects) == 1:
        settings["filter_subject"] = subjects[0]
    elif subjects:
        settings["filter_subjects"] = subjects
    if settings["deliver_policy"] == "last_per_subject" and not subjects:
        settings["filter_subject"] = ">"
    durable = values.text("durable")
    run.output.note(
        f"{time.strftime('%H:%M:%S')} Subscribing to stream {stream.name}"
        + (f" as durable consumer {durable}" if durable else "")
    )
    ends = values.flag("terminate-at-end")
    wait_s = values.seconds("wait")
    if durable:
        try:
            consumer: Any = await stream.consumer(durable)
        except ConsumerNotFoundError:
            consumer = await stream.create_consumer(durable, **settings)
        left = consumer.cached_info.num_pending
    else:
        consumer = stream.ordered_consumer(**settings)
        left = await _pending(stream, settings) if ends else 1
    acks = bool(durable) and values.flag("ack", default=True)
    limit, handed_out = values.number("count"), 0
    msgs: list[JsMsg] = []
    try:
        while not (ends and not left):
            most = min(left, limit - handed_out) if limit else left
            msgs = await _next_messages(consumer, wait_s, most if ends else 0)
            if not msgs and (ends or wait_s):
                return
            while msgs:
                yield msgs[0]
                msg = msgs.pop(0)
                handed_out += 1
                if acks:
                    await msg.ack()
                left = msg.metadata.pending
    finally:
        if not durable:
            await consumer.close()
        elif acks:  # the last one was printed; those behind it were not
            for number, msg in enumerate(msgs):
                await (msg.nak() if number else msg.ack())


async def _next_messages(consumer: Any, wait_s: float, left: int) -> list[JsMsg]:
    """The next messages. left: how many there are, read together; 0: unknown, so that one is returned at
    once."""
    if left:
        found: list[JsMsg] = await consumer.fetch(min(left, BATCH_MESSAGES), expires=wait_s or END_WAIT_S)
        return found
    try:
        return [await consumer.next(expires=wait_s or LONG_WAIT_S)]
    except RequestTimeoutError:
        return []


async def _pending(stream: Stream, settings: dict[str, Any]) -> int:
    """How many messages a consumer with these settings would get now."""
    consumer = await stream.create_consumer(
        ack_policy="none", inactive_threshold=5, mem_storage=True, num_replicas=1, **settings
    )
    await consumer.delete()
    return consumer.cached_info.num_pending


class MessagePrinter:
    """Prints messages as the options say. received: how many. started_s: when, on the monotonic clock."""

    def __init__(self, run: CommandRun, started_s: float) -> None:
        self._run = run
        self._started_s = started_s
        self._subjects: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._reports = run.values.flag("report-subjects")
        self.received = 0

    async def print(self, msg: Msg) -> None:
        """Print a message, or count it for the report."""
        self.received += 1
        values, output = self._run.values, self._run.output
        if self._reports:
            self._subjects[msg.subject] += 1
            self._bytes[msg.subject] += len(msg.data)
        elif values.given("dump"):
            await self._dump(msg, values.text("dump"))
        elif output.as_json:
            found = {"number": self.received, **message_object(msg)}
            if isinstance(msg, JsMsg):
                found |= {"stream": msg.metadata.stream, "seq": msg.seq, "time": msg.time.isoformat()}
            output.json_line(found)
        elif values.flag("subjects-only"):
            output.line(msg.subject)
        elif values.flag("raw"):
            output.raw(await translated(msg.data, values.text("translate")) + b"\n")
        else:
            await self._text(msg)
        output.flush()

    async def _text(self, msg: Msg) -> None:
        values, output = self._run.values, self._run.output
        head = f"[#{self.received}]"
        if values.flag("timestamp"):
            head += f" @ {datetime.now():%H:%M:%S.%f}"  # noqa: DTZ005 - the user's clock on the wall
        elif values.flag("delta-time"):
            head += f" @ {duration_text(time.monotonic() - self._started_s)}"
        if isinstance(msg, JsMsg):
            head += f" Received JetStream message: stream: {msg.metadata.stream} seq {msg.seq}"
            head += f" / subject: {msg.subject} / time: {msg.time.astimezone():%Y-%m-%d %H:%M:%S}"
        else:
            head += f' Received on "{msg.subject}"' + (f' with reply "{msg.reply}"' if msg.reply else "")
        output.line(head)
        for line in header_lines(msg.headers):
            output.line(line)
        if values.flag("headers-only"):
            output.line()
            return
        if msg.headers:
            output.line()
        output.raw(await translated(msg.data, values.text("translate")) + b"\n\n")

    async def _dump(self, msg: Msg, target: str) -> None:
        if target == "-":
            self._run.output.raw(msg.data + b"\0")
            return
        name = f"{self.received}-{re.sub(r'[^A-Za-z0-9_.-]', '_', msg.subject)[:100]}"
        await asyncio.to_thread(_write, target, name, msg.data)

    def end(self) -> None:
        """Print the report, if there is one."""
        if not self._reports:
            return
        rows = [
            (subject, number_text(n), size_text(self._bytes[subject]))
            for subject, n in self._subjects.most_common(self._run.values.number("report-top"))
        ]
        if self._run.output.as_json:
            self._run.output.json(
                [
                    {"subject": one, "messages": self._subjects[one], "bytes": self._bytes[one]}
                    for one, *_ in rows
                ]
            )
        else:
            self._run.output.table(("Subject", "Messages", "Bytes"), rows, numbers="Messages,Bytes")


def _write(target: str, name: str, data: bytes) -> None:
    folder = Path(target).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


SUB = Command(
    name="sub",
    summary="Print messages as they come, from subjects or from a stream.",
    run=_sub,
    arguments=(Argument(name="subjects", help="Subjects, * and > allowed", required=False, repeated=True),),
    options=(
        Option(names=("--queue",), help="Queue group"),
        Option(names=("--durable",), metavar="CONSUMER", help="Read the stream with this durable consumer"),
        Option(names=("--raw", "-r"), convert=bool, help="Print payloads only"),
        TRANSLATE,
        Option(
            names=("--ack",),
            convert=bool,
            negatable=True,
            help="With --durable: ack what was printed (default)",
        ),
        Option(names=("--inbox", "-i"), convert=bool, help="Listen on a new inbox"),
        Option(names=("--count",), convert=count, help="End after so many messages"),
        Option(
            names=("--dump",),
            metavar="DIRECTORY",
            help="Write each payload to a file; -: to stdout, NUL-terminated",
        ),
        Option(names=("--headers-only",), convert=bool, help="Print no payloads"),
        Option(names=("--subjects-only",), convert=bool, help="Print subjects only"),
        Option(names=("--stream",), help="Read this stream"),
        Option(names=("--all",), convert=bool, help="Begin with the first message of the stream"),
        Option(names=("--new",), convert=bool, help="Begin with messages stored from now on"),
        Option(names=("--last",), convert=bool, help="Begin with the last message of the stream"),
        Option(
            names=("--last-per-subject",), convert=bool, help="Begin with the last message of each subject"
        ),
        Option(names=("--start-sequence",), convert=whole, help="Begin at this sequence"),
        Option(names=("--since",), convert=seconds, help="Begin with messages of so long ago"),
        Option(
            names=("--terminate-at-end", "-T"), convert=bool, help="End with the last message of the stream"
        ),
        Option(names=("--direct",), convert=bool, help="Accepted; ordered consumers are used", hidden=True),
        Option(
            names=("--ignore-subject", "-I"),
            metavar="SUBJECT",
            repeated=True,
            help="Don't print messages of these",
        ),
        Option(names=("--wait",), convert=seconds, help="End after so long without a message"),
        Option(
            names=("--report-subjects",),
            convert=bool,
            help="Count messages by subject, and print a table at the end",
        ),
        Option(names=("--report-top",), convert=count, default=10, help="Rows of the table"),
        Option(names=("--timestamp", "-t"), convert=bool, help="Print when each message came"),
        Option(names=("--delta-time", "-d"), convert=bool, help="Print the time since the start"),
    ),
    aliases=("subscribe",),
    examples=(
        "sub 'orders.>'",
        "sub --stream ORDERS --since 1h --terminate-at-end",
        "sub 'orders.>' --durable worker",
        "sub '>' --report-subjects --wait 10s",
    ),
    until_interrupted=True,
)
