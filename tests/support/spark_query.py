"""A streaming query in a process of its own, to be killed: `python -m tests.support.spark_query follow|finish
<port> <stream> <folder> <sink>`. sink: parquet, or a delivery to the stream COPY.

`follow` runs micro-batches for ever; `finish` runs what is left, then writes the sequences the sink holds to
<folder>/sequences.json (read by Spark, which knows the files that were committed from those that were not).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.spark import start_spark
from tests.support.spark_copy import copy_options, read_copy


def main(mode: str, port: str, stream: str, folder: Path, sink: str) -> None:
    spark = start_spark(folder)
    options = {"servers": f"127.0.0.1:{port}", "stream": stream, "minPartitions": "2"}
    if mode == "follow":
        options["maxRecordsPerTrigger"] = "300"  # several micro-batches before the kill
    frame = spark.readStream.format("jetstream").options(**options).load()
    if sink == "parquet":
        writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    else:
        numbered = frame.selectExpr("seq", "cast(seq as string) AS data")
        writer = numbered.writeStream.format("jetstream").options(**copy_options(f"127.0.0.1:{port}", sink))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if mode == "follow":
        writer.trigger(processingTime="0 seconds").start().awaitTermination()
        return
    writer.trigger(availableNow=True).start().awaitTermination()
    if sink == "parquet":
        rows = spark.read.parquet(str(folder / "out")).select("seq").collect()
        sequences = [row.seq for row in rows]
    else:
        sequences = read_copy(spark, f"127.0.0.1:{port}")
    (folder / "sequences.json").write_text(json.dumps(sequences))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
