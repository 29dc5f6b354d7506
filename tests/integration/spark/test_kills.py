"""Reads and writes that lose their Python workers and their server, and have every row exactly once.

`make spark-kills` kills more often. Killed drivers: test_restart.py.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.nats_servers import KINDS
from tests.support.replicated_clusters import replicated_cluster
from tests.support.replicated_feeds import ReplicatedFeeds
from tests.support.spark import Feed
from tests.support.spark_copy import DELIVERIES, copy_options, make_copy, read_copy
from tests.support.spark_kills import KINDS_OF_KILL, KillableServer, kill_one_worker, kills_wanted, slowly

pytestmark = pytest.mark.feature("spark.recovery")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

KILLS = kills_wanted(1)
MANY = 10
TIMEOUT_S = 120.0
STORED = 3_000
STREAMS = ("EVENTS", "COPY")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KillableServer]:
    running = KillableServer(request.param, tmp_path / "store")
    running.start()
    yield running
    running.kill()


class Publisher:
    """Publishes numbers, and knows what was acked."""

    def __init__(self, server: KillableServer) -> None:
        self.server = server
        self.count = 0
        feed = Feed(server.port)
        feed.create("EVENTS", ["events.>"], storage="file")
        feed.close()

    def publish(self, count: int) -> None:
        feed = Feed(self.server.port)
        numbers = range(self.count + 1, self.count + count + 1)
        feed.publish((f"events.{i % 5}", b"%d" % i) for i in numbers)
        feed.close()
        self.count += count


def frame_of(spark: SparkSession, servers: str, *, stream: bool) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    return (
        reader.format("jetstream")
        .options(servers=servers, stream="EVENTS", minPartitions=2)
        .options(batchRows=100, pullRecords=150, maxRecordsPerTrigger=1000, payload="string")
        .load()
        .select("seq", "data")
    )


def never() -> bool:
    return False


def strike(
    kind: str, server: KillableServer, chance: random.Random, is_over: Callable[[], bool] = never
) -> None:
    """One kill, soon. Nothing happens when what should be hit is over."""
    time.sleep(chance.random() * 0.5)
    if kind == "server":
        server.kill()
        time.sleep(chance.random() * 0.5)
        server.start()
        return
    deadline = time.monotonic() + TIMEOUT_S
    while not is_over() and not kill_one_worker(chance):
        assert time.monotonic() < deadline, "no Python worker to kill"
        time.sleep(0.01)


def has_ended(query: StreamingQuery) -> bool:
    return not query.isActive


def run_under_kills(start: Callable[[], StreamingQuery], publisher: Publisher, chance: random.Random) -> None:
    """A streaming query under kills, and in peace to its end. Kills that hit one task too often end it, as
    Spark's setting of task failures says; it is started again on its checkpoint then, as its owner would."""
    query = start()
    try:
        for kind in KINDS_OF_KILL * KILLS:
            publisher.publish(1_500)  # so that there are workers with something to do
            strike(kind, publisher.server, chance, partial(has_ended, query))
            if not query.isActive:
                query = start()
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None


def check(rows: list[tuple[int, str]], count: int) -> None:
    assert sorted(rows) == [(i, str(i)) for i in range(1, count + 1)]


def test_a_batch_read_has_every_row_once_whatever_is_killed(
    spark: SparkSession, server: KillableServer
) -> None:
    chance = random.Random(20_261)
    publisher = Publisher(server)
    publisher.publish(STORED)
    for kind in KINDS_OF_KILL * KILLS:
        frame = slowly(frame_of(spark, server.address, stream=False))
        assert frame.rdd.getNumPartitions() == 2  # planned, before anything is killed
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(frame.collect)
            strike(kind, server, chance)
            rows = reading.result(TIMEOUT_S)
        check([(row.seq, row.data) for row in rows], STORED)
    # A few kills may hit no task, many may not.
    assert KILLS < MANY or failed_tasks(spark) > 0


def test_a_streaming_query_has_every_row_once_whatever_is_killed(
    spark: SparkSession, server: KillableServer, tmp_path: Path
) -> None:
    chance = random.Random(20_262)
    publisher = Publisher(server)
    publisher.publish(STORED)
    writer = (
        slowly(frame_of(spark, server.address, stream=True))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    run_under_kills(writer.start, publisher, chance)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    check([(row.seq, row.data) for row in rows], publisher.count)


# One delivery will do where few kills are asked for; each is broken off everywhere in test_delivery.py.
@pytest.mark.parametrize("delivery", DELIVERIES if KILLS > 1 else ["fast"])
def test_a_streaming_write_stores_every_row_once_whatever_is_killed(
    spark: SparkSession, server: KillableServer, delivery: str, tmp_path: Path
) -> None:
    chance = random.Random(20_263)
    publisher = Publisher(server)
    publisher.publish(STORED)
    make_copy(server.port)
    writer = (
        slowly(frame_of(spark, server.address, stream=True))
        .writeStream.format("jetstream")
        .options(**copy_options(server.address, delivery))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    run_under_kills(writer.start, publisher, chance)
    found = read_copy(spark, server.address)
    assert sorted(found) == list(range(1, publisher.count + 1))


@pytest.mark.share(4 if KILLS == 1 else 1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_copy_has_every_row_once_whatever_leaders_end(
    spark: SparkSession, kind: str, delivery: str, tmp_path: Path
) -> None:
    chance = random.Random(20_264)
    with replicated_cluster(kind, tmp_path / "cluster") as made:
        cluster = ReplicatedFeeds(made)
        cluster.create(STORED, "EVENTS")
        cluster.create(0, "COPY")
        options = copy_options(cluster.urls, delivery) | {"subject": "COPY.rows.{seq}"}
        if delivery == "atomic":
            options |= {"markerSubject": "COPY.markers"}
        writer = (
            slowly(frame_of(spark, cluster.urls, stream=True))
            .writeStream.format("jetstream")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        query = writer.start()
        count = STORED
        try:
            for _ in range(KILLS):
                for end, stream in itertools.product((cluster.kill_leader, cluster.step_down), STREAMS):
                    cluster.publish("EVENTS", range(count + 1, count + 501))
                    count += 500
                    time.sleep(chance.random())
                    end(stream)
                    cluster.leader(stream)
                    cluster.repair()
            query.processAllAvailable()
        finally:
            query.stop()
        assert query.exception() is None
        assert sorted(read_copy(spark, cluster.urls, "COPY.rows.>")) == list(range(1, count + 1))


def failed_tasks(spark: SparkSession) -> int:
    """Of all jobs so far that no streaming query started."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage)
