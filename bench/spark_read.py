"""How many rows a second one Spark core reads from a stream: 128 B payloads, every column materialised.

`local[1]`, one task: a server process, one Python worker and one JVM thread. The rows go to Spark's `noop`
sink, which takes every column of every row and keeps none, so what is measured is the source. The first reads
warm the JVM up. The last line of the output is JSON.

--server official measures the same against nats-server; --cores 2 uses two tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from load import fill_stream
from servers import official_server, penstock_server

from penstock.spark import ensure_java, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "SPARK"
SIZE_BYTES = 128
WARM_UP_READS = 2


def session(cores: int) -> SparkSession:
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    spark: SparkSession = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    return spark


def read(spark: SparkSession, port: int, messages: int, cores: int) -> float:
    """Rows a second of one whole read, its planning included."""
    frame = (
        spark.read.format("jetstream")
        .options(servers=f"nats://127.0.0.1:{port}", stream=STREAM)
        .options(recordsPerPartition=-(-messages // cores))
        .load()
    )
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--server", choices=["penstock", "official"], default="penstock")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as name:
        folder = Path(name)
        server = penstock_server(folder) if options.server == "penstock" else official_server(folder)
        if server is None:
            sys.exit("no nats-server on PATH and no go to install it")
        if options.server == "penstock":
            # Also works where the package is not installed, only on PYTHONPATH.
            server.command = [sys.executable, "-m", "penstock", "serve"]
        server.start()
        try:
            fill_stream(server.port, messages=options.messages, size_bytes=SIZE_BYTES, name=STREAM)
            spark = session(options.cores)
            rates = [
                read(spark, server.port, options.messages, options.cores)
                for _ in range(WARM_UP_READS + options.reads)
            ]
            spark.stop()
        finally:
            server.stop()
    rates = rates[WARM_UP_READS:]
    print(
        json.dumps(
            {
                "rows_per_s": round(statistics.median(rates) / options.cores),
                "rates": [round(rate) for rate in rates],
                "cores": options.cores,
                "messages": options.messages,
                "server": options.server,
            }
        )
    )


if __name__ == "__main__":
    main()
