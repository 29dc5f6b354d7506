"""Sources and mirrors by a durable consumer that is named (ADR-60), on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest

from tests.support.nats_servers import AnyServer, until
from tests.support.origins import Streams, streams_on
from tests.support.talk import code, text

pytestmark = pytest.mark.feature("sourcing.durable-consumer")

CONSUMER = {"name": "c", "deliver_subject": "to.s"}


@pytest.fixture
async def streams(url: str) -> AsyncIterator[Streams]:
    async with streams_on(url) as streams:
        yield streams


async def durable(streams: Streams, origin: str = "O", name: str = "c", **config: Any) -> Any:
    settings = {"durable_name": name, "ack_policy": "flow_control", "deliver_subject": "to.s", **config}
    body = {"stream_name": origin, "config": settings}
    return await streams.api(f"CONSUMER.CREATE.{origin}.{name}", body)


async def acked(streams: Streams, floor: int, origin: str = "O") -> None:
    """Waits until the consumer was told that all up to there is stored."""

    async def reported() -> bool:
        info = await streams.api(f"CONSUMER.INFO.{origin}.c")
        return bool(info["ack_floor"]["stream_seq"] == floor and not info["num_ack_pending"])

    await until(reported, 30)


REFUSED: list[dict[str, Any]] = [
    {"consumer": {"name": "", "deliver_subject": "d"}},
    {"consumer": {"name": "c"}},
    {"consumer": {"name": "c", "deliver_subject": "d.*"}},
    {"consumer": {"name": "c", "deliver_subject": "d..x"}},
    {"consumer": CONSUMER, "opt_start_seq": 3},
    {"consumer": CONSUMER, "opt_start_time": "2024-01-01T00:00:00Z"},
    {"consumer": CONSUMER, "filter_subject": "o.1"},
]


async def test_what_names_no_consumer_or_says_what_the_consumer_says_is_refused(streams: Streams) -> None:
    await streams.make("O", "o.>")
    for fields in REFUSED:
        refused = await streams.create("S", sources=[{"name": "O", **fields}])
        assert (code(refused), text(refused)) == (10215, "stream source consumer config is invalid"), fields
        refused = await streams.create("M", mirror={"name": "O", **fields})
        assert (code(refused), text(refused)) == (10213, "stream mirror consumer config is invalid"), fields
    transforms = [{"src": "o.1", "dest": "p.1"}]
    twice = [
        {"name": "O", "consumer": CONSUMER},
        {"name": "O", "consumer": CONSUMER, "subject_transforms": transforms},
    ]
    refused = await streams.create("S", sources=twice)
    assert (code(refused), text(refused)) == (10216, "duplicate stream source consumer detected")
    made = await streams.make("S", sources=[twice[1]])
    assert made["config"]["sources"] == [twice[1]]
    assert made["config"]["metadata"]["_nats.req.level"] == "0"


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_what_the_consumer_delivers_is_stored_and_then_acked(streams: Streams, retention: str) -> None:
    await streams.make("O", "o.>", retention=retention)
    await durable(streams, filter_subject="o.1")
    for n in range(6):
        await streams.pub(f"o.{n % 2}", b"%d" % n, Own="h")
    transforms = [{"src": "o.1", "dest": "p.1"}]
    await streams.make("S", sources=[{"name": "O", "consumer": CONSUMER, "subject_transforms": transforms}])
    await streams.reaches("S", 3)
    stored = await streams.all("S")
    assert [(one.subject, one.payload) for one in stored] == [("p.1", b"1"), ("p.1", b"3"), ("p.1", b"5")]
    # Which origin, by which consumer; an interest stream stores no message that no consumer needs.
    seqs = ["2", "4", "6"]
    assert [one.source[1] for one in stored] == seqs
    assert stored[0].source[0].startswith("O:C=") and stored[0].source[2:] == ["o.1", "p.1", "o.1"]
    await acked(streams, 6)
    left = {"limits": 6, "workqueue": 3, "interest": 0}[retention]
    assert (await streams.state("O"))[0] == left
    for n in range(6, 9):
        await streams.pub("o.1", b"%d" % n)
    await streams.reaches("S", 6)
    await acked(streams, 9)
    (source,) = (await streams.info("S"))["sources"]
    assert (source["name"], source["lag"], "error" in source) == ("O", 0, False)
    assert (await streams.api("CONSUMER.NAMES.O"))["consumers"] == ["c"]


async def test_a_mirror_keeps_the_sequences(streams: Streams) -> None:
    await streams.make("O", "o.>")
    await durable(streams, deliver_subject="to.m")
    for n in range(8):
        await streams.pub(f"o.{n}", b"%d" % n)
    await streams.api("STREAM.MSG.DELETE.O", {"seq": 4})
    await streams.make("M", mirror={"name": "O", "consumer": {"name": "c", "deliver_subject": "to.m"}})
    await streams.reaches("M", 8)
    assert await streams.all("M") == await streams.all("O")
    await acked(streams, 8)


async def test_many_messages_arrive_once_each_through_small_windows(streams: Streams) -> None:
    await streams.make("O", "o.>")
    await durable(streams, max_ack_pending=7)
    for n in range(200):
        await streams.client.publish("o.x", b"%d" % n)
    await streams.make("S", sources=[{"name": "O", "consumer": CONSUMER}])
    await streams.reaches("S", 200)
    assert [one.payload for one in await streams.all("S")] == [b"%d" % n for n in range(200)]
    await acked(streams, 200)


async def test_a_restart_goes_on_from_what_was_acked_and_stores_nothing_twice(
    server: AnyServer, streams: Streams
) -> None:
    await streams.make("O", "o.>")
    await durable(streams)
    await streams.make("S", sources=[{"name": "O", "consumer": CONSUMER}])
    for n in range(20):
        await streams.pub("o.x", b"%d" % n)
    await streams.reaches("S", 20)
    await streams.client.close()
    server.stop()
    server.start()
    streams.client = await nats.connect(server.url, allow_reconnect=False)
    for n in range(20, 25):
        await streams.pub("o.x", b"%d" % n)
    await streams.reaches("S", 25, 60)
    assert [one.payload for one in await streams.all("S")] == [b"%d" % n for n in range(25)]
    await acked(streams, 25)


async def test_a_consumer_of_another_ack_policy_is_an_error_of_the_source(streams: Streams) -> None:
    await streams.make("O", "o.>")
    settings = {"ack_policy": "none", "flow_control": True, "idle_heartbeat": 10**9}
    await durable(streams, **settings)
    await streams.make("S", sources=[{"name": "O", "consumer": CONSUMER}])

    async def reported() -> bool:
        (source,) = (await streams.info("S"))["sources"]
        return code(source) == 10217

    await until(reported, 30)
    await streams.api("CONSUMER.DELETE.O.c")
    await durable(streams)
    await streams.pub("o.x", b"late")
    await streams.reaches("S", 1, 60)


async def test_a_reset_tells_the_identity_of_the_stream_to_who_asks_for_it(streams: Streams) -> None:
    await streams.make("O", "o.>")
    await durable(streams)
    asked = {"Nats-Stream-Identity": "other"}
    answer = await streams.client.request("$JS.API.CONSUMER.RESET.O.c", b"", headers=asked, timeout=5)
    assert len(answer.headers["Nats-Stream-Identity"]) > 4
    answer = await streams.client.request("$JS.API.CONSUMER.RESET.O.c", b"", timeout=5)
    assert answer.headers is None
