"""The Spark rows of `make bench`: figures of penstock's source and sink.

Each script runs in its own process (a JVM cannot be restarted) and measures several rows, alternating those
that are compared. The goals are for one Spark core on an otherwise idle machine with another core for the
server; so the load and each process's CPU time per row are reported too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rows import is_wanted
from servers import ROOT

READ = ("spark_read.py", "--partitions", "1,2,4")
STREAM = ("spark_stream.py",)
WRITE = ("spark_write.py", "--partitions", "1,2")


@dataclass(frozen=True)
class SparkRow:
    """`figures` selects the measurement from the script's JSON, and `cpu` the CPU time per row."""

    name: str
    unit: str
    script: tuple[str, ...]
    figures: Callable[[dict[str, Any]], list[float]]
    cpu: Callable[[dict[str, Any]], dict[str, float]] | None = None
    goal: float | None = None
    most: float | None = None

    def missed(self, median: float) -> bool:
        return (self.goal is not None and median < self.goal) or (
            self.most is not None and median > self.most
        )

    def aim(self) -> str:
        if self.goal is not None:
            return f">= {self.goal:,g}" if self.goal < 1000 else f">= {self.goal:,.0f}"
        return f"<= {self.most:,g}" if self.most is not None else ""


def _reads(partitions: str) -> SparkRow:
    return SparkRow(
        f"Spark batch read, 128 B, {partitions} partition{'s' * (partitions != '1')}",
        "rows/s",
        READ,
        lambda found: found["by_partitions"][partitions]["rates"],
        lambda found: found["by_partitions"][partitions]["cpu_us"],
        goal=500_000 if partitions == "1" else None,
    )


def _writes(delivery: str, partitions: str) -> SparkRow:
    return SparkRow(
        f"Spark exactly-once write, {delivery}, 128 B, {partitions} partition{'s' * (partitions != '1')}",
        "rows/s",
        WRITE,
        lambda found: found[delivery][partitions]["rates"],
        lambda found: found[delivery][partitions]["cpu_us"],
        goal=200_000 if partitions == "1" else None,
    )


ROWS = [
    *map(_reads, ("1", "2", "4")),
    SparkRow(
        "Spark batch read, beside nats-py in mapPartitions",
        "times",
        READ,
        lambda found: [found["times_nats_py"]],
        goal=3,
    ),
    SparkRow(
        "Spark AvailableNow, 1 M rows, beside the batch read",
        "share",
        STREAM,
        lambda f: f["shares"],
        goal=0.6,
    ),
    SparkRow(
        "Spark AvailableNow, from its first micro-batch on",
        "share",
        STREAM,
        lambda found: found["shares_after_begin"],
    ),
    SparkRow(
        "Spark query's begin, beside one of an idle source",
        "ms",
        STREAM,
        lambda found: [found["begin_ms"]["ours"] - found["begin_ms"]["idle"]],
    ),
    SparkRow(
        "Spark micro-batch, beside one of an idle source",
        "ms",
        STREAM,
        lambda found: [found["overhead_ms"]],
        most=100,
    ),
    *(_writes(delivery, count) for delivery in ("publish", "fast", "atomic") for count in ("1", "2")),
]


def ran(script: tuple[str, ...]) -> dict[str, Any]:
    """The last line of a script's output."""
    command = [sys.executable, str(ROOT / "bench" / script[0]), *script[1:]]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def spark_rows(only: list[str], without: list[str], console: Console) -> dict[str, object]:
    """Measures the rows that `is_wanted` (rows.py) chooses, prints them as a table, and returns them for the
    JSON."""
    rows = [row for row in ROWS if is_wanted(row.name, only, without)]
    if not rows:
        return {}
    measured = {script: ran(script) for script in dict.fromkeys(row.script for row in rows)}
    table = Table(title="penstock and Spark: medians")
    table.add_column("scenario")
    table.add_column("unit")
    for name in ("figure", "goal", "least - most", "CPU us/row: server + JVM + Python", "load"):
        table.add_column(name, justify="right")
    results: dict[str, object] = {}
    for row in rows:
        found = measured[row.script]
        figures, cpu = row.figures(found), row.cpu(found) if row.cpu is not None else {}
        median = statistics.median(figures)
        colour = "red" if row.missed(median) else "green" if row.aim() else "default"
        table.add_row(
            row.name,
            row.unit,
            f"[{colour}]{figure(median)}[/]",
            row.aim(),
            f"{figure(min(figures))} - {figure(max(figures))}",
            " + ".join(f"{used:.1f}" for used in cpu.values()),
            str(found["load"]),
        )
        results[row.name] = {
            "unit": row.unit,
            "figures": {"penstock": figures},
            "goal": row.goal,
            "most": row.most,
            "cpu_us": cpu,
            "load": found["load"],
        }
    console.print(table)
    return results


def figure(value: float) -> str:
    """As shown in a table."""
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
