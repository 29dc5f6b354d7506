"""`penstock top`: the connections of a server, refreshed like `top` does it."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.bucket_options import COUNT
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.value_kinds import count, path, seconds
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.reports.system_requests import ask_server, find_server
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.client import Client

SORTS = ("cid", "subs", "pending", "msgs_to", "msgs_from", "bytes_to", "bytes_from", "idle", "last", "uptime")
COLUMNS = ("Host", "CID", "Name", "Account", "Subs", "Pending", "Msgs To", "Msgs From", "Bytes To",
           "Bytes From", "Lang", "Version", "Uptime", "Last Activity")  # fmt: skip
NUMBERS = "CID,Subs,Pending,Msgs To,Msgs From,Bytes To,Bytes From"
Page = Mapping[str, Any]


class TopSample:
    """A moment of a server: its VARZ and CONNZ pages, and the rates since the sample before.

    at_s: seconds of a steady clock.
    """

    def __init__(self, varz: Page, connz: Page, at_s: float, before: TopSample | None) -> None:
        self.varz = varz
        self.connz = connz
        self.at_s = at_s
        self.rates: dict[str, float] = dict.fromkeys(("in_msgs", "out_msgs", "in_bytes", "out_bytes"), 0.0)
        if before is not None and at_s > before.at_s:
            for name in self.rates:
                change = varz.get(name, 0) - before.varz.get(name, 0)
                self.rates[name] = max(0.0, change / (at_s - before.at_s))

    def head(self) -> list[str]:
        """The lines above the table."""
        varz = self.varz
        shown, total = self.connz.get("num_connections", 0), self.connz.get("total", 0)
        load = (
            f"CPU: {varz.get('cpu', 0):.1f}%",
            f"Memory: {size_text(varz.get('mem', 0))}",
            f"Slow Consumers: {number_text(varz.get('slow_consumers', 0))}",
        )
        return [
            f"NATS server version {varz.get('version', '')} (uptime: {varz.get('uptime', '')})",
            f"Server: {varz.get('server_name', '')}",
            f"  Load: {'  '.join(load)}",
            f"  In:   {self._traffic('in')}",
            f"  Out:  {self._traffic('out')}",
            f"Connections: {number_text(shown)} shown of {number_text(total)}",
        ]

    def _traffic(self, direction: str) -> str:
        messages, size = f"{direction}_msgs", f"{direction}_bytes"
        parts = (
            f"Msgs: {number_text(self.varz.get(messages, 0))}",
            f"Bytes: {size_text(self.varz.get(size, 0))}",
            f"Msgs/Sec: {self.rates[messages]:,.1f}",
            f"Bytes/Sec: {size_text(self.rates[size])}",
        )
        return "  ".join(parts)

    def rows(self, *, raw: bool, subs: bool, hosts: Mapping[str, str]) -> list[tuple[object, ...]]:
        """The connections. raw: bytes as numbers. subs: with the subjects of subscriptions. hosts: names of
        addresses."""
        shown = number_text if raw else size_text

        def host(one: Page) -> str:
            address = str(one.get("ip"))
            return f"{hosts.get(address, address)}:{one.get('port')}"

        return [
            (host(one), one.get("cid", 0), one.get("name", ""),
             one.get("account", ""), number_text(one.get("subscriptions", 0)),
             shown(one.get("pending_bytes", 0)), number_text(one.get("out_msgs", 0)),
             number_text(one.get("in_msgs", 0)), shown(one.get("out_bytes", 0)),
             shown(one.get("in_bytes", 0)),
             one.get("lang", ""), one.get("version", ""), one.get("uptime", ""), one.get("last_activity", ""),
             *((", ".join(one.get("subscriptions_list") or []),) if subs else ()))
            for one in self.connz.get("connections") or []
        ]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """The sample for `--json`."""
        return {"varz": self.varz, "connz": self.connz, "rates": self.rates}


class TopView:
    """How the options of the command show a sample. Names of hosts are looked up once."""

    def __init__(self, run: CommandRun) -> None:
        self._values = run.values
        self._hosts: dict[str, str] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, "Subscriptions") if self._values.flag("subs") else COLUMNS

    async def look_up(self, sample: TopSample) -> None:
        """Ask for the names of new addresses, with --lookup; one without a name stays as it is."""
        if not self._values.flag("lookup"):
            return
        addresses = {str(one.get("ip")) for one in sample.connz.get("connections") or []}
        for address in addresses - self._hosts.keys():
            try:
                name, _ = await asyncio.get_running_loop().getnameinfo((address, 0))
            except OSError:
                name = address
            self._hosts[address] = name

    def rows(self, sample: TopSample) -> list[tuple[object, ...]]:
        values = self._values
        return sample.rows(raw=values.flag("raw"), subs=values.flag("subs"), hosts=self._hosts)

    def delimited(self, sample: TopSample, delimiter: str) -> str:
        """The connections as lines of values with a delimiter between, those with one in quotes."""
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows(sample))
        return out.getvalue()


async def _sample(run: CommandRun, client: Client, server_id: str, before: TopSample | None) -> TopSample:
    values = run.values
    options = {"sort": values.text("sort"), "limit": values.number("conns"), "auth": True}
    options["subscriptions"] = values.flag("subs")
    timeout_s = run.settings.timeout_s
    varz = await ask_server(client, server_id, "VARZ", timeout_s=timeout_s)
    connz = await ask_server(client, server_id, "CONNZ", options, timeout_s=timeout_s)
    return TopSample(varz.data, connz.data, time.monotonic(), before)


async def _top(run: CommandRun) -> None:
    interval_s = run.values.seconds("interval")
    if interval_s < 0.1:
        raise MisuseError(f"--interval is {interval_s:g} s; it is at least 100ms")
    left = run.values.number("max-refresh") or run.values.number("count")
    if not run.output.is_terminal and not run.output.as_json:
        left = left or 1
    view = TopView(run)
    async with run.connect() as client:
        found = await find_server(client, run.values.text("name"), timeout_s=run.settings.timeout_s)
        server_id = str(found.server.get("id"))
        target = run.values.path("output")
        if target is not None:
            await _save(run, view, await _sample(run, client, server_id, None), target)
            return
        if run.output.is_terminal and not run.output.as_json and not run.values.text("delimiter"):
            await _show_live(run, view, client, server_id, interval_s, left)
            return
        sample = None
        while True:
            sample = await _sample(run, client, server_id, sample)
            await _print(run, view, sample)
            left -= 1
            if left == 0:
                return
            await asyncio.sleep(interval_s)


async def _save(run: CommandRun, view: TopView, sample: TopSample, target: Path) -> None:
    """Write a sample to a file, as it would be printed."""
    with run.output.captured() as page:
        await _print(run, view, sample)
    await asyncio.to_thread(target.write_text, page.getvalue(), encoding="utf-8")
    run.output.note(f"wrote the connections of {sample.varz.get('server_name', '')} to {target}")


async def _print(run: CommandRun, view: TopView, sample: TopSample) -> None:
    if run.output.as_json:
        run.output.json_line(sample.as_json())
        return
    await view.look_up(sample)
    if run.values.text("delimiter"):
        run.output.text(view.delimited(sample, run.values.text("delimiter")))
    else:
        run.output.line("\n".join(sample.head()))
        run.output.table(view.columns, view.rows(sample), numbers=NUMBERS)
    run.output.flush()


async def _show_live(
    run: CommandRun, view: TopView, client: Client, server_id: str, interval_s: float, left: int
) -> None:
    """Redraw the screen until interrupted, or until it was drawn `left` times."""
    from rich.live import Live

    sample = await _sample(run, client, server_id, None)
    await view.look_up(sample)
    with Live(_screen(view, sample), console=run.output.console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(view, sample), refresh=True)
            left -= 1
            if left == 0:
                return
            await asyncio.sleep(interval_s)
            sample = await _sample(run, client, server_id, sample)
            await view.look_up(sample)


def _screen(view: TopView, sample: TopSample) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    right = NUMBERS.split(",")
    for name in view.columns:
        table.add_column(Text(name), justify="right" if name in right else "left", no_wrap=True)
    for row in view.rows(sample):
        table.add_row(*(Text(str(cell)) for cell in row))
    return Group(*(Text(line) for line in sample.head()), Text(""), table)


def _delimiter(text: str) -> str:
    found = text.replace("\\t", "\t")
    if len(found) != 1:
        raise ValueError(f"a delimiter is one character, or \\t, not {text!r}")
    return found


TOP = Command(
    name="top",
    summary="Show the connections of a server, refreshed until interrupted.",
    run=_top,
    arguments=(
        Argument(name="name", help="Name or id of a server (default: the connected one)", required=False),
    ),
    options=(
        Option(names=("--conns", "-n"), convert=count, default=1024, help="Show at most so many connections"),
        Option(names=("--interval", "-d"), convert=seconds, default=1.0, help="How often to refresh"),
        Option(names=("--sort",), choices=SORTS, default="cid", metavar="KEY", help="Sort by"),
        Option(names=("--raw", "-b"), convert=bool, help="Show bytes as numbers"),
        Option(names=("--subs",), convert=bool, help="Show the subjects of subscriptions as well"),
        Option(names=("--lookup",), convert=bool, help="Show names of hosts, from DNS"),
        Option(names=("--output", "-o"), convert=path, metavar="FILE", help="Write it once, to a file"),
        Option(
            names=("--delimiter",), convert=_delimiter, help="Print values with this character between them"
        ),
        Option(names=("--max-refresh", "-r"), convert=count, help="End after so many refreshes"),
        COUNT,
    ),
    details="It needs a user of the system account. Where stdout is no terminal, it prints once, or as often "
    "as --max-refresh says; with --json one object a line.",
    until_interrupted=True,
    examples=("top --sort bytes_to", "top nats-1 --json --max-refresh 10"),
)
