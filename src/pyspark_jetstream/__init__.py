"""Registers format `jetstream` with Spark without a call: Spark imports every top-level module named
`pyspark_*` when a session starts and takes its `DefaultSource`.

Nothing else may be in here: an error in any such module turns discovery off for all of them.
"""

from penstock.spark.source import JetStreamSource as DefaultSource

__all__ = ["DefaultSource"]
