"""Rows per second that Spark writes to a stream, exactly once: payloads of 128 B, ten subjects.

With one task (`local[1]`): a server process, one Python worker and one JVM thread, which also generates the
rows. The deliveries (publish, fast, atomic) alternate, each with a new stream; the first runs warm up the
JVM. The CPU time of each process is reported too: on a busy machine it is the more stable figure. The last
line of the output is JSON.

--server official measures nats-server; --delivery publish,once selects deliveries (`once`: publish with
exactlyOnce false, at least once); --partitions 1,2,4 writes with so many tasks, in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cputime import Figures, load_average, measured
from load import LoadError, create_stream, wire
from servers import ServerProcess
from spark_read import SIZE_BYTES, running_server, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "SINK"
WARM_UP_WRITES = 1
DELIVERIES: dict[str, dict[str, str]] = {
    "publish": {},
    "fast": {"delivery": "fast"},
    "atomic": {"delivery": "atomic", "markerSubject": f"{STREAM}.markers"},
    "once": {"exactlyOnce": "false"},
}


def write(spark: SparkSession, server: ServerProcess, delivery: str, rows: int, partitions: int) -> None:
    """One write, including its planning."""
    frame = spark.range(0, rows, 1, partitions).selectExpr(
        f"concat('{STREAM}.rows.s', id % 10) AS subject",
        f"cast(rpad(cast(id AS string), {SIZE_BYTES}, 'x') AS binary) AS data",
    )
    (
        frame.write.format("jetstream")
        .options(servers=f"nats://127.0.0.1:{server.port}", stream=STREAM, **DELIVERIES[delivery])
        .mode("append")
        .save()
    )


def make_stream(server: ServerProcess) -> None:
    create_stream(
        server.port, STREAM, f"{STREAM}.>", allow_batched=True, allow_atomic=True, allow_rollup_hdrs=True
    )


def check_stored(server: ServerProcess, rows: int) -> None:
    with wire(server.port) as control:
        asked = f'{{"subjects_filter":"{STREAM}.rows.>"}}'.encode()
        state = control.request(f"$JS.API.STREAM.INFO.{STREAM}", asked)["state"]
    assert isinstance(state, dict)
    stored = sum(state["subjects"].values())
    if stored != rows:
        raise LoadError(f"{stored} rows are stored, {rows} were written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--writes", type=int, default=3)
    parser.add_argument("--partitions", default="1", help="numbers of tasks, comma-separated")
    parser.add_argument("--delivery", default="publish,fast,atomic", help="comma-separated")
    parser.add_argument("--server", choices=["penstock", "official"], default="penstock")
    options = parser.parse_args()
    partitions = [int(text) for text in options.partitions.split(",")]
    ways = [(name, count) for name in options.delivery.split(",") for count in partitions]
    figures = {way: Figures() for way in ways}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-spark-") as name,
        running_server(options.server, Path(name)) as server,
    ):
        spark = session(max(partitions))
        for turn in range(WARM_UP_WRITES + options.writes):
            for way in ways:
                make_stream(server)
                found = figures[way] if turn >= WARM_UP_WRITES else Figures()
                with measured(server.pid, found, options.messages):
                    write(spark, server, way[0], options.messages, way[1])
                check_stored(server, options.messages)
        spark.stop()
    result: dict[str, Any] = {}
    for (delivery, count), found in figures.items():
        result.setdefault(delivery, {})[count] = found.summary()
    result |= {"messages": options.messages, "server": options.server, "load": load_average()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
