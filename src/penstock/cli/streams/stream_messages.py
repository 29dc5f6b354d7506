"""`penstock stream view|get|rmm`: messages of a stream."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandRun, ask_text
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import count, seconds, whole
from penstock.cli.framework.value_texts import ago_text
from penstock.cli.messaging.message_texts import header_lines, header_lists
from penstock.cli.messaging.translation import TRANSLATE, translated
from penstock.cli.streams.stream_group import FORCE, STREAM, STREAM_NAME, stream_name
from penstock.client import JsMsg, StoredMessage

PAGE_MESSAGES = 10
WAIT_S = 1.0


def message_json(message: StoredMessage | JsMsg) -> dict[str, Any]:
    """A message as a JSON object: payload in base64, as in the API."""
    found: dict[str, Any] = {
        "subject": message.subject,
        "seq": message.seq,
        "time": message.time.astimezone(UTC).isoformat(),
        "data": base64.b64encode(message.data).decode(),
    }
    if message.headers:
        found["headers"] = header_lists(message.headers)
    return found


async def show_message(run: CommandRun, stream: str, message: StoredMessage | JsMsg) -> None:
    """Print a stored message as `stream get` and `stream view` do."""
    data = await translated(message.data, run.values.text("translate"))
    when = message.time.astimezone()
    run.output.line(
        f"Item: {stream}#{message.seq} received {when:%Y-%m-%d %H:%M:%S.%f %z} ({ago_text(message.time)}) "
        f"on Subject {message.subject}"
    )
    if message.headers:
        run.output.line("\nHeaders:\n")
        for line in header_lines(message.headers):
            run.output.line(f"  {line}")
    run.output.line()
    run.output.raw(data + b"\n")
    run.output.line()


@STREAM.command(
    "get",
    "Show one message of a stream.",
    arguments=(
        STREAM_NAME,
        Argument(name="seq", help="Sequence of the message", convert=whole, required=False),
    ),
    options=(
        Option(names=("--last-for", "-S"), metavar="SUBJECT", help="The newest message of this subject"),
        Option(names=("--raw", "-r"), convert=bool, help="Print the payload only"),
        TRANSLATE,
    ),
)
async def get(run: CommandRun) -> None:
    seq, subject = run.values.number("seq"), run.values.text("last-for")
    if bool(seq) == bool(subject):
        raise UsageError("give the sequence of a message, or --last-for SUBJECT")
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        stream = await js.stream(name)
        message = await (stream.get_last_message(subject) if subject else stream.get_message(seq))
        if run.output.as_json:
            run.output.json(message_json(message))
        elif run.values.flag("raw"):
            run.output.raw(await translated(message.data, run.values.text("translate")))
        else:
            await show_message(run, name, message)


@STREAM.command(
    "view",
    "Show messages of a stream, page by page at a terminal.",
    arguments=(
        STREAM_NAME,
        Argument(name="size", help="Messages of a page", convert=count, required=False),
    ),
    options=(
        Option(names=("--id",), metavar="SEQUENCE", convert=whole, help="Begin at this sequence"),
        Option(names=("--since",), convert=seconds, help="Begin with messages of so long ago"),
        Option(names=("--subject",), help="Only messages of subjects that match"),
        Option(names=("--limit",), convert=count, help="End after so many messages"),
        Option(names=("--raw",), convert=bool, help="Print payloads only"),
        TRANSLATE,
    ),
    details="Without a terminal, or with --json, it shows all messages up to the end of the stream, without "
    "pauses. Its consumer is ephemeral and acks nothing.",
)
async def view(run: CommandRun) -> None:
    values = run.values
    settings: dict[str, Any] = {}
    if values.given("id"):
        settings |= {"deliver_policy": "by_start_sequence", "opt_start_seq": values.number("id")}
    elif values.given("since"):
        start = datetime.now(UTC) - timedelta(seconds=values.seconds("since"))
        settings |= {"deliver_policy": "by_start_time", "opt_start_time": start}
    if values.given("subject"):
        settings["filter_subject"] = values.text("subject")
    page, limit = values.number("size", PAGE_MESSAGES), values.number("limit")
    paged = run.can_ask and run.output.is_terminal and not run.output.as_json
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        stream = await js.stream(name)
        consumer = await stream.create_consumer(
            ack_policy="none", inactive_threshold=300, mem_storage=True, num_replicas=1, **settings
        )
        shown = 0
        try:
            pending = consumer.cached_info.num_pending
            while pending and not (limit and shown >= limit):
                batch = min(page, limit - shown) if limit else page
                messages = await consumer.fetch(batch, expires=WAIT_S)
                for message in messages:
                    await _show_one(run, name, message)
                shown += len(messages)
                if not messages:
                    break
                pending = messages[-1].metadata.pending
                if pending and paged and ask_text("Next page? [Y/n] ").lower() in ("n", "no", "q"):
                    return
        finally:
            await consumer.delete()
    if not shown:
        run.output.note("no messages")


async def _show_one(run: CommandRun, stream: str, message: JsMsg) -> None:
    if run.output.as_json:
        run.output.json_line(message_json(message))
    elif run.values.flag("raw"):
        run.output.raw(await translated(message.data, run.values.text("translate")) + b"\n")
    else:
        await show_message(run, stream, message)


@STREAM.command(
    "rmm",
    "Remove one message from a stream, and overwrite it.",
    arguments=(STREAM_NAME, Argument(name="seq", help="Sequence of the message", convert=whole)),
    options=(FORCE,),
)
async def remove_message(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        seq = run.values.number("seq")
        run.confirm(f"Really remove message {seq} from stream {name}?", force=run.values.flag("force"))
        await (await js.stream(name)).delete_message(seq, erase=True)
        run.output.note(f"removed message {seq} from {name}")
