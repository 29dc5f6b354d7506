"""The PySpark data source `jetstream`.

    from penstock.spark import register
    register(spark)
    spark.read.format("jetstream").option("stream", "ORDERS").load()

Importing the package does not import pyspark or pyarrow; they load on first use of a name.

Read first `source.py`, the entry point that Spark calls, then `reader.py` for reads and `sink.py` for writes.

    source.py, schema.py        the data source, its columns
    source_options.py, sink_options.py, connection_options.py
                                options and their checks
    kafka_options.py            what the options of Spark's Kafka source and sink are here
    offsets.py, positions.py, driver.py, progress.py
                                driver side: ranges of sequences per micro-batch, lag
    driver_checks.py            what is checked on the driver before a task starts
    pushdown.py                 filters that the server applies
    reader.py, range_sessions.py, reconnecting.py
                                executor side: reads one range of sequences, with retries
    wire.py, decoders.py        a blocking connection; payloads to columns
    payload_options.py, payloads/
                                their options; Avro, Protobuf, schema registries, CloudEvents, compression
    protocol/arrow_columns.py   messages to Arrow batches, as in the client
    sink.py, sink_rows.py, delivery.py, atomic_delivery.py, ledger.py, task_identity.py
                                writes: rows to messages, deliveries, exactly-once bookkeeping
    spark_versions.py           what only some versions of Spark have
    session_setup.py, jvm.py, spark_home.py
                                prepares sessions, finds Java, compiles Spark's Python modules
    executor_archive.py         one file for executors where nothing can be installed
    pipelines/                  ready-made pipelines

Invariants:
- A micro-batch is determined by its two offsets: reading it again returns the same messages, as long as the
  stream retains them. A lost message is an error unless `failOnDataLoss` is false.
- Reading acks nothing, and the checkpoint alone has the position.
- An executor task holds one range and one connection, in bounded memory.
- A write is idempotent per task with `exactlyOnce`: a repeated task skips the rows that are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.jvm import ensure_java
    from penstock.spark.offsets import DataLossError
    from penstock.spark.progress import SourceProgress, source_progress
    from penstock.spark.session_setup import ensure_spark
    from penstock.spark.source import JetStreamSource, register
    from penstock.spark.source_options import SourceOptions
    from penstock.spark.spark_home import ensure_compiled_spark

__all__ = [
    "DataLossError",
    "JetStreamSource",
    "SourceOptions",
    "SourceProgress",
    "ensure_compiled_spark",
    "ensure_java",
    "ensure_spark",
    "register",
    "source_progress",
]

_HOMES = {
    "DataLossError": "offsets",
    "JetStreamSource": "source",
    "SourceProgress": "progress",
    "source_progress": "progress",
    "SourceOptions": "source_options",
    "ensure_compiled_spark": "spark_home",
    "ensure_java": "jvm",
    "ensure_spark": "session_setup",
    "register": "source",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from penstock.extras import need

    need("penstock.spark", "spark")

    return getattr(import_module(f"{__name__}.{home}"), name)
