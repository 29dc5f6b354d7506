"""The fields of JSON payloads, inferred by Spark from a sample of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import MisuseError
from penstock.spark.session_setup import is_connect
from penstock.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_ROWS = 1000


def infer_payload_schema(
    spark: SparkSession,
    stream: str,
    options: Mapping[str, str] | None = None,
    *,
    rows: int = SAMPLE_ROWS,
) -> str:
    """Infer the fields of a stream's JSON payloads, for option `payloadSchema` or for `from_json`.

    options: of format `jetstream`; those that say where to start also say where the sample is. rows: how many
    messages to look at. Returns the fields as DDL. Spark's rules of inference apply: numbers are bigint or
    double, texts stay texts, and a field of different types becomes a string.

    A schema that changes between two runs changes a query: keep the text rather than infer it at every start.

    Raises MisuseError if the sample has no JSON object, and what reading raises.
    """
    register(spark)
    given = {**(options or {}), "stream": stream, "payload": "string"}
    sample = spark.read.format("jetstream").options(**given).option("columns", "data").load().limit(rows)
    texts = [row.data for row in sample.collect()]
    frame: Any
    if is_connect(spark):
        frame = spark.createDataFrame([(text,) for text in texts], "value string")
    else:
        frame = spark.sparkContext.parallelize(texts, 1)
    found = spark.read.json(frame).schema
    fields = [field for field in found.fields if field.name != "_corrupt_record"]
    if not fields:
        raise MisuseError(f"the first {len(texts)} messages of stream {stream!r} have no JSON object")
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)
