"""The rows of `make bench` beside Spark's Kafka source and sink (spark_kafka.py).

Their names have "Kafka" in them and not "Spark", so that `--only kafka` measures these alone and `--only
spark` needs no Kafka. Each row is a ratio, the median of those of the rounds; above 1 penstock is ahead.
Where Java or the jars are missing the rows are left out, with a line that says what is missing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_ways import FURTHER, KAFKA, PENSTOCK, TUNED, tasks
from rich.console import Console
from rich.table import Table
from rows import is_wanted
from spark import figure, ran

SCRIPT = "spark_kafka.py"
QUICK_ROUNDS = 3
# Rows of each measurement with --quick: a fifth of those without, as far as that makes sense.
QUICK_ROWS = {"reads": 200_000, "streams": 200_000, "writes": 100_000, "latency": 4_000, "first": 20_000}


@dataclass(frozen=True)
class KafkaRow:
    """`figures(found, way)` selects the figures of a way, per round, from the JSON of a measurement.

    ours, rival: the ways to compare. by_time: the figures are times, of which the shorter is better.
    """

    name: str
    unit: str
    measurement: str
    rival: str
    figures: Callable[[dict[str, Any], str], list[float]]
    goal: float | None = None
    ours: str = PENSTOCK
    by_time: bool = False

    def ratios(self, found: dict[str, Any]) -> list[float]:
        """Of each round."""
        pairs = zip(self.figures(found, self.ours), self.figures(found, self.rival), strict=True)
        return [theirs / ours if self.by_time else ours / theirs for ours, theirs in pairs]


def _rates(
    measurement: str, name: str, rival: str, path: tuple[str, ...], goal: float | None, ours: str = PENSTOCK
) -> KafkaRow:
    """A row of rows per second, which stand at `path` in what the measurement found. name: with a place `{}`
    for the rival."""

    def figures(found: dict[str, Any], way: str) -> list[float]:
        for key in (*path, way):
            found = found[key]
        return list(found["rates"])

    return KafkaRow(
        name.format(f"beside {rival.capitalize()}"), "rows/s", measurement, rival, figures, goal, ours
    )


def _read(size_bytes: int, partitions: int, rival: str, goal: float | None = None) -> KafkaRow:
    size = f"{size_bytes} B" if size_bytes < 1024 else "1 KiB"
    name = f"batch read {{}}, {size}, {tasks(partitions)}"
    return _rates("reads", name, rival, (str(size_bytes), str(partitions)), goal)


def _stream(partitions: int, rival: str, goal: float | None = None) -> KafkaRow:
    name = f"AvailableNow {{}}, 128 B, {tasks(partitions)}"
    return _rates("streams", name, rival, (str(partitions),), goal)


def _write(delivery: str, partitions: int, rival: str, goal: float | None = None) -> KafkaRow:
    what = "at-least-once write" if delivery == "once" else f"exactly-once write, {delivery},"
    name = f"{what} {{}}, 128 B, {tasks(partitions)}"
    return _rates("writes", name, rival, (str(partitions),), goal, delivery)


def _latency(figure_name: str, label: str, goal: float | None = None) -> KafkaRow:
    return KafkaRow(
        f"publish to foreachBatch beside Kafka, 1,000 rows/s, {label}",
        "ms",
        "latency",
        KAFKA,
        lambda found, way: list(found[way][figure_name]),
        goal,
        by_time=True,
    )


def _first(kind: str, goal: float) -> KafkaRow:
    return KafkaRow(
        f"first {kind} of a session beside Kafka",
        "s",
        "first",
        KAFKA,
        lambda found, way: list(found[kind][way]),
        goal,
        by_time=True,
    )


ROWS = [
    _read(128, 1, TUNED, goal=2),
    _read(128, 4, TUNED, goal=1.8),
    _read(1024, 1, TUNED, goal=1.6),
    _read(1024, 4, TUNED, goal=1.6),
    *(
        _read(size, partitions, rival)
        for rival in (KAFKA, FURTHER)
        for size in (128, 1024)
        for partitions in (1, 4)
    ),
    *(_stream(partitions, KAFKA, goal=2.5) for partitions in (1, 4)),
    *(_stream(partitions, TUNED) for partitions in (1, 4)),
    *(
        _write(delivery, partitions, TUNED, goal=1.3 if delivery == "once" else 1.1)
        for delivery in ("publish", "fast", "atomic", "once")
        for partitions in (1, 4)
    ),
    *(
        _write(delivery, partitions, rival)
        for rival in (KAFKA, FURTHER)
        for delivery in ("publish", "fast", "atomic", "once")
        for partitions in (1, 4)
    ),
    _latency("median_ms", "median", goal=1.1),
    _latency("p99_ms", "p99"),
    _first("query", goal=1),
    _first("stream", goal=1),
]


def kafka_rows(only: list[str], without: list[str], console: Console, *, quick: bool) -> dict[str, object]:
    """Measures the rows that `is_wanted` (rows.py) chooses, prints them as a table, and returns them for the
    JSON."""
    rows = [row for row in ROWS if is_wanted(row.name, only, without)]
    measured: dict[str, dict[str, Any]] = {}
    for measurement in dict.fromkeys(row.measurement for row in rows):
        less = ("--messages", str(QUICK_ROWS[measurement]), "--rounds", str(QUICK_ROUNDS)) if quick else ()
        measured[measurement] = ran((SCRIPT, measurement, *less))
        if "missing" in measured[measurement]:
            console.print(f"no rows beside Kafka: {measured[measurement]['missing']}", soft_wrap=True)
            return {}
    results: dict[str, object] = {}
    table = Table(title="penstock beside Spark's Kafka source and sink: medians")
    table.add_column("scenario")
    table.add_column("unit")
    for name in ("penstock", "Kafka", "ratio", "goal", "least - most", "load"):
        table.add_column(name, justify="right")
    for row in rows:
        found = measured[row.measurement]
        figures = found[row.measurement]
        both = {
            name: row.figures(figures, way) for name, way in (("penstock", row.ours), (row.rival, row.rival))
        }
        ratios = row.ratios(figures)
        ratio = statistics.median(ratios)
        colour = "default" if row.goal is None else "red" if ratio < row.goal else "green"
        table.add_row(
            row.name,
            row.unit,
            *(figure(statistics.median(each)) for each in both.values()),
            f"[{colour}]{ratio:.2f}[/]",
            "" if row.goal is None else f">= {row.goal:g}",
            f"{min(ratios):.2f} - {max(ratios):.2f}",
            str(found["load"]),
        )
        results[row.name] = {
            "unit": row.unit,
            "figures": both,
            "ratio": ratio,
            "ratios": ratios,
            "goal": row.goal,
            "kafka": found["kafka"],
            "connector": found["connector"],
            "load": found["load"],
        }
    if rows:
        console.print(table)
    return results
