"""What every supported version of Spark does, in a process of that version's environment:

    python -m tests.support.spark_versions_query <server port> <folder>

Reads a stream as a batch and with AvailableNow, with and without a checkpoint, writes both ways, and prints
what it found as JSON. tests/integration/spark/test_spark_versions.py runs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  which type Spark makes of it differs by version
        return str(error)
    return ""


def main(port: str, folder: Path) -> None:
    from penstock.spark import ensure_spark, register

    ensure_spark()
    import pyspark
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    register(spark)
    options = {"servers": f"127.0.0.1:{port}", "stream": "VERSIONS", "payload": "string"}

    def table(**more: str) -> Any:
        return spark.read.format("jetstream").options(**options | more).load()

    def copy(checkpoint: str, **more: str) -> list[int]:
        """Streams what is there into COPY; returns the rows of each micro-batch."""
        query = (
            spark.readStream.format("jetstream")
            .options(**options | more)
            .load()
            .selectExpr("data", "seq % 3 AS part")
            .writeStream.format("jetstream")
            .options(servers=options["servers"], stream="COPY", subject="copy.{part}")
            .option("checkpointLocation", str(folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    frame = table(minPartitions="3", includeHeaders="true")
    found: dict[str, Any] = {"version": pyspark.__version__}
    rows = frame.orderBy("seq").collect()
    found["rows"] = [[row.seq, row.subject, row.data] for row in rows]
    found["headers"] = rows[0].headers
    found["columns"] = frame.columns
    found["filtered"] = [row.seq for row in table().where("seq > 90 and subject = 'versions.1'").collect()]
    found["json"] = table(payload="json", payloadSchema="n bigint", subject="versions.json").first().data.n
    found["first"] = copy("checkpoint")
    spark.range(5).selectExpr("cast(id AS string) AS data").write.format("jetstream").options(
        servers=options["servers"], stream="VERSIONS", subject="versions.later", writeId="w1"
    ).mode("append").save()
    found["second"] = copy("checkpoint")
    found["copied"] = spark.read.format("jetstream").options(**options | {"stream": "COPY"}).load().count()
    found["limited"] = refusal(lambda: found.update(batches=copy("limited", maxRecordsPerTrigger="60")))
    found["missing"] = refusal(lambda: table(stream="NONE").collect())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
