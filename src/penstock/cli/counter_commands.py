"""`penstock counter`: distributed counters, the subjects of streams with `allow_msg_counter` (ADR-49)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.client import JetStream, StoredMessage, Stream
from penstock.errors import MessageNotFoundError
from penstock.protocol import headers as names

COUNTER = CommandGroup("counter", "Read and change counters.", aliases=("ctr",))
_SUBJECT = Argument(name="subject", help="Subject of the counter")
_STREAM = Option(names=("--stream",), help="Stream of the counter (default: the one that stores the subject)")
_WHOLE = re.compile(r"\+?\d+")


class _CounterValue(msgspec.Struct):
    """The body of a counter's message: a whole number of any size, as text."""

    val: str


async def _stream_of(run: CommandRun, js: JetStream, subject: str) -> Stream:
    name = run.values.text("stream")
    if not name:
        found = await js.stream_names(subject)
        if len(found) != 1:
            known = ", ".join(found) or "no stream"
            raise CommandFailed(f"{known} stores {subject!r}; name one with --stream")
        name = found[0]
    return await js.stream(name)


async def _last(run: CommandRun, js: JetStream) -> StoredMessage:
    subject = run.values.text("subject")
    stream = await _stream_of(run, js, subject)
    try:
        return await stream.get_last_message(subject)
    except MessageNotFoundError:
        raise CommandFailed(f"stream {stream.name} has no counter {subject!r} yet") from None


def _value(message: StoredMessage) -> int:
    try:
        return int(msgspec.json.decode(message.data, type=_CounterValue).val)
    except (msgspec.DecodeError, ValueError):
        raise CommandFailed(
            f"message {message.seq} on {message.subject!r} is not that of a counter"
        ) from None


def _sources(message: StoredMessage) -> dict[str, Any]:
    text = message.headers.get(names.COUNTER_SOURCES, "")
    return msgspec.json.decode(text, type=dict[str, Any]) if text else {}


def _object(message: StoredMessage) -> dict[str, Any]:
    return {
        "subject": message.subject,
        "stream": message.stream,
        "value": str(_value(message)),
        "increment": message.headers.get(names.INCR, ""),
        "sources": _sources(message),
    }


@COUNTER.command("get", "Print the value of a counter.", arguments=(_SUBJECT,), options=(_STREAM,),
                 aliases=("g",), examples=("counter get hits.page1",))  # fmt: skip
async def get(run: CommandRun) -> None:
    """Print a value."""
    async with run.jetstream() as js:
        message = await _last(run, js)
    if run.output.as_json:
        run.output.json(_object(message))
    else:
        run.output.line(str(_value(message)))


@COUNTER.command("view", "Show a counter, its last increment and its sources.", arguments=(_SUBJECT,),
                 options=(_STREAM,), aliases=("v",))  # fmt: skip
async def view(run: CommandRun) -> None:
    """Show a counter."""
    async with run.jetstream() as js:
        found = _object(await _last(run, js))
    if run.output.as_json:
        run.output.json(found)
        return
    rows = [(name.capitalize(), found[name]) for name in ("value", "increment", "subject", "stream")]
    sources = [
        (f"{stream} > {subject}", value)
        for stream, values in found["sources"].items()
        for subject, value in values.items()
    ]
    run.output.sections(f"Counter {found['subject']}", [("", rows), ("Sources", sources)])


@COUNTER.command(
    "increment",
    "Add to a counter, and print its value.",
    arguments=(_SUBJECT, Argument(name="value", help="How much to add, a whole number")),
    aliases=("incr", "inc", "i"),
    examples=("counter increment hits.page1 1",),
)
async def increment(run: CommandRun) -> None:
    """Add to a counter."""
    await _add(run, "+")


@COUNTER.command(
    "decrement",
    "Subtract from a counter, and print its value.",
    arguments=(_SUBJECT, Argument(name="value", help="How much to subtract, a whole number")),
    aliases=("decr", "dec", "d"),
)
async def decrement(run: CommandRun) -> None:
    """Subtract from a counter."""
    await _add(run, "-")


async def _add(run: CommandRun, sign: str) -> None:
    subject, text = run.values.text("subject"), run.values.text("value")
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"value is {text!r}; it is a whole number")
    change = f"{sign}{int(text)}"
    async with run.jetstream() as js:
        ack = await js.publish(subject, b"", headers={names.INCR: change})
    if not ack.val:
        raise CommandFailed(f"stream {ack.stream} stored a message: it has no counters (allow_msg_counter)")
    if run.output.as_json:
        run.output.json({"subject": subject, "stream": ack.stream, "value": ack.val, "increment": change})
    else:
        run.output.line(ack.val)


@COUNTER.command(
    "list",
    "List counters and their values.",
    arguments=(Argument(name="subject", help="Subjects of counters, * and > allowed", required=False),),
    options=(_STREAM,),
    aliases=("ls", "l"),
    examples=("counter list 'hits.>'", "counter list --stream HITS"),
)
async def list_counters(run: CommandRun) -> None:
    """List counters."""
    pattern = run.values.text("subject")
    if not pattern and not run.values.text("stream"):
        raise UsageError("subject is missing: give one, or --stream")
    async with run.jetstream() as js:
        stream = await _stream_of(run, js, pattern)
        found = [one async for one in stream.get_last_messages([pattern or ">"])]
    if run.output.as_json:
        run.output.json([_object(one) for one in found])
        return
    rows = [(one.subject, f"{_value(one):,}") for one in found]
    run.output.table(("Subject", "Value"), rows, numbers="Value", title=f"Counters of stream {stream.name}")
