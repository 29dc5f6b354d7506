"""The client's JetStream part on real servers, ours and the official one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import penstock.client
from penstock.client import AckPolicy, Client, Consumer, JetStream, JsMsg, StorageType, Stream, StreamConfig
from penstock.errors import (
    AlreadyExistsError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    DirectGetNotAllowedError,
    JetStreamApiError,
    JetStreamNotEnabledError,
    MessageNotFoundError,
    MisuseError,
    NoStreamError,
    PublishFailedError,
    PublishNotAckedError,
    PullError,
    RequestTimeoutError,
    StreamNotFoundError,
    SubjectsOverlapError,
    WrongLastSequenceError,
)
from penstock.protocol import status
from tests.support.jetstream_peer import JetStreamPeer, js_client
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.jetstream-context")


async def fill(js: JetStream, count: int, subject: str = "s.a") -> None:
    async with js.publisher() as publisher:
        for number in range(1, count + 1):
            await publisher.publish(subject, b"%d" % number)


def numbers(msgs: list[JsMsg]) -> list[int]:
    return [int(msg.data) for msg in msgs]


async def until_acked(consumer: Consumer) -> None:
    """The official server takes acks in the background: there is nothing else to wait for."""

    async def all_acked() -> bool:
        return (await consumer.info()).num_ack_pending == 0

    await until(all_acked)


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.feature("client.stream", "client.info")
async def test_a_stream_is_created_changed_listed_and_deleted(js: JetStream) -> None:
    stream = await js.create_stream(
        "LIFE", subjects=["life.>"], max_age=timedelta(hours=1), storage=StorageType.MEMORY, max_msgs=10
    )
    assert stream.config.max_age == 3600
    assert (await js.create_stream(StreamConfig(**_plain(stream)))).name == "LIFE"  # the same again is fine
    with pytest.raises(AlreadyExistsError):
        await js.create_stream("LIFE", subjects=["life.>"], max_msgs=11)
    changed = await js.update_stream("LIFE", max_msgs=20)
    assert (changed.config.max_msgs, changed.config.max_age) == (20, 3600)
    assert (await js.create_or_update_stream("LIFE", max_msgs=30)).config.max_msgs == 30
    assert "LIFE" in await js.stream_names()
    assert await js.stream_names("life.x") == ["LIFE"]
    assert [info.config.name async for info in js.streams("life.>")] == ["LIFE"]
    assert (await js.stream("LIFE")).cached_info.state.messages == 0
    assert (await js.account_info()).streams >= 1
    await js.delete_stream("LIFE")
    with pytest.raises(StreamNotFoundError, match=r"10059.*STREAM\.INFO\.LIFE"):
        await js.stream("LIFE")
    with pytest.raises(StreamNotFoundError):
        await js.update_stream(StreamConfig(name="LIFE"))


def _plain(stream: Stream) -> dict[str, object]:
    config = stream.config
    names = ("name", "subjects", "max_age", "storage", "max_msgs")
    return {name: getattr(config, name) for name in names}


async def test_more_streams_than_a_page_holds_are_all_listed(js: JetStream) -> None:
    names = [f"PAGE{number:03}" for number in range(300)]
    for name in names:
        await js.create_stream(name, subjects=[f"page.{name}"], storage="memory")
    assert sorted(name for name in await js.stream_names("page.>")) == names
    assert sorted([info.config.name async for info in js.streams("page.>")]) == names
    for name in names:
        await js.delete_stream(name)


async def test_settings_that_do_not_exist_are_refused_with_a_hint(js: JetStream) -> None:
    with pytest.raises(MisuseError, match="did you mean max_msgs"):
        await js.create_stream("X", max_mgs=3)
    with pytest.raises(MisuseError, match="storage"):
        await js.create_stream("X", storage="tape")
    with pytest.raises(MisuseError, match="needs a name"):
        await js.create_stream(subjects=["x"])


@pytest.mark.feature("client.stream")
async def test_messages_are_read_deleted_and_purged(js: JetStream, stream: Stream) -> None:
    before = datetime.now(UTC)
    for number in range(1, 7):
        await js.publish(f"s.{number % 2}", b"%d" % number, headers={"N": str(number)})
    for direct in (False, True, None):
        third = await stream.get_message(3, direct=direct)
        assert (third.subject, third.seq, third.data, third.stream) == ("s.1", 3, b"3", "S")
        assert dict(third.headers) == {"N": "3"}
        assert before - timedelta(seconds=60) < third.time < datetime.now(UTC) + timedelta(seconds=60)
        assert (await stream.get_last_message("s.1", direct=direct)).seq == 5
        assert (await stream.get_last_message("s.*", direct=direct)).seq == 6
        assert (await stream.get_message(3, next_by_subject="s.0", direct=direct)).seq == 4
        with pytest.raises(MessageNotFoundError):
            await stream.get_message(99, direct=direct)
        with pytest.raises(MessageNotFoundError):
            await stream.get_last_message("s.none", direct=direct)
    assert (await stream.info(subjects_filter="s.*")).state.subjects == {"s.0": 3, "s.1": 3}
    await stream.delete_message(3)
    await stream.delete_message(4, erase=True)
    assert (await stream.info(deleted_details=True)).state.deleted == [3, 4]
    assert await stream.purge("s.1", keep=1) == 1
    assert await stream.purge(seq=6) == 2
    assert await stream.purge() == 1
    with pytest.raises(MisuseError):
        await stream.purge(seq=1, keep=1)


@pytest.mark.feature("client.direct-get")
async def test_many_messages_are_read_without_a_consumer(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.stream.DIRECT_BATCH", 7)
    for number in range(1, 31):
        await js.publish(f"s.{number % 3}", b"%d" % number, headers={"N": str(number)})
    everything = [message async for message in stream.get_messages()]
    assert [message.seq for message in everything] == list(range(1, 31))
    assert [message.data for message in everything] == [b"%d" % number for number in range(1, 31)]
    assert dict(everything[4].headers) == {"N": "5"}
    assert [m.seq async for m in stream.get_messages(10, subject="s.1")] == list(range(10, 31, 3))
    assert [m.seq async for m in stream.get_messages(5, max_messages=9)] == list(range(5, 14))
    assert [m.seq async for m in stream.get_messages(31)] == []
    assert [m.seq async for m in stream.get_last_messages(["s.0", "s.1"])] == [28, 30]
    assert [m.seq async for m in stream.get_last_messages(["s.*"], up_to_seq=10)] == [8, 9, 10]
    assert [m.seq async for m in stream.get_last_messages(["s.none"])] == []
    await stream.delete_message(2)
    assert [m.seq async for m in stream.get_messages(1, max_messages=2)] == [1, 3]
    with pytest.raises(StreamNotFoundError, match="stream not found"):
        _ = [m async for m in js._bare_stream("NOPE").get_messages()]


# --- publishing ---------------------------------------------------------------------------------


@pytest.mark.feature("client.publish")
async def test_acks_tell_stream_and_sequence_and_duplicates_are_recognised(
    js: JetStream, stream: Stream
) -> None:
    first = await js.publish("s.a", b"x", msg_id="one")
    again = await js.publish("s.a", b"x", msg_id="one", headers={"Extra": "1"})
    assert (first.stream, first.seq, first.duplicate) == ("S", 1, False)
    assert (again.seq, again.duplicate) == (1, True)


@pytest.mark.feature("client.publish")
async def test_expectations_are_checked(js: JetStream, stream: Stream) -> None:
    await js.publish("s.a", expected_last_subject_sequence=0, msg_id="m1")
    await js.publish("s.b", expected_last_sequence=1, expected_stream="S", expected_last_msg_id="m1")
    with pytest.raises(WrongLastSequenceError, match="wrong last sequence: 2"):
        await js.publish("s.b", expected_last_sequence=1)
    with pytest.raises(WrongLastSequenceError):
        await js.publish("s.a", expected_last_subject_sequence=0)
    for option in ({"expected_stream": "OTHER"}, {"expected_last_msg_id": "m9"}):
        with pytest.raises(JetStreamApiError) as caught:
            await js.publish("s.b", **option)
        assert caught.value.err_code in (10060, 10070)
    assert (await stream.info()).state.messages == 2


@pytest.mark.feature("client.publish")
async def test_a_publish_that_no_stream_stores_fails_after_its_retries(js: JetStream, client: Client) -> None:
    started = client.loop.time()
    with pytest.raises(NoStreamError, match=r"nobody\.stores"):
        await js.publish("nobody.stores")
    assert client.loop.time() - started >= 0.5  # two retries, a quarter second apart (ADR-22)


async def without_leader(js: JetStreamPeer, asked: list[str], *, names: bytes, refusals: int) -> None:
    """A cluster whose stream has no leader: it refuses so many publishes, then it stores."""
    while True:
        subject, reply, _ = await js.request()
        asked.append(subject)
        if subject == "$JS.API.STREAM.NAMES":
            js.answer(reply, names)
        elif refusals:
            refusals -= 1
            js.status(reply, status.NO_RESPONDERS)
        else:
            js.answer(reply, b'{"stream":"S","seq":7}')


ONE_STREAM = b'{"total":1,"offset":0,"limit":1024,"streams":["S"]}'
LEADERLESS = (
    b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
)


async def unavailable(js: JetStreamPeer, asked: list[str], times: int) -> None:
    """A server that refuses requests while a leader is elected, and then answers."""
    while True:
        subject, reply, _ = await js.request()
        asked.append(subject)
        js.answer(reply, LEADERLESS if len(asked) <= times else b'{"success":true}')


@pytest.mark.feature("client.jetstream-context")
async def test_a_request_is_sent_again_while_the_cluster_elects_a_leader() -> None:
    asked: list[str] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await unavailable(js, asked, 3)

    async with js_client(script) as client:
        await client.jetstream().delete_stream("S")
    assert asked == ["$JS.API.STREAM.DELETE.S"] * 4


@pytest.mark.feature("client.jetstream-context")
async def test_a_cluster_without_a_leader_is_reported_at_the_timeout() -> None:
    asked: list[str] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await unavailable(js, asked, 1000)

    async with js_client(script) as client:
        with pytest.raises(JetStreamApiError, match="temporarily unavailable"):
            await client.jetstream(timeout=0.6).delete_stream("S")
    assert len(asked) == 3, "at once, and after each quarter of a second that left time for an answer"


@pytest.mark.feature("client.publish")
@pytest.mark.parametrize("names", [ONE_STREAM, LEADERLESS])
async def test_a_publish_waits_for_the_leader_of_its_stream(names: bytes) -> None:
    asked: list[str] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await without_leader(js, asked, names=names, refusals=5)

    async with js_client(script) as client:
        assert (await client.jetstream().publish("s.a", b"x")).seq == 7
    assert asked.count("s.a") == 6
    assert asked.index("$JS.API.STREAM.NAMES") == 3, "after the two tries of ADR-22"


@pytest.mark.feature("client.publish")
async def test_a_publish_says_that_its_stream_has_no_leader() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        await without_leader(js, [], names=ONE_STREAM, refusals=1000)

    async with js_client(script) as client:
        with pytest.raises(
            PublishNotAckedError, match="stream 'S' has no leader at present; it is not stored"
        ):
            await client.jetstream().publish("s.a", b"x", timeout=0.6)


@pytest.mark.feature("client.publish")
async def test_a_publish_waits_out_a_stream_that_comes_a_little_later(js: JetStream) -> None:
    publish = asyncio.ensure_future(js.publish("late.a", b"x"))
    await asyncio.sleep(0.05)
    assert not publish.done()
    await js.create_stream("LATE", subjects=["late.>"], storage="memory")
    assert (await publish).seq == 1
    await js.delete_stream("LATE")


async def test_an_answer_that_is_no_ack_is_not_taken_for_one(js: JetStream, client: Client) -> None:
    async def answer(msg: penstock.client.Msg) -> None:
        await msg.respond(b"hello")

    await client.subscribe("fake.stream", callback=answer)
    with pytest.raises(PublishNotAckedError, match="is no ack"):
        await js.publish("fake.stream")


@pytest.mark.feature("client.publish")
async def test_the_publisher_stores_everything_in_order(js: JetStream, stream: Stream) -> None:
    async with js.publisher(window=100) as publisher:
        pending = [await publisher.publish("s.a", b"%d" % number) for number in range(1, 2001)]
        assert publisher.pending <= 100
        assert (await pending[0]).seq == 1
    assert (publisher.acked, publisher.failed, publisher.pending) == (2000, 0, 0)
    assert [ack.result().seq for ack in pending] == list(range(1, 2001))
    assert (await stream.get_message(1777)).data == b"1777"


async def test_a_window_of_one_publishes_one_by_one(js: JetStream, stream: Stream) -> None:
    async with js.publisher(window=1) as publisher:
        for _ in range(20):
            await publisher.publish("s.a")
    assert (await stream.info()).state.messages == 20


async def test_failures_of_the_publisher_are_raised_by_their_ack_and_at_the_end(
    js: JetStream, stream: Stream
) -> None:
    async with js.publisher() as publisher:
        good = await publisher.publish("s.a")
        bad = await publisher.publish("s.a", expected_last_sequence=77)
        with pytest.raises(WrongLastSequenceError):
            await bad
        assert (await good).seq == 1
    assert (publisher.acked, publisher.failed) == (1, 1)  # looked at: not told again

    with pytest.raises(PublishFailedError, match="2 publishes failed, 1 were stored") as caught:  # noqa: PT012
        async with js.publisher() as publisher:
            await publisher.publish("s.a")
            await publisher.publish("s.a", expected_stream="OTHER")
            await publisher.publish("no.such.stream")
    assert sorted(subject for subject, _ in caught.value.failures) == ["no.such.stream", "s.a"]
    assert isinstance(caught.value.__cause__, JetStreamApiError)


async def test_a_publisher_works_inside_its_block_only(js: JetStream, stream: Stream) -> None:
    publisher = js.publisher()
    with pytest.raises(MisuseError, match="async with"):
        await publisher.publish("s.a")
    async with publisher:
        await publisher.publish("s.a")
        with pytest.raises(MisuseError, match="in use"):
            await publisher.__aenter__()
    with pytest.raises(MisuseError, match="async with"):
        await publisher.publish("s.a")
    assert (await stream.info()).state.messages == 1
    with pytest.raises(MisuseError, match="window"):
        js.publisher(window=0)


async def test_leaving_a_publisher_by_an_exception_leaves_nothing_waiting(
    js: JetStream, stream: Stream
) -> None:
    with pytest.raises(ValueError, match="enough"):  # noqa: PT012
        async with js.publisher() as publisher:
            in_flight = await publisher.publish("s.a")
            raise ValueError("enough")
    with pytest.raises(PublishNotAckedError, match="may be stored"):
        await in_flight


# --- consumers ----------------------------------------------------------------------------------


@pytest.mark.feature("client.info")
async def test_a_consumer_is_created_changed_listed_and_deleted(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C", filter_subject="s.a", ack_wait=timedelta(seconds=7))
    config = consumer.cached_info.config
    assert (config.durable_name, config.ack_policy, config.ack_wait) == (
        "C",
        AckPolicy.EXPLICIT,
        7,
    )
    await stream.create_consumer("C", filter_subject="s.a", ack_wait=timedelta(seconds=7))
    with pytest.raises(AlreadyExistsError):
        await stream.create_consumer("C", filter_subject="s.b")
    changed = await stream.update_consumer("C", description="changed")
    assert (changed.cached_info.config.description, changed.cached_info.config.filter_subject) == (
        "changed",
        "s.a",
    )
    with pytest.raises(JetStreamApiError):
        await js.update_consumer("S", penstock.client.ConsumerConfig(durable_name="NONE", name="NONE"))
    other = await js.create_or_update_consumer("S", "D", filter_subjects=["s.a", "s.b"])
    assert sorted(await stream.consumer_names()) == ["C", "D"]
    assert sorted([info.name async for info in stream.consumers()]) == ["C", "D"]
    assert (await js.consumer("S", "D")).name == other.name == "D"
    await other.delete()
    await js.delete_consumer("S", "C")
    with pytest.raises(ConsumerNotFoundError):
        await stream.consumer("C")
    ephemeral = await stream.create_consumer()
    assert ephemeral.name
    assert not ephemeral.cached_info.config.durable_name


@pytest.mark.feature("client.fetch", "client.next")
async def test_fetch_brings_what_is_there_and_acks_count(js: JetStream, stream: Stream) -> None:
    await fill(js, 10)
    consumer = await stream.create_consumer("C")
    msgs = await consumer.fetch(4)
    assert numbers(msgs) == [1, 2, 3, 4]
    metadata = msgs[2].metadata
    assert (metadata.stream, metadata.consumer, metadata.stream_seq, metadata.consumer_seq) == (
        "S",
        "C",
        3,
        3,
    )
    assert (metadata.delivered, metadata.pending, msgs[2].seq) == (1, 7, 3)
    assert abs(msgs[2].time - datetime.now(UTC)) < timedelta(minutes=1)
    for msg in msgs:
        await msg.ack()
    with pytest.raises(MisuseError, match="already"):
        await msgs[0].ack()
    last = await consumer.next()
    await last.ack_sync()
    info = await consumer.info()
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (5, 0, 5)
    assert numbers([msg async for msg in consumer.fetch(100, expires=0.2)]) == [6, 7, 8, 9, 10]
    assert await consumer.fetch(5, no_wait=True) == []
    with pytest.raises(RequestTimeoutError):
        await consumer.next(expires=0.1)


async def test_nak_brings_a_message_again_and_term_does_not(js: JetStream, stream: Stream) -> None:
    await fill(js, 3)
    consumer = await stream.create_consumer("C", max_deliver=5)
    first, second, third = await consumer.fetch(3)
    await first.in_progress()
    await first.nak()
    await second.nak(delay=0.05)
    await third.term("no good")
    again = await consumer.fetch(2, expires=5)
    assert numbers(again) == [1, 2]
    assert [msg.metadata.delivered for msg in again] == [2, 2]
    for msg in again:
        await msg.ack_sync()
    info = await consumer.info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 3)


@pytest.mark.feature("client.fetch-bytes")
async def test_fetch_by_bytes_stops_at_the_limit(js: JetStream, stream: Stream) -> None:
    for _ in range(10):
        await js.publish("s.a", bytes(1000))
    consumer = await stream.create_consumer("C")
    msgs = await consumer.fetch_bytes(3500, expires=5)
    assert len(msgs) == 3
    assert await consumer.fetch_bytes(100, expires=5) == []  # not even one fits


@pytest.mark.feature("client.fetch", "client.next")
async def test_fetch_waits_for_messages_that_come_later(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    fetch = asyncio.ensure_future(consumer.fetch(2, expires=10, heartbeat=0.5))
    next_ = asyncio.ensure_future(consumer.next(expires=10))
    await asyncio.sleep(0)
    await fill(js, 3)
    assert sorted(numbers([*await fetch, await next_])) == [1, 2, 3]


async def test_fetch_refuses_options_that_make_no_sense(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C", max_batch=10)
    for options in (
        {},
        {"max_messages": 1, "max_bytes": 1},
        {"max_messages": 0},
        {"max_messages": 1, "expires": 0},
    ):
        with pytest.raises(MisuseError):
            consumer.fetch(**options)
    fetch = consumer.fetch(1, no_wait=True)
    await fetch
    with pytest.raises(MisuseError, match="once"):
        await fetch
    with pytest.raises(PullError, match="Exceeded MaxRequestBatch of 10"):
        await consumer.fetch(11)


@pytest.mark.feature("client.statuses")
async def test_a_consumer_that_is_gone_ends_a_fetch(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    fetch = asyncio.ensure_future(consumer.fetch(1, expires=30))

    async def pull_waits() -> bool:
        return (await consumer.info()).num_waiting > 0

    await until(pull_waits)
    await consumer.delete()
    with pytest.raises(ConsumerGoneError, match="deleted"):
        await fetch
    with pytest.raises(ConsumerGoneError, match="does not exist"):
        await consumer.fetch(1)


@pytest.mark.feature("client.consume")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_messages": 1},
        {"max_messages": 2},
        {"max_messages": 7, "threshold_messages": 7},
        {"max_messages": 50, "threshold_messages": 0},
        {"max_bytes": 500},
        {"max_bytes": 100_000, "threshold_bytes": 1},
    ],
    ids=str,
)
async def test_consume_brings_every_message_once_and_in_order(
    js: JetStream, stream: Stream, options: dict[str, int]
) -> None:
    consumer = await stream.create_consumer("C", max_ack_pending=10_000)
    got: list[int] = []
    async with consumer.consume(**options) as messages:
        publish = asyncio.ensure_future(fill(js, 500))
        async for msg in messages:
            await msg.ack()
            got.append(int(msg.data))
            if len(got) == 500:
                break
        await publish
    assert got == list(range(1, 501))
    await until_acked(consumer)
    assert (await consumer.info()).ack_floor.stream_seq == 500


@pytest.mark.feature("client.consume-stop")
async def test_consume_with_a_callback_and_drain_sees_what_arrived(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    await fill(js, 50)
    seen: list[int] = []

    async def handle(msg: JsMsg) -> None:
        seen.append(int(msg.data))
        await msg.ack()

    consume = consumer.consume(handle, max_messages=100)
    await until(lambda: bool(seen))
    await consume.drain()
    assert seen == list(range(1, len(seen) + 1))
    await until_acked(consumer)
    assert consumer.cached_info.delivered.stream_seq == len(seen)
    with pytest.raises(MisuseError):
        consume.__aiter__()


@pytest.mark.feature("client.statuses")
async def test_consume_ends_when_the_consumer_is_deleted(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    await fill(js, 3)
    got = []
    with pytest.raises(ConsumerGoneError, match="deleted"):  # noqa: PT012
        async for msg in consumer.messages():
            got.append(int(msg.data))
            if len(got) == 3:
                await consumer.delete()
    assert got == [1, 2, 3]


@pytest.mark.feature("client.statuses")
async def test_consume_tells_refusals_as_warnings_and_goes_on(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.consume.REFUSED_WAIT_S", 0.05)
    warnings: list[Exception] = []
    consumer = await stream.create_consumer("C", max_batch=10)
    async with consumer.consume(max_messages=20, on_warning=warnings.append) as messages:
        await until(lambda: bool(warnings))
        await stream.update_consumer("C", max_batch=100)
        await fill(js, 1)
        assert (await messages.__anext__()).data == b"1"
    assert isinstance(warnings[0], PullError)
    assert "MaxRequestBatch" in str(warnings[0])


async def test_two_consumes_on_one_consumer_share_its_messages(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C", max_ack_pending=10_000)
    got: list[list[int]] = [[], []]

    def collector(mine: list[int]) -> penstock.client.consume.JsMessageCallback:
        async def handle(msg: JsMsg) -> None:
            mine.append(int(msg.data))
            await msg.ack()

        return handle

    consumes = [consumer.consume(collector(mine), max_messages=10) for mine in got]
    await fill(js, 1000)
    await until(lambda: len(got[0]) + len(got[1]) == 1000)
    for consume in consumes:
        consume.stop()
    assert sorted(got[0] + got[1]) == list(range(1, 1001))


@pytest.mark.feature("client.consume-stop")
async def test_draining_the_client_finishes_consumes_and_publishers(
    url: str, js: JetStream, stream: Stream
) -> None:
    await stream.create_consumer("C", filter_subject="s.a")
    await fill(js, 20)
    client = await penstock.client.connect(url)
    own = client.jetstream()
    seen: list[int] = []

    async def handle(msg: JsMsg) -> None:
        await asyncio.sleep(0)
        seen.append(int(msg.data))
        await msg.ack()

    consumer = await own.consumer("S", "C")
    consumer.consume(handle)
    async with own.publisher() as publisher:
        for _ in range(100):
            await publisher.publish("s.b")
        await until(lambda: bool(seen))
        await client.drain()
    assert (publisher.acked, publisher.failed) == (100, 0)
    consumer = await js.consumer("S", "C")
    await until_acked(consumer)
    assert consumer.cached_info.ack_floor.stream_seq == len(seen)


# --- ordered ------------------------------------------------------------------------------------


@pytest.mark.feature("client.ordered")
async def test_an_ordered_consumer_reads_everything_in_order(js: JetStream, stream: Stream) -> None:
    await fill(js, 1000)
    ordered = stream.ordered_consumer()
    got: list[int] = []
    async for msg in ordered.messages(max_messages=100):
        got.append(int(msg.data))
        if len(got) == 1000:
            break
    assert got == list(range(1, 1001))
    assert ordered.last_seq == 1000


async def test_an_ordered_consumer_starts_where_it_is_asked_to(js: JetStream, stream: Stream) -> None:
    for number in range(1, 11):
        await js.publish(f"s.{number % 2}", b"%d" % number)
    late = stream.ordered_consumer(opt_start_seq=8, deliver_policy="by_start_sequence")
    assert numbers(await late.fetch(3)) == [8, 9, 10]
    assert numbers(await stream.ordered_consumer(filter_subject="s.0").fetch(5)) == [2, 4, 6, 8, 10]
    assert numbers(await stream.ordered_consumer(deliver_policy="last").fetch(1)) == [10]
    with pytest.raises(MisuseError, match="ack_policy"):
        stream.ordered_consumer(ack_policy="explicit")


async def test_an_ordered_consumer_goes_on_where_it_stopped(js: JetStream, stream: Stream) -> None:
    await fill(js, 10)
    ordered = stream.ordered_consumer()
    assert numbers(await ordered.fetch(3)) == [1, 2, 3]
    assert int((await ordered.next()).data) == 4
    async with ordered.consume() as messages:
        assert int((await messages.__anext__()).data) == 5
    await ordered.close()
    assert numbers(await ordered.fetch(2)) == [6, 7]
    await ordered.close()
    assert await stream.consumer_names() == []


@pytest.mark.feature("client.ordered")
async def test_an_ordered_consumer_survives_the_loss_of_its_consumer(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.05)
    await fill(js, 10)
    ordered = stream.ordered_consumer()
    got: list[int] = []
    async with ordered.consume(max_messages=2) as messages:
        async for msg in messages:
            got.append(int(msg.data))
            if len(got) in (3, 6):
                for name in await stream.consumer_names():
                    await stream.delete_consumer(name)
            if len(got) == 10:
                break
    assert got == list(range(1, 11))


async def test_an_ordered_consumer_ends_with_its_stream(js: JetStream) -> None:
    stream = await js.create_stream("GONE", subjects=["gone"], storage="memory")
    messages = stream.ordered_consumer().consume(expires=1, heartbeat=0.5)
    await js.publish("gone", b"1")
    assert (await messages.__anext__()).data == b"1"
    await stream.delete()
    with pytest.raises(StreamNotFoundError):
        await messages.__anext__()
    with pytest.raises(StreamNotFoundError):
        await stream.ordered_consumer().fetch(1)
    with pytest.raises(StreamNotFoundError):
        await stream.ordered_consumer().consume().__anext__()


async def test_an_ordered_consumer_that_can_not_be_made_says_so(stream: Stream) -> None:
    with pytest.raises(JetStreamApiError, match="filter"):
        await stream.ordered_consumer(filter_subjects=["s.a", "s.>"]).consume().__anext__()


# --- what goes wrong, said apart ------------------------------------------------------------------


async def test_ack_wait_of_a_plain_number_is_seconds_on_the_server(js: JetStream, stream: Stream) -> None:
    consumer = await stream.create_consumer("C", ack_wait=30, inactive_threshold=timedelta(hours=1))
    info = await consumer.info()
    assert (info.config.ack_wait, info.config.inactive_threshold) == (30, 3600)
    raw = await js.session.request(b"$JS.API.CONSUMER.INFO.S.C", b"", b"")
    assert b'"ack_wait":30000000000,' in raw[4]


@pytest.mark.feature("client.direct-get")
async def test_direct_gets_of_a_stream_that_does_not_allow_them_say_that(js: JetStream) -> None:
    stream = await js.create_stream("CLOSED", subjects=["closed"], storage="memory", allow_direct=False)
    with pytest.raises(DirectGetNotAllowedError, match="allow_direct=True"):
        _ = [message async for message in stream.get_messages()]
    with pytest.raises(DirectGetNotAllowedError, match="allow_direct=True"):
        await stream.get_message(1, direct=True)
    assert (await js.create_stream("OPEN", subjects=["open"], storage="memory")).config.allow_direct
    await js.delete_stream("CLOSED")
    await js.delete_stream("OPEN")


async def test_a_publish_without_jetstream_is_another_error_than_one_without_a_stream(
    client: Client, js: JetStream
) -> None:
    with pytest.raises(NoStreamError):
        await js.publish("nobody.takes.this")
    with pytest.raises(JetStreamNotEnabledError):
        await client.jetstream(prefix="$JS.elsewhere.API").publish("nobody.takes.this")


async def test_overlapping_subjects_name_the_streams_that_have_them(js: JetStream, stream: Stream) -> None:
    await js.create_stream("T", subjects=["t.a", "t.b"], storage="memory")
    try:
        with pytest.raises(SubjectsOverlapError) as caught:
            await js.create_stream("U", subjects=["u", "s.a", "t.*"], storage="memory")
        assert caught.value.streams == ["S", "T"]
        assert "'s.a' overlaps 's.>' of stream 'S'" in str(caught.value)
        assert "'t.*' overlaps 't.a', 't.b' of stream 'T'" in str(caught.value)
        with pytest.raises(SubjectsOverlapError, match=r"'t\.b' overlaps 't\.b' of stream 'T'"):
            await js.update_stream("S", subjects=["s.>", "t.b"])
    finally:
        await js.delete_stream("T")


async def test_the_error_of_an_existing_stream_names_what_differs(js: JetStream) -> None:
    first = {"subjects": ["x.a", "x.b"], "storage": "memory", "metadata": {"a": "b"}, "max_age": 60}
    await js.create_stream("X", **first)
    try:
        assert (await js.create_stream("X", **first)).name == "X"
        with pytest.raises(AlreadyExistsError) as caught:
            await js.create_stream("X", subjects=["x.a"], storage="file", max_msgs=5)
        text = str(caught.value)
        assert "subjects is ['x.a', 'x.b'], not ['x.a']" in text
        assert "max_msgs is -1, not 5" in text
        assert "max_age is 60, not 0" in text
        assert "storage is memory, not file" in text
        assert "metadata is {'a': 'b'}, not {}" in text
        assert "num_replicas" not in text
        assert "duplicate_window is 60, not 120" in text
    finally:
        await js.delete_stream("X")
