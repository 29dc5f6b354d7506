"""The Spark source from a wheel: imported, and read from where there is Java. Run by tools/wheels.py."""

from __future__ import annotations

import sys

from penstock.errors import ConfigError
from penstock.spark import ensure_compiled_spark, ensure_java


def main(url: str, count: int) -> None:
    from pyspark_jetstream import DefaultSource

    assert DefaultSource.name() == "jetstream"
    try:
        ensure_java()
    except ConfigError as error:
        print(f"the Spark source was imported and read nothing: {error}")
        return
    ensure_compiled_spark()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    options = {"servers": url, "stream": "WHEEL", "payload": "string"}
    rows = spark.read.format("jetstream").options(**options).load().collect()
    spark.stop()
    assert [row["seq"] for row in sorted(rows, key=lambda row: row["seq"])] == [*range(1, count + 1)]
    assert {row["data"] for row in rows} == {*map(str, range(count - 1)), "last"}
    print(f"Spark read a table of {len(rows):,} rows")


main(sys.argv[1], int(sys.argv[2]))
