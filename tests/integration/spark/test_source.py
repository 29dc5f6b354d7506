"""`format("jetstream")` in a real Spark session: what a table holds is what was published."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark import Feed

pytestmark = pytest.mark.feature("spark.read")
# What does not depend on the server is tried on one.
OURS = pytest.mark.parametrize("server_kind", ["penstock"], indirect=True)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture(scope="module", name="spark")
def own_session(spark: SparkSession) -> SparkSession:
    """What is registered and set in it is so nowhere else."""
    return spark.newSession()


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


@OURS
def test_mistakes_are_named(source: Source, feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 1, 3))
    assert "did you mean 'subject'" in refusal(lambda: source.batch(stream, subjct="x").collect())
    assert "option 'stream' is missing" in refusal(lambda: source.batch("").collect())
    missing = refusal(lambda: source.batch("NOSUCH").collect())
    assert f"stream 'NOSUCH': stream not found; there are {stream}" in missing
    assert "no column 'sequence'" in refusal(lambda: source.batch(stream, schema="sequence bigint").collect())
    assert "is bigint, the given schema says" in refusal(
        lambda: source.batch(stream, schema="seq string").collect()
    )
    assert "latest" in refusal(lambda: source.batch(stream, startingOffsets="latest").collect())


PREDICATES = [
    "seq > 40 and seq <= 60",
    "seq in (3, 50, 1000)",
    "subject = '{stream}.1'",
    "subject in ('{stream}.1', '{stream}.3', 'elsewhere')",
    "subject like '{stream}.2%'",
    "startswith(subject, '{stream}.') and seq < 10",
    "time >= '{time}' and seq < 60",
    "time < '{time}'",
    "time = '{time}'",
    "stream = 'NONE'",
    "subject = 'elsewhere'",
    "seq > 5 and seq < 5",
    "not seq = 7 and subject <> '{stream}.1'",
]


def test_pushed_filters_give_the_rows_that_spark_would_keep(
    source: Source, spark: SparkSession, feed: Feed, stream: str
) -> None:
    feed.publish(numbered(stream, 1, 101))
    plain = source.batch(stream, columns="seq,subject,time,stream").cache()
    middle = plain.where("seq = 50").collect()[0].time.isoformat()
    conditions = [predicate.format(stream=stream, time=middle) for predicate in PREDICATES]
    kept = plain.selectExpr("seq", *(f"{c} as c{i}" for i, c in enumerate(conditions))).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for i, condition in enumerate(conditions):
            pushed = source.batch(stream, pushFilters="true", columns="seq,subject,time,stream")
            expected = sorted(row.seq for row in kept if row[f"c{i}"])
            assert sequences(pushed.where(condition)) == expected, condition
        both = source.batch(stream, pushFilters="true", subject=f"{stream}.*").where(
            f"subject = '{stream}.1'"
        )
        assert sequences(both) == list(range(1, 101, 4))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        plain.unpersist()
    refused = refusal(lambda: source.batch(stream, pushFilters="true").collect())
    assert "spark.sql.python.filterPushdown.enabled" in refused


@OURS
def test_registering_lets_filters_be_pushed(
    spark: SparkSession, source: Source, feed: Feed, stream: str
) -> None:
    from penstock.spark import register

    feed.publish(numbered(stream, 1, 11))
    session = spark.newSession()
    register(session)
    frame = Source(session, feed.port).batch(stream).where("seq > 7")
    assert sequences(frame) == [8, 9, 10]
    assert "seq#" not in plan_of(frame).partition("Filter")[2].partition("\n")[0]  # nothing is left to Spark
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"


def plan_of(frame: DataFrame) -> str:
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text


@OURS
def test_json_payloads_become_columns(source: Source, spark: SparkSession, feed: Feed, stream: str) -> None:
    good = [b'{"id":%d,"name":"n%d","tags":["a"],"at":"2026-01-31T12:00:00Z"}' % (i, i) for i in range(1, 41)]
    feed.publish([(f"{stream}.x", text) for text in [*good, b'{"id":', b""]])
    options = {"payload": "json", "payloadSchema": "id bigint, name string, tags array<string>, at timestamp"}
    frame = source.batch(stream, **options)
    assert frame.where("data.id > 38").orderBy("seq").selectExpr("data.*").collect()[0].name == "n39"
    assert frame.selectExpr("sum(data.id)", "count(*)", "count(data)").collect()[0][:] == (820, 42, 41)
    with_text = options["payloadSchema"] + ", _corrupt_record string"
    broken = source.batch(stream, payload="json", payloadSchema=with_text)
    assert [row[0] for row in broken.selectExpr("data._corrupt_record").dropna().collect()] == ['{"id":']
    assert source.batch(stream, **options, mode="DROPMALFORMED").count() == 41
    assert "Option 'mode' is FAILFAST" in refusal(
        lambda: source.batch(stream, **options, mode="FAILFAST").collect()
    )
    assert "give the fields by 'payloadSchema'" in refusal(lambda: source.batch(stream, payload="json"))
    as_json = frame.schema["data"].dataType.json()
    assert source.batch(stream, payload="json", payloadSchema=as_json).schema["data"] == frame.schema["data"]
    given = source.batch(stream, schema="seq bigint, data struct<id: bigint>", payload="json")
    assert given.agg({"data.id": "sum"}).collect()[0][0] == 820
    texts = source.batch(stream, payload="string", columns="data").collect()
    assert texts[0].data == good[0].decode()


def test_a_strict_query_fails_on_a_deleted_sequence(source: Source, feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 1, 21))
    assert source.batch(stream, failOnDataLoss="strict").count() == 20
    feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 7})
    assert source.batch(stream).count() == 19
    text = refusal(lambda: source.batch(stream, failOnDataLoss="strict").count())
    assert "1 of the sequences 1 to 20 have no row" in text


def test_ends_are_positions_too(source: Source, feed: Feed, stream: str) -> None:
    feed.create("ENDS", ["ends"])
    feed.publish([*numbered(stream, 1, 31), *[("ends", b"x")] * 5])
    both = source.batch(
        f"{stream},ENDS",
        startingOffsets=f'{{"{stream}": 11}}',
        endingOffsets=f'{{"{stream}": 21, "ENDS": 3}}',
    )
    found = {row.stream: row["count"] for row in both.groupBy("stream").count().collect()}
    assert found == {stream: 10, "ENDS": 2}
    assert sequences(source.batch(stream, endingTime="2001-01-01")) == []
    assert len(sequences(source.batch(stream, endingTime="2199-01-01"))) == 30
    feed.api("STREAM.DELETE.ENDS")


def test_progress_says_how_far_behind_a_query_is(
    source: Source, feed: Feed, stream: str, tmp_path: Path
) -> None:
    from penstock.spark import source_progress

    feed.publish(numbered(stream, 1, 101))
    feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 5})
    query = source.available_now(source.stream(stream, maxRecordsPerTrigger=60), tmp_path)
    first, second = (source_progress(p)[0] for p in query.recentProgress if p.numInputRows)
    assert (first.rows, first.sequences, first.skipped, first.lag) == (59, 60, 1, {stream: 40})
    assert (second.rows, second.skipped, second.lag) == (40, 0, {stream: 0})
    feed.publish(numbered(stream, 101, 201))
    size = feed.api(f"STREAM.INFO.{stream}")["state"]["bytes"] / 199
    query = source.available_now(source.stream(stream, maxBytesPerTrigger=int(50 * size) + 1), tmp_path)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [50, 50]


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


def test_a_stream_recreated_under_a_checkpoint_is_noticed(source: Source, feed: Feed, tmp_path: Path) -> None:
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
