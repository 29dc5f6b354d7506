"""Registers format `jetstream` through Spark's discovery.

When a session starts, Spark imports every top-level module named `pyspark_*` and registers its
`DefaultSource`. Keep this module minimal: an error in any such module disables discovery for all of them.
"""

from penstock.spark.source import JetStreamSource as DefaultSource

__all__ = ["DefaultSource"]
