"""Messages for later: publishes with delay or at, the list of what waits, and taking it back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

import penstock.client
from penstock.client import JetStream, Stream
from penstock.client.schedules import area_for, areas_of
from penstock.errors import JetStreamApiError, MisuseError, NoStreamError
from penstock.protocol.api import ApiStreamConfig
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.schedules", "stream.schedules")


@pytest.fixture
async def js(url: str) -> AsyncIterator[JetStream]:
    async with penstock.client.connect(url, request_timeout=10) as client:
        yield client.jetstream(timeout=10)


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[Stream]:
    stream = await js.create_stream(
        "S",
        subjects=["orders.>", "_schedules.orders.>"],
        allow_msg_schedules=True,
        allow_msg_ttl=True,
    )
    try:
        yield stream
    finally:
        await js.delete_stream("S")


async def subjects_in(stream: Stream) -> set[str]:
    return set((await stream.info(subjects_filter=">")).state.subjects)


async def test_a_delayed_message_waits_and_is_then_stored_under_its_subject(
    js: JetStream, stream: Stream
) -> None:
    """schedules"""
    ack = await js.publish("orders.eu", b"x", delay=timedelta(milliseconds=300), headers={"A": "b"}, ttl=60)
    (waiting,) = [schedule async for schedule in stream.schedules()]
    assert (waiting.target, waiting.seq, waiting.data, waiting.headers["A"]) == (
        "orders.eu", ack.seq, b"x", "b"
    )  # fmt: skip
    assert waiting.subject.startswith("_schedules.orders.")
    assert waiting.pattern.startswith("@at 2")

    async def is_there() -> bool:
        return await subjects_in(stream) == {"orders.eu"}

    await until(is_there)
    message = await stream.get_last_message("orders.eu")
    assert (message.data, message.headers["A"], message.headers["Nats-TTL"]) == (b"x", "b", "60")
    assert [schedule async for schedule in stream.schedules()] == []


async def test_many_messages_wait_side_by_side_and_each_can_be_taken_back(
    js: JetStream, stream: Stream
) -> None:
    """schedules"""
    later = datetime.now(UTC) + timedelta(hours=1)
    acks = [await js.publish("orders.eu", b"%d" % n, at=later) for n in range(4)]
    waiting = [schedule async for schedule in stream.schedules()]
    assert sorted(schedule.data for schedule in waiting) == [b"0", b"1", b"2", b"3"]
    await stream.cancel_schedule(acks[0])
    await stream.cancel_schedule(next(schedule for schedule in waiting if schedule.data == b"1"))
    assert sorted([schedule.data async for schedule in stream.schedules()]) == [b"2", b"3"]
    assert len([schedule async for schedule in stream.schedules(">")]) == 2
    with pytest.raises(JetStreamApiError, match="found"):
        await stream.cancel_schedule(acks[0])


async def test_the_same_message_id_waits_once(js: JetStream, stream: Stream) -> None:
    """schedules"""
    first = await js.publish("orders.eu", b"x", delay=3600, msg_id="1")
    again = await js.publish("orders.eu", b"x", delay=3600, msg_id="1")
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    assert len([schedule async for schedule in stream.schedules()]) == 1


async def test_what_can_not_be_meant_is_refused_before_anything_is_sent(
    js: JetStream, stream: Stream
) -> None:
    """schedules"""
    with pytest.raises(MisuseError, match="not both"):
        await js.publish("orders.eu", b"x", delay=1, at=datetime.now(UTC))
    with pytest.raises(MisuseError, match="expected_last_subject_sequence"):
        await js.publish("orders.eu", b"x", delay=1, expected_last_subject_sequence=0)
    with pytest.raises(MisuseError, match="time zone"):
        await js.publish("orders.eu", b"x", at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(NoStreamError, match=r"nobody\.there"):
        await js.publish("nobody.there", b"x", delay=1)
    assert await subjects_in(stream) == set()


async def test_a_stream_without_schedules_says_so(js: JetStream) -> None:
    """schedules"""
    stream = await js.create_stream("N", subjects=["n.>", "one"])
    with pytest.raises(JetStreamApiError) as refused:
        await js.publish("n.1", b"x", delay=1)
    assert refused.value.err_code == 10188
    with pytest.raises(MisuseError, match=r"`_schedules\.N\.>`"):
        await js.publish("one", b"x", delay=1)
    await stream.delete()


@pytest.mark.parametrize(
    ("subjects", "target", "area", "areas"),
    [
        (["orders.>"], "orders.eu", "orders._schedules", ["orders._schedules.>"]),
        (["a.>", "b.>"], "b.1", "b._schedules", ["a._schedules.>", "b._schedules.>"]),
        (["a.>", "_schedules.>"], "a.1", "_schedules", ["_schedules.>"]),
        (["one", "x._schedules.*"], "one", "x._schedules", ["x._schedules.*"]),
    ],
)
def test_where_messages_wait(subjects: list[str], target: str, area: str, areas: list[str]) -> None:
    """schedules"""
    config = ApiStreamConfig(name="S", subjects=subjects)
    assert (area_for(config, target), areas_of(config)) == (area, areas)
