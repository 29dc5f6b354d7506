"""A session whose Python processes run without pyspark's archive reads and writes as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nats_servers import running_server
from tests.support.spark import Feed

pytestmark = [pytest.mark.spark, pytest.mark.feature("spark.sessions")]

_JOB = """
import json, os, sys
from penstock.spark import ensure_spark, register
ensure_spark()
home = os.environ["SPARK_HOME"]
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "WARN").getOrCreate()
register(spark)
servers, stream, folder = sys.argv[1:]
options = dict(servers=servers, stream=stream)
spark.range(5).selectExpr("cast(id AS string) AS data").write.format("jetstream").options(
    subject=stream + ".rows", **options).mode("append").save()
query = spark.readStream.format("jetstream").options(**options).load().writeStream.format("parquet").options(
    path=folder + "/rows", checkpointLocation=folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
archives = spark.sparkContext.parallelize([0], 1).map(
    lambda _: [path for path in sys.path if path.endswith("pyspark.zip")]).first()
print(json.dumps([home, spark.read.parquet(folder + "/rows").count(), archives], default=str))
spark.stop()
"""


def test_a_query_reads_and_writes_without_the_archive(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with running_server("penstock", tmp_path / "store") as server:
        feed = Feed(server.port)
        feed.create("COMPILED", ["COMPILED.>"])
        feed.close()
        command = [sys.executable, "-c", _JOB, f"127.0.0.1:{server.port}", "COMPILED", str(tmp_path)]
        run = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
        )
    assert run.returncode == 0, run.stderr
    assert "WARN" in run.stderr  # Spark has some of its own
    assert "replaced" not in run.stderr  # the source that Spark discovered is not registered again
    home, rows, archives = json.loads(run.stdout.strip().splitlines()[-1])
    assert Path(home).parent == tmp_path / "cache" / "penstock"
    assert rows == 5
    # The path is still named; what is at the place is nothing.
    assert not any(Path(path).exists() for path in archives)
