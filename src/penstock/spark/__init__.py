"""The PySpark data source `jetstream`.

    from penstock.spark import register
    register(spark)
    spark.read.format("jetstream").option("stream", "ORDERS").load()

Import-light: pyspark and pyarrow are imported when something of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.jvm import ensure_java
    from penstock.spark.offsets import DataLossError
    from penstock.spark.options import SourceOptions
    from penstock.spark.source import JetStreamSource, register

__all__ = ["DataLossError", "JetStreamSource", "SourceOptions", "ensure_java", "register"]

_HOMES = {
    "DataLossError": "offsets",
    "JetStreamSource": "source",
    "SourceOptions": "options",
    "ensure_java": "jvm",
    "register": "source",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
