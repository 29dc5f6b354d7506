"""`penstock service`: discover services (ADR-32), ask them, and run a demo service."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from penstock.cli.bucket_options import COUNT, printable
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, header
from penstock.cli.framework.value_texts import duration_text, number_text, time_text
from penstock.cli.messaging.templates import expanded
from penstock.cli.messaging.translation import TRANSLATE, translated
from penstock.client import Client, EndpointInfo, ServiceInfo, ServiceMsg, ServiceStats

SERVICE = CommandGroup("service", "Discover services and send requests to them.", aliases=("micro",))

NAME = Argument(name="service", help="Name of a service")
ANY_NAME = Argument(name="service", help="Only instances of this service", required=False)
INSTANCE = Argument(name="id", help="Only the instance with this id", required=False)
Named = TypeVar("Named", ServiceInfo, ServiceStats)


async def _sorted(found: AsyncIterator[Named]) -> list[Named]:
    return sorted([one async for one in found], key=lambda one: (one.name, one.version, one.id))


def _check_found(found: Iterable[object], name: str) -> None:
    if not found:
        what = f"no instances of service {name!r} found" if name else "no services found"
        raise CommandFailed(what)


@SERVICE.command("list", "List services or the instances of one.", arguments=(ANY_NAME,), aliases=("ls", "l"))
async def list_all(run: CommandRun) -> None:
    """List instances of services."""
    name = run.values.text("service")
    async with run.connect() as client:
        found = await _sorted(client.services().info(name, timeout=run.settings.timeout_s))
    if run.output.as_json:
        run.output.json(found)
        return
    _check_found(found, name)
    rows = [(one.name, one.version, one.id, one.description or "") for one in found]
    title = f"{name} Service Instances" if name else "All Services"
    run.output.table(("Name", "Version", "ID", "Description"), rows, title=title)


@SERVICE.command(
    "info",
    "Show the endpoints of a service.",
    arguments=(NAME, INSTANCE),
    options=(
        Option(names=("--endpoint", "-e"), metavar="TEXT", help="Only endpoints with this in the name"),
    ),
    aliases=("i",),
)
async def info(run: CommandRun) -> None:
    """Show the instances of a service with their endpoints."""
    name, instance, part = (run.values.text(key) for key in ("service", "id", "endpoint"))
    async with run.connect() as client:
        found = await _sorted(client.services().info(name, instance, timeout=run.settings.timeout_s))
    if run.output.as_json:
        run.output.json(found)
        return
    _check_found(found, name)
    for one in found:
        endpoints = [endpoint for endpoint in one.endpoints or [] if part in endpoint.name]
        sections: list[tuple[str, list[tuple[str, object]]]] = [
            ("", [("Service", f"{one.name} ({one.id})"), ("Description", one.description or ""),
                  ("Version", one.version)]),
            *((f"Endpoint {endpoint.name}", _endpoint_rows(endpoint)) for endpoint in endpoints),
            ("Metadata", [*sorted((one.metadata or {}).items())]),
        ]  # fmt: skip
        run.output.sections("Service Information", sections)


def _endpoint_rows(endpoint: EndpointInfo) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("Subject", endpoint.subject), ("Queue Group", endpoint.queue_group)]
    return rows + [(f"Metadata {key}", value) for key, value in sorted((endpoint.metadata or {}).items())]


@SERVICE.command("stats", "Show the counts of a service.", arguments=(NAME, INSTANCE))
async def stats(run: CommandRun) -> None:
    """Show requests, errors and times of each endpoint."""
    name, instance = run.values.text("service"), run.values.text("id")
    async with run.connect() as client:
        found = await _sorted(client.services().stats(name, instance, timeout=run.settings.timeout_s))
    if run.output.as_json:
        run.output.json(found)
        return
    _check_found(found, name)
    rows: list[tuple[object, ...]] = []
    for one in found:
        for number, endpoint in enumerate(one.endpoints or []):
            rows.append((
                one.id if number == 0 else "", endpoint.name, number_text(endpoint.num_requests),
                endpoint.queue_group, number_text(endpoint.num_errors),
                duration_text(endpoint.processing_time),
                duration_text(endpoint.average_processing_time),
            ))  # fmt: skip
    all_of = [endpoint for one in found for endpoint in one.endpoints or []]
    requests, errors = sum(one.num_requests for one in all_of), sum(one.num_errors for one in all_of)
    took_s = sum(one.processing_time for one in all_of)
    average = duration_text(took_s / requests) if requests else "0s"
    rows.append(("Total", "", number_text(requests), "", number_text(errors), duration_text(took_s), average))
    columns = ("ID", "Endpoint", "Requests", "Queue Group", "Errors", "Processing Time", "Average Time")
    run.output.table(columns, rows, title=f"{name} Service Statistics", numbers="Requests,Errors")


@SERVICE.command("ping", "Measure the round-trip time to all services.", arguments=(ANY_NAME,))
async def ping(run: CommandRun) -> None:
    """Print each instance as it answers."""
    name = run.values.text("service")
    pages = []
    async with run.connect() as client:
        started = time.perf_counter()
        async for one in client.services().ping(name, timeout=run.settings.timeout_s):
            rtt_s = time.perf_counter() - started
            pages.append({"name": one.name, "id": one.id, "version": one.version, "rtt_s": rtt_s})
            if not run.output.as_json:
                run.output.line(f"{f'{one.name} {one.id}':<50} rtt={duration_text(rtt_s)}")
                run.output.flush()
    if run.output.as_json:
        run.output.json(pages)
    else:
        _check_found(pages, name)


@SERVICE.command(
    "request",
    "Send a request to an endpoint of a service.",
    arguments=(
        NAME,
        Argument(name="endpoint", help="Name of the endpoint"),
        Argument(name="payload", help="The request; stdin if it is no terminal", required=False),
    ),
    options=(
        Option(names=("--header", "-H"), convert=header, repeated=True, help="Add a header"),
        Option(names=("--raw", "-r"), convert=bool, help="Show only the payload of the answer"),
        Option(names=("--count",), convert=count, default=1, help="Send it so many times"),
        Option(names=("--force-stdin",), convert=bool, help="Read the request from stdin"),
        TRANSLATE,
        Option(
            names=("--templates",),
            convert=bool,
            negatable=True,
            help="Replace templates such as {{Count}} in the payload argument (default)",
        ),
    ),
    aliases=("req",),
    examples=("service request orders total '{\"customer\": 7}'",),
)
async def request(run: CommandRun) -> None:
    """Find the subject of the endpoint, send the request and print the answer."""
    values = run.values
    from_stdin = values.flag("force-stdin") or (values.value("payload") is None and not sys.stdin.isatty())
    replaced = values.flag("templates", default=True) and not from_stdin
    given = values.text("payload").encode("utf-8", "surrogateescape")
    payload = sys.stdin.buffer.read() if from_stdin else given
    async with run.connect() as client:
        endpoint = await _find_endpoint(run, client, values.text("service"), values.text("endpoint"))
        for number in range(1, values.number("count") + 1):
            if replaced:
                payload = expanded(values.text("payload"), number).encode("utf-8", "surrogateescape")
            started = time.perf_counter()
            answer = await client.services().request(
                endpoint.subject, payload, timeout=run.settings.timeout_s, headers=values.pairs("header")
            )
            took_s = time.perf_counter() - started
            if run.output.as_json:
                run.output.json_line({
                    "subject": endpoint.subject, "rtt_s": took_s, "payload": printable(answer.data),
                    "headers": {name: answer.headers.get_all(name) for name in answer.headers},
                })  # fmt: skip
                continue
            if not values.flag("raw"):
                run.output.line(f"Received with rtt {duration_text(took_s)}")
                for name in answer.headers:
                    run.output.line("\n".join(f"{name}: {one}" for one in answer.headers.get_all(name)))
                run.output.line()
            run.output.raw(await translated(answer.data, values.text("translate")))
            run.output.line()


async def _find_endpoint(run: CommandRun, client: Client, service: str, name: str) -> EndpointInfo:
    found = await _sorted(client.services().info(service, timeout=run.settings.timeout_s))
    _check_found(found, service)
    endpoints = [one for instance in found for one in instance.endpoints or []]
    for one in endpoints:
        if name in (one.name, one.subject):
            return one
    names = ", ".join(sorted({one.name for one in endpoints})) or "none"
    raise CommandFailed(f"service {service!r} has no endpoint {name!r}; its endpoints: {names}")


@SERVICE.command(
    "serve",
    "Run a demo service, which answers with the request it gets.",
    arguments=(Argument(name="name", help="Name of the service"),),
    options=(
        Option(names=("--header", "-H"), convert=header, repeated=True, help="Add a header to answers"),
        COUNT,
    ),
    aliases=("echo",),
)
async def serve(run: CommandRun) -> None:
    """Answer on NAME.echo until interrupted, or until --count requests are answered."""
    name = run.values.text("name")
    left = run.values.number("count")
    finished = asyncio.Event()

    async def echo(request: ServiceMsg) -> None:
        nonlocal left
        await request.respond(request.data, headers=run.values.pairs("header") or None)
        if run.output.as_json:
            run.output.json_line({"subject": request.subject, "payload": printable(request.data)})
        else:
            run.output.line(f"[{time_text(datetime.now(UTC))}] {request.subject}: {len(request.data)} bytes")
            run.output.flush()
        left -= 1
        if left == 0:
            finished.set()

    async with run.connect() as client:
        about = f"Demo service of the command line ({name})"
        async with await client.add_service(name, "1.0.0", description=about) as service:
            await service.group(name).add_endpoint("echo", echo)
            await client.flush()
            run.output.note(f"Service {name} answers on {name}.echo at {client.connected_url}")
            await finished.wait()
            await client.flush()
