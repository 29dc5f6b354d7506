"""`penstock server report`: tables of connections, accounts, JetStream, health and load."""

from __future__ import annotations

from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.reports.server_tables import (
    ACCOUNT_KEYS,
    CONNECTION_KEYS,
    JETSTREAM_KEYS,
    ServerTable,
    account_table,
    account_totals,
    connection_table,
    connections_of,
    health_table,
    is_healthy,
    jetstream_table,
    meta_table,
    sorted_by,
)
from penstock.cli.reports.system_requests import SystemAnswer, ask_server, ask_servers
from penstock.cli.server_selection import FILTERS, REVERSE, answer_json, filters_of, print_table, sort_option
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


@REPORT.command(
    "connections",
    "Report on connections.",
    arguments=(LIMIT,),
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
async def connections(run: CommandRun) -> None:
    """Report on connections of all servers."""
    options = filters_of(run) | connection_filters(run, run.values.text("account"))
    async with run.connect() as client:
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


@REPORT.command(
    "accounts",
    "Report on the traffic of accounts.",
    arguments=(
        Argument(name="account", help="Only this account, with its connections", required=False),
        Argument(name="limit", help="Wait for this number of servers", required=False, convert=count),
    ),
    options=(sort_option(tuple(ACCOUNT_KEYS), "subs"), REVERSE, TOP, *FILTERS),
    aliases=("acct",),
)
async def accounts(run: CommandRun) -> None:
    """Report on accounts, by the connections that they have now."""
    account = run.values.text("account")
    options = filters_of(run) | {"auth": True} | ({"acc": account} if account else {})
    async with run.connect() as client:
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


@REPORT.command(
    "jetstream",
    "Report on JetStream.",
    arguments=(LIMIT,),
    options=(ACCOUNT, sort_option(tuple(JETSTREAM_KEYS), "cluster"), REVERSE, *FILTERS),
    aliases=("jsz", "js"),
)
async def jetstream(run: CommandRun) -> None:
    """Report on JetStream of all servers, and on the group that manages it."""
    options = filters_of(run) | {"raft": True}
    account = run.values.text("account")
    if account:
        options |= {"account": account, "streams": True, "consumer": True}
    async with run.connect() as client:
        answers = await ask_servers(
            client, "JSZ", options, timeout_s=run.settings.timeout_s, expect=run.values.number("limit")
        )
    if run.output.as_json:
        run.output.json([answer_json(answer) for answer in answers])
        return
    sort, reverse = run.values.text("sort"), run.values.flag("reverse")
    print_table(run, jetstream_table(answers, sort=sort, reverse=reverse))
    meta = meta_table(answers)
    if meta is not None:
        print_table(run, meta)


@REPORT.command(
    "health",
    "Report on the health of servers.",
    arguments=(LIMIT,),
    options=(
        Option(names=("--js-enabled",), convert=bool, help="JetStream must be enabled"),
        Option(names=("--server-only",), convert=bool, help="Leave out streams and consumers"),
        ACCOUNT,
        Option(names=("--stream",), metavar="NAME", help="Only this stream"),
        Option(names=("--consumer",), metavar="NAME", help="Only this consumer"),
        *FILTERS,
    ),
    details="The exit status is 1 if a server is not healthy.",
)
async def health(run: CommandRun) -> None:
    """Report on health; fails if a server is not healthy."""
    values = run.values
    options = filters_of(run) | {"details": True}
    names = {"js-enabled": "js-enabled-only", "server-only": "js-server-only", "account": "account",
             "stream": "stream", "consumer": "consumer"}  # fmt: skip
    options |= {theirs: values.value(ours) for ours, theirs in names.items() if values.value(ours)}
    async with run.connect() as client:
        answers = await ask_servers(
            client, "HEALTHZ", options, timeout_s=run.settings.timeout_s, expect=values.number("limit")
        )
    if run.output.as_json:
        run.output.json([answer_json(answer) for answer in answers])
    else:
        print_table(run, health_table(answers))
    sick = [answer.server_name for answer in answers if not is_healthy(answer)]
    if sick:
        raise CommandFailed(f"not healthy: {', '.join(sorted(sick))}")


@REPORT.command("cpu", "Report on the use of processors.", arguments=(LIMIT,), options=FILTERS)
async def cpu(run: CommandRun) -> None:
    """Report on processors, by VARZ."""
    await _report_load(run, "CPU Usage", ("cpu", "cores"), lambda data: f"{data.get('cpu', 0):.0f}%")


@REPORT.command("mem", "Report on the use of memory.", arguments=(LIMIT,), options=FILTERS)
async def mem(run: CommandRun) -> None:
    """Report on memory, by VARZ."""
    await _report_load(run, "Memory Usage", ("mem",), lambda data: size_text(data.get("mem", 0)))


async def _report_load(run: CommandRun, title: str, fields: tuple[str, ...], cell: Any) -> None:
    async with run.connect() as client:
        expect = run.values.number("limit")
        answers = await ask_servers(
            client, "VARZ", filters_of(run), timeout_s=run.settings.timeout_s, expect=expect
        )
    answers.sort(key=lambda answer: answer.data.get(fields[0], 0), reverse=True)
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


@REPORT.command("routes", "Report on routes.", arguments=(LIMIT,), options=FILTERS, aliases=("route",))
async def routes(run: CommandRun) -> None:
    """Report on routes between the servers of clusters."""
    columns = {"Name": "remote_name", "Account": "account", "Address": "ip", "ID": "rid", "Uptime": "uptime",
               "RTT": "rtt", "Subs": "subscriptions", "Bytes In": "in_bytes",
               "Bytes Out": "out_bytes"}  # fmt: skip
    await _report_links(run, "ROUTEZ", "routes", "Route Report", columns)


@REPORT.command("leafnodes", "Report on leaf nodes.", arguments=(LIMIT,), options=(ACCOUNT, *FILTERS),
                aliases=("leaf", "leafz"))  # fmt: skip
async def leafnodes(run: CommandRun) -> None:
    """Report on leaf nodes."""
    columns = {"Name": "name", "Account": "account", "Address": "ip", "RTT": "rtt", "Msgs In": "in_msgs",
               "Msgs Out": "out_msgs", "Bytes In": "in_bytes", "Bytes Out": "out_bytes",
               "Subs": "subscriptions"}  # fmt: skip
    await _report_links(run, "LEAFZ", "leafs", "Leafnode Report", columns)


async def _report_links(run: CommandRun, page: str, key: str, title: str, columns: dict[str, str]) -> None:
    options = filters_of(run)
    if page == "LEAFZ" and run.values.text("account"):
        options["account"] = run.values.text("account")
    async with run.connect() as client:
        answers = await ask_servers(
            client, page, options, timeout_s=run.settings.timeout_s, expect=run.values.number("limit")
        )
    links = [
        {**one, "server": answer.server_name} for answer in answers for one in answer.data.get(key) or []
    ]
    if run.output.as_json:
        run.output.json(links)
        return
    rows = [(one["server"], *(_link_cell(one, field) for field in columns.values())) for one in links]
    numbers = "Subs,Msgs In,Msgs Out,Bytes In,Bytes Out,ID"
    print_table(run, ServerTable(title, ("Server", *columns), rows, numbers))


def _link_cell(one: dict[str, Any], field: str) -> object:
    value = one.get(field, "")
    if field.endswith("_bytes"):
        return size_text(value or 0)
    if field == "ip" and value:
        return f"{value}:{one.get('port')}"
    return number_text(value) if isinstance(value, int) and not isinstance(value, bool) else value
