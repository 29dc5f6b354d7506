"""Publishing over a scripted server: acks that never come, no stream, a full window, refusals."""

from __future__ import annotations

import asyncio
import json

import pytest

import penstock.client
from penstock.errors import (
    JetStreamNotEnabledError,
    MisuseError,
    NoStreamError,
    PermissionsError,
    PublishFailedError,
    PublishNotAckedError,
)
from penstock.protocol import status
from tests.support.jetstream_peer import JetStreamPeer, consumer_of, js_client
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.publish")


async def test_an_ack_that_does_not_come_fails_its_publish_alone() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        _, _first, _ = await js.request()
        _, second, _ = await js.request()
        js.answer(second, b'{"stream":"S","seq":2}')

    async with js_client(script) as client:
        js = client.jetstream()
        with pytest.raises(PublishFailedError, match="1 publishes failed, 1 were stored"):  # noqa: PT012
            async with js.publisher(timeout=0.05) as publisher:
                lost = await publisher.publish("s", b"1")
                kept = await publisher.publish("s", b"2")
                assert (await kept).seq == 2
        assert lost.done()
        with pytest.raises(PublishNotAckedError, match=r"within 0\.05 s"):
            lost.result()


async def test_the_publisher_tries_again_when_no_stream_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.publisher.NO_STREAM_RETRY_WAIT_S", 0.001)

    async def script(js: JetStreamPeer, number: int) -> None:
        for attempt in range(3):
            _, reply, body = await js.request()
            assert body == b"1"
            if attempt < 2:
                js.status(reply, status.NO_RESPONDERS)
        js.answer(reply, b'{"stream":"S","seq":1}')
        for _ in range(3):
            _, reply, _ = await js.request()
            js.status(reply, status.NO_RESPONDERS)
        subject, reply, _ = await js.request()
        assert subject == "$JS.API.STREAM.NAMES"
        js.answer(reply, b'{"total":0,"offset":0,"limit":1024,"streams":[]}')

    async with js_client(script) as client, client.jetstream().publisher() as publisher:
        assert (await (await publisher.publish("s", b"1"))).seq == 1
        with pytest.raises(NoStreamError):
            await (await publisher.publish("s", b"2"))


async def test_the_publisher_waits_for_the_leader_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.publisher.NO_STREAM_RETRY_WAIT_S", 0.001)
    refusals = {b"1": 7, b"2": 5, b"other": 1000}
    stored: list[bytes] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        while True:
            subject, reply, body = await js.request()
            if subject == "$JS.API.STREAM.NAMES":
                names = b'"S"' if json.loads(body)["subject"] == "s" else b""
                js.answer(reply, b'{"total":1,"offset":0,"limit":1024,"streams":[%b]}' % names)
            elif refusals[body]:
                refusals[body] -= 1
                js.status(reply, status.NO_RESPONDERS)
            else:
                stored.append(body)
                js.answer(reply, b'{"stream":"S","seq":%d}' % len(stored))

    async with js_client(script) as client, client.jetstream().publisher() as publisher:
        pending = [await publisher.publish("s", body) for body in (b"1", b"2")]
        unstored = await publisher.publish("without.stream", b"other")
        assert {(await one).seq for one in pending} == {1, 2}
        with pytest.raises(NoStreamError, match=r"without\.stream"):
            await unstored


async def test_the_window_holds_publishes_back_until_acks_come() -> None:
    replies: list[bytes] = []
    go_on = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(4):
            replies.append((await js.request())[1])
        await asyncio.wait_for(go_on.wait(), 10)
        for seq, reply in enumerate(replies, 1):
            js.answer(reply, b'{"stream":"S","seq":%d}' % seq)
        _, reply, _ = await js.request()
        js.answer(reply, b'{"stream":"S","seq":5}')

    async with js_client(script) as client, client.jetstream().publisher(window=4) as publisher:
        for _ in range(4):
            await publisher.publish("s")
        fifth = asyncio.ensure_future(publisher.publish("s"))
        await until(lambda: len(replies) == 4)
        assert not fifth.done()
        assert publisher.pending == 4
        go_on.set()
        assert (await (await fifth)).seq == 5


async def test_closing_the_client_ends_a_publisher_that_waits() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        await js.request()

    async with js_client(script) as client:
        with pytest.raises(penstock.errors.ConnectionClosedError):  # noqa: PT012
            async with client.jetstream().publisher(window=1) as publisher:
                first = await publisher.publish("s")
                waiting = asyncio.ensure_future(publisher.publish("s"))
                await until(lambda: publisher._room is not None)
                await client.close()
                with pytest.raises(PublishNotAckedError):
                    await first
                await waiting


async def test_a_subject_that_may_not_be_published_fails_what_waits_on_it() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(4):
            subject, _, _ = await js.request()
            js.peer.send(b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n" % subject.encode())

    async with js_client(script, on_error=lambda *_: None) as client:
        async with client.jetstream().publisher(timeout=60) as publisher:
            with pytest.raises(PermissionsError):
                await (await publisher.publish("s"))
        consumer = consumer_of(client)
        with pytest.raises(PermissionsError):
            await consumer.fetch(1, expires=60)
        with pytest.raises(PermissionsError):
            await consumer.consume().__anext__()
        with pytest.raises(PermissionsError):
            await client.jetstream().publish("s", timeout=60)


async def test_a_server_without_jetstream_is_named_so() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        while True:
            _, reply, _ = await js.request()
            js.status(reply, status.NO_RESPONDERS)

    async with js_client(script) as client:
        with pytest.raises(JetStreamNotEnabledError, match=r"\$JS\.hub\.API\.INFO"):
            await client.jetstream(domain="hub").account_info()
        with pytest.raises(JetStreamNotEnabledError, match=r"imported\.INFO"):
            await client.jetstream(prefix="imported").account_info()
        with pytest.raises(MisuseError):
            client.jetstream(domain="a", prefix="b")
