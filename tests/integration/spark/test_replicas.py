"""Replicated streams: tasks spread over the servers of a cluster, and go on when a stream's leader ends in
the middle of one. No JVM here; a query under kills is in test_kills.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock import errors
from penstock.protocol.arrow_columns import record_batch
from penstock.spark.offsets import SequenceRange, split
from penstock.spark.range_sessions import stream_bounds
from penstock.spark.reader import RangeReader
from penstock.spark.sink import write_rows
from penstock.spark.sink_options import SinkOptions
from penstock.spark.source_options import SourceOptions
from penstock.spark.task_identity import TaskIdentity
from penstock.spark.wire import BlockingConnection
from tests.support.nats_servers import KINDS
from tests.support.replicated_clusters import replicated_cluster
from tests.support.replicated_feeds import ReplicatedFeeds

SCHEMA = pa.schema(
    [pa.field("seq", pa.int64(), nullable=False), pa.field("data", pa.binary(), nullable=False)]
)
pytestmark = pytest.mark.feature("spark.recovery")

COUNT = 6_000


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplicatedFeeds]:
    with replicated_cluster(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield ReplicatedFeeds(made)


@pytest.fixture
def cluster(running: ReplicatedFeeds) -> Iterator[ReplicatedFeeds]:
    yield running
    running.repair()


def source(cluster: ReplicatedFeeds, stream: str, **given: str) -> SourceOptions:
    settings = {"servers": cluster.urls, "stream": stream, "retrySeconds": "30", "batchRows": "100"}
    return SourceOptions.parse(settings | {"pullRecords": "200", "requestTimeoutSeconds": "3"} | given)


def whole(options: SourceOptions) -> SequenceRange:
    with BlockingConnection.open(options.connection) as connection:
        found = stream_bounds(connection, options.streams[0])
    return SequenceRange(found.name, found.created, found.first_seq, found.last_seq + 1, found.replicas)


def read(
    options: SourceOptions, span: SequenceRange, at: dict[int, Callable[[], None]] | None = None
) -> list[tuple[int, int]]:
    """The sequences and numbers of a range. at: what happens when so many rows are there."""
    found: list[tuple[int, int]] = []
    todo = sorted((at or {}).items())
    for rows, buffers in RangeReader(options, span, SCHEMA.names).batches():
        batch = record_batch(SCHEMA, rows, buffers, stream="")
        found += [
            (seq, int(data)) for seq, data in zip(*(one.to_pylist() for one in batch.columns), strict=True)
        ]
        while todo and len(found) >= todo[0][0]:
            todo.pop(0)[1]()
    assert not todo
    return found


def numbered(start: int, end: int) -> list[tuple[int, int]]:
    return [(seq, seq) for seq in range(start, end)]


@pytest.mark.share(2)
@pytest.mark.parametrize("access", ["consumer", "direct"])
def test_a_read_goes_on_when_the_leader_steps_down_or_is_killed(
    cluster: ReplicatedFeeds, access: str
) -> None:
    stream = cluster.create(COUNT)
    options = source(cluster, stream, access=access)
    faults = {
        1_000: lambda: cluster.step_down(stream),
        2_500: lambda: cluster.kill_leader(stream),
        4_500: lambda: cluster.step_down(stream),
    }
    assert read(options, whole(options), faults) == numbered(1, COUNT + 1)


def test_the_tasks_of_a_read_begin_at_different_servers(cluster: ReplicatedFeeds) -> None:
    stream = cluster.create(300)
    options = source(cluster, stream, access="direct")
    span = whole(options)
    assert sorted(span.replicas) == ["a", "b", "c"]
    before = [_connections(cluster, index) for index in range(3)]
    tasks = options.of_tasks(options.connection)
    for part in split(span, parts_min=3, records_max=300):
        assert read(next(tasks), part) == numbered(part.start, part.end)
    assert [_connections(cluster, index) - before[index] for index in range(3)] == [1, 1, 1]


def _connections(cluster: ReplicatedFeeds, server: int) -> int:
    page = cluster.made.page(server, "connz?state=all")
    return sum(one.get("name") == "penstock-spark" for one in page["connections"])


def test_direct_gets_are_asked_of_servers_that_have_the_stream(cluster: ReplicatedFeeds) -> None:
    stream = cluster.create(10)
    options = source(cluster, stream)
    for name in "abc":
        for _ in range(3):
            with BlockingConnection.open(options.connection, [name]) as connection:
                assert connection.info.server_name == name
    with BlockingConnection.open(options.connection, ["elsewhere"]) as connection:
        assert connection.info.server_name in "abc"


def test_a_task_that_knows_one_server_goes_on_at_another_when_it_is_killed(cluster: ReplicatedFeeds) -> None:
    stream = cluster.create(COUNT)
    leader = cluster.leader(stream)
    options = source(cluster, stream, servers=cluster.made.servers[leader].url)
    faults = {1_000: lambda: cluster.kill_leader(stream)}
    assert read(options, whole(options), faults) == numbered(1, COUNT + 1)


def test_a_later_task_knows_the_servers_that_the_driver_discovered(cluster: ReplicatedFeeds) -> None:
    stream = cluster.create(10)
    options = source(cluster, stream, servers=cluster.made.servers[0].url)
    with BlockingConnection.open(options.connection) as connection:
        known = connection.known
    assert len(known.discovered) == 2
    cluster.made.kill(0)
    cluster.leader(stream)
    task = next(options.of_tasks(known))
    assert read(task, whole(task)) == numbered(1, 11)
    with pytest.raises(errors.NoServersError):
        BlockingConnection.open(options.connection)


@pytest.mark.share(2)
@pytest.mark.parametrize("delivery", ["publish", "fast", "atomic"])
def test_a_write_stores_every_row_once_when_the_leader_steps_down_or_is_killed(
    cluster: ReplicatedFeeds, delivery: str
) -> None:
    stream = cluster.create()
    settings = {
        "servers": cluster.urls, "stream": stream, "subject": f"{stream}.rows.{{key}}", "delivery": delivery,
        "retrySeconds": "30", "requestTimeoutSeconds": "3", "ackWindow": "64", "flow": "20",
    }  # fmt: skip
    if delivery == "atomic":
        settings |= {"markerSubject": f"{stream}.markers", "atomicRows": "50"}
    options = SinkOptions.parse(settings)
    identity = TaskIdentity(f"query{random.randrange(10**9)}", 7, 0)
    faults = {1_000: cluster.step_down, 2_400: cluster.kill_leader, 4_000: cluster.step_down}

    def batches(faults: dict[int, Callable[[str], None]]) -> Iterator[pa.RecordBatch]:
        for at in range(0, COUNT, 200):
            if at in faults:
                faults[at](stream)
            rows = [{"key": f"k{i % 3}", "data": b"%d" % i} for i in range(at, at + 200)]
            yield pa.RecordBatch.from_pylist(rows)

    write_rows(options, identity, batches(faults))
    reading = source(cluster, stream, subject=f"{stream}.rows.>", batchRows="10000")
    assert sorted(number for _, number in read(reading, whole(reading))) == list(range(COUNT))
    assert write_rows(options, identity, batches({})).duplicates == COUNT
