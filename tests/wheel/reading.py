"""The Spark source and sink from a wheel: imported, and used where there is Java. Run by tools/wheels.py.

    python reading.py <server> <messages> <folder>

Reads the stream WHEEL, which has so many messages, as a table, and copies it into its subjects `wheel.copy.>`
with a streaming query, which is started again with its checkpoint and then copies what the first run wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark import ensure_compiled_spark, ensure_java


def main(url: str, count: int, folder: Path) -> None:
    from pyspark_jetstream import DefaultSource

    assert DefaultSource.name() == "jetstream"
    try:
        ensure_java()
    except ConfigError as error:
        print(f"the Spark source was imported and read nothing: {error}")
        return
    ensure_compiled_spark()
    import pyspark
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    options = {"servers": url, "stream": "WHEEL", "payload": "string"}

    def rows_of_all() -> int:
        return spark.read.format("jetstream").options(**options).load().count()

    def copy() -> None:
        read = spark.readStream.format("jetstream").options(**options, startingTime="2001-01-01T00:00:00Z")
        write = read.load().select("data").writeStream.format("jetstream")
        write = write.options(servers=url, stream="WHEEL", subject="wheel.copy")
        query = (
            write.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    rows = spark.read.format("jetstream").options(**options).load().collect()
    assert [row["seq"] for row in sorted(rows, key=lambda row: row["seq"])] == [*range(1, count + 1)]
    assert {row["data"] for row in rows} == {*map(str, range(count - 1)), "last"}
    copy()
    assert rows_of_all() == 2 * count
    copy()
    assert rows_of_all() == 3 * count
    spark.stop()
    print(f"Spark {pyspark.__version__} read a table of {count:,} rows and streamed {2 * count:,}")


main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
