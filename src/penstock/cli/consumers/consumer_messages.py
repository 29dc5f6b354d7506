"""`penstock consumer next|sub`: messages of consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from penstock.cli.consumers.consumer_group import CONSUMER, CONSUMER_NAME, consumer_info_of, consumer_names
from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import count, seconds
from penstock.cli.framework.value_texts import number_text
from penstock.cli.messaging.message_texts import header_lines, message_object
from penstock.cli.streams.stream_group import STREAM_NAME

if TYPE_CHECKING:
    from penstock.client import JetStream, JsMsg

ACK = Option(names=("--ack",), convert=bool, negatable=True, help="Ack what was printed (default)")
RAW = Option(names=("--raw", "-r"), convert=bool, help="Print payloads only")


@CONSUMER.command(
    "next",
    "Get messages from a pull consumer, and ack them.",
    arguments=(
        Argument(name="stream", help="Stream name"),
        Argument(name="consumer", help="Consumer name"),
    ),
    options=(
        ACK,
        Option(names=("--nak",), convert=bool, help="Ask for another delivery in place of an ack"),
        Option(names=("--term",), convert=bool, help="Terminate the message in place of an ack"),
        RAW,
        Option(names=("--wait",), convert=seconds, help="How long to wait for messages (default: --timeout)"),
        Option(names=("--count",), convert=count, default=1, help="Number of messages"),
    ),
    details="The status is 1 if there is no message in time.",
    examples=("consumer next ORDERS NEW", "consumer next ORDERS NEW --count 10 --no-ack"),
)
async def get_next(run: CommandRun) -> None:
    values = run.values
    if values.flag("nak") and values.flag("term"):
        raise UsageError("--nak and --term are both given; a message gets one answer")
    wanted, wait_s = values.number("count"), values.seconds("wait") or run.settings.timeout_s
    async with run.jetstream() as js:
        stream, name = values.text("stream"), values.text("consumer")
        consumer = await (await js.stream(stream)).consumer(name)
        if consumer.cached_info.config.deliver_subject:
            raise CommandFailed(f"{stream} > {name} is a push consumer; see `penstock consumer sub`")
        sends = consumer.cached_info.config.ack_policy != "none"
        received = 0
        async for msg in consumer.fetch(wanted, expires=wait_s):
            await _handle(run, msg, sends=sends)
            received += 1
    if not received:
        raise CommandFailed(f"consumer {stream} > {name} had no message within {wait_s:g} s")


async def _handle(run: CommandRun, msg: JsMsg, *, sends: bool) -> None:
    """Print a message, and answer it. sends: the server waits for answers; else a delivery is an ack."""
    values, meta = run.values, msg.metadata
    answer = "nak" if values.flag("nak") else "term" if values.flag("term") else "ack"
    if not values.flag("ack", default=True) and answer == "ack":
        answer = ""
    if run.output.as_json:
        found: dict[str, Any] = message_object(msg)
        found.pop("reply", None)
        found |= {"stream": meta.stream, "seq": meta.stream_seq, "consumer_seq": meta.consumer_seq}
        found |= {"tries": meta.delivered, "pending": meta.pending, "time": msg.time.isoformat()}
        run.output.json_line(found)
    elif values.flag("raw"):
        run.output.raw(msg.data + b"\n")
    else:
        run.output.line(
            f"[{msg.time.astimezone():%H:%M:%S}] subj: {msg.subject} / tries: {meta.delivered} "
            f"/ cons seq: {number_text(meta.consumer_seq)} / str seq: {number_text(meta.stream_seq)} "
            f"/ pending: {number_text(meta.pending)}"
        )
        if msg.headers:
            run.output.line("\nHeaders:\n")
            for line in header_lines(msg.headers):
                run.output.line(f"  {line}")
        run.output.line("\nData:\n" if msg.headers else "")
        run.output.raw(msg.data + b"\n\n")
    if not answer or (not sends and answer != "ack"):
        return
    if answer == "ack":
        if sends:
            await msg.ack_sync()
    elif answer == "nak":
        await msg.nak()
    else:
        await msg.term()
    if not run.output.as_json and not values.flag("raw"):
        texts = {
            "ack": "Acknowledged message",
            "nak": "Negatively acknowledged message",
            "term": "Terminated message",
        }
        run.output.line(texts[answer] + "\n")


@CONSUMER.command(
    "sub",
    "Print messages of a consumer as they come, and ack them.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(
        ACK,
        RAW,
        Option(
            names=("--deliver-group",), metavar="GROUP", help="Queue group of the consumer (default: its own)"
        ),
        Option(names=("--count",), convert=count, help="End after so many messages"),
    ),
    until_interrupted=True,
)
async def subscribe(run: CommandRun) -> None:
    run.values = run.values.with_defaults({"nak": False, "term": False})
    limit = run.values.number("count")
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        info = await consumer_info_of(js, stream, name)
        sends = info.config.ack_policy != "none"
        received = 0
        async for msg in _messages(
            run, js, stream, name, info.config.deliver_subject, info.config.deliver_group
        ):
            await _handle(run, msg, sends=sends)
            run.output.flush()
            received += 1
            if received == limit:
                return


async def _messages(
    run: CommandRun, js: JetStream, stream: str, name: str, target: str, group: str
) -> AsyncIterator[JsMsg]:
    if target:
        wanted = run.values.text("deliver-group")
        if wanted and wanted != group:
            raise CommandFailed(f"the queue group of {stream} > {name} is {group!r}, not {wanted!r}")
        run.output.note(f"Subscribing to topic {target}")
        async with await js.bind(stream, name) as pushed:
            async for msg in pushed:
                yield msg
        return
    consumer = await (await js.stream(stream)).consumer(name)
    async for msg in consumer.messages(max_messages=1):
        yield msg
