"""`penstock req SUBJECT [BODY]`: sends requests and prints the replies."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count, seconds, whole
from penstock.cli.framework.value_texts import duration_text
from penstock.cli.messaging.bodies import (
    FORCE_STDIN,
    HEADER,
    TEMPLATES,
    TEMPLATES_HELP,
    lines_of,
    whole_input,
)
from penstock.cli.messaging.message_texts import header_lines, message_object
from penstock.cli.messaging.templates import expanded
from penstock.cli.messaging.translation import TRANSLATE, translated
from penstock.client import Client, Headers, Msg

SEND_ON = Option(
    names=("--send-on",),
    choices=("eof", "newline"),
    default="eof",
    help="newline: each line of stdin is a request",
)


async def _request(run: CommandRun) -> None:
    values = run.values
    headers = Headers(values.value("header"))
    async with run.connect() as client:
        if values.flag("force-stdin") or (not values.given("body") and not sys.stdin.isatty()):
            async for payload in _payloads(run):
                for _ in range(values.number("count")):
                    await _one(run, client, values.text("subject"), payload, headers)
            return
        replaced = values.flag("templates", default=True) and values.given("body")
        for number in range(1, values.number("count") + 1):
            subject = expanded(values.text("subject"), number) if replaced else values.text("subject")
            text = expanded(values.text("body"), number) if replaced else values.text("body")
            await _one(run, client, subject, text.encode("utf-8", "surrogateescape"), headers)


async def _payloads(run: CommandRun) -> AsyncIterator[bytes]:
    """The requests on stdin: each line, or all of it."""
    if run.values.text("send-on") == "newline":
        async for lines, _ in lines_of(sys.stdin.buffer):
            for line in lines:
                yield line
    else:
        yield await whole_input(sys.stdin.buffer)


async def _one(run: CommandRun, client: Client, subject: str, payload: bytes, headers: Headers) -> None:
    """Send one request, and print what comes back. Raises CommandFailed if nothing does."""
    raw = run.values.flag("raw")
    if not raw:
        run.output.note(f'{time.strftime("%H:%M:%S")} Sending request on "{subject}"')
    started = time.perf_counter()
    received = 0
    async for reply in _replies(run, client, subject, payload, headers):
        received += 1
        elapsed = time.perf_counter() - started
        if run.output.as_json:
            run.output.json_line({**message_object(reply), "rtt_s": elapsed})
            continue
        if not raw:
            run.output.note(f"{time.strftime('%H:%M:%S')} Received with rtt {duration_text(elapsed)}")
            for line in header_lines(reply.headers):
                run.output.line(line)
            if reply.headers:
                run.output.line()
        run.output.raw(await translated(reply.data, run.values.text("translate")) + b"\n")
        if not raw:
            run.output.line()
    if not received:
        raise CommandFailed(f"no reply on {subject!r} within {run.settings.timeout_s:g} s")


async def _replies(
    run: CommandRun, client: Client, subject: str, payload: bytes, headers: Headers
) -> AsyncIterator[Msg]:
    values = run.values
    wanted = values.number("replies")
    if wanted == 1 and not values.flag("wait-for-empty"):
        yield await client.request(subject, payload, headers=headers or None)
        return
    found = client.request_many(
        subject,
        payload,
        headers=headers or None,
        max_messages=wanted or None,
        stall=values.seconds("reply-timeout") if wanted else None,
        sentinel=values.flag("wait-for-empty"),
    )
    async for reply in found:
        yield reply


REQ = Command(
    name="req",
    summary="Send a request and print the reply.",
    run=_request,
    arguments=(
        Argument(name="subject", help="Subject of the request"),
        Argument(name="body", help="The request; without it, what is on stdin", required=False),
    ),
    options=(
        Option(names=("--raw", "-r"), convert=bool, help="Print payloads only"),
        HEADER,
        Option(names=("--count",), convert=count, default=1, help="Number of requests"),
        Option(
            names=("--replies",),
            convert=whole,
            default=1,
            help="Number of replies to wait for; 0: all that come until the timeout",
        ),
        Option(
            names=("--reply-timeout",),
            convert=seconds,
            default=0.3,
            metavar="DURATION",
            help="Longest time between replies, with several",
        ),
        Option(names=("--wait-for-empty",), convert=bool, help="Wait for replies until an empty one"),
        TRANSLATE,
        FORCE_STDIN,
        SEND_ON,
        TEMPLATES,
    ),
    aliases=("request",),
    details=TEMPLATES_HELP,
    examples=(
        "req time ''",
        "req services.ping '' --replies 0 --timeout 2s",
        "req -H Nats-Msg-Id:1 ORDERS.new hello",
    ),
)
