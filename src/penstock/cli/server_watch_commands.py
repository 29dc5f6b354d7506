"""`penstock server watch`: live tables of servers, accounts, JetStream and requests to its API.

The official command line waits for the statistics that servers publish every 30 seconds. This one requests
them at each refresh, so that they are those of now.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Command, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, seconds
from penstock.cli.reports.api_requests import ApiRequests
from penstock.cli.reports.graph_screen import GRAPH_OPTIONS
from penstock.cli.reports.live_reports import repeat_report
from penstock.cli.reports.system_requests import ask_accounts, ask_servers
from penstock.cli.reports.watch_tables import (
    ACCOUNT_KEYS,
    JETSTREAM_KEYS,
    SERVER_KEYS,
    account_rows,
    account_table,
    jetstream_rows,
    jetstream_table,
    server_rows,
    server_table,
)
from penstock.cli.server_selection import FILTERS, REVERSE, filters_of, print_table, sort_option
from penstock.client import Client
from penstock.errors import MisuseError

WATCH = CommandGroup("watch", "Show live tables of servers.")
DETAILS = (
    "It needs a user of the system account. Where stdout is no terminal, it prints once, or as often as "
    "--max-refresh says; with --json one value a line. It ends with Ctrl-C."
)
_NUMBER = Option(names=("--number", "-n"), convert=count, default=1000, help="Show at most so many")


def _refreshes(run: CommandRun) -> int:
    """How often to show it; 0: until interrupted."""
    left = run.values.number("max-refresh")
    return left or int(not run.output.is_terminal and not run.output.as_json)


def _watch_command(
    name: str,
    what: str,
    *,
    keys: dict[str, Callable[[Any], Any]],
    default: str,
    aliases: tuple[str, ...],
    rows: Callable[[CommandRun, Client], Any],
    table: Callable[..., Any],
) -> None:
    """Add a command that shows rows of statistics. rows: takes them from the servers; table: shows them."""

    async def watch(run: CommandRun) -> None:
        values = run.values

        async def show() -> None:
            found = await rows(run, client)
            sort = values.text("sort")
            descending = sort != "name"
            ordered = sorted(found, key=keys[sort], reverse=descending is not values.flag("reverse"))
            if run.output.as_json:
                run.output.json(ordered[: values.number("number")])
            else:
                print_table(run, table(ordered, shown=values.number("number"), sort=sort))

        async with run.connect() as client:
            await repeat_report(run, show, values.seconds("interval"), _refreshes(run))

    WATCH.add(
        Command(
            name=name,
            summary=f"Watch {what}.",
            run=watch,
            options=(sort_option(tuple(keys), default), REVERSE, _NUMBER, *GRAPH_OPTIONS, *FILTERS),
            aliases=aliases,
            details=DETAILS,
            until_interrupted=True,
            examples=(f"server watch {name} --sort {default}",),
        )
    )


async def _server_rows(run: CommandRun, client: Client) -> list[dict[str, Any]]:
    return server_rows(await ask_servers(client, "STATSZ", filters_of(run), timeout_s=run.settings.timeout_s))


async def _jetstream_rows(run: CommandRun, client: Client) -> list[dict[str, Any]]:
    answers = await ask_servers(client, "STATSZ", filters_of(run), timeout_s=run.settings.timeout_s)
    return jetstream_rows(answers)


async def _account_rows(run: CommandRun, client: Client) -> list[dict[str, Any]]:
    return account_rows(await ask_accounts(client, filters_of(run), timeout_s=run.settings.timeout_s))


_watch_command(
    "servers",
    "the load and the traffic of servers",
    keys=SERVER_KEYS,
    default="conns",
    aliases=("server", "srv"),
    rows=_server_rows,
    table=server_table,
)
_watch_command(
    "accounts",
    "the connections and the traffic of accounts",
    keys=ACCOUNT_KEYS,
    default="conns",
    aliases=("account", "acct"),
    rows=_account_rows,
    table=account_table,
)
_watch_command(
    "jetstream",
    "JetStream of servers",
    keys=JETSTREAM_KEYS,
    default="assets",
    aliases=("js", "jsz"),
    rows=_jetstream_rows,
    table=jetstream_table,
)

API = WATCH.group("api", "Watch the API of JetStream.")


@API.command(
    "requests",
    "Watch requests to the API of JetStream.",
    options=(
        Option(names=("--account",), metavar="REGEX", default="", help="Only accounts that match"),
        Option(names=("--top", "-n"), convert=count, default=10, help="Show at most so many"),
        Option(names=("--rate",), convert=seconds, default=60.0, help="The time that rates are about"),
        Option(
            names=("--record-consumer",),
            convert=bool,
            default=None,
            negatable=True,
            help="Count each consumer of a stream for itself (default: yes)",
        ),
        Option(names=("--reverse", "-R"), convert=bool, help="The rarest requests first"),
        *GRAPH_OPTIONS,
    ),
    aliases=("req",),
    details="A user of an account sees the requests of the account. At official servers, a user of the "
    "system account sees those of all accounts. Where stdout is no terminal, it prints once, after one "
    "interval, or as often as --max-refresh says; with --json one value a line. It ends with Ctrl-C.",
    until_interrupted=True,
    examples=("server watch api requests --rate 10s",),
)
async def api_requests(run: CommandRun) -> None:
    """Count requests to the API, by what they ask and which stream or consumer they are about."""
    values = run.values
    try:
        account = re.compile(values.text("account"))
    except re.error as error:
        raise MisuseError(f"--account is no regular expression: {error}") from None
    requests = ApiRequests(
        account, rate_s=values.seconds("rate"), consumers=values.flag("record-consumer", default=True)
    )

    async def show() -> None:
        found = requests.rows(reverse=values.flag("reverse"))[: values.number("top")]
        if run.output.as_json:
            run.output.json(found)
        elif found:
            print_table(run, requests.table(found))
        else:
            run.output.line("Waiting for requests")

    async with run.connect() as client:
        for subject in ApiRequests.SUBJECTS:
            await client.subscribe(subject, callback=requests.heard)
        await client.flush()
        await repeat_report(run, show, values.seconds("interval"), _refreshes(run), wait_first=True)
