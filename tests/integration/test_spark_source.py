"""`format("jetstream")` in a real Spark session: what a table holds is what was published."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture(scope="module", params=KINDS)
def feed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        yield Feed(server.port)


_stream_number = iter(range(1_000_000))


@pytest.fixture
def stream(feed: Feed) -> Iterator[str]:
    name = f"T{next(_stream_number)}"
    feed.create(name, [f"{name}.>"])
    yield name
    feed.api(f"STREAM.DELETE.{name}")


def numbered(stream: str, start: int, end: int) -> list[tuple[str, bytes]]:
    """Message with sequence i is (stream.<i % 4>, str(i)) when published in order from 1."""
    return [(f"{stream}.{i % 4}", b"%d" % i) for i in range(start, end)]


class Source:
    """Reads with the options every test needs."""

    def __init__(self, spark: SparkSession, port: int) -> None:
        self.spark = spark
        self.port = port

    def batch(self, stream: str, *, schema: str | None = None, **options: object) -> DataFrame:
        reader = self.spark.read.format("jetstream").option("servers", f"nats://127.0.0.1:{self.port}")
        if schema:
            reader = reader.schema(schema)
        return reader.options(stream=stream, **options).load()

    def stream(self, stream: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("jetstream").option("servers", f"127.0.0.1:{self.port}")
        return reader.options(stream=stream, **options).load()

    def available_now(self, frame: DataFrame, folder: Path) -> StreamingQuery:
        """Runs a query over what is there into Parquet under `folder`, its checkpoint beside it."""
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return query

    def written(self, folder: Path) -> list[int]:
        return sequences(self.spark.read.parquet(str(folder / "out")))


@pytest.fixture
def source(spark: SparkSession, feed: Feed) -> Source:
    return Source(spark, feed.port)


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def refusal(action: Any) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_a_batch_read_equals_what_was_published(source: Source, feed: Feed, stream: str) -> None:
    published = numbered(stream, 1, 2001)
    feed.publish(published)
    frame = source.batch(stream, recordsPerPartition=600, batchRows=250)
    assert frame.columns == ["subject", "seq", "time", "data", "stream"]
    rows = frame.orderBy("seq").collect()
    assert frame.rdd.getNumPartitions() == 4
    assert [(row.subject, bytes(row.data)) for row in rows] == published
    assert [row.seq for row in rows] == list(range(1, 2001))
    assert {row.stream for row in rows} == {stream}
    assert all(a.time <= b.time for a, b in pairwise(rows))


def test_ranges_filters_headers_and_pruning_in_one_stream(source: Source, feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 1, 101))
    feed.publish([(f"{stream}.h", b"h", b"NATS/1.0\r\nK: v\r\nK: w\r\n\r\n")])
    for seq in (10, 11, 101):
        assert sequences(source.batch(stream, startingSequence=seq)) == list(range(seq, 102))
    assert sequences(source.batch(stream, startingSequence=20, endingSequence=30)) == list(range(20, 31))
    assert sequences(source.batch(stream, endingSequence=0)) == []
    assert sequences(source.batch(stream, startingSequence=1000)) == []
    assert sequences(source.batch(stream, subject=f"{stream}.1,{stream}.2", minPartitions=3)) == [
        i for i in range(1, 101) if i % 4 in (1, 2)
    ]
    third = source.batch(stream).where("seq = 3").collect()[0].time
    later = sequences(source.batch(stream, startingTime=third.isoformat()))
    assert later[-1] == 101
    assert later[0] in (1, 2, 3)  # the column's microseconds cut the nanoseconds off
    assert sequences(source.batch(stream, startingTime="2199-01-01T00:00:00Z")) == []
    last = source.batch(stream, includeHeaders="true", startingSequence=100).orderBy("seq").collect()
    assert [row.headers for row in last] == [{}, {"K": ["v", "w"]}]
    pruned = source.batch(stream, schema="seq bigint, headers map<string, array<string>>")
    assert pruned.where("headers['K'][1] = 'w'").collect()[0].seq == 101


def test_empty_purged_and_deleted_streams(source: Source, feed: Feed, stream: str) -> None:
    assert sequences(source.batch(stream)) == []
    feed.publish(numbered(stream, 1, 51))
    feed.api(f"STREAM.PURGE.{stream}", {"seq": 11})
    for seq in (20, 21, 50):
        feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
    left = [i for i in range(11, 51) if i not in (20, 21, 50)]
    assert sequences(source.batch(stream, minPartitions=5)) == left
    assert sequences(source.batch(stream, startingSequence=1)) == left
    feed.api(f"STREAM.PURGE.{stream}")
    assert sequences(source.batch(stream)) == []


def test_several_streams_are_one_table(source: Source, feed: Feed, stream: str) -> None:
    feed.create("SECOND", ["second"])
    feed.publish([*numbered(stream, 1, 6), ("second", b"x"), ("second", b"y")])
    counts = source.batch(f"{stream},SECOND").groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in counts} == {stream: 5, "SECOND": 2}
    feed.api("STREAM.DELETE.SECOND")


def test_mistakes_are_named(source: Source, feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 1, 3))
    assert "did you mean 'subject'" in refusal(lambda: source.batch(stream, subjct="x").collect())
    assert "option 'stream' is missing" in refusal(lambda: source.batch("").collect())
    assert "stream not found" in refusal(lambda: source.batch("NOSUCH").collect())
    assert "no column 'sequence'" in refusal(lambda: source.batch(stream, schema="sequence bigint").collect())
    assert "is bigint, the given schema says" in refusal(
        lambda: source.batch(stream, schema="seq string").collect()
    )
    assert "latest" in refusal(lambda: source.batch(stream, startingOffsets="latest").collect())


def test_available_now_reads_what_is_there_and_a_restart_only_what_is_new(
    source: Source, feed: Feed, stream: str, tmp_path: Path
) -> None:
    feed.publish(numbered(stream, 1, 301))
    query = source.available_now(source.stream(stream, maxRecordsPerTrigger=120), tmp_path)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [120, 120, 60]
    assert source.written(tmp_path) == list(range(1, 301))
    source.available_now(source.stream(stream), tmp_path)
    assert source.written(tmp_path) == list(range(1, 301))
    feed.publish(numbered(stream, 301, 421))
    feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 333})
    source.available_now(source.stream(stream, minPartitions=3), tmp_path)
    assert source.written(tmp_path) == [i for i in range(1, 421) if i != 333]


def test_a_running_query_follows_the_stream(
    source: Source, spark: SparkSession, feed: Feed, stream: str
) -> None:
    feed.publish(numbered(stream, 1, 51))
    frame = source.stream(stream, startingOffsets="latest", subject=f"{stream}.1,{stream}.3")
    query = frame.writeStream.format("memory").queryName(stream).outputMode("append").start()
    try:
        query.processAllAvailable()
        feed.publish(numbered(stream, 51, 101))
        query.processAllAvailable()
        feed.publish(numbered(stream, 101, 121))
        query.processAllAvailable()
        progress = query.lastProgress
    finally:
        query.stop()
    assert sequences(spark.table(stream)) == [i for i in range(51, 121) if i % 2]
    assert progress is not None


def test_a_query_whose_messages_were_lost_fails_unless_told_otherwise(
    source: Source, feed: Feed, stream: str, tmp_path: Path
) -> None:
    feed.publish(numbered(stream, 1, 31))
    source.available_now(source.stream(stream), tmp_path)
    feed.publish(numbered(stream, 31, 61))
    feed.api(f"STREAM.PURGE.{stream}", {"seq": 41})
    text = refusal(lambda: source.available_now(source.stream(stream), tmp_path))
    assert "its first sequence is 41, sequence 31 was still to be read" in text
    source.available_now(source.stream(stream, failOnDataLoss="false"), tmp_path)
    assert source.written(tmp_path) == [*range(1, 31), *range(41, 61)]


def test_a_stream_made_anew_under_a_checkpoint_is_noticed(source: Source, feed: Feed, tmp_path: Path) -> None:
    feed.create("AGAIN", ["again"])
    feed.publish([("again", b"old")] * 5)
    source.available_now(source.stream("AGAIN"), tmp_path)
    feed.api("STREAM.DELETE.AGAIN")
    feed.create("AGAIN", ["again"])
    feed.publish([("again", b"new")] * 8)
    text = refusal(lambda: source.available_now(source.stream("AGAIN"), tmp_path))
    assert "the checkpoint is of the one created" in text
    source.available_now(source.stream("AGAIN", failOnDataLoss="false"), tmp_path)
    assert source.written(tmp_path) == sorted([*range(1, 6), *range(1, 9)])
    feed.api("STREAM.DELETE.AGAIN")
