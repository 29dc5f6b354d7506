"""Micro-batches in Parquet; archives in formats whose jar is missing. Delta and Iceberg: test_lakes.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.main import main
from penstock.errors import ConfigError, MisuseError
from penstock.spark import register
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.batch_writes import parquet_batches
from penstock.spark.pipelines.replay import archived
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.feature("spark.tables"),
    pytest.mark.parametrize("server_kind", ["penstock"], indirect=True),
]


@pytest.fixture(scope="module", name="spark")
def own_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    register(session)
    return session


def test_a_micro_batch_that_is_repeated_after_its_write_is_in_parquet_once(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    feed.create("BATCHES", ["batches.>"])
    feed.publish((f"batches.{i}", b"%d" % i) for i in range(20))
    place, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    write, failures = parquet_batches(place), ["before", "after"]

    def failing(rows: DataFrame, batch_id: int) -> None:
        step = failures.pop(0) if failures else "none"
        assert step != "before"
        write(rows, batch_id)
        assert step != "after"

    def run() -> None:
        frame = (
            spark.readStream.format("jetstream").option("servers", f"127.0.0.1:{feed.port}").load("BATCHES")
        )
        query = (
            frame.writeStream.foreachBatch(failing)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for _ in range(2):
        with pytest.raises(Exception, match="AssertionError"):
            run()
    run()
    feed.publish([("batches.x", b"20")])
    run()
    rows = spark.read.parquet(place).orderBy("seq").collect()
    assert [(row.seq, row.batch) for row in rows] == [*((i, 0) for i in range(1, 21)), (21, 1)]
    assert [path.name for path in sorted(Path(place).glob("*/_SUCCESS"))] == ["_SUCCESS"] * 2


def test_a_format_without_its_jar_says_what_it_needs(
    spark: SparkSession, feed: Feed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed.create("NOJAR", ["nojar.>"])
    feed.publish([("nojar.a", b"x")])
    options = {"servers": f"127.0.0.1:{feed.port}"}
    place = str(tmp_path / "table")
    with pytest.raises(ConfigError, match=r"format delta needs Delta's jar .* does not name it"):
        archive(spark, "NOJAR", place, options, format="delta")
    with pytest.raises(ConfigError, match=r"no name of an Iceberg table: write catalog\.database\.table"):
        archive(spark, "NOJAR", place, options, format="iceberg")
    with pytest.raises(ConfigError, match=r"there is no setting spark\.sql\.catalog\.lake"):
        archived(spark, "lake.db.t", "iceberg")
    with pytest.raises(ConfigError, match="format 'orc': parquet, delta or iceberg"):
        archive(spark, "NOJAR", place, options, format="orc")
    spark.conf.set("spark.sql.catalog.gone", "org.apache.iceberg.spark.SparkCatalog")
    with pytest.raises(
        ConfigError, match=r"format iceberg needs Iceberg's jar .*org\.apache\.iceberg\.spark\.SparkCatalog"
    ):
        archived(spark, "gone.db.t", "iceberg")
    with pytest.raises(MisuseError, match="holds no archive"):
        archived(spark, place)
    words = ["pipeline", "archive", "NOJAR", place, "--servers", options["servers"]]
    assert main([*words, "--format", "delta"]) == 1
    assert "format delta needs Delta's jar in spark.jars.packages" in capsys.readouterr().err
    assert main([*words, "--format", "parquet", "--conf", "spark.ui.enabled=false"]) == 0
    assert main([*words, "--conf", "nonsense"]) == 2
