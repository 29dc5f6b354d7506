"""Baselines of the Spark benchmarks: a plain nats-py reader, and a source without data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

ROWS = "subject string, seq bigint, time timestamp, data binary, stream string"


def read_with_nats_py(port: int, stream: str, span: tuple[int, int]) -> Iterator[tuple[Any, ...]]:
    """Reads a range of sequences as users would in mapPartitions: a pull consumer with fetch(500)."""
    import asyncio
    from datetime import UTC, datetime

    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    first, last = span

    async def fetch() -> list[tuple[Any, ...]]:
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first, ack_policy=AckPolicy.NONE
        )
        pull = await client.jetstream().pull_subscribe(">", stream=stream, config=config)
        rows: list[tuple[Any, ...]] = []
        while not rows or rows[-1][1] < last:
            for message in await pull.fetch(500, timeout=5):
                meta = message.metadata
                when = meta.timestamp.astimezone(UTC) if meta.timestamp else datetime.now(UTC)
                rows.append((message.subject, meta.sequence.stream, when, message.data, stream))
        await client.close()
        return [row for row in rows if row[1] <= last]

    return iter(asyncio.run(fetch()))


class _Nothing(InputPartition):
    pass


class _IdleReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One constant row per micro-batch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": min(start["at"] + 1, self.batches)}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Nothing(0)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([pa.field("seq", pa.int64()), pa.field("data", pa.binary())])
        yield pa.RecordBatch.from_pydict({"seq": [1], "data": [b"x"]}, schema=schema)


class IdleSource(DataSource):
    """Measures the cost of a micro-batch of any Python source."""

    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> str:
        return "seq bigint, data binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _IdleReader(int(self.options["batches"]))
