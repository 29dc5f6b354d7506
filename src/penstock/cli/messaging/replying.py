"""`penstock reply SUBJECT [BODY]`: answers requests, until it is interrupted."""

from __future__ import annotations

import asyncio
import os
import random
import time

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count, seconds
from penstock.cli.messaging.bodies import HEADER, TEMPLATES, TEMPLATES_HELP
from penstock.cli.messaging.message_texts import header_lines, message_object
from penstock.cli.messaging.templates import expanded
from penstock.cli.messaging.translation import command_output
from penstock.client import Headers, Msg

QUEUE = "NATS-RPLY-22"
"""Queue group of the official command line: its repliers and penstock's share requests."""


async def _reply(run: CommandRun) -> None:
    values = run.values
    given = [name for name in ("body", "echo", "command") if values.given(name)]
    if len(given) != 1:
        raise UsageError("give one of BODY, --echo and --command: what to reply with")
    limit = values.number("count")
    headers = Headers(values.value("header"))
    async with run.connect() as client:
        subscription = await client.subscribe(values.text("subject"), queue=values.text("queue"))
        await client.flush()
        where = f'"{values.text("subject")}" in group "{values.text("queue")}"'
        run.output.note(f"{time.strftime('%H:%M:%S')} Listening on {where}")
        number = 0
        async for msg in subscription:
            number += 1
            _show(run, number, msg)
            if values.seconds("sleep"):
                await asyncio.sleep(random.random() * values.seconds("sleep"))
            if msg.reply:
                await _answer(run, msg, number, headers)
            if number == limit:
                break
        await client.flush()


def _show(run: CommandRun, number: int, msg: Msg) -> None:
    if run.output.as_json:
        run.output.json_line(message_object(msg))
        return
    run.output.line(f'{time.strftime("%H:%M:%S")} [#{number}] Received on subject "{msg.subject}":')
    for line in header_lines(msg.headers):
        run.output.line(line)
    run.output.line()
    run.output.raw(msg.data + b"\n\n")


async def _answer(run: CommandRun, msg: Msg, number: int, headers: Headers) -> None:
    values = run.values
    text = msg.data.decode("utf-8", "surrogateescape")
    if values.flag("echo"):
        made = Headers(list(msg.headers.pairs()))
        made["NATS-Reply-Counter"] = str(number - 1)
        for name, value in headers.pairs():
            made[name] = value
        await msg.respond(msg.data, headers=made)
    elif values.given("command"):
        try:
            output = await command_output(
                _command(values.text("command"), msg), msg.data, _environment(msg, text)
            )
        except CommandFailed as error:  # the requester times out, as with the official command line
            run.output.warn(f"{run.path}: {error}")
            return
        await msg.respond(output, headers=headers or None)
    else:
        body = values.text("body")
        if values.flag("templates", default=True):
            body = expanded(body, number, text)
        await msg.respond(body.encode("utf-8", "surrogateescape"), headers=headers or None)


def _command(command: str, msg: Msg) -> str:
    """The command with `{{1}}`, `{{2}}`, ... replaced by tokens of the request's subject, quoted for the
    shell."""
    import shlex

    for number, token in enumerate(msg.subject.split("."), 0):
        command = command.replace("{{" + str(number) + "}}", shlex.quote(token))
    return command


def _environment(msg: Msg, text: str) -> dict[str, str]:
    """Variables of the command. A body with a NUL byte is on stdin only: variables can't hold one."""
    body = {} if "\0" in text else {"NATS_REQUEST_BODY": text}
    return {**os.environ, "NATS_REQUEST_SUBJECT": msg.subject, **body}


REPLY = Command(
    name="reply",
    summary="Answer requests, until it is interrupted.",
    run=_reply,
    arguments=(
        Argument(name="subject", help="Subject to listen on"),
        Argument(name="body", help="The reply", required=False),
    ),
    options=(
        Option(names=("--echo",), convert=bool, help="Reply with the request"),
        Option(names=("--command",), help="Reply with the output of this shell command"),
        Option(names=("--queue", "-q"), default=QUEUE, help="Queue group"),
        Option(
            names=("--sleep",), convert=seconds, help="Wait a random time of up to this before each reply"
        ),
        HEADER,
        Option(names=("--count",), convert=count, help="End after so many requests"),
        TEMPLATES,
    ),
    details=TEMPLATES_HELP
    + """ {{Request}} is the request's body.

The command gets the request on stdin and in NATS_REQUEST_BODY, its subject in NATS_REQUEST_SUBJECT.
{{0}}, {{1}} and so on in it are the tokens of the subject, quoted for the shell. A command that fails
sends no reply.""",
    examples=(
        "reply time '{{Time}}'",
        "reply echo --echo",
        "reply 'weather.>' --command 'curl -s wttr.in/{{1}}?format=3'",
    ),
    until_interrupted=True,
)
