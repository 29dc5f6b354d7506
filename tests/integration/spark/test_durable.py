"""Streaming queries that read by a durable consumer: acked after the commit, each message once."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import errors
from penstock.spark.offsets import DataLossError
from penstock.spark.source import JetStreamSource
from penstock.spark.spark_versions import ReadAllAvailable, ReadMaxRows
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.durable_source import DurableStreamReader

pytestmark = pytest.mark.feature("spark.durable")

_names = (f"JOBS{n}" for n in itertools.count())


@pytest.fixture(params=["limits", "workqueue"])
def stream(request: pytest.FixtureRequest, feed: Feed) -> str:
    name = next(_names)
    feed.create(name, [f"{name}.>"], retention=request.param, allow_direct=True)
    return name


def publish(feed: Feed, stream: str, count: int) -> None:
    feed.publish((f"{stream}.{i % 3}", b"%d" % i) for i in range(count))


def made(feed: Feed, stream: str, **given: str) -> DurableStreamReader:
    options = {"servers": f"127.0.0.1:{feed.port}", "stream": stream, "durable": "spark", **given}
    source = JetStreamSource(options)
    reader: Any = source.streamReader(source.schema())
    return reader


def consumer(feed: Feed, stream: str) -> dict[str, Any]:
    return feed.api(f"CONSUMER.INFO.{stream}.spark")


def rows(reader: DurableStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(start, json.loads(json.dumps(end)))
    return [seq for part in parts for batch in reader.read(part) for seq in batch["seq"].to_pylist()]


def test_messages_are_acked_once_their_micro_batch_is_committed(feed: Feed, stream: str) -> None:
    publish(feed, stream, 30)
    reader = made(feed, stream)
    start = reader.initialOffset()
    one = reader.latestOffset(start, ReadMaxRows(20))
    assert rows(reader, start, one) == list(range(1, 21))
    assert consumer(feed, stream)["num_ack_pending"] == 20
    two = reader.latestOffset(one, ReadMaxRows(20))
    assert consumer(feed, stream)["ack_floor"]["stream_seq"] == 20
    assert rows(reader, one, two) == list(range(21, 31))
    assert reader.latestOffset(two, ReadAllAvailable()) == two
    info = consumer(feed, stream)
    assert (info["num_ack_pending"], info["num_pending"], info["ack_floor"]["stream_seq"]) == (0, 0, 30)
    reader.stop()


def test_a_new_driver_repeats_the_micro_batch_and_acks_what_was_committed(feed: Feed, stream: str) -> None:
    publish(feed, stream, 10)
    first = made(feed, stream)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    first.stop()
    second = made(feed, stream)
    assert rows(second, start, end) == list(range(1, 11))
    assert second.latestOffset(end, ReadAllAvailable()) == end
    assert consumer(feed, stream)["num_ack_pending"] == 0
    second.stop()


def test_what_is_delivered_again_is_acked_and_not_read(feed: Feed, stream: str) -> None:
    publish(feed, stream, 6)
    reader = made(feed, stream)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    known = end["durable"]
    for seq in (2, 5):  # the consumer delivers them again at once
        feed.nats.send(b"PUB $JS.ACK.%s.spark.1.%d.%d.0.0 4\r\n-NAK\r\n" % (stream.encode(), seq, seq))
    publish(feed, stream, 2)
    known["claims"] = ""  # as if the acks of the micro-batch had been lost with a server
    after = reader.latestOffset(end, ReadAllAvailable())
    assert rows(reader, end, after) == [7, 8]
    assert consumer(feed, stream)["num_ack_pending"] == 6
    reader.stop()


def test_queries_that_share_a_consumer_have_each_message_in_one_of_them(feed: Feed, stream: str) -> None:
    publish(feed, stream, 40)
    readers = [made(feed, stream), made(feed, stream)]
    offsets = [reader.initialOffset() for reader in readers]
    found: list[list[int]] = [[], []]
    for turn in range(6):
        at = turn % 2
        end = readers[at].latestOffset(offsets[at], ReadMaxRows(9))
        found[at] += rows(readers[at], offsets[at], end)
        offsets[at] = end
    assert sorted(found[0] + found[1]) == list(range(1, 41))
    assert found[0]
    assert found[1]
    for reader in readers:
        reader.stop()


def test_what_a_durable_consumer_can_not_do_is_refused(feed: Feed) -> None:
    name = next(_names)
    feed.create(name, [f"{name}.>"])
    config = {"durable_name": "spark", "ack_policy": "all"}
    feed.api(f"CONSUMER.DURABLE.CREATE.{name}.spark", {"stream_name": name, "config": config})
    reader = made(feed, name)
    with pytest.raises(errors.ConfigError, match="has ack policy all: it takes explicit acks"):
        reader.initialOffset()
    reader.stop()
    for given in ({"minRecordsPerTrigger": "5"}, {"failOnDataLoss": "strict"}, {"durable": "a,b"}):
        with pytest.raises(errors.ConfigError):
            made(feed, name, **given)
    queue = next(_names)
    feed.create(queue, [f"{queue}.>"], retention="workqueue")
    reader = made(feed, queue)
    with pytest.raises(errors.ConfigError, match="by direct gets: set its allow_direct"):
        reader.initialOffset()
    reader.stop()


def test_a_consumer_that_is_gone_ends_the_query(feed: Feed, stream: str) -> None:
    reader = made(feed, stream)
    start = reader.initialOffset()
    feed.api(f"CONSUMER.DELETE.{stream}.spark")
    with pytest.raises(DataLossError, match="was deleted"):
        reader.latestOffset(start, ReadAllAvailable())
    reader.stop()


@pytest.mark.spark
def test_a_query_over_a_work_queue_empties_it_and_has_every_message(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    name = next(_names)
    feed.create(name, [f"{name}.>"], retention="workqueue", allow_direct=True)

    def run() -> None:
        frame = spark.readStream.format("jetstream").options(
            servers=f"127.0.0.1:{feed.port}", stream=name, durable="spark", maxRecordsPerTrigger=60
        )
        writer = frame.load().select("data").writeStream.format("parquet")
        writer = writer.options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(120)

    for total in (100, 130):
        publish(feed, name, total if total == 100 else 30)
        run()
        assert spark.read.parquet(str(tmp_path / "out")).count() == total
        assert feed.api(f"STREAM.INFO.{name}")["state"]["messages"] == 0
