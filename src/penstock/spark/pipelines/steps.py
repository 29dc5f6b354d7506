"""Progress bar for long-running work."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Steps:
    """Context manager for a progress bar of `total` units. Shows nothing without a console."""

    def __init__(self, console: Console | None, title: str, total: int) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._bar: Progress | None = None

    def __enter__(self) -> Steps:
        if self._console is not None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        return self

    def advance(self, units: int) -> None:
        """Advance the bar by `units`."""
        if self._bar is not None:
            self._bar.advance(self._task, units)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
