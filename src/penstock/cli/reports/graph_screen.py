"""Graphs that are drawn until the user interrupts them: `stream graph`, `consumer graph`, `server graph`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.value_kinds import count, seconds
from penstock.cli.reports.line_graphs import GraphHistory, GraphSeries, screen_lines
from penstock.errors import MisuseError

MAX_REFRESH = Option(names=("--max-refresh", "-r"), convert=count, help="End after so many refreshes")
GRAPH_OPTIONS = (
    Option(names=("--interval", "-d"), convert=seconds, default=1.0, help="How often to refresh"),
    MAX_REFRESH,
)
GRAPH_DETAILS = (
    "Where stdout is no terminal, it prints the numbers once, or as often as --max-refresh says; with --json "
    "one object a line. It ends with Ctrl-C."
)
INTERVAL_MIN_S = 0.1


async def show_graphs(
    run: CommandRun,
    head: str,
    series: Sequence[GraphSeries],
    sample: Callable[[], Awaitable[Mapping[str, float]]],
) -> None:
    """Take samples and draw them. head: the first line. sample: the numbers of now, by the keys of `series`.

    Raises MisuseError for a short interval, and what `sample` raises.
    """
    interval_s = run.values.seconds("interval")
    if interval_s < INTERVAL_MIN_S:
        raise MisuseError(f"--interval is {interval_s:g} s; it is at least 100ms")
    history = GraphHistory(series)
    left = run.values.number("max-refresh")
    if run.output.is_terminal and not run.output.as_json:
        await _draw(run, head, history, sample, interval_s, left)
        return
    left = left or (0 if run.output.as_json else 1)
    while True:
        history.add(time.monotonic(), await sample())
        _print(run, head, history)
        left -= 1
        if left == 0:
            return
        await asyncio.sleep(interval_s)


def _print(run: CommandRun, head: str, history: GraphHistory) -> None:
    latest = history.latest()
    if run.output.as_json:
        run.output.json_line({"time": datetime.now(UTC).isoformat(), "values": latest})
    else:
        rows = [(one.title, one.text(latest[one.title])) for one in history.series]
        run.output.sections(head, [("", rows)])
    run.output.flush()


async def _draw(
    run: CommandRun,
    head: str,
    history: GraphHistory,
    sample: Callable[[], Awaitable[Mapping[str, float]]],
    interval_s: float,
    left: int,
) -> None:
    from rich.live import Live
    from rich.text import Text

    console = run.output.console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            history.add(time.monotonic(), await sample())
            size = console.size
            lines = screen_lines(head, history, size.width, size.height)
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            left -= 1
            if left == 0:
                return
            await asyncio.sleep(interval_s)
