"""`penstock trace`: the route of a message through servers (ADR-41).

A message with the header `Nats-Trace-Dest` makes every server that it passes report what it does with it. The
report of a server says how many further servers it sent the message to, and each of those reports again with
the number of its hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import header
from penstock.cli.framework.value_texts import duration_text, time_text
from penstock.cli.reports.system_requests import decode_page
from penstock.errors import MisuseError, PermissionsError, RequestTimeoutError
from penstock.protocol.durations import parse_time

TRACE_DEST, TRACE_ONLY, TRACE_HOP = "Nats-Trace-Dest", "Nats-Trace-Only", "Nats-Trace-Hop"
_KINDS = ("Client", "Router", "Gateway", "System", "Leafnode", "JetStream", "Account")
_STALL_S = 1.0
Report = Mapping[str, Any]


def hop_of(report: Report) -> str:
    """The number of a report's hop, such as `1.2`; "" for the first server."""
    found = (report.get("request") or {}).get("header") or {}
    values: list[str] = next(
        (value for name, value in found.items() if name.lower() == TRACE_HOP.lower()), []
    )
    return str(values[0]) if values else ""


def trace_lines(reports: list[Report], *, timestamps: bool = False) -> list[str]:
    """Reports as an indented tree, in the order of their hops.

    timestamps: the time of each event as its server says it, and not how long after the first one.
    """
    lines: list[str] = []
    start_ns: int | None = None
    for report in sorted(reports, key=lambda one: [int(part) for part in hop_of(one).split(".") if part]):
        depth = len([part for part in hop_of(report).split(".") if part])
        server = report.get("server") or {}
        cluster = f" cluster: {server['cluster']}" if server.get("cluster") else ""
        for event in report.get("events") or []:
            at_ns = parse_time(event["ts"]) if event.get("ts") else 0
            start_ns = at_ns if start_ns is None else start_ns
            took = duration_text(max(at_ns - start_ns, 0) / 1e9)
            text = event_text(event)
            if event.get("type") == "in":
                text += f" server: {server.get('name', '')}{cluster}"
            indent = "    " * depth + ("" if event.get("type") == "in" else "  ")
            when = time_text(str(event.get("ts", ""))) if timestamps else f"+{took}"
            lines.append(f"[{when}] {indent}{text}")
    return lines


def event_text(event: Mapping[str, Any]) -> str:
    """What a server did with a message."""
    kind = _KINDS[event["kind"]] if isinstance(event.get("kind"), int) and event["kind"] < len(_KINDS) else ""
    account = f" account: {event['acc']}" if event.get("acc") else ""
    name = f" {event['name']!r}" if event.get("name") else ""
    error = f" --X {event['error']}" if event.get("error") else ""
    what = {
        "in": f"==> {kind}{name} cid: {event.get('cid')}{account} subject: {event.get('subj', '')}",
        "sm": f"--> mapped to {event.get('to', '')}",
        "se": f"--> service export of{account} to {event.get('to', '')}",
        "si": f"--> service import by{account} from {event.get('from', '')} to {event.get('to', '')}",
        "js": f"--> JetStream stream: {event.get('stream', '')} subject: {event.get('subject', '')}"
        + (" without interest" if event.get("nointerest") else ""),
        "eg": f"<== {kind}{name} cid: {event.get('cid')}{account} subject: {event.get('sub', '')}"
        + (f" queue: {event['queue']}" if event.get("queue") else "")
        + (f" hop: {event['hop']}" if event.get("hop") else ""),
    }
    return what.get(str(event.get("type")), str(dict(event))) + error


def missing_reports(reports: list[Report]) -> int:
    """How many reports are still to come: each server announces those that it sent the message to."""
    return sum(int(report.get("hops", 0)) for report in reports) + 1 - len(reports)


async def _trace(run: CommandRun) -> None:
    values = run.values
    headers = values.pairs("header")
    reports: list[Report] = []
    async with run.connect() as client:
        inbox = await client.subscribe(client.new_inbox())
        headers |= {TRACE_DEST: inbox.subject}
        if not values.flag("deliver"):
            headers[TRACE_ONLY] = "true"
        subject = values.text("subject")
        payload = values.text("payload").encode("utf-8", "surrogateescape")
        await client.publish(subject, payload, headers=headers)
        try:
            while not reports or missing_reports(reports) > 0:
                wait_s = _STALL_S if reports else run.settings.timeout_s
                reports.append(decode_page((await inbox.next(wait_s)).data))
        except RequestTimeoutError:
            pass
        if not reports:
            error = client.last_error
            if isinstance(error, PermissionsError):
                raise error
            raise CommandFailed("no server reported the message; tracing needs servers from version 2.11 on")
    if run.output.as_json:
        run.output.json(reports)
        return
    how = " and delivering it" if values.flag("deliver") else " without delivering it"
    run.output.line(f"Tracing message route to subject {subject}{how}\n")
    run.output.line("\n".join(trace_lines(reports, timestamps=values.flag("timestamp"))))
    egress = [event for one in reports for event in one.get("events") or [] if event.get("type") == "eg"]
    stored = [event for one in reports for event in one.get("events") or [] if event.get("type") == "js"]
    run.output.line(f"\n{len(egress)} deliveries, {len(stored)} streams, {len(reports)} servers")
    missing = missing_reports(reports)
    if missing > 0:
        run.output.warn(f"{missing} servers did not report")


def _payload(text: str) -> str:
    if len(text) > 1 << 20:
        raise MisuseError("the payload is longer than 1 MiB")
    return text


TRACE = Command(
    name="trace",
    summary="Show the route of a message through servers, without delivering it.",
    run=_trace,
    arguments=(
        Argument(name="subject", help="Subject to publish to"),
        Argument(name="payload", help="The message", required=False, convert=_payload),
    ),
    options=(
        Option(names=("--deliver",), convert=bool, help="Also deliver the message"),
        Option(names=("--timestamp", "-T"), convert=bool, help="Show the times of events"),
        Option(names=("--header", "-H"), convert=header, repeated=True, help="Add a header"),
    ),
    examples=("trace orders.new", "trace orders.new '{}' --deliver"),
)
