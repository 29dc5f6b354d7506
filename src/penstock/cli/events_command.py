"""`penstock events`: advisories, metrics and server events as they come."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cli.bucket_options import COUNT
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Command, Option
from penstock.cli.framework.value_kinds import seconds
from penstock.cli.messaging.merging import merged_messages
from penstock.cli.reports.event_texts import cloud_event, event_line, event_rows, event_title
from penstock.cli.reports.system_requests import decode_page
from penstock.errors import MisuseError, ProtocolError

_DEFAULT_PREFIX = "$JS.EVENT"
_SERVER = ("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.*.CLIENT.AUTH.ERR")


def event_subjects(run: CommandRun) -> list[str]:
    """Subjects of the events that the options ask for. Raises MisuseError if they ask for none."""
    values = run.values
    prefix = run.settings.js_event_prefix or _DEFAULT_PREFIX
    everything = values.flag("all")
    subjects = values.texts("subjects")
    if everything or values.flag("js-metric"):
        subjects.append(f"{prefix}.METRIC.>")
    if everything or values.flag("js-advisory"):
        subjects.append(f"{prefix}.ADVISORY.>")
    if everything or values.flag("srv-advisory", default=True):
        subjects += _SERVER
    if not subjects:
        raise MisuseError("no events are asked for; see --all, --js-metric, --js-advisory, --subjects")
    return subjects


class _Events:
    """Prints events that match the filter, up to a number of them."""

    def __init__(self, run: CommandRun) -> None:
        self._run = run
        self._left = run.values.number("count")
        pattern = run.values.text("filter")
        try:
            self._filter = re.compile(pattern)
        except re.error as error:
            raise MisuseError(f"--filter {pattern!r} is not a regular expression: {error}") from None

    def show(self, subject: str, data: bytes) -> bool:
        """Print an event. Returns whether it was the last one."""
        if not self._filter.search(data.decode("utf-8", "replace")):
            return False
        try:
            event = decode_page(data)
        except ProtocolError as error:
            self._run.output.warn(f"{self._run.path}: {subject}: {error}")
            return False
        self._print(subject, event)
        self._left -= 1
        return self._left == 0

    def _print(self, subject: str, event: dict[str, Any]) -> None:
        output, values = self._run.output, self._run.values
        if values.flag("cloudevent"):
            output.json_line(cloud_event(event))
        elif output.as_json:
            output.json_line(event)
        elif values.flag("short"):
            output.line(event_line(subject, event))
        else:
            title = f"{event_line(subject, event)} ({event.get('id', '')})"
            output.sections(title, [("", event_rows(event) or [("event", event_title(event))])])
        output.flush()


async def _events(run: CommandRun) -> None:
    shown = _Events(run)
    if run.values.value("stream"):
        await _stored_events(run, shown)
        return
    subjects = event_subjects(run)
    async with run.connect() as client:
        subscriptions = [await client.subscribe(subject) for subject in subjects]
        await client.flush()
        run.output.note(f"Listening for events on {', '.join(subjects)}")
        async with aclosing(merged_messages(subscriptions)) as messages:
            async for message in messages:
                if shown.show(message.subject, message.data):
                    return


async def _stored_events(run: CommandRun, shown: _Events) -> None:
    """Events that a stream has stored."""
    since = run.values.seconds("since")
    settings: dict[str, Any] = {"deliver_policy": "all"}
    if since:
        start = datetime.now(UTC) - timedelta(seconds=since)
        settings = {"deliver_policy": "by_start_time", "opt_start_time": start}
    async with run.jetstream() as js:
        stream = await js.stream(run.values.text("stream"))
        consumer = stream.ordered_consumer(**settings)
        async for message in consumer.messages():
            if shown.show(message.subject, message.data):
                return


EVENTS = Command(
    name="events",
    summary="Show advisories, metrics and server events as they come.",
    run=_events,
    options=(
        Option(names=("--all",), convert=bool, help="Show all events"),
        Option(names=("--js-metric",), convert=bool, negatable=True, help="Show metrics of JetStream"),
        Option(names=("--js-advisory",), convert=bool, negatable=True, help="Show advisories of JetStream"),
        Option(
            names=("--srv-advisory",),
            convert=bool,
            negatable=True,
            help="Show events of servers (default: yes); needs the system account",
        ),
        Option(names=("--subjects",), repeated=True, commas=True, help="Show events of these subjects"),
        Option(names=("--filter",), metavar="REGEX", default="", help="Only events that match"),
        Option(names=("--short",), convert=bool, help="One line for each event"),
        Option(names=("--cloudevent",), convert=bool, help="Print CloudEvents, one JSON object a line"),
        Option(names=("--stream",), metavar="NAME", help="Show the events that a stream has stored"),
        Option(names=("--since",), convert=seconds, help="With --stream: events not older than this"),
        COUNT,
    ),
    aliases=("event",),
    until_interrupted=True,
    examples=("events --js-advisory --short", "events --all --json --filter ORDERS"),
)
