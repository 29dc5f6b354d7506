"""Options of commands that ask servers, and the output of their answers."""

from __future__ import annotations

from typing import Any

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import count
from penstock.cli.reports.server_tables import ServerTable
from penstock.cli.reports.system_requests import SystemAnswer, find_server
from penstock.client import Client

SYSTEM_ACCOUNT = "It needs a user of the system account."
EXPECT = Argument(
    name="expect",
    help="How many servers to expect (default: wait until no further one answers)",
    required=False,
    convert=count,
)
ANY_SERVER = Argument(name="name", help="Name or id of a server (default: the connected one)", required=False)
REVERSE = Option(names=("--reverse", "-R"), convert=bool, help="Sort the other way round")
FILTERS = (
    Option(names=("--name",), help="Only servers with this in the name"),
    Option(names=("--host",), help="Only servers with this in the host name"),
    Option(names=("--cluster",), metavar="NAME", help="Only servers of clusters with this in the name"),
    Option(names=("--tags",), repeated=True, commas=True, metavar="TAG", help="Only servers with these tags"),
)


def sort_option(keys: tuple[str, ...], default: str) -> Option:
    """The option `--sort`."""
    return Option(names=("--sort",), choices=keys, default=default, metavar="KEY", help="Sort by")


def filters_of(run: CommandRun) -> dict[str, Any]:
    """Options of a broadcast that select servers."""
    names = {"name": "server_name", "host": "host", "cluster": "cluster", "tags": "tags"}
    return {theirs: run.values.value(ours) for ours, theirs in names.items() if run.values.value(ours)}


def print_table(run: CommandRun, table: ServerTable) -> None:
    """Print a table for people."""
    run.output.table(table.columns, table.rows, title=table.title, numbers=table.numbers)


def answer_json(answer: SystemAnswer) -> dict[str, Any]:
    """An answer for `--json`: as it came, and the seconds until it came."""
    return {**answer.page, "rtt_s": answer.rtt_s}


async def server_id(client: Client, run: CommandRun) -> str:
    """The id of the server that the argument `name` names. Raises SystemRequestError."""
    found = await find_server(client, run.values.text("name"), timeout_s=run.settings.timeout_s)
    return str(found.server.get("id"))


def print_done(run: CommandRun, page: dict[str, Any], text: str) -> None:
    """Print what was done: an object for `--json`, or a sentence."""
    if run.output.as_json:
        run.output.json(page)
    else:
        run.output.line(text)
