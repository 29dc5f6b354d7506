"""`penstock server`: what servers say of themselves over the system account, and commands to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import CommandGroup, Option
from penstock.cli.framework.value_texts import duration_text, rate_text, size_text, whole_text
from penstock.cli.offline.subject_mapping import MAPPING
from penstock.cli.password_command import PASSWD
from penstock.cli.reports.graph_screen import GRAPH_DETAILS, GRAPH_OPTIONS, show_graphs
from penstock.cli.reports.line_graphs import GraphSeries
from penstock.cli.reports.server_tables import SERVER_KEYS, page_sections, server_table
from penstock.cli.reports.system_requests import ask_server, ask_servers
from penstock.cli.reports.watch_tables import jetstream_rows
from penstock.cli.server_account_commands import ACCOUNT
from penstock.cli.server_check_commands import CHECK
from penstock.cli.server_cluster_commands import CLUSTER
from penstock.cli.server_report_commands import REPORT
from penstock.cli.server_request_commands import REQUEST
from penstock.cli.server_selection import (
    ANY_SERVER,
    EXPECT,
    REVERSE,
    SYSTEM_ACCOUNT,
    answer_json,
    print_table,
    server_id,
    sort_option,
)
from penstock.cli.server_watch_commands import WATCH

SERVER = CommandGroup("server", "Examine servers and give them commands.", aliases=("srv",))
for group in (REPORT, CHECK, REQUEST, WATCH, ACCOUNT, CLUSTER):
    SERVER.add(group)
SERVER.add(MAPPING)
SERVER.add(PASSWD)


@SERVER.command(
    "list",
    "List all servers with their load.",
    arguments=(EXPECT,),
    options=(sort_option(tuple(SERVER_KEYS), "rtt"), REVERSE),
    aliases=("ls",),
    details=SYSTEM_ACCOUNT,
)
async def list_all(run: CommandRun) -> None:
    """List servers."""
    async with run.connect() as client:
        answers = await ask_servers(
            client, timeout_s=run.settings.timeout_s, expect=run.values.number("expect")
        )
    if run.output.as_json:
        run.output.json([answer_json(answer) for answer in answers])
        return
    print_table(run, server_table(answers, sort=run.values.text("sort"), reverse=run.values.flag("reverse")))


@SERVER.command(
    "ping",
    "Measure the round-trip time to all servers.",
    arguments=(EXPECT,),
    options=(Option(names=("--id",), convert=bool, help="Show ids of servers"),),
    details=SYSTEM_ACCOUNT,
)
async def ping(run: CommandRun) -> None:
    """Print each server that answers, and a summary. Fails if fewer than expected answer."""
    expect = run.values.number("expect")
    async with run.connect() as client:
        answers = await ask_servers(client, timeout_s=run.settings.timeout_s, expect=expect)
    if run.output.as_json:
        run.output.json([
            {"server": answer.server_name, "id": answer.server.get("id"), "rtt_s": answer.rtt_s}
            for answer in answers
        ])  # fmt: skip
    else:
        for answer in answers:
            prefix = f"{answer.server.get('id')} " if run.values.flag("id") else ""
            run.output.line(f"{prefix}{answer.server_name:<60} rtt={duration_text(answer.rtt_s)}")
        times = [answer.rtt_s for answer in answers]
        low, high = duration_text(min(times)), duration_text(max(times))
        average = duration_text(sum(times) / len(times))
        run.output.line("\n---- ping statistics ----")
        run.output.line(f"{len(times)} replies max: {high} min: {low} avg: {average}")
    if len(answers) < expect:
        raise CommandFailed(f"{len(answers)} servers answered, {expect} were expected")


@SERVER.command("info", "Show a server.", arguments=(ANY_SERVER,), aliases=("i",), details=SYSTEM_ACCOUNT)
async def info(run: CommandRun) -> None:
    """Show the VARZ page of a server."""
    async with run.connect() as client:
        target = await server_id(client, run)
        answer = await ask_server(client, target, "VARZ", timeout_s=run.settings.timeout_s)
    if run.output.as_json:
        run.output.json(answer.data)
        return
    title = f"Server information for {answer.server_name} ({answer.server.get('id')})"
    run.output.sections(title, page_sections(answer.data))


SERVER_SERIES = (
    GraphSeries("CPU", "cpu", lambda percent: f"{percent:.1f}%"),
    GraphSeries("Memory", "mem", size_text),
    GraphSeries("Messages In", "in_msgs", rate_text, rate=True),
    GraphSeries("Messages Out", "out_msgs", rate_text, rate=True),
    GraphSeries("Connections", "connections", whole_text),
)


JETSTREAM_SERIES = (
    GraphSeries("Memory", "memory", size_text),
    GraphSeries("File", "storage", size_text),
    GraphSeries("API Requests", "api_total", rate_text, rate=True),
    GraphSeries("API Errors", "api_errors", rate_text, rate=True),
    GraphSeries("Pending", "pending", whole_text),
)


@SERVER.command(
    "graph",
    "Draw the load of a server, until interrupted.",
    arguments=(ANY_SERVER,),
    options=(
        Option(names=("--jetstream",), convert=bool, help="Draw JetStream of the server"),
        *GRAPH_OPTIONS,
    ),
    details=f"{SYSTEM_ACCOUNT} {GRAPH_DETAILS}",
    until_interrupted=True,
)
async def graph(run: CommandRun) -> None:
    """Draw numbers of the VARZ page, or of the JetStream part of STATSZ."""
    jetstream = run.values.flag("jetstream")
    series = JETSTREAM_SERIES if jetstream else SERVER_SERIES
    async with run.connect() as client:
        target = await server_id(client, run)
        timeout_s = run.settings.timeout_s
        first = await ask_server(client, target, "VARZ", timeout_s=timeout_s)

        async def sample() -> dict[str, float]:
            answer = await ask_server(client, target, "STATSZ" if jetstream else "VARZ", timeout_s=timeout_s)
            page: Mapping[str, Any] = answer.data
            if jetstream:
                found = jetstream_rows([answer])
                if not found:
                    raise CommandFailed(f"server {first.server_name} has no JetStream")
                page = found[0]
            return {one.key: float(page.get(one.key, 0)) for one in series}

        title = f"JetStream of server {first.server_name}" if jetstream else f"Server {first.server_name}"
        await show_graphs(run, title, series, sample)


@SERVER.command(
    "reload", "Make a server reload its configuration.", arguments=(ANY_SERVER,), details=SYSTEM_ACCOUNT
)
async def reload(run: CommandRun) -> None:
    """Reload a server's configuration."""
    async with run.connect() as client:
        target = await server_id(client, run)
        answer = await ask_server(client, target, "RELOAD", timeout_s=run.settings.timeout_s)
    if run.output.as_json:
        run.output.json(answer.page)
    else:
        run.output.line(f"Server {answer.server_name} reloaded its configuration")


CONFIG = SERVER.group("config", "Work with the configuration of a server.", aliases=("cfg",))
CONFIG.command(
    "reload", "Make a server reload its configuration.", arguments=(ANY_SERVER,), details=SYSTEM_ACCOUNT
)(reload)
