"""Graphs of numbers over time in the cells of a terminal: pure functions of values and a size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SAMPLES_MAX = 1000
"""More than a terminal has columns."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL_COLUMNS = 11


@dataclass(frozen=True, slots=True)
class GraphSeries:
    """A graph: its title, the name of its number in samples, and how the number is shown.

    rate: the number counts up; its change a second is drawn.
    """

    title: str
    key: str
    text: Callable[[float], str]
    rate: bool = False


class GraphHistory:
    """The values of series over time, oldest first. Rates begin with the second sample."""

    def __init__(self, series: Sequence[GraphSeries]) -> None:
        self.series = tuple(series)
        self.values: dict[str, deque[float]] = {one.title: deque(maxlen=SAMPLES_MAX) for one in self.series}
        self._before: tuple[float, Mapping[str, float]] | None = None

    def add(self, at_s: float, sample: Mapping[str, float]) -> None:
        """Add a sample. at_s: on a steady clock. A counter that went down began again: its rate is 0."""
        for one in self.series:
            value = sample[one.key]
            if one.rate:
                if self._before is None or at_s <= self._before[0]:
                    continue
                value = max(0.0, (value - self._before[1][one.key]) / (at_s - self._before[0]))
            self.values[one.title].append(value)
        self._before = at_s, sample

    def latest(self) -> dict[str, float]:
        """The last value of each series, by its title; 0 where there is none yet."""
        return {title: values[-1] if values else 0.0 for title, values in self.values.items()}


def graph_lines(values: Sequence[float], text: Callable[[float], str], columns: int, rows: int) -> list[str]:
    """The lines of one graph: the newest value at the right, the highest and 0 written at the left."""
    width = columns - _LABEL_COLUMNS - 1
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    eighths = [round(value / top * rows * 8) if top > 0 else 0 for value in shown]
    lines = []
    for row in range(rows):
        floor = (rows - 1 - row) * 8
        cells = "".join(_EIGHTHS[min(8, max(0, one - floor))] for one in eighths)
        label = text(top) if row == 0 else text(0) if row == rows - 1 else ""
        lines.append(f"{label[:_LABEL_COLUMNS]:>{_LABEL_COLUMNS}} {cells:>{width}}".rstrip())
    return lines


def screen_lines(head: str, history: GraphHistory, columns: int, rows: int) -> list[str]:
    """A screen of graphs below each other. Those for which a terminal has no rows are left out."""
    if columns < _LABEL_COLUMNS + 6 or rows < 3:
        return ["The terminal is too small"[:columns]]
    lines = [head[:columns]]
    shown = history.series[: max(1, (rows - 1) // 3)]
    each = max(1, min(12, (rows - 1) // len(shown) - 2))
    for one in shown:
        values = history.values[one.title]
        now = one.text(values[-1]) if values else "-"
        lines += ["", f"{one.title}: {now}"[:columns], *graph_lines(values, one.text, columns, each)]
    return lines[:rows]
