"""What the source needs of pyspark and only some versions have: Spark 4.0 to 4.3.

    since 4.1   filter pushdown, and Arrow batches for streaming writers by a class of their own
    since 4.2   limits of micro-batches (admission control), AvailableNow by the source, the latest offset in
                `lastProgress`

Before 4.2 Spark asks a Python source for its latest offset without saying where the query is, and takes the
first answer as the end of an AvailableNow query. So a micro-batch reads all that is there, and the options
that limit it are refused: a source that limited it there would end such queries early.

Rejected: comparing version numbers (platforms have versions of their own; what is there can be imported).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:
    HAS_LIMITS = False

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[no-redef]
        """Spark 4.0 gives Arrow batches to every writer of the first class, streaming or not."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.source_options import SourceOptions

__all__ = [
    "HAS_LIMITS",
    "DataSourceStreamArrowWriter",
    "LimitedStreamReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "arrow_schema_of",
    "check_limits",
]

if HAS_LIMITS:

    class LimitedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """Base of streaming readers that limit their micro-batches."""

else:
    # Names for annotations and comparisons; no Spark of these versions calls what uses them.
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxRows = ReadMinRows = type("NoReadLimit", (), {})

    class LimitedStreamReader(DataSourceStreamReader):  # type: ignore[no-redef]
        """Base of streaming readers where Spark has no limits."""


def check_limits(options: SourceOptions) -> None:
    """Raises ConfigError for options of a streaming read that need a later Spark."""
    if HAS_LIMITS:
        return
    from pyspark import __version__

    from penstock.errors import ConfigError

    given = {
        "maxRecordsPerTrigger": options.max_records_per_trigger is not None,
        "maxBytesPerTrigger": options.max_bytes_per_trigger is not None,
        "minRecordsPerTrigger": options.min_records_per_trigger > 1,
    }
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"option {name!r} needs Spark 4.2 or later, this is {__version__}, where a Python source "
                "can't limit a micro-batch: leave it out, and each micro-batch reads all that is there"
            )


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark wants of batches of `schema`, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    convert: Any = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # before 4.2 UTC is the default
        return convert(schema)
