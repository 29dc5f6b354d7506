"""Spark writes to streams: batch and streaming, exactly once, on both servers."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark import register
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.feature("spark.write")]
_names = (f"OUT{n}" for n in itertools.count())


@pytest.fixture(scope="module", name="spark")
def own_session(spark: SparkSession) -> SparkSession:
    """What is registered and set in it is so nowhere else."""
    return spark.newSession()


class Sink:
    def __init__(self, spark: SparkSession, feed: Feed) -> None:
        register(spark)
        self.spark = spark
        self.feed = feed
        self.stream = next(_names)
        feed.create(self.stream, [f"{self.stream}.>"], allow_atomic=True, allow_batched=True)

    def options(self, delivery: str, **given: str) -> dict[str, str]:
        options = {
            "servers": f"127.0.0.1:{self.feed.port}",
            "stream": self.stream,
            "subject": f"{self.stream}.rows.{{key}}",
            "delivery": delivery,
        }
        if delivery == "atomic":
            options |= {"markerSubject": f"{self.stream}.markers", "atomicRows": "100"}
        return options | given

    def rows(self) -> DataFrame:
        frame = self.spark.read.format("jetstream").options(
            servers=f"127.0.0.1:{self.feed.port}", stream=self.stream, subject=f"{self.stream}.rows.>"
        )
        return frame.load()

    def numbers(self) -> list[int]:
        return sorted(int(row.data) for row in self.rows().select("data").collect())


@pytest.fixture
def sink(spark: SparkSession, feed: Feed) -> Sink:
    return Sink(spark, feed)


def numbered(spark: SparkSession, count: int, parts: int = 3) -> DataFrame:
    return spark.range(0, count, numPartitions=parts).selectExpr(
        "cast(id as string) AS data", "concat('k', id % 5) AS key"
    )


@pytest.mark.parametrize("delivery", ["publish", "fast", "atomic"])
def test_a_batch_write_stores_every_row_and_the_same_write_again_none(sink: Sink, delivery: str) -> None:
    frame = numbered(sink.spark, 1_000)
    options = sink.options(delivery, writeId="import-1")
    for _ in range(2):
        frame.write.format("jetstream").options(**options).mode("append").save()
        assert sink.numbers() == list(range(1_000))
    frame.write.format("jetstream").options(**sink.options(delivery)).mode("append").save()
    assert len(sink.numbers()) == 2_000


def test_columns_become_subjects_headers_and_payloads(sink: Sink) -> None:
    frame = sink.spark.sql(
        "SELECT 'a' AS key, 7 AS n, to_json(struct(1 AS x)) AS data, map('Tag', array('t')) AS headers"
    )
    options = sink.options("publish", headers="N: {n}", exactlyOnce="false")
    frame.write.format("jetstream").options(**options).mode("append").save()
    message: dict[str, Any] = sink.feed.api(f"STREAM.MSG.GET.{sink.stream}", {"seq": 1})["message"]
    assert message["subject"] == f"{sink.stream}.rows.a"
    assert base64.b64decode(message["data"]) == b'{"x":1}'
    block = base64.b64decode(message["hdrs"])
    assert b"N: 7\r\n" in block and b"Tag: t\r\n" in block


@pytest.mark.parametrize("delivery", ["publish", "fast", "atomic"])
def test_a_streaming_query_run_again_from_an_older_checkpoint_doubles_nothing(
    sink: Sink, delivery: str, tmp_path: Path
) -> None:
    """The last micro-batch's commit is taken out of the checkpoint, as if the driver had died before it."""
    spark, feed = sink.spark, sink.feed
    origin = f"{sink.stream}IN"
    feed.create(origin, [f"{origin}.>"])
    feed.publish((f"{origin}.a", b"%d" % i) for i in range(500))
    source = {"servers": f"127.0.0.1:{feed.port}", "stream": origin, "maxRecordsPerTrigger": "200"}

    def run() -> None:
        frame = spark.readStream.format("jetstream").options(**source, minPartitions="2").load()
        rows = frame.selectExpr("data", "concat('k', seq % 5) AS key")
        writer = rows.writeStream.format("jetstream").options(**sink.options(delivery))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    assert sink.numbers() == list(range(500))
    commits = sorted(int(p.name) for p in (tmp_path / "commits").iterdir() if p.name.isdigit())
    assert len(commits) == 3
    for path in (tmp_path / "commits").glob(f"*{commits[-1]}*"):
        path.unlink()
    feed.publish((f"{origin}.a", b"%d" % i) for i in range(500, 600))
    run()
    assert sink.numbers() == list(range(600))


def test_what_spark_can_not_write_is_an_error(sink: Sink) -> None:
    frame = numbered(sink.spark, 10, 1)
    with pytest.raises(Exception, match="mode overwrite would have to empty the stream"):
        frame.write.format("jetstream").options(**sink.options("publish")).mode("overwrite").save()
    with pytest.raises(Exception, match="is no subject to publish to"):
        frame.write.format("jetstream").options(**sink.options("publish", subject="a b")).mode(
            "append"
        ).save()
    with pytest.raises(Exception, match="did you mean 'delivery'"):
        frame.write.format("jetstream").options(**sink.options("publish", deliverie="x")).mode(
            "append"
        ).save()
