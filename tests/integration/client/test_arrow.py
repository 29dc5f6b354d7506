"""Streams as Arrow tables and tables as messages, on both servers."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import penstock.client
import penstock.sync
from penstock.client import Client, JetStream, Stream
from penstock.errors import MisuseError, StreamNotFoundError
from tests.support.cutting_proxy import cutting_proxy
from tests.support.nats_servers import AnyServer

pytestmark = pytest.mark.feature("client.arrow")

COUNT = 5_000


@pytest.fixture
async def numbers(js: JetStream) -> AsyncIterator[Stream]:
    """A stream whose message n, from 1 on, has the payload n; every tenth on another subject."""
    stream = await js.create_stream("N", subjects=["n.>"], storage="memory")
    async with js.publisher() as publisher:
        for number in range(1, COUNT + 1):
            await publisher.publish(f"n.{'ten' if number % 10 == 0 else 'one'}", str(number))
    yield stream
    await stream.delete()


def numbers_in(table: Any) -> list[int]:
    return [int(payload) for payload in table["data"].to_pylist()]


async def test_a_table_has_the_stream_s_messages(numbers: Stream) -> None:
    table = await numbers.to_arrow()
    table.validate(full=True)
    assert table.schema.names == ["subject", "seq", "time", "headers", "data"]
    assert numbers_in(table) == table["seq"].to_pylist() == list(range(1, COUNT + 1))
    assert set(table["subject"].to_pylist()) == {"n.one", "n.ten"}
    stored = await numbers.get_message(7)
    assert table["time"][6].as_py() == stored.time


async def test_columns_filters_and_bounds_are_those_asked_for(numbers: Stream) -> None:
    table = await numbers.to_arrow(columns=["seq"], filter_subject="n.ten", end_seq=100)
    assert table.to_pydict() == {"seq": list(range(10, 100, 10))}
    some = await numbers.to_arrow(deliver_policy="by_start_sequence", opt_start_seq=COUNT - 1)
    assert numbers_in(some) == [COUNT - 1, COUNT]
    sizes = [batch.num_rows async for batch in numbers.arrow_batches(columns=["seq"], max_rows=1_000)]
    assert sizes == [1_000] * 5
    with pytest.raises(MisuseError, match="no column"):
        await numbers.to_arrow(columns=["sequence"])
    with pytest.raises(MisuseError, match="no setting"):
        await numbers.to_arrow(ack_policy="none")  # type: ignore[call-arg]


async def test_a_read_ends_at_what_was_the_last_message(js: JetStream, numbers: Stream) -> None:
    seen: list[int] = []
    async for batch in numbers.arrow_batches(max_rows=500):
        seen += numbers_in(batch)
        await js.publish("n.one", b"0")
    assert seen == list(range(1, COUNT + 1))


async def test_deleted_and_absent_messages_do_not_hold_a_read_up(js: JetStream, numbers: Stream) -> None:
    await numbers.purge("n.one")
    await numbers.delete_message(COUNT)
    assert numbers_in(await numbers.to_arrow()) == list(range(10, COUNT, 10))
    assert (await numbers.to_arrow(filter_subject="n.none")).num_rows == 0
    await numbers.purge()
    assert (await numbers.to_arrow()).num_rows == 0


async def test_headers_are_a_map_of_lists(js: JetStream, stream: Stream) -> None:
    await js.publish("s.a", b"", headers=[("A", "1"), ("B", "2"), ("A", "3")])
    await js.publish("s.a", b"plain")
    table = await stream.to_arrow()
    assert table["headers"].to_pylist() == [[("A", ["1", "3"]), ("B", ["2"])], []]


async def test_a_stream_that_does_not_exist_is_an_error(js: JetStream, stream: Stream) -> None:
    gone = await js.stream("S")
    await js.delete_stream("S")
    with pytest.raises(StreamNotFoundError):
        await gone.to_arrow()
    await js.create_stream("S")


async def test_a_read_goes_on_after_lost_connections(server: AnyServer, numbers: Stream) -> None:
    async with (
        cutting_proxy(server.port) as proxy,
        penstock.client.connect(proxy.url, reconnect_wait=0.01, ignore_discovered=True) as client,
    ):
        stream = await client.jetstream(timeout=10).stream("N")
        seen: list[int] = []
        async for batch in stream.arrow_batches(max_rows=700):
            seen += numbers_in(batch)
            if len(seen) in (700, 2_100):
                proxy.cut()
        assert proxy.cuts == 2
    assert seen == list(range(1, COUNT + 1))


@pytest.mark.parametrize("step", range(1, 13))
async def test_a_read_that_is_cut_at_a_step_has_every_message_once(
    server: AnyServer, numbers: Stream, step: int
) -> None:
    async with (
        cutting_proxy(server.port) as proxy,
        penstock.client.connect(proxy.url, reconnect_wait=0.01, ignore_discovered=True) as client,
    ):
        stream = await client.jetstream(timeout=10).stream("N")
        await stream.info()  # whose answer is not repeated
        batches = stream.arrow_batches(max_rows=700)
        first = await anext(aiter(batches))
        proxy.cut_at(step)
        seen = numbers_in(first)
        async for batch in batches:
            seen += numbers_in(batch)
    assert seen == list(range(1, COUNT + 1))


async def test_batches_of_a_consumer_are_acked_when_the_next_is_asked_for(numbers: Stream) -> None:
    consumer = await numbers.create_consumer("c", max_ack_pending=2_000)
    seen: list[int] = []
    batches = consumer.arrow_batches(max_rows=1_500, idle=10)
    async for batch in batches:
        if not seen:
            info = await consumer.info()
            assert (batch.num_rows, info.ack_floor.stream_seq) == (1_500, 0)
        seen += numbers_in(batch)
        if len(seen) == COUNT:
            break
    await batches.aclose()  # type: ignore[attr-defined]
    assert seen == list(range(1, COUNT + 1))
    # The last batch was not finished: it is delivered again.
    info = await consumer.info()
    assert info.ack_floor.stream_seq == 4_500
    assert info.num_ack_pending == 500


async def test_a_consumer_without_acks_or_with_acks_of_all_is_read_to_its_end(numbers: Stream) -> None:
    for policy in ("none", "all"):
        consumer = await numbers.create_consumer(policy, ack_policy=policy)  # type: ignore[arg-type]
        seen = [number async for batch in consumer.arrow_batches(idle=0.3) for number in numbers_in(batch)]
        assert seen == list(range(1, COUNT + 1))
        assert (await consumer.info()).num_ack_pending == 0


async def test_rows_are_published_as_payloads_or_as_json(js: JetStream, stream: Stream) -> None:
    table = pa.table({"subject": ["s.a", "s.b"], "data": [b"1", b"2"]})
    assert await js.publish_arrow(table) == 2
    assert await js.publish_arrow(table.to_batches()[0], "s.c") == 2
    assert await js.publish_arrow(pa.table({"fruit": ["pear", "plum"], "count": [3, None]}), "s.json") == 2
    assert await js.publish_arrow(pd.DataFrame({"subject": ["s.d"], "x": [1.5]})) == 1
    found = [(msg.subject, msg.data) async for msg in stream.get_messages()]
    assert found == [
        ("s.a", b"1"), ("s.b", b"2"), ("s.c", b"1"), ("s.c", b"2"),
        ("s.json", b'{"fruit":"pear","count":3}'), ("s.json", b'{"fruit":"plum","count":null}'),
        ("s.d", b'{"x":1.5}'),
    ]  # fmt: skip
    for wrong, text in [
        (pa.table({"data": [b"1"]}), "needs a subject"),
        (pa.table({"subject": ["s.a"], "data": [1]}), "payloads are binary or string"),
        (pa.table({"subject": ["s.a"], "data": pa.array([None], pa.binary())}), "nulls"),
    ]:
        with pytest.raises(MisuseError, match=text):
            await js.publish_arrow(wrong)


async def test_the_same_without_async(url: str, numbers: Stream) -> None:
    def work() -> tuple[int, int, int]:
        with penstock.sync.connect(url) as client:
            js = client.jetstream()
            stream = js.stream("N")
            rows = sum(batch.num_rows for batch in stream.arrow_batches())
            return rows, stream.to_arrow().num_rows, js.publish_arrow(pa.table({"data": [b"1"]}), "n.one")

    assert await asyncio.to_thread(work) == (COUNT, COUNT, 1)


RECIPES = Path(__file__).parents[3] / "examples" / "arrow"


@pytest.mark.parametrize(
    "name", [name for name in ("pandas", "polars", "duckdb") if importlib.util.find_spec(name) is not None]
)
async def test_a_recipe_counts_the_orders(client: Client, name: str) -> None:
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"with_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    url = client.connected_url
    assert await asyncio.to_thread(recipe.main, url) == {"pear": 5, "plum": 2}
