"""The client's core part on real servers, ours and the official one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

import penstock.client
from penstock.client import Client, ClientState, Msg
from penstock.client.client_session import DIRECT_BYTES
from penstock.client.message import Payload
from penstock.client.subscription import PLAIN_BACKLOG_MIN
from penstock.errors import (
    AuthorizationError,
    ConnectionClosedError,
    InvalidSubjectError,
    MaxPayloadError,
    MisuseError,
    NoRespondersError,
    NoServersError,
    RequestTimeoutError,
    SlowConsumerError,
)
from tests.support.nats_servers import free_port, running_server

pytestmark = pytest.mark.feature("client.connection")


async def test_a_message_arrives_byte_for_byte(client: Client) -> None:
    subscription = await client.subscribe("byte.*")
    payload = bytes(range(256)) * 5
    await client.publish(
        "byte.all", payload, reply="answer.here", headers=[("A", "1"), ("a", "2"), ("A", "3")]
    )
    msg = await subscription.next(5)
    assert (msg.subject, msg.reply, msg.data) == ("byte.all", "answer.here", payload)
    assert list(msg.headers.pairs()) == [("A", "1"), ("A", "3"), ("a", "2")]
    assert msg.status is None


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_small_and_large_messages_arrive_whole_and_in_order(url: str, loop: str) -> None:
    """Large ones go past the out buffer, and must not overtake what is in it."""
    sizes = [0, 10, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 1, 5, 900_000, 1, 200_000]
    payloads = [bytes([number]) * size for number, size in enumerate(sizes * 6)]

    async def exchange() -> None:
        async with penstock.client.connect(url, request_timeout=10) as client:
            received = await client.subscribe("size.*")
            for number, payload in enumerate(payloads):
                headers = {"Number": str(number)} if number % 2 else None
                await client.publish(f"size.{number}", payload, reply="to" * (number % 3), headers=headers)
            for number, payload in enumerate(payloads):
                msg = await received.next(10)
                assert msg.subject == f"size.{number}"
                assert msg.data == payload
                assert msg.reply == "to" * (number % 3)
                assert msg.headers.get("Number") == (str(number) if number % 2 else None)
            stats = client.stats
            assert stats.out_messages == stats.in_messages == len(payloads)
            assert stats.out_bytes == stats.in_bytes
            with pytest.raises(MaxPayloadError):
                await client.publish("size.0", b"x" * (client.server_info.max_payload + 1))

    run = asyncio.run if loop == "asyncio" else uvloop.run
    run(exchange())


async def test_text_payloads_are_sent_as_utf8(client: Client) -> None:
    subscription = await client.subscribe("text")
    await client.publish("text", "größer")
    assert (await subscription.next(5)).data.decode() == "größer"


async def test_wildcards_match_tokens(client: Client) -> None:
    star = await client.subscribe("w.*.east")
    rest = await client.subscribe("w.us.>")
    for subject in ("w.us.east", "w.us.x.east", "w.eu.east", "w.us"):
        await client.publish(subject)
    await client.flush()
    assert [(await star.next(5)).subject for _ in range(2)] == ["w.us.east", "w.eu.east"]
    assert [(await rest.next(5)).subject for _ in range(2)] == ["w.us.east", "w.us.x.east"]
    assert star.pending_messages == rest.pending_messages == 0


async def test_a_queue_group_shares_messages(client: Client) -> None:
    members = [await client.subscribe("jobs", queue="workers") for _ in range(3)]
    for number in range(300):
        await client.publish("jobs", b"%d" % number)
    await client.flush()
    counts = [member.pending_messages for member in members]
    assert sum(counts) == 300
    assert all(counts)


async def test_request_returns_the_first_answer(client: Client) -> None:
    async def double(msg: Msg) -> None:
        await msg.respond(msg.data * 2, headers={"Status": "fine"})

    await client.subscribe("double", callback=double)
    answer = await client.request("double", b"ab")
    assert answer.data == b"abab"
    assert answer.headers["Status"] == "fine"


async def test_many_requests_at_once_get_their_own_answers(client: Client) -> None:
    async def echo(msg: Msg) -> None:
        await msg.respond(msg.data)

    await client.subscribe("echo", callback=echo)
    answers = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(200)))
    assert [answer.data for answer in answers] == [b"%d" % n for n in range(200)]


async def test_request_without_responders_fails_at_once(client: Client) -> None:
    with pytest.raises(NoRespondersError, match=r"nobody\.here") as caught:
        await client.request("nobody.here", timeout=60)
    assert caught.value.subject == "nobody.here"


async def test_an_unanswered_request_times_out_and_says_what_was_asked(client: Client) -> None:
    await client.subscribe("silent")
    with pytest.raises(RequestTimeoutError, match=r"silent.*0\.05 s") as caught:
        await client.request("silent", timeout=0.05)
    assert isinstance(caught.value, TimeoutError)


async def test_request_many_gathers_answers(client: Client) -> None:
    for number in range(3):

        async def answer(msg: Msg, number: int = number) -> None:
            await msg.respond(b"%d" % number)

        await client.subscribe("roll.call", callback=answer)
    answers = [msg.data async for msg in client.request_many("roll.call", max_messages=3)]
    assert sorted(answers) == [b"0", b"1", b"2"]
    assert len([msg async for msg in client.request_many("roll.call", stall=0.2)]) == 3
    with pytest.raises(NoRespondersError):
        _ = [msg async for msg in client.request_many("roll.nobody")]


async def test_unsubscribe_after_a_number_of_messages(client: Client) -> None:
    subscription = await client.subscribe("few")
    await subscription.unsubscribe(max_messages=3)
    for number in range(5):
        await client.publish("few", b"%d" % number)
    await client.flush()
    assert [msg.data async for msg in subscription] == [b"0", b"1", b"2"]
    assert subscription.closed


async def test_unsubscribe_leaves_what_arrived(client: Client) -> None:
    subscription = await client.subscribe("leave")
    await client.publish("leave", b"1")
    await client.flush()
    await subscription.unsubscribe()
    await client.publish("leave", b"2")
    await client.flush()
    assert [msg.data async for msg in subscription] == [b"1"]
    with pytest.raises(ConnectionClosedError):
        await subscription.next(1)


async def test_draining_a_subscription_loses_nothing(client: Client) -> None:
    seen: list[bytes] = []

    async def slowly(msg: Msg) -> None:
        await asyncio.sleep(0)
        seen.append(msg.data)

    subscription = await client.subscribe("drain.sub", callback=slowly)
    for number in range(100):
        await client.publish("drain.sub", b"%d" % number)
    await subscription.drain()
    assert seen == [b"%d" % number for number in range(100)]


async def test_draining_the_client_loses_nothing_and_closes(url: str) -> None:
    async with penstock.client.connect(url) as other:
        answers = await other.subscribe("drain.answers")
        await other.flush()
        client = await penstock.client.connect(url)
        seen = 0

        async def answer(msg: Msg) -> None:
            nonlocal seen
            seen += 1
            await client.publish("drain.answers", msg.data)

        await client.subscribe("drain.client", callback=answer)
        await client.flush()
        for number in range(50):
            await other.publish("drain.client", b"%d" % number)
        await other.flush()
        await client.drain()
        assert client.state is ClientState.CLOSED
        assert [(await answers.next(5)).data for _ in range(50)] == [b"%d" % n for n in range(50)]
        assert seen == 50


async def test_what_was_published_before_close_arrives(url: str, client: Client) -> None:
    subscription = await client.subscribe("last.words")
    await client.flush()
    async with penstock.client.connect(url) as other:
        for number in range(1000):
            await other.publish("last.words", b"%d" % number)
    assert [(await subscription.next(5)).data for _ in range(1000)][-1] == b"999"


async def test_a_closed_client_says_so(url: str) -> None:
    client = await penstock.client.connect(url)
    subscription = await client.subscribe("closed")
    await client.close()
    await client.close()
    assert [msg async for msg in subscription] == []
    for call in (client.publish("a"), client.request("a"), client.subscribe("a"), client.flush()):
        with pytest.raises(ConnectionClosedError, match="connect again"):
            await call


@pytest.mark.feature("client.slow-consumer-buffer")
async def test_a_slow_subscription_drops_counts_and_tells(url: str) -> None:
    reported: list[Exception] = []
    async with penstock.client.connect(url, on_error=lambda _, error: reported.append(error)) as client:
        subscription = await client.subscribe("fast", max_pending_messages=10)
        small = await client.subscribe("fast", max_pending_bytes=35)
        for _ in range(50):
            await client.publish("fast", b"0123456789")
        await client.flush()
        assert (subscription.pending_messages, subscription.dropped) == (10, 40)
        assert (small.pending_messages, small.dropped) == (3, 47)
        assert [type(error) for error in reported] == [SlowConsumerError, SlowConsumerError]
        for _ in range(10):
            await subscription.next(1)
        with pytest.raises(RequestTimeoutError):
            await subscription.next(0.01)
        for _ in range(50):
            await client.publish("fast", b"0123456789")
        await client.flush()
        assert subscription.dropped == 80
        assert len(reported) == 3  # told again: it had caught up in between


async def test_a_failing_callback_is_reported_and_the_next_message_goes_on(url: str) -> None:
    reported: list[Exception] = []
    seen: list[bytes] = []

    def handle(msg: Msg) -> None:
        seen.append(msg.data)
        if msg.data == b"1":
            raise ValueError("bad message")

    async with penstock.client.connect(url, on_error=lambda _, error: reported.append(error)) as client:
        subscription = await client.subscribe("cb", callback=handle)
        for number in range(3):
            await client.publish("cb", b"%d" % number)
        await subscription.drain()
        with pytest.raises(MisuseError):
            await subscription.next()
    assert seen == [b"0", b"1", b"2"]
    assert [str(error) for error in reported] == ["bad message"]


async def test_bad_subjects_and_large_messages_are_refused_before_they_are_sent(client: Client) -> None:
    for subject in ("", "a b", "a..b", ".a", "a.", "a\r\nPUB b 0", "a.*", ">"):
        with pytest.raises(InvalidSubjectError):
            await client.publish(subject)
    for subject in ("", "a b", "a..b", "a.>.b", "a\nb"):
        with pytest.raises(InvalidSubjectError):
            await client.subscribe(subject)
    with pytest.raises(InvalidSubjectError):
        await client.publish("a", reply="b c")
    with pytest.raises(MisuseError):
        await client.publish("a", headers={"bad name:": "x"})
    with pytest.raises(MaxPayloadError, match=str(client.max_payload)):
        await client.publish("a", bytes(client.max_payload + 1))
    await client.flush()  # the connection took no harm


async def test_two_readers_of_one_subscription_share_it(client: Client) -> None:
    subscription = await client.subscribe("shared")
    readers = [asyncio.ensure_future(subscription.next(5)) for _ in range(4)]
    await asyncio.sleep(0)
    readers[0].cancel()
    for number in range(3):
        await client.publish("shared", b"%d" % number)
    got = await asyncio.gather(*readers[1:])
    assert sorted(msg.data for msg in got) == [b"0", b"1", b"2"]


async def test_no_server_is_an_error_with_every_attempt() -> None:
    port = free_port()
    with pytest.raises(NoServersError, match=str(port)) as caught:
        await penstock.client.connect([f"127.0.0.1:{port}", f"localhost:{port}"], connect_timeout=2)
    assert len(caught.value.attempts) == 2


@pytest.mark.parametrize("first", ["nats://127.0.0.1:{}", "nats://a..b:{}"])
async def test_the_second_server_is_used_when_the_first_is_down_or_no_host_name(url: str, first: str) -> None:
    servers = [first.format(free_port()), url]
    async with penstock.client.connect(servers, randomize=False) as client:
        assert client.connected_url == url
        assert client.server_info.max_payload == client.max_payload > 0
        assert 0 < await client.rtt() < 5


async def test_credentials_are_checked(server_kind: str, tmp_path: Path) -> None:
    with running_server(server_kind, tmp_path, user="joe", password="s:cr@t") as server:
        async with penstock.client.connect(server.url, user="joe", password="s:cr@t") as client:
            await client.flush()
        async with penstock.client.connect(f"nats://joe:s%3Acr%40t@127.0.0.1:{server.port}") as client:
            await client.flush()
            assert "s:cr@t" not in repr(client) + str(client.connected_url)
        for options in ({}, {"user": "joe", "password": "wrong"}, {"token": "joe"}):
            with pytest.raises(AuthorizationError):
                await penstock.client.connect(server.url, **options)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_works_on_both_event_loops(url: str, loop: str) -> None:
    async def roundtrip() -> bytes:
        async with penstock.client.connect(url) as client:
            subscription = await client.subscribe("loop")
            await client.publish("loop", bytes(300_000))
            return (await subscription.next(5)).data

    factory = None
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(roundtrip()) == bytes(300_000)


async def test_messages_that_come_together_are_limited_counted_and_handed_out_in_order(
    client: Client, url: str
) -> None:
    """Those of one read are queued at once where all of them have room, else one by one."""
    errors: list[Exception] = []
    async with penstock.client.connect(url, on_error=lambda _, error: errors.append(error)) as other:
        every = await other.subscribe("burst")
        three = await other.subscribe("burst.few")
        await three.unsubscribe(max_messages=3)
        full = await other.subscribe("burst.full", max_pending_messages=15)
        large = await other.subscribe("burst.large", max_pending_bytes=25)
        readers = [asyncio.ensure_future(every.next(10)) for _ in range(3)]
        await other.flush()
        for subject in ("burst", "burst.few", "burst.full", "burst.large"):
            for number in range(20):
                await client.publish(subject, b"%d" % number, headers={"A": "b"} if number == 1 else None)
            await client.flush()
            await other.flush()
        numbers = [b"%d" % number for number in range(20)]
        assert [(await reader).data for reader in readers] == numbers[:3]
        assert [msg.data for msg in await every.next_many(100)] == numbers[3:]
        assert (every.received, every.pending_messages, every.pending_bytes, every.dropped) == (20, 0, 0, 0)
        assert [msg.data async for msg in three] == numbers[:3]
        assert [msg.data for msg in await full.next_many(100)] == numbers[:15]
        assert (full.received, full.dropped, full.pending_bytes) == (20, 5, 0)
        got = await large.next_many(100)
        assert sum(len(msg.data) + len(msg.raw[3] or b"") for msg in got) <= 25
        assert large.dropped == 20 - len(got) > 0
        assert large.pending_bytes == 0
        assert len(errors) == 2


async def test_a_long_backlog_is_handed_out_as_it_came(client: Client) -> None:
    """Behind PLAIN_BACKLOG_MIN messages plain ones are kept as their payload; the others stay whole."""
    count = PLAIN_BACKLOG_MIN + 900
    literal = await client.subscribe("log.a")
    wild = await client.subscribe("log.*")
    other = await client.subscribe("log.b")  # so that not every read is of one subscription
    got: list[Msg] = []
    for number in range(count):
        reply, headers = "answer" if number % 7 == 0 else "", {"A": "1"} if number % 5 == 0 else None
        await client.publish("log.a", b"%d" % number, reply=reply, headers=headers)
        if number % 200 == 0:
            await client.publish("log.b", b"b")
    await client.flush()
    for subscription in (literal, wild):
        size = subscription.pending_bytes
        got = [await subscription.next(5) for _ in range(10)]
        got += await subscription.next_many(count // 2)
        while subscription.pending_messages:
            got += await subscription.next_many(count)
        assert size == sum(len(msg.data) + len(msg.raw[3] or b"") for msg in got)
        assert subscription.pending_bytes == 0
        msgs = [msg for msg in got if msg.subject == "log.a"]
        assert [msg.data for msg in msgs] == [b"%d" % number for number in range(count)]
        assert [bool(msg.reply) for msg in msgs] == [number % 7 == 0 for number in range(count)]
        assert [msg.headers.get("A") == "1" for msg in msgs] == [number % 5 == 0 for number in range(count)]
        assert {msg.raw[0] for msg in got} == {subscription.sid}
    assert other.pending_messages == len(got) - count


async def test_a_callback_gets_a_long_backlog_as_it_came(client: Client) -> None:
    count, got = PLAIN_BACKLOG_MIN + 900, []
    begun = asyncio.Event()

    async def take(msg: Msg) -> None:
        await begun.wait()
        got.append((msg.subject, msg.data, msg.reply))

    subscription = await client.subscribe("log.a", callback=take)
    for number in range(count):
        await client.publish("log.a", b"%d" % number, reply="answer" if number % 7 == 0 else "")
        if number == PLAIN_BACKLOG_MIN + 10:
            await client.flush()  # the others come behind a long backlog
    await client.flush()
    begun.set()
    await subscription.drain(10)
    assert got == [("log.a", b"%d" % n, "answer" if n % 7 == 0 else "") for n in range(count)]
    assert subscription.pending_bytes == 0


async def test_many_payloads_are_published_in_their_order(client: Client) -> None:
    subscription = await client.subscribe("many", max_pending_messages=100_000)

    def payloads() -> Iterator[Payload]:
        for number in range(5_000):
            yield f"{number}" if number % 1_000 == 7 else b"%d" % number
        yield bytearray(b"last")

    assert await client.publish_many("many", payloads(), reply="answer", headers={"A": "1"}) == 5_001
    assert await client.publish_many("many", [b"x" * 1000] * 1_000) == 1_000
    assert await client.publish_many("many", []) == 0
    await client.flush()
    msgs: list[Msg] = []
    while len(msgs) < 6_001:
        msgs += await subscription.next_many(10_000, timeout=5)
    assert [msg.data for msg in msgs] == [b"%d" % n for n in range(5_000)] + [b"last"] + [b"x" * 1000] * 1_000
    assert {(msg.reply, msg.headers.get("A")) for msg in msgs[:5_001]} == {("answer", "1")}


async def test_many_payloads_stop_before_one_that_is_refused(client: Client) -> None:
    subscription = await client.subscribe("many")
    with pytest.raises(MaxPayloadError):
        await client.publish_many("many", [b"1", b"2", b"x" * (client.max_payload + 1), b"3"])
    with pytest.raises(InvalidSubjectError):
        await client.publish_many("not valid", [b"4"])
    with pytest.raises(MisuseError, match="publish_many takes an iterable of payloads, not one bytes"):
        await client.publish_many("many", b"payload")
    await client.flush()
    assert [msg.data for msg in await subscription.next_many(10, timeout=5)] == [b"1", b"2"]
