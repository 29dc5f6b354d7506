"""Lets a Spark session run this interpreter: environment variables before it starts, its context after.

Spark starts Python processes on the driver (one per source) and in executors. Unless PYSPARK_PYTHON or the
session names an interpreter, they run `python3` of PATH, which in an environment that is not activated is
another Python: it has no penstock, or another version of it. For local sessions this interpreter is the right
one; on a cluster only the user knows where the workers have theirs, so nothing is changed there.

Rejected: setting variables when the package is imported (workers import it too, and an import is not expected
to change the environment).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.spark.jvm import ensure_java
from penstock.spark.spark_home import ensure_compiled_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The name that an executor archive gives the folder it was unpacked into.
UNPACKED = "_UNPACKED"
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


def ensure_spark(cache: Path | None = None) -> None:
    """Prepare the environment for a local session. Call before creating it.

    Finds a Java (`ensure_java`), lets Spark's Python processes run this interpreter if PYSPARK_PYTHON is
    unset, and lets them import compiled modules (`ensure_compiled_spark`). Changes nothing in a program
    started by `spark-submit`, whose JVM runs already, or with a session of Spark Connect (SPARK_REMOTE).

    cache: directory for the Java shim and SPARK_HOME; default $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
    Raises ConfigError if there is no Java 17 or later.
    """
    if os.environ.get("PYSPARK_GATEWAY_PORT") or os.environ.get("SPARK_REMOTE"):
        return
    ensure_java(cache)
    ensure_compiled_spark(cache)
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, whose JVM is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def run_this_python(spark: SparkSession) -> None:
    """Let the Python processes of a local session run this interpreter, unless one was chosen."""
    context = spark.sparkContext
    is_chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if context.master.startswith("local") and not is_chosen:
        context.pythonExec = sys.executable


def unpacked_folder() -> str | None:
    """The folder with penstock if it is imported from an executor archive, else None."""
    folder: str | None = getattr(penstock, UNPACKED, None)
    return folder


def share_archive(spark: SparkSession) -> None:
    """If penstock is imported from an executor archive, let the session's Python processes find it.

    Spark hands the files of `--py-files` and `addArtifact` to executors and to most processes of the driver,
    but not to the one of a streaming source.
    """
    folder = unpacked_folder()
    if folder is None:
        return
    environment = spark.sparkContext.environment
    paths = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def is_discovered(spark: SparkSession, name: str) -> bool:
    """Whether the session has a data source of this name, registered or discovered by Spark.

    False if the session does not answer that, as where a platform restricts calls of the JVM.
    """
    from py4j.protocol import Py4JError

    try:
        return bool(spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists(name))
    except Py4JError:
        return False
