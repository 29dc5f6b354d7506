"""The same rows in a stream and in topics, written and read by Spark in the same way.

A way is who reads or writes:

    penstock
    kafka               Spark's Kafka source and sink with the defaults of Kafka's clients
    kafka tuned         with larger fetches; with batches compressed by lz4
    kafka tuned further with more records per poll too, after each of which Spark's source asks the broker for
                        the topic's range and fetches again; with larger batches, for which the sink waits

The tuned sources read a topic that the tuned producer filled. The subject of a message is the key of a
record, and both sources give the same five columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_broker import KafkaBroker, Topics, new_topics
from load import LoadError, create_stream, wire
from rich.progress import Progress
from servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PENSTOCK, KAFKA, TUNED, FURTHER = WAYS = ("penstock", "kafka", "kafka tuned", "kafka tuned further")
FILL_ROWS = 1000  # sent before their acks are read
COLLECTED_ROWS = 16_000  # a JVM with 1 GiB cannot collect 100,000 of 1 KiB
FILLER = '{"field": "value", "other": 17}'
TUNED_READ = {
    "kafka.fetch.min.bytes": str(1 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.receive.buffer.bytes": str(4 << 20),
}
READ_SETTINGS: dict[str, dict[str, str]] = {
    KAFKA: {},
    TUNED: TUNED_READ,
    FURTHER: {**TUNED_READ, "kafka.max.poll.records": "10000"},
}
TUNED_WRITE = {"kafka.compression.type": "lz4"}
WRITE_SETTINGS: dict[str, dict[str, str]] = {
    KAFKA: {},
    TUNED: TUNED_WRITE,
    FURTHER: {**TUNED_WRITE, "kafka.batch.size": str(256 << 10), "kafka.linger.ms": "10"},
}
KAFKA_COLUMNS = ("key", "offset", "timestamp", "value", "topic")
PENSTOCK_COLUMNS = ("subject", "seq", "time", "data", "stream")


@dataclass(frozen=True)
class Addresses:
    """Of the penstock server and of the Kafka broker, on loopback."""

    penstock_port: int
    kafka_port: int

    @property
    def penstock(self) -> str:
        return f"nats://127.0.0.1:{self.penstock_port}"

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"


@dataclass
class Pair:
    """The two servers, a session for both, and where to show progress."""

    penstock: ServerProcess
    kafka: KafkaBroker
    spark: SparkSession
    topics: Topics
    folder: Path
    progress: Progress

    @property
    def at(self) -> Addresses:
        return Addresses(self.penstock.port, self.kafka.port)

    def pids(self, way: str) -> tuple[int, list[int]]:
        """The server of a way, and the one that is idle meanwhile."""
        ours, theirs = self.penstock.pid, self.kafka.pid
        return (theirs, [ours]) if way in WRITE_SETTINGS else (ours, [theirs])


def payloads(spark: SparkSession, stream: str, rows: int, size_bytes: int, tasks: int) -> DataFrame:
    """Rows with an id, a subject out of ten, and a payload. A third of each payload differs from row to row,
    so that lz4 makes it about half as long, as it does with JSON records."""
    differing = ", ".join(f"hex(xxhash64(id, {i}))" for i in range(size_bytes // 48))
    return spark.range(0, rows, 1, tasks).selectExpr(
        "id",
        f"concat('{stream}.rows.s', id % 10) AS subject",
        f"cast(rpad(concat({differing}), {size_bytes}, '{FILLER}') AS binary) AS data",
    )


def tasks(partitions: int) -> str:
    """As rows and progress name them."""
    return f"{partitions} partition{'s' * (partitions != 1)}"


def topic_name(stream: str, partitions: int, way: str) -> str:
    return f"{stream}-{partitions}{'' if way == KAFKA else '-lz4'}"


def to_kafka(at: Addresses, frame: DataFrame, topic: str, way: str) -> None:
    """Writes subjects and payloads, and with a column `partition` to that one."""
    chosen = ["partition"] if "partition" in frame.columns else []
    (
        frame.selectExpr("subject AS key", "data AS value", *chosen)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", at.kafka)
        .options(topic=topic, **WRITE_SETTINGS[way])
        .save()
    )


def to_penstock(at: Addresses, frame: DataFrame, stream: str, options: Mapping[str, str]) -> None:
    (
        frame.select("subject", "data")
        .write.format("jetstream")
        .options(servers=at.penstock, stream=stream, **options)
        .mode("append")
        .save()
    )


def publish_all(port: int, stream: str, frame: DataFrame, rows: int) -> int:
    """Publishes the rows to a new stream, without headers as a Kafka producer does. The sink would add some.
    Returns the number of acks."""
    create_stream(port, stream, f"{stream}.>")
    acked = 0
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.fill 1\r\n")
        for batch in _batches(frame, rows):
            pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            publisher.sock.sendall(
                b"".join(
                    b"PUB %b _INBOX.fill %d\r\n%b\r\n" % (name.encode(), len(data), data)
                    for name, data in pairs
                )
            )
            acked += batch.num_rows
            got = 0
            while got < batch.num_rows:
                got += publisher.count(b'"seq":')
    return acked


def _batches(frame: DataFrame, rows: int) -> Iterator[Any]:
    """The subjects and payloads, FILL_ROWS at a time. Spark collects a share of them at a time: all of them
    do not fit in its driver."""
    for begin in range(0, rows, COLLECTED_ROWS):
        share = frame.where(f"id >= {begin} AND id < {begin + COLLECTED_ROWS}")
        yield from share.select("subject", "data").toArrow().to_batches(FILL_ROWS)


def fill(
    spark: SparkSession,
    at: Addresses,
    stream: str,
    rows: int,
    size_bytes: int,
    counts: Sequence[int],
    filled: Callable[[], object] = lambda: None,
) -> None:
    """The same rows in a new stream and in new topics of both producers, each with so many partitions.
    `filled` is called after each. Raises LoadError if one has another number of rows."""
    frame = payloads(spark, stream, rows, size_bytes, 1)
    stored = {stream: publish_all(at.penstock_port, stream, frame, rows)}
    filled()
    with new_topics(spark, at.kafka) as topics:
        for count in counts:
            for way in (KAFKA, TUNED):
                topic = topic_name(stream, count, way)
                topics.create(topic, count)
                to_kafka(at, frame.selectExpr("*", f"cast(id % {count} AS int) AS partition"), topic, way)
                stored[topic] = topics.stored(topic, count)
                filled()
    if set(stored.values()) != {rows}:
        raise LoadError(f"not {rows} rows each: {stored}")


def source(reader: Any, at: Addresses, way: str, stream: str, rows: int, partitions: int) -> DataFrame:
    """The rows of a stream or of a topic, by `spark.read` or `spark.readStream`: five columns."""
    if way == PENSTOCK:
        frame = (
            reader.format("jetstream")
            .options(servers=at.penstock, stream=stream, recordsPerPartition=-(-rows // partitions))
            .load()
        )
        return frame.select(*PENSTOCK_COLUMNS)
    frame = (
        reader.format("kafka")
        .option("kafka.bootstrap.servers", at.kafka)
        .options(subscribe=topic_name(stream, partitions, way), startingOffsets="earliest")
        .options(**READ_SETTINGS[way])
        .load()
    )
    return frame.select(*KAFKA_COLUMNS)


def discard(frame: DataFrame) -> None:
    """Reads every column of every row."""
    frame.write.format("noop").mode("overwrite").save()


def available_now(frame: DataFrame, checkpoint: Path) -> Any:
    """A query that has read what was stored when it began."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
