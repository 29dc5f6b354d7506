"""Writes the tables of docs/metrics.md, which are those of server/monitoring/metric_families.py.

python tools/metrics_page.py           write the page
python tools/metrics_page.py --check   fail if it differs from the code
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.server.monitoring.metric_families import PREFIX, PROCESS, SECTIONS, Rows

PAGE = Path(__file__).resolve().parent.parent / "docs/metrics.md"
BEGIN, END = "<!-- metrics -->\n", "\n<!-- end of metrics -->"
_SUFFIX = {"counter": "_total", "info": "_info"}


def name_on_page(name: str, kind: str, prefix: str = PREFIX) -> str:
    """The name of a family's samples; histograms add `_bucket`, `_sum` and `_count`."""
    return prefix + name + _SUFFIX.get(kind, "")


def table(title: str, rows: Rows, prefix: str = PREFIX) -> str:
    """One section of the page."""
    lines = [f"### {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, text in rows:
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(f"| `{name_on_page(name, kind, prefix)}` | {kind} | {shown} | {text} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the tables as the code has them."""
    tables = [table(title, rows) for title, rows in SECTIONS.items()]
    tables.append(table("Process", PROCESS, prefix=""))
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n\n".join(tables) + "\n" + END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page differs")
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if made == text:
        return 0
    if parser.parse_args().check:
        print(f"{PAGE.name} differs from the code: python tools/metrics_page.py", file=sys.stderr)
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
