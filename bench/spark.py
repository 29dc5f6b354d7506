"""The Spark rows of `make bench`: each a run of its own, as a JVM can't be begun anew."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from rich.console import Console
from servers import ROOT

READ_GOAL = 500_000
TIMES_NATS_PY_GOAL = 3
STREAM_SHARE_GOAL = 0.6
OVERHEAD_GOAL_MS = 100


def ran(script: str, *arguments: str) -> dict[str, Any]:
    """The last line of a benchmark's output."""
    command = [sys.executable, str(ROOT / "bench" / script), *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def spark_rows(rounds: int, console: Console) -> dict[str, object]:
    """Figures of the Spark source (penstock only), told on the console and for the JSON."""
    reads = [ran("spark_read.py") for _ in range(rounds)]
    spread = ran("spark_read.py", "--partitions", "1,2,4")["rows_per_s_by_partitions"]
    stream = ran("spark_stream.py")
    rate = statistics.median(float(read["rows_per_s"]) for read in reads)
    times = statistics.median(float(read["times_nats_py"]) for read in reads)
    by_partitions = ", ".join(f"{count}: {rows:,}" for count, rows in spread.items())
    console.print(f"Spark batch read, 128 B: median {rate:,.0f} rows/s a core (goal {READ_GOAL:,})")
    console.print(f"  times a plain nats-py reader in mapPartitions: {times:.1f} (goal {TIMES_NATS_PY_GOAL})")
    console.print(f"  rows/s by partitions, whole machine: {by_partitions}")
    console.print(f"Spark AvailableNow by batch read: {stream['share']} (goal {STREAM_SHARE_GOAL})")
    console.print(f"Spark micro-batch, ms of the source: {stream['overhead_ms']} (goal < {OVERHEAD_GOAL_MS})")
    return {
        "Spark batch read, 128 B": {
            "unit": "rows/s/core",
            "figures": {"penstock": [read["rows_per_s"] for read in reads]},
            "goal": READ_GOAL,
        },
        "Spark batch read, beside nats-py in mapPartitions": {
            "unit": "times",
            "figures": {"penstock": [read["times_nats_py"] for read in reads]},
            "goal": TIMES_NATS_PY_GOAL,
        },
        "Spark batch read by partitions": {"unit": "rows/s", "figures": {"penstock": spread}},
        "Spark streaming read": {"unit": "rows/s", "figures": {"penstock": stream}},
    }
