"""Reports that are printed again and again until the user interrupts them: `server report --watch`,
`server watch`.

At a terminal each one replaces the last on a screen of its own. Elsewhere they follow one another, with
`--json` as one value a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.value_kinds import interval
from penstock.cli.reports.graph_screen import INTERVAL_MIN_S, MAX_REFRESH
from penstock.errors import MisuseError

WATCH = Option(
    names=("--watch",), convert=interval, metavar="SECONDS", help="Show it again every so many seconds"
)
WATCH_OPTIONS = (WATCH, MAX_REFRESH)
WATCH_DETAILS = (
    "With --watch it is shown again until Ctrl-C or --max-refresh ends it; with --json one value a line. "
    "--watch takes seconds (5) or a duration (500ms)."
)


async def show_report(run: CommandRun, report: Callable[[], Awaitable[None]]) -> None:
    """Print a report once, or as `--watch` and `--max-refresh` say. Raises what `report` raises."""
    if run.values.given("watch"):
        await repeat_report(run, report, run.values.seconds("watch"), run.values.number("max-refresh"))
    elif run.values.given("max-refresh"):
        raise MisuseError("--max-refresh needs --watch, which says how often to refresh")
    else:
        await report()


async def repeat_report(
    run: CommandRun,
    report: Callable[[], Awaitable[None]],
    interval_s: float,
    left: int,
    *,
    wait_first: bool = False,
) -> None:
    """Print a report every `interval_s`, and `left` times (0: until interrupted).

    wait_first: it counts what comes from now on, so the first is due after an interval (at a terminal it is
    drawn at once, to show that something runs).

    Raises MisuseError for a short interval, and what `report` raises, but for CommandFailed: a report that
    ends a command with status 1 says so in its text.
    """
    if interval_s < INTERVAL_MIN_S:
        raise MisuseError(f"the interval is {interval_s:g} s; it is at least 100ms")
    run.repeat()
    if run.output.is_terminal and not run.output.as_json:
        await _draw(run, report, interval_s, left)
        return
    if wait_first:
        await asyncio.sleep(interval_s)
    while True:
        await _once(run, report)
        run.output.flush()
        left -= 1
        if left == 0:
            return
        await asyncio.sleep(interval_s)


async def _once(run: CommandRun, report: Callable[[], Awaitable[None]]) -> None:
    try:
        await report()
    except CommandFailed as error:
        if not run.output.as_json:
            run.output.line(str(error))


async def _draw(run: CommandRun, report: Callable[[], Awaitable[None]], interval_s: float, left: int) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=run.output.console(), screen=True, auto_refresh=False) as live:
        while True:
            with run.output.captured() as page:
                await _once(run, report)
            live.update(Text.from_ansi(page.getvalue(), no_wrap=True), refresh=True)
            left -= 1
            if left == 0:
                return
            await asyncio.sleep(interval_s)
