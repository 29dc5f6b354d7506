"""`penstock server report`: tables of connections, accounts, JetStream, health and load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.reports.link_tables import (
    GATEWAY_COLUMNS,
    GATEWAY_KEYS,
    LEAF_COLUMNS,
    LEAF_KEYS,
    ROUTE_COLUMNS,
    ROUTE_KEYS,
    gateway_links,
    link_table,
    links_of,
)
from penstock.cli.reports.live_reports import WATCH_DETAILS, WATCH_OPTIONS, show_report
from penstock.cli.reports.server_tables import (
    ACCOUNT_KEYS,
    CONNECTION_KEYS,
    JETSTREAM_KEYS,
    Page,
    ServerTable,
    account_table,
    account_totals,
    connection_table,
    connections_of,
    health_table,
    is_healthy,
    jetstream_table,
    leader_table,
    meta_table,
    sorted_by,
)
from penstock.cli.reports.system_requests import SystemAnswer, ask_server, ask_servers
from penstock.cli.server_selection import (
    FILTERS,
    REVERSE,
    SYSTEM_ACCOUNT,
    answer_json,
    filters_of,
    print_table,
    sort_option,
)
from penstock.client import Client

REPORT = CommandGroup("report", "Report on servers.", aliases=("rep",))
LIMIT = Argument(name="limit", help="Wait for this number of servers", required=False, convert=count)
TOP = Option(names=("--top",), convert=count, default=1000, help="Show at most so many")
ACCOUNT = Option(names=("--account",), metavar="NAME", help="Only this account")
CONNECTIONS_A_PAGE = 1024
_STATES = {"open": 0, "closed": 1, "all": 2}
CONNECTION_FILTERS = (
    Option(names=("--subject",), metavar="SUBJECT", help="Only with a subscription that matches"),
    Option(names=("--username",), metavar="NAME", help="Only this user"),
    Option(names=("--state",), choices=tuple(_STATES), default="open", help="Only this state"),
    Option(names=("--closed-reason",), metavar="TEXT", help="Only connections closed for this reason"),
)

Report = Callable[[CommandRun, Client], Awaitable[None]]


def report_command(
    name: str,
    summary: str,
    *,
    arguments: tuple[Argument, ...] = (LIMIT,),
    options: tuple[Option, ...],
    aliases: tuple[str, ...] = (),
    details: str = "",
) -> Callable[[Report], Report]:
    """Decorator: add a report, which can be watched. The connection stays open between its refreshes."""

    def add(report: Report) -> Report:
        async def command(run: CommandRun) -> None:
            async with run.connect() as client:
                await show_report(run, lambda: report(run, client))

        REPORT.command(
            name,
            summary,
            arguments=arguments,
            options=(*options, *WATCH_OPTIONS),
            aliases=aliases,
            details=" ".join(filter(None, (SYSTEM_ACCOUNT, details, WATCH_DETAILS))),
            examples=(f"server report {name} --watch 5",),
        )(command)
        return report

    return add


async def answers_of(
    run: CommandRun, client: Client, page: str, options: dict[str, Any] | None = None
) -> list[SystemAnswer]:
    """A page of the servers that the options select; as many answers as the argument `limit` says."""
    wanted = filters_of(run) | (options or {})
    timeout_s, expect = run.settings.timeout_s, run.values.number("limit")
    return await ask_servers(client, page, wanted, timeout_s=timeout_s, expect=expect)


def connection_filters(run: CommandRun, account: str) -> dict[str, Any]:
    """Options of CONNZ from those of the command."""
    values = run.values
    wanted: dict[str, Any] = {
        "auth": True,
        "state": _STATES[values.text("state")],
        "user": values.text("username"),
        "acc": account,
        "filter_subject": values.text("subject"),
    }
    return {key: value for key, value in wanted.items() if value}


async def all_connections(
    client: Client, options: dict[str, Any], *, timeout_s: float, expect: int = 0
) -> list[SystemAnswer]:
    """CONNZ of all servers, each with as many further pages as it has connections."""
    options = {**options, "limit": CONNECTIONS_A_PAGE}
    answers = await ask_servers(client, "CONNZ", options, timeout_s=timeout_s, expect=expect)
    found = list(answers)
    for answer in answers:
        server_id, total = str(answer.server.get("id")), answer.data.get("total", 0)
        for offset in range(CONNECTIONS_A_PAGE, total, CONNECTIONS_A_PAGE):
            page = {**options, "offset": offset}
            found.append(await ask_server(client, server_id, "CONNZ", page, timeout_s=timeout_s))
    return found


def chosen_connections(run: CommandRun, answers: list[SystemAnswer]) -> list[dict[str, Any]]:
    """The connections to show: sorted, the first of them, and those closed for a reason."""
    values = run.values
    reason = values.text("closed-reason").lower()
    found = [one for one in connections_of(answers) if reason in str(one.get("reason", "")).lower()]
    ordered = sorted_by(found, CONNECTION_KEYS, values.text("sort"), reverse=values.flag("reverse"))
    return [dict(one) for one in ordered[: values.number("top")]]


@report_command(
    "connections",
    "Report on connections.",
    options=(
        ACCOUNT,
        sort_option(tuple(CONNECTION_KEYS), "subs"),
        REVERSE,
        TOP,
        *CONNECTION_FILTERS,
        *FILTERS,
    ),
    aliases=("conn", "connz", "conns"),
)
async def connections(run: CommandRun, client: Client) -> None:
    """Report on connections of all servers."""
    options = filters_of(run) | connection_filters(run, run.values.text("account"))
    answers = await all_connections(
        client, options, timeout_s=run.settings.timeout_s, expect=run.values.number("limit")
    )
    found = chosen_connections(run, answers)
    if run.output.as_json:
        run.output.json(found)
        return
    servers = {answer.server_name for answer in answers}
    title = f"Top {len(found)} Connections of {len(servers)} servers by {run.values.text('sort')}"
    print_table(run, connection_table(found, title=title))


@report_command(
    "accounts",
    "Report on the traffic of accounts.",
    arguments=(
        Argument(name="account", help="Only this account, with its connections", required=False),
        Argument(name="limit", help="Wait for this number of servers", required=False, convert=count),
    ),
    options=(sort_option(tuple(ACCOUNT_KEYS), "subs"), REVERSE, TOP, *FILTERS),
    aliases=("acct",),
)
async def accounts(run: CommandRun, client: Client) -> None:
    """Report on accounts, by the connections that they have now."""
    account = run.values.text("account")
    options = filters_of(run) | {"auth": True} | ({"acc": account} if account else {})
    answers = await all_connections(
        client, options, timeout_s=run.settings.timeout_s, expect=run.values.number("limit")
    )
    found = connections_of(answers)
    keys, sort, reverse = ACCOUNT_KEYS, run.values.text("sort"), run.values.flag("reverse")
    totals = sorted_by(account_totals(found), keys, sort, reverse=reverse)[: run.values.number("top")]
    if run.output.as_json:
        run.output.json({"account": account, "connections": found} if account else totals)
        return
    print_table(run, account_table(totals))
    if account:
        print_table(run, connection_table(found, title=f"Connections of account {account}"))


@report_command(
    "jetstream",
    "Report on JetStream.",
    options=(
        ACCOUNT,
        sort_option(tuple(JETSTREAM_KEYS), "cluster"),
        REVERSE,
        Option(names=("--leaders", "-l"), convert=bool, help="Also how many leaders each server has"),
        *FILTERS,
    ),
    aliases=("jsz", "js"),
)
async def jetstream(run: CommandRun, client: Client) -> None:
    """Report on JetStream of all servers, and on the group that manages it."""
    options: dict[str, Any] = {"raft": True}
    account = run.values.text("account")
    if account:
        options |= {"account": account}
    if account or run.values.flag("leaders"):
        options |= {"streams": True, "consumer": True}
    answers = await answers_of(run, client, "JSZ", options)
    if run.output.as_json:
        run.output.json([answer_json(answer) for answer in answers])
        return
    sort, reverse = run.values.text("sort"), run.values.flag("reverse")
    print_table(run, jetstream_table(answers, sort=sort, reverse=reverse))
    if run.values.flag("leaders"):
        print_table(run, leader_table(answers))
    meta = meta_table(answers)
    if meta is not None:
        print_table(run, meta)


@report_command(
    "health",
    "Report on the health of servers.",
    options=(
        Option(names=("--js-enabled",), convert=bool, help="JetStream must be enabled"),
        Option(names=("--server-only",), convert=bool, help="Leave out streams and consumers"),
        ACCOUNT,
        Option(names=("--stream",), metavar="NAME", help="Only this stream"),
        Option(names=("--consumer",), metavar="NAME", help="Only this consumer"),
        REVERSE,
        *FILTERS,
    ),
    details="The exit status is 1 if a server is not healthy.",
)
async def health(run: CommandRun, client: Client) -> None:
    """Report on health; fails if a server is not healthy."""
    values = run.values
    options: dict[str, Any] = {"details": True}
    names = {"js-enabled": "js-enabled-only", "server-only": "js-server-only", "account": "account",
             "stream": "stream", "consumer": "consumer"}  # fmt: skip
    options |= {theirs: values.value(ours) for ours, theirs in names.items() if values.value(ours)}
    answers = await answers_of(run, client, "HEALTHZ", options)
    if run.output.as_json:
        run.output.json([answer_json(answer) for answer in answers])
    else:
        print_table(run, health_table(answers, reverse=values.flag("reverse")))
    sick = [answer.server_name for answer in answers if not is_healthy(answer)]
    if sick:
        raise CommandFailed(f"not healthy: {', '.join(sorted(sick))}")


@report_command("cpu", "Report on the use of processors.", options=(REVERSE, *FILTERS))
async def cpu(run: CommandRun, client: Client) -> None:
    """Report on processors, by VARZ."""
    fields = ("cpu", "cores")
    await _report_load(run, client, "CPU Usage", fields, lambda data: f"{data.get('cpu', 0):.0f}%")


@report_command("mem", "Report on the use of memory.", options=(REVERSE, *FILTERS))
async def mem(run: CommandRun, client: Client) -> None:
    """Report on memory, by VARZ."""
    await _report_load(run, client, "Memory Usage", ("mem",), lambda data: size_text(data.get("mem", 0)))


async def _report_load(
    run: CommandRun, client: Client, title: str, fields: tuple[str, ...], cell: Callable[[Any], str]
) -> None:
    answers = await answers_of(run, client, "VARZ")
    reverse = run.values.flag("reverse")
    answers.sort(key=lambda answer: answer.data.get(fields[0], 0), reverse=not reverse)
    if run.output.as_json:
        run.output.json([
            {"server": answer.server_name, **{field: answer.data.get(field) for field in fields}}
            for answer in answers
        ])  # fmt: skip
        return
    rows: list[tuple[object, ...]] = [
        (answer.server_name, answer.server.get("cluster", ""), cell(answer.data),
         number_text(answer.data.get("connections", 0)))
        for answer in answers
    ]  # fmt: skip
    columns = ("Server", "Cluster", title, "Connections")
    print_table(run, ServerTable(title, columns, rows, f"{title},Connections"))


# --- links between servers -------------------------------------------------------------------------


@report_command(
    "routes",
    "Report on routes.",
    options=(sort_option(tuple(ROUTE_KEYS), "server"), REVERSE, *FILTERS),
    aliases=("route",),
)
async def routes(run: CommandRun, client: Client) -> None:
    """Report on routes between the servers of clusters."""
    links = links_of(await answers_of(run, client, "ROUTEZ"), "routes")
    _print_links(run, links, ROUTE_KEYS, "Route Report", ROUTE_COLUMNS)


@report_command(
    "leafnodes",
    "Report on leaf nodes.",
    options=(ACCOUNT, sort_option(tuple(LEAF_KEYS), "server"), REVERSE, *FILTERS),
    aliases=("leaf", "leafz"),
)
async def leafnodes(run: CommandRun, client: Client) -> None:
    """Report on leaf nodes."""
    account = run.values.text("account")
    answers = await answers_of(run, client, "LEAFZ", {"account": account} if account else None)
    _print_links(run, links_of(answers, "leafs"), LEAF_KEYS, "Leafnode Report", LEAF_COLUMNS)


@report_command(
    "gateways",
    "Report on gateways between clusters.",
    options=(
        Option(names=("--filter-name",), metavar="NAME", help="Only gateways to this cluster"),
        sort_option(tuple(GATEWAY_KEYS), "cluster"),
        REVERSE,
        *FILTERS,
    ),
    aliases=("super", "gateway"),
)
async def gateways(run: CommandRun, client: Client) -> None:
    """Report on connections to and from other clusters."""
    name = run.values.text("filter-name")
    links = gateway_links(await answers_of(run, client, "GATEWAYZ", {"name": name} if name else None))
    _print_links(run, links, GATEWAY_KEYS, "Gateway Report", GATEWAY_COLUMNS)


def _print_links(
    run: CommandRun,
    links: list[dict[str, Any]],
    keys: dict[str, Callable[[Page], Any]],
    title: str,
    columns: dict[str, str],
) -> None:
    ordered = sorted_by(links, keys, run.values.text("sort"), reverse=run.values.flag("reverse"))
    if run.output.as_json:
        run.output.json(ordered)
    else:
        print_table(run, link_table(ordered, title, columns))
