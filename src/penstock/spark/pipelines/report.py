"""HTML reports of pipeline runs: facts, tables and charts in one self-contained file.

matplotlib (`pip install 'penstock-nats[pipelines]'`) draws the charts, which are embedded as SVG.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.extras import need

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1d2733 }}
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #dde3ea }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
svg {{ max-width: 100%; height: auto }} footer {{ margin-top: 3rem; color: #66707c }}
</style></head><body><h1>{title}</h1>
{body}
<footer>penstock, {now}</footer></body></html>
"""

BLUE = "#1f6feb"


class PipelineReport:
    """Builder for a report. Methods append a part and return self."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def facts(self, facts: Mapping[str, object]) -> PipelineReport:
        """Append a two-column table of names and values."""
        rows = "".join(f"<tr><th>{_text(name)}</th>{_cell(value)}</tr>" for name, value in facts.items())
        self._parts.append(f"<table>{rows}</table>")
        return self

    def table(self, title: str, frame: pd.DataFrame) -> PipelineReport:
        """Append a table."""
        head = "".join(f"<th>{_text(name)}</th>" for name in frame.columns)
        rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in frame.itertuples(index=False))
        empty = "" if len(frame) else "<p>none</p>"
        self._parts.append(f"<h2>{_text(title)}</h2><table><tr>{head}</tr>{rows}</table>{empty}")
        return self

    def bars(self, title: str, labels: Sequence[str], values: Sequence[float], unit: str) -> PipelineReport:
        """Append a horizontal bar chart, first bar on top."""
        figure = _figure(max(1.5, 0.32 * len(labels) + 0.8))
        axes = figure.subplots()
        axes.barh(range(len(labels)), values, color=BLUE)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        return self._chart(title, figure)

    def line(self, title: str, x: Sequence[Any], y: Sequence[float], unit: str) -> PipelineReport:
        """Append a line chart over time."""
        figure = _figure(3.2)
        axes = figure.subplots()
        axes.plot(x, y, color=BLUE, linewidth=1.4)
        axes.fill_between(x, y, color=BLUE, alpha=0.12)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        figure.autofmt_xdate()
        return self._chart(title, figure)

    def _chart(self, title: str, figure: Figure) -> PipelineReport:
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", bbox_inches="tight")
        svg = out.getvalue()
        self._parts.append(f"<h2>{_text(title)}</h2>{svg[svg.index('<svg') :]}")
        return self

    def write(self, path: Path) -> Path:
        """Write the page, create its directory if missing, and return `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = _PAGE.format(title=_text(self.title), body="\n".join(self._parts), now=now)
        path.write_text(page, encoding="utf-8")
        return path


def _figure(height: float) -> Figure:
    need("a report with charts", "pipelines")
    from matplotlib.figure import Figure

    return Figure(figsize=(9, height))


def _text(value: object) -> str:
    return html.escape(str(value))


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f'<td class="number">{number}</td>'
    return f"<td>{_text(value)}</td>"
