"""Versions of Spark without read limits and filters, simulated: what is new in pyspark is taken out of it.

`make spark-versions` runs the real ones.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.spark.source_options import SourceOptions
from penstock.spark.spark_versions import HAS_LIMITS, check_limits

pytestmark = pytest.mark.feature("spark.stream", "spark.write")

AS_SPARK_4_0 = """
import sys
from inspect import signature
import pyspark.sql.datasource as theirs
sys.modules["pyspark.sql.streaming.datasource"] = None
new = "DataSourceStreamArrowWriter EqualNullSafe EqualTo Filter GreaterThan GreaterThanOrEqual In IsNotNull"
for name in (new + " LessThan LessThanOrEqual StringStartsWith").split():
    delattr(theirs, name)
del theirs.DataSourceReader.pushFilters
import pyspark.sql.pandas.types as types
now = types.to_arrow_schema
types.to_arrow_schema = lambda schema: now(schema, timezone="UTC")

from penstock.spark.sink import JetStreamStreamWriter
from penstock.spark.source import JetStreamSource
from penstock.spark.spark_versions import HAS_LIMITS, arrow_schema_of

assert not HAS_LIMITS
source = JetStreamSource({"stream": "S"})
source.reader(source.schema())
reader = source.streamReader(source.schema())
assert len(signature(reader.latestOffset).parameters) == 0  # Spark 4.0 calls it without any
assert str(arrow_schema_of(source.schema()).field("time").type) == "timestamp[us, tz=UTC]"
assert issubclass(JetStreamStreamWriter, theirs.DataSourceArrowWriter)
assert issubclass(JetStreamStreamWriter, theirs.DataSourceStreamWriter)
for name in ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"):
    limited = JetStreamSource({"stream": "S", name: "10"})
    try:
        limited.streamReader(limited.schema())
    except Exception as error:
        print(error)
"""


def test_without_read_limits_a_source_reads_and_refuses_to_limit() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AS_SPARK_4_0], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    for name, line in zip(
        ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger"), lines, strict=True
    ):
        assert line.startswith(f"option {name!r} needs Spark 4.2 or later")


def test_with_read_limits_they_are_taken() -> None:
    assert HAS_LIMITS
    check_limits(SourceOptions.parse({"stream": "S", "maxRecordsPerTrigger": "10"}))
