"""The session over scripted servers: what goes over the wire when, and what callbacks get."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import penstock.client
from penstock.client import Client, ClientState
from penstock.errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionDrainingError,
    DisconnectedError,
    MisuseError,
    NoServersError,
    PermissionsError,
    ProtocolError,
    ServerRefusedError,
)
from tests.support.client_fakes import INFO, ScriptedPeer, scripted_server
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.connection")

FAST: dict[str, Any] = {"reconnect_wait": 0.005, "reconnect_wait_max": 0.02}


async def serve_quietly(peer: ScriptedPeer) -> None:
    """A server that takes everything and answers PINGs until the client goes."""
    while line := await peer.line():
        if line == b"PING":
            peer.send(b"PONG\r\n")


async def test_subscriptions_are_made_again_before_what_was_published_meanwhile() -> None:
    second_session: list[bytes] = []
    lost = asyncio.Event()
    go_on = asyncio.Event()

    async def script(peer: ScriptedPeer, number: int) -> None:
        if number == 1:
            await asyncio.wait_for(go_on.wait(), 10)
        await peer.handshake()
        if number == 0:
            lines = await peer.lines_until(b"PING")
            assert lines == [b"SUB a 1", b"SUB gone 2", b"SUB b workers 3", b"UNSUB 3 5", b"UNSUB 2"]
            peer.send(b"PONG\r\nMSG b 3 0\r\n\r\nMSG b 3 0\r\n\r\n")
            await peer.line()
            peer.hang_up()
            return
        second_session.extend(await peer.lines_until(b"PING"))
        peer.send(b"PONG\r\n")
        await serve_quietly(peer)

    async with scripted_server(script) as url:
        options = {**FAST, "on_disconnected": lambda *_: lost.set()}
        async with penstock.client.connect(url, **options) as client:
            await client.subscribe("a")
            gone = await client.subscribe("gone")
            limited = await client.subscribe("b", queue="workers")
            await limited.unsubscribe(max_messages=5)
            await gone.unsubscribe()
            await client.flush()
            await limited.next(5)
            await limited.next(5)
            await client.publish("bye")
            await asyncio.wait_for(lost.wait(), 10)
            await client.publish("a", b"meanwhile")
            await client.subscribe("late")
            go_on.set()
            await client.flush()
    assert second_session == [
        b"SUB a 1", b"SUB b workers 3", b"UNSUB 3 3", b"SUB late 4", b"PUB a 9", b"meanwhile"
    ]  # fmt: skip


async def test_what_was_lost_with_a_connection_is_not_sent_on_the_next() -> None:
    seen: list[bytes] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        if number == 0:
            await peer.line()
            return
        seen.extend(await peer.lines_until(b"PING"))
        peer.send(b"PONG\r\n")
        await serve_quietly(peer)

    back = asyncio.Event()
    async with (
        scripted_server(script) as url,
        penstock.client.connect(url, **FAST, on_reconnected=lambda _: back.set()) as client,
    ):
        connection = client._session.connection
        assert connection is not None
        await client.subscribe("a")
        await client.publish("a", b"may have been in the socket")
        connection.connection_lost(None)
        await asyncio.wait_for(back.wait(), 10)
        await client.flush()
        assert seen == [b"SUB a 1"]


async def test_a_refused_publish_ends_the_requests_on_its_subject() -> None:
    reported: list[Exception] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        while line := await peer.line():
            if line.startswith(b"PUB secret "):
                peer.send(b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n")
            if line == b"PING":
                peer.send(b"PONG\r\n")

    async with (
        scripted_server(script) as url,
        penstock.client.connect(url, on_error=lambda _, error: reported.append(error)) as client,
    ):
        other = asyncio.ensure_future(client.request("other", timeout=60))
        with pytest.raises(PermissionsError) as caught:
            await client.request("secret", timeout=60)
        assert (caught.value.operation, caught.value.subject) == ("publish", "secret")
        assert reported == [caught.value]
        assert not other.done()
        other.cancel()


async def test_a_refused_subscription_ends_with_the_reason() -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await peer.line()
        peer.send(b"-ERR 'Permissions Violation for Subscription to \"secret.>\"'\r\n")
        await serve_quietly(peer)

    async with (
        scripted_server(script) as url,
        penstock.client.connect(url, on_error=lambda *_: None) as client,
    ):
        subscription = await client.subscribe("secret.>")
        with pytest.raises(PermissionsError, match="Subscription"):
            await subscription.__anext__()


async def test_other_errors_are_reported_and_the_connection_goes_on() -> None:
    reported: list[Exception] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        peer.send(b"-ERR 'Invalid Subject'\r\n")
        await serve_quietly(peer)

    async def on_error(_: Client, error: Exception) -> None:
        reported.append(error)

    async with scripted_server(script) as url, penstock.client.connect(url, on_error=on_error) as client:
        await client.flush()
        await until(lambda: bool(reported))
        assert isinstance(reported[0], ServerRefusedError)
        assert reported[0].text == "Invalid Subject"
        assert client.last_error is reported[0]


async def test_errors_without_a_callback_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        peer.send(b"-ERR 'Invalid Subject'\r\n")
        await serve_quietly(peer)

    async with scripted_server(script) as url, penstock.client.connect(url) as client:
        await client.flush()
        await until(lambda: client.last_error is not None)
    assert "Invalid Subject" in caplog.text


async def test_a_protocol_breach_reconnects_and_says_whose_fault_it_was() -> None:
    reasons: list[Exception] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        if number == 0:
            peer.send(b"MSG what\r\n")
        await serve_quietly(peer)

    async with scripted_server(script) as url:
        back = asyncio.Event()
        async with penstock.client.connect(
            url,
            **FAST,
            on_disconnected=lambda _, error: reasons.append(error),
            on_reconnected=lambda _: back.set(),
        ) as client:
            await asyncio.wait_for(back.wait(), 10)
            await client.flush()
    assert [type(reason) for reason in reasons] == [ProtocolError]


async def test_credentials_refused_twice_end_the_reconnecting() -> None:
    attempts = 0

    async def script(peer: ScriptedPeer, number: int) -> None:
        nonlocal attempts
        attempts += 1
        if number == 0:
            await peer.handshake()
            await peer.line()
            return
        peer.send(INFO)
        await peer.lines_until(b"PING")
        peer.send(b"-ERR 'Authorization Violation'\r\n")

    async with scripted_server(script) as url:
        client = await penstock.client.connect(url, **FAST)
        subscription = await client.subscribe("a")
        with pytest.raises(ConnectionClosedError, match="Authorization Violation"):
            await subscription.__anext__()
        assert client.is_closed
        assert isinstance(client.last_error, AuthorizationError)
    assert attempts == 3


async def test_a_server_that_never_greets_is_given_up() -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.line()

    async with scripted_server(script) as url:
        with pytest.raises(NoServersError, match=r"within 0\.05 s"):
            await penstock.client.connect(url, connect_timeout=0.05)


async def test_announced_servers_are_used_when_the_first_goes() -> None:
    discovered: list[Client] = []
    lame: list[Client] = []

    async def second(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await serve_quietly(peer)

    async with scripted_server(second) as second_url:
        place = second_url.removeprefix("nats://")
        with_urls = {**json.loads(INFO[5:]), "connect_urls": [place], "ldm": True}

        async def first(peer: ScriptedPeer, number: int) -> None:
            if number:
                return
            await peer.handshake()
            peer.send(b"INFO " + json.dumps(with_urls).encode() + b"\r\n")
            await peer.line()

        async with (
            scripted_server(first) as first_url,
            penstock.client.connect(
                first_url, **FAST, on_discovered=discovered.append, on_lame_duck=lame.append
            ) as client,
        ):
            await until(lambda: bool(lame))
            await client.publish("x")
            await until(lambda: client.connected_url == second_url)
        assert discovered == lame == [client]


async def test_a_publisher_waits_for_a_slow_socket_and_memory_stays_bounded() -> None:
    read_on = asyncio.Event()
    total = 0

    async def script(peer: ScriptedPeer, number: int) -> None:
        nonlocal total
        await peer.handshake()
        await asyncio.wait_for(read_on.wait(), 10)
        while line := await peer.line():
            total += len(line) == 10_000
            if line == b"PING":
                peer.send(b"PONG\r\n")

    async with scripted_server(script) as url, penstock.client.connect(url, request_timeout=30) as client:
        sent = 0

        async def publish() -> None:
            nonlocal sent
            for _ in range(5000):
                await client.publish("big", b"x" * 10_000)
                sent += 1

        task = asyncio.ensure_future(publish())
        connection = client._session.connection
        assert connection is not None
        await until(lambda: connection.paused)
        held = sent
        for _ in range(20):
            await asyncio.sleep(0)
        assert sent <= held + 20  # no longer runs away
        assert client._session.out.size < 1_000_000
        read_on.set()
        await task
        await client.flush()
        assert total == 5000


async def test_large_messages_reach_a_peer_that_reads_slowly_whole_and_in_order() -> None:
    """The socket takes a part of one; the rest waits, and what is published then waits behind it."""
    sizes = [700_000, 40_000, 10, 1_000_000, 32_768, 0, 600_000] * 8
    read_on = asyncio.Event()
    arrived: list[tuple[bytes, int, set[int]]] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await asyncio.wait_for(read_on.wait(), 10)
        while line := await peer.line():
            if line == b"PING":
                peer.send(b"PONG\r\n")
                continue
            verb, subject, size = line.split()
            assert verb == b"PUB"
            payload = await peer.exactly(int(size) + 2)
            assert payload.endswith(b"\r\n")
            arrived.append((subject, int(size), set(payload[:-2])))

    async with scripted_server(script) as url, penstock.client.connect(url, request_timeout=30) as client:

        async def publish() -> None:
            for number, size in enumerate(sizes):
                await client.publish(f"s.{number}", bytes([65 + number]) * size)

        task = asyncio.ensure_future(publish())
        connection = client._session.connection
        assert connection is not None
        await until(lambda: connection.paused)
        read_on.set()
        await task
        await client.flush()
    expected = [(b"s.%d" % n, size, {65 + n} if size else set()) for n, size in enumerate(sizes)]
    assert arrived == expected


async def test_a_draining_client_takes_nothing_new() -> None:
    release = asyncio.Event()

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await peer.lines_until(b"UNSUB 1")
        await asyncio.wait_for(release.wait(), 10)
        await serve_quietly(peer)

    async with scripted_server(script) as url:
        client = await penstock.client.connect(url)
        await client.subscribe("a")
        draining = asyncio.ensure_future(client.drain())
        await until(lambda: client.state is ClientState.DRAINING)
        with pytest.raises(ConnectionDrainingError):
            await client.subscribe("b")
        with pytest.raises(ConnectionDrainingError):
            await client.request("b")
        await client.publish("answers.still.go")
        release.set()
        await draining
        assert client.is_closed


async def test_drain_waits_until_the_last_message_is_worked_off() -> None:
    answers: list[bytes] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await peer.line()
        peer.send(b"MSG a 1 back 1\r\n1\r\nMSG a 1 back 1\r\n2\r\n")
        while line := await peer.line():
            if line.startswith(b"PUB back"):
                answers.append(await peer.line())
            if line == b"PING":
                peer.send(b"PONG\r\n")

    async with scripted_server(script) as url:
        client = await penstock.client.connect(url)
        subscription = await client.subscribe("a")

        async def work() -> None:
            async for msg in subscription:
                for _ in range(20):  # work that takes a while
                    await asyncio.sleep(0)
                await msg.respond(msg.data)

        worker = asyncio.ensure_future(work())
        await client.drain()
        await worker
    assert answers == [b"1", b"2"]


async def test_connections_lost_at_once_are_not_stormed() -> None:
    attempts = 0

    async def script(peer: ScriptedPeer, number: int) -> None:
        nonlocal attempts
        attempts += 1
        await peer.handshake()
        if number:
            peer.hang_up()
        else:
            await peer.line()

    async with scripted_server(script) as url:
        client = await penstock.client.connect(url, reconnect_wait=0.01, reconnect_wait_max=0.2)
        await client.publish("go")
        await asyncio.sleep(0.3)
        await client.close()
    assert 2 <= attempts <= 10  # it was hundreds


async def test_unread_messages_hold_a_drain_only_until_its_timeout() -> None:
    reported: list[Exception] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await peer.line()
        peer.send(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n")
        await serve_quietly(peer)

    async with scripted_server(script) as url:
        client = await penstock.client.connect(
            url, drain_timeout=0.2, on_error=lambda _, error: reported.append(error)
        )
        subscription = await client.subscribe("a")
        assert (await subscription.next(5)).data == b"1"
        await client.drain()
        assert "not read to their end" in str(reported[0])
        assert [msg.data async for msg in subscription] == [b"2"]


async def test_flush_fails_when_its_connection_breaks() -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        if number == 0:
            await peer.lines_until(b"PING")
            peer.hang_up()
            return
        await serve_quietly(peer)

    async with scripted_server(script) as url, penstock.client.connect(url, **FAST) as client:
        await client.publish("a")
        with pytest.raises(DisconnectedError):
            await client.flush()
        await client.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"connect_timeout": 0},
        {"ping_interval": -1},
        {"max_outstanding_pings": 0},
        {"reconnect_buffer_bytes": -1},
        {"user": "joe"},
        {"password": "secret"},
        {"token": "t", "user": "joe", "password": "p"},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        penstock.client.Options(**options)


def test_options_do_not_show_secrets() -> None:
    options = penstock.client.Options(user="joe", password="secret")
    assert "secret" not in repr(options)


def test_exported_names_are_pinned() -> None:
    assert sorted(penstock.client.__all__) == EXPORTED.split()
    for name in penstock.client.__all__:
        assert getattr(penstock.client, name) is not None


# One name a line, so that additions of several changes do not conflict.
EXPORTED = """
AccountInfo
AckPolicy
AtomicBatch
Client
ClientState
ClientStats
Codec
ConnectOptions
Connecting
Consume
Consumer
ConsumerConfig
ConsumerInfo
ConsumerPause
ConsumerSettings
DeliverPolicy
DiscardPolicy
EndpointInfo
EndpointSchema
EndpointStats
ExternalStream
FastIngest
FastPendingAck
FastPubAck
FastPublisher
Fetch
Headers
JetStream
JsMsg
KeyLease
KeyLock
KeyOperation
KeyValue
KeyValueBatch
KeyValueConfig
KeyValueEntry
KeyValueSettings
KeyValueStatus
KeyWatcher
LeaderElection
Msg
ObjectInfo
ObjectLink
ObjectReader
ObjectStore
ObjectStoreConfig
ObjectStoreSettings
ObjectStoreStatus
ObjectWatcher
Options
OrderedConsume
OrderedConsumer
OrderedConsumerSettings
OrderedPushSubscription
PendingAck
Placement
PriorityOptions
PubAck
PublishOptions
Publisher
PushSubscription
ReplayPolicy
Republish
RetentionPolicy
ServerCandidate
ServerInfo
Service
ServiceEndpoint
ServiceGroup
ServiceInfo
ServiceMsg
ServicePing
ServiceStats
Services
StorageType
StoredMessage
Stream
StreamConfig
StreamConsumerLimits
StreamInfo
StreamSettings
StreamSource
StreamSourceInfo
SubjectTransform
Subscription
Tracing
connect
"""
