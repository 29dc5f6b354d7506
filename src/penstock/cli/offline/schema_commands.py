"""`penstock schema ls|info|validate|request`: types of messages that servers publish and answer."""

from __future__ import annotations

import asyncio
import re
import sys

import msgspec

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.suggestions import suggestion
from penstock.cli.offline.event_schemas import check_document, schema_of, schema_types

SCHEMA = CommandGroup("schema", "Show types of API answers and events, and check documents.")

_SCHEMA = Argument(name="schema", help="Id of the type, such as io.nats.jetstream.advisory.v1.nak")


def _known(kind: str) -> str:
    """The id itself. Raises CommandFailed for an unknown one."""
    if kind not in schema_types():
        near = suggestion(kind, schema_types()) or "; `penstock schema ls` lists them"
        raise CommandFailed(f"there is no schema {kind!r}{near}")
    return kind


@SCHEMA.command(
    "search",
    "List types, or those whose ids match a pattern.",
    arguments=(Argument(name="pattern", help="A regular expression", required=False),),
    aliases=("ls", "list", "find"),
    connects=False,
)
async def search(run: CommandRun) -> None:
    try:
        pattern = re.compile(run.values.text("pattern"), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"pattern is not a regular expression: {error}") from None
    found = {kind: text for kind, (text, _) in schema_types().items() if pattern.search(kind)}
    if run.output.as_json:
        run.output.json(found)
    elif not found:
        raise CommandFailed(f"no type matches {run.values.text('pattern')!r}")
    else:
        run.output.table(("Schema", "Description"), found.items())


@SCHEMA.command(
    "info",
    "Show the JSON Schema of a type.",
    arguments=(_SCHEMA,),
    aliases=("show", "view"),
    examples=("schema info io.nats.jetstream.advisory.v1.max_deliver",),
    connects=False,
)
async def info(run: CommandRun) -> None:
    run.output.json(schema_of(_known(run.values.text("schema"))))


@SCHEMA.command(
    "validate",
    "Check whether a JSON document is of a type.",
    arguments=(_SCHEMA, Argument(name="file", help="The document; - for stdin")),
    aliases=("check",),
    details="The status is 1 if it is not, with the place of the first error.",
    connects=False,
)
async def validate(run: CommandRun) -> None:
    kind, name = _known(run.values.text("schema")), run.values.text("file")
    if name == "-":
        data = await asyncio.to_thread(sys.stdin.buffer.read)
    else:
        data = await asyncio.to_thread(_read, name)
    _report(run, kind, name, data)


def _read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _report(run: CommandRun, kind: str, name: str, data: bytes) -> None:
    error = check_document(kind, data)
    if run.output.as_json:
        run.output.json({"schema": kind, "valid": not error, "error": error})
    elif not error:
        run.output.line(f"{name} is a valid {kind}")
    if error:
        raise CommandFailed(f"{name} is not a valid {kind}: {error}")


@SCHEMA.command(
    "request",
    "Send a request, and check the answer.",
    arguments=(
        Argument(name="subject", help="Subject of the request"),
        Argument(name="body", help="The request", required=False),
    ),
    options=(
        Option(names=("--schema",), help="Id of the answer's type (default: the one that it names)"),
        Option(names=("--show",), convert=bool, help="Print the answer"),
    ),
    aliases=("req",),
    examples=("schema request '$JS.API.STREAM.INFO.ORDERS' ''",),
)
async def request(run: CommandRun) -> None:
    subject = run.values.text("subject")
    async with run.connect() as client:
        answer = await client.request(subject, run.values.text("body").encode())
    kind = run.values.text("schema")
    if not kind:
        try:
            kind = msgspec.json.decode(answer.data, type=dict[str, object]).get("type", "")  # type: ignore[assignment]
        except msgspec.DecodeError as error:
            raise CommandFailed(f"the answer on {subject!r} is no JSON object: {error}") from None
        if not kind:
            raise CommandFailed(f"the answer on {subject!r} names no type: give --schema")
    if run.values.flag("show"):
        run.output.raw(answer.data + b"\n")
    _report(run, _known(str(kind)), f"the answer on {subject!r}", answer.data)
