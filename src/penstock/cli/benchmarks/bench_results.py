"""Rates and percentiles of a benchmark."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.benchmarks.bench_jobs import BenchJob, BenchTimes
from penstock.cli.framework.value_texts import number_text, size_text

if TYPE_CHECKING:
    from penstock.cli.framework.cli_output import CommandOutput

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def percentile(ordered: list[float], percent: float) -> float:
    """The value below which so many percent of an ascending, non-empty list lie (nearest rank)."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def rate(times: BenchTimes) -> float:
    """Messages a second."""
    return times.messages / max(times.ended_s - times.started_s, 1e-9)


def total(all_times: list[BenchTimes]) -> BenchTimes:
    """All clients as one: from the first beginning to the last end."""
    return BenchTimes(
        sum(one.messages for one in all_times),
        sum(one.bytes for one in all_times),
        min(one.started_s for one in all_times),
        max(one.ended_s for one in all_times),
        sorted(latency for one in all_times for latency in one.latencies_s),
    )


def rate_text(times: BenchTimes) -> str:
    """`123,456 msgs/sec ~ 15.1 MiB/sec ~ 8.10us`."""
    found = rate(times)
    size = size_text(times.bytes / max(times.ended_s - times.started_s, 1e-9))
    return f"{number_text(round(found))} msgs/sec ~ {size}/sec ~ {1e6 / max(found, 1e-9):.2f}us"


def result_object(job: BenchJob, all_times: list[BenchTimes]) -> dict[str, Any]:
    """The result as a JSON object."""
    whole = total(all_times)
    found: dict[str, Any] = {
        "benchmark": job.kind,
        "clients": len(all_times),
        "messages": whole.messages,
        "bytes": whole.bytes,
        "seconds": whole.ended_s - whole.started_s,
        "messages_per_second": rate(whole),
        "bytes_per_second": whole.bytes / max(whole.ended_s - whole.started_s, 1e-9),
        "client_messages_per_second": [rate(one) for one in all_times],
    }
    latencies = whole.latencies_s
    if latencies:
        found["latency_s"] = {f"p{percent:g}": percentile(latencies, percent) for percent in PERCENTILES}
        found["latency_s"] |= {"min": latencies[0], "max": latencies[-1]}
    return found


def show_results(output: CommandOutput, job: BenchJob, all_times: list[BenchTimes]) -> None:
    """Print the result: the whole, each client, and latencies of single operations."""
    if output.as_json:
        output.json(result_object(job, all_times))
        return
    whole = total(all_times)
    title = f"NATS {job.kind} stats"
    output.line(f"{title}: {rate_text(whole)}")
    if len(all_times) > 1:
        for number, one in enumerate(all_times, 1):
            output.line(f" [{number}] {rate_text(one)} ({number_text(one.messages)} msgs)")
        rates = [rate(one) for one in all_times]
        low, high = number_text(round(min(rates))), number_text(round(max(rates)))
        middle, spread = (number_text(round(f(rates))) for f in (statistics.fmean, statistics.pstdev))
        output.line(f" message rates min {low} | avg {middle} | max {high} | stddev {spread} msgs")
    latencies = whole.latencies_s
    if latencies:
        texts = [f"P{percent:g}: {percentile(latencies, percent) * 1e6:.2f}us" for percent in PERCENTILES]
        output.line(f" latencies {' | '.join(texts)} | max: {latencies[-1] * 1e6:.2f}us")


def write_csv(file: Path, job: BenchJob, all_times: list[BenchTimes]) -> None:
    """Write a row for each client."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        names = "RunID", "ClientID", "MsgCount", "MsgBytes", "MsgsPerSec", "BytesPerSec", "DurationSecs"
        writer.writerow(names)
        for number, one in enumerate(all_times):
            duration = max(one.ended_s - one.started_s, 1e-9)
            sizes = one.messages, one.bytes, f"{rate(one):.1f}", f"{one.bytes / duration:.1f}"
            writer.writerow((job.kind, number, *sizes, f"{duration:.6f}"))
