"""The PySpark data source `jetstream`.

    from penstock.spark import register
    register(spark)
    spark.read.format("jetstream").option("stream", "ORDERS").load()

Importing the package does not import pyspark or pyarrow; they load on first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.jvm import ensure_java
    from penstock.spark.offsets import DataLossError
    from penstock.spark.progress import SourceProgress, source_progress
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
