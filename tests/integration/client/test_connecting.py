"""The first connection and its retries, forced reconnects, the pool of servers, and what a client counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import penstock.client
from penstock.client import Client, ClientState, ServerCandidate
from penstock.errors import (
    AuthorizationError,
    ConnectionClosedError,
    DisconnectedError,
    MisuseError,
    NoServersError,
    RequestTimeoutError,
)
from tests.support.client_fakes import INFO, ScriptedPeer, scripted_server
from tests.support.nats_servers import KINDS, free_port, make_server, running_server, until

pytestmark = pytest.mark.feature("client.connection", "client.server-pool")

FAST: dict[str, Any] = {"reconnect_wait": 0.005, "reconnect_wait_max": 0.02}
NEVER: dict[str, Any] = {"reconnect_wait": 3600, "reconnect_wait_max": 3600}


async def serve(peer: ScriptedPeer, number: int) -> None:
    """A server that accepts everything."""
    await peer.handshake()
    while line := await peer.line():
        if line == b"PING":
            peer.send(b"PONG\r\n")


# --- the first connection ----------------------------------------------------------------------


@pytest.mark.feature("client.first-connect")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_retries_is_used_before_its_server_has_started(kind: str, tmp_path: Path) -> None:
    server = make_server(kind, tmp_path)
    connected: list[Client] = []
    async with penstock.client.connect(
        server.url, **FAST, retry_on_failed_connect=True, on_connected=connected.append
    ) as client:
        try:
            assert (client.state, client.is_connected) == (ClientState.CONNECTING, False)
            assert isinstance(client.last_error, OSError)
            greetings = await client.subscribe("greet.*")
            await client.publish("greet.joe", b"early")
            with pytest.raises(RequestTimeoutError, match="the latest error"):
                await client.wait_connected(0.01)
            await asyncio.to_thread(server.start)
            await client.wait_connected(20)
            assert (await greetings.next(5)).data == b"early"
            assert connected == [client]
            assert client.stats.reconnects == 0
        finally:
            await client.close()
            await asyncio.to_thread(server.stop)


@pytest.mark.feature("client.first-connect")
async def test_without_retries_the_first_connection_fails_at_once() -> None:
    with pytest.raises(NoServersError):
        await penstock.client.connect(f"nats://127.0.0.1:{free_port()}")


@pytest.mark.feature("client.first-connect")
@pytest.mark.parametrize("kind", KINDS)
async def test_retries_do_not_repeat_wrong_credentials(kind: str, tmp_path: Path) -> None:
    wrong = {"user": "joe", "password": "wrong"}
    with (
        running_server(kind, tmp_path, user="joe", password="right") as server,
        pytest.raises(AuthorizationError),
    ):
        await penstock.client.connect(server.url, **wrong, retry_on_failed_connect=True)


@pytest.mark.feature("client.first-connect")
async def test_retries_end_after_max_reconnects() -> None:
    client = await penstock.client.connect(
        f"nats://127.0.0.1:{free_port()}", **FAST, retry_on_failed_connect=True, max_reconnects=3
    )
    with pytest.raises(ConnectionClosedError):
        await client.wait_connected(20)
    assert isinstance(client.last_error, NoServersError)


@pytest.mark.feature("client.first-connect")
async def test_on_connected_is_called_with_an_ordinary_first_connection_too() -> None:
    connected: list[Client] = []
    async with (
        scripted_server(serve) as url,
        penstock.client.connect(url, on_connected=connected.append) as client,
    ):
        assert connected == [client]


# --- forced reconnects -------------------------------------------------------------------------


@pytest.mark.feature("client.force-reconnect")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_forced_reconnect_keeps_subscriptions_and_what_was_published(
    kind: str, tmp_path: Path
) -> None:
    reasons: list[Exception] = []
    with running_server(kind, tmp_path) as server:
        async with (
            penstock.client.connect(server.url) as observer,
            penstock.client.connect(
                server.url, **FAST, on_disconnected=lambda _, error: reasons.append(error)
            ) as client,
        ):
            seen = await observer.subscribe("seen")
            await observer.subscribe("mute")
            await observer.flush()
            kept = await client.subscribe("kept")
            before = client.server_info.client_id
            request = asyncio.ensure_future(client.request("mute", timeout=60))
            await client.flush()
            await client.publish("seen", b"before")
            await client.force_reconnect()
            assert client.state is ClientState.RECONNECTING
            with pytest.raises(DisconnectedError, match="'mute' waited"):
                await request
            await client.wait_connected(20)
            await client.flush()
            await observer.publish("kept", b"after")
            assert (await kept.next(5)).data == b"after"
            assert (await seen.next(5)).data == b"before"
            assert client.server_info.client_id != before
            assert client.stats.reconnects == 1
            assert [str(reason) for reason in reasons] == [f"force_reconnect() left {server.url}"]


@pytest.mark.feature("client.force-reconnect")
async def test_a_forced_reconnect_ends_the_pause_between_attempts() -> None:
    attempts = 0

    async def script(peer: ScriptedPeer, number: int) -> None:
        nonlocal attempts
        attempts += 1
        if number == 1:
            return
        await serve(peer, number)

    async with scripted_server(script) as url, penstock.client.connect(url, **NEVER) as client:
        await client.force_reconnect()
        await until(lambda: attempts == 2)
        await until(lambda: client._session.connector.pool.servers[0].failures == 1)
        assert not client.is_connected
        await client.force_reconnect()
        await client.wait_connected(20)
        assert attempts == 3


@pytest.mark.feature("client.force-reconnect")
async def test_a_forced_reconnect_right_after_a_failed_first_connect_is_not_lost() -> None:
    async with scripted_server(serve) as url:
        absent = f"nats://127.0.0.1:{free_port()}"
        client = await penstock.client.connect(absent, **NEVER, retry_on_failed_connect=True)
        client.set_servers(url)
        await client.force_reconnect()  # before the task that pauses has run
        await client.wait_connected(20)
        await client.close()


@pytest.mark.feature("client.force-reconnect")
async def test_a_client_that_does_not_reconnect_can_not_be_forced_to() -> None:
    async with scripted_server(serve) as url:
        client = await penstock.client.connect(url, reconnect=False)
        with pytest.raises(MisuseError, match="reconnect=True"):
            await client.force_reconnect()
        await client.close()
        with pytest.raises(ConnectionClosedError):
            await client.force_reconnect()


# --- the pool ----------------------------------------------------------------------------------


async def test_the_next_connection_is_to_a_server_of_the_new_list() -> None:
    async with (
        scripted_server(serve) as first,
        scripted_server(serve) as second,
        penstock.client.connect(first, **FAST) as client,
    ):
        assert (client.servers, client.connected_url) == ([first], first)
        client.set_servers(second)
        assert (client.servers, client.connected_url) == ([second], first)
        await client.force_reconnect()
        await client.wait_connected(20)
        assert client.connected_url == second
        client.add_servers(first, second)
        assert client.servers == [second, first]
        for wrong in ([], "http://h", ["a", "b:c"]):
            with pytest.raises(MisuseError):
                client.set_servers(wrong)
        assert client.servers == [second, first]


@pytest.mark.parametrize("ignore", [False, True])
async def test_announced_servers_join_the_pool_unless_they_are_ignored(ignore: bool) -> None:
    info = {**json.loads(INFO[5:]), "connect_urls": ["10.0.0.9:4333"]}

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake(b"INFO " + json.dumps(info).encode() + b"\r\n")
        await peer.line()

    async with (
        scripted_server(script) as url,
        penstock.client.connect(url, ignore_discovered=ignore, reconnect=False) as client,
    ):
        assert client.discovered_servers == ([] if ignore else ["nats://10.0.0.9:4333"])
        assert client.servers == [url, *client.discovered_servers]


async def test_the_user_chooses_the_server_of_a_reconnect() -> None:
    asked: list[tuple[ServerCandidate, ...]] = []
    errors: list[Exception] = []
    answers: list[str] = []

    def choose(candidates: tuple[ServerCandidate, ...], info: Any) -> tuple[str | None, float]:
        assert info.server_id == "FAKE"
        asked.append(candidates)
        return answers.pop(0), 0.0

    async with (
        scripted_server(serve) as first,
        scripted_server(serve) as second,
        penstock.client.connect(
            [first, second],
            **FAST,
            randomize=False,
            choose_server=choose,
            on_error=lambda _, error: errors.append(error),
        ) as client,
    ):
        assert client.connected_url == first
        answers.append(first)
        await client.force_reconnect()
        await client.wait_connected(20)
        assert client.connected_url == first
        assert asked == [(ServerCandidate(first, 0, False), ServerCandidate(second, 0, False))]
        answers.append("nats://elsewhere:1")
        await client.force_reconnect()
        await client.wait_connected(20)
        assert client.connected_url == second
        assert [str(error) for error in errors] == [
            "choose_server returned 'nats://elsewhere:1', which is not one of its candidates"
        ]


async def test_a_delay_function_gets_the_number_of_each_round() -> None:
    rounds: list[int] = []

    def delay(number: int) -> float:
        rounds.append(number)
        return 0.001

    client = await penstock.client.connect(
        f"nats://127.0.0.1:{free_port()}",
        retry_on_failed_connect=True,
        max_reconnects=4,
        reconnect_delay=delay,
    )
    with pytest.raises(ConnectionClosedError):
        await client.wait_connected(20)
    assert rounds == [1, 2, 3]


# --- credentials for each connection -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_user_and_password_are_asked_for_at_each_connection(kind: str, tmp_path: Path) -> None:
    asked: list[str] = []

    def user() -> str:
        asked.append("user")
        return "joe"

    async def password() -> str:
        asked.append("password")
        return "secret"

    with running_server(kind, tmp_path, user="joe", password="secret") as server:
        async with penstock.client.connect(server.url, **FAST, user=user, password=password) as client:
            await client.force_reconnect()
            await client.wait_connected(20)
    assert asked == ["user", "password"] * 2


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (lambda: 1 / 0, "the function for token raised ZeroDivisionError: division by zero"),
        (lambda: 5, "the function for token returned int, not str"),
    ],
    ids=["raises", "returns no text"],
)
async def test_a_token_function_that_fails_is_an_error_of_the_credentials(token: Any, text: str) -> None:
    async with scripted_server(serve) as url:
        with pytest.raises(AuthorizationError) as caught:
            await penstock.client.connect(url, token=token)
        assert str(caught.value) == text


# --- counts, and ending ------------------------------------------------------------------------


@pytest.mark.feature("client.stats")
async def test_stats_count_messages_and_bytes_of_both_directions(client: Client) -> None:
    zero = client.stats
    assert (zero.in_messages, zero.in_bytes, zero.out_messages, zero.out_bytes) == (0, 0, 0, 0)
    subscription = await client.subscribe("count.*")
    await client.publish("count.plain", b"12345")
    await client.publish("count.headers", b"12345", headers={"A": "b"})
    await client.flush()
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    stats = client.stats
    assert subscription.pending_messages == 2
    assert (stats.out_messages, stats.out_bytes) == (2, 10 + block)
    assert (stats.in_messages, stats.in_bytes) == (2, 10 + block)
    assert (stats.reconnects, stats.errors) == (0, 0)
    await client.force_reconnect()
    await client.wait_connected(20)
    assert client.stats.in_messages == 2
    await client.close()
    assert client.stats.in_bytes == 10 + block


@pytest.mark.feature("client.stats")
async def test_a_batch_counts_its_messages(client: Client) -> None:
    js = client.jetstream(timeout=10)
    await js.create_stream("COUNT", subjects=["count"], storage="memory", allow_atomic=True)
    try:
        before = client.stats
        async with js.atomic_batch() as batch:
            await batch.add("count", b"abc")
            await batch.add_many([b"12345"] * 10, "count")
            await batch.commit("count", b"end")
        assert client.stats.out_messages - before.out_messages >= 12
        assert client.stats.out_bytes - before.out_bytes >= 3 + 50 + 3
    finally:
        await js.delete_stream("COUNT")


async def test_a_drain_ends_at_its_own_time_limit() -> None:
    errors: list[Exception] = []
    async with scripted_server(serve) as url:
        client = await penstock.client.connect(url, on_error=lambda _, error: errors.append(error))
        stuck = asyncio.Event()

        async def never(_: object) -> None:
            await asyncio.wait_for(stuck.wait(), 10)

        subscription = await client.subscribe("a", callback=never)
        subscription.receive((1, b"a", None, None, b""))
        await client.drain(timeout=0.05)
        assert client.is_closed
    assert [str(error) for error in errors] == [
        "drain: 1 subscriptions were not read to their end within 0.05 s"
    ]


async def test_rtt_takes_a_time_limit() -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await asyncio.Event().wait()

    async with scripted_server(script) as url:
        client = await penstock.client.connect(url, reconnect=False)
        with pytest.raises(RequestTimeoutError):
            await client.rtt(timeout=0.01)
        client._session.finish(None)


async def test_a_closed_connection_hands_over_nothing() -> None:
    """Its subscriptions are the next connection's, which delivers their messages from then on."""
    async with scripted_server(serve) as url, penstock.client.connect(url, **FAST) as client:
        got = await client.subscribe("a")
        await client.flush()
        old = client._session.connection
        assert old is not None
        await client.force_reconnect()
        view = old.get_buffer(-1)
        late = b"MSG a 1 4\r\nlate\r\n"
        view[: len(late)] = late
        del view
        old.buffer_updated(len(late))
        assert got.pending_messages == 0
        await client.wait_connected(20)
