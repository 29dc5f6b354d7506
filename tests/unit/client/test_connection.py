"""One connection over a fake transport: handshake, frames cut at every byte, liveness, the ways it ends."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.client.connection import Connection, error_of_text
from penstock.client.info import ConnectRequest
from penstock.client.options import Options
from penstock.client.servers import ServerUrl
from penstock.errors import (
    AuthorizationError,
    DisconnectedError,
    ProtocolError,
    ServerRefusedError,
    StaleConnectionError,
)
from penstock.kernels.wire.output import OutBuffer
from tests.support.client_fakes import INFO, FakeTransport, RecordingOwner, feed

pytestmark = pytest.mark.feature("client.connection")


class Wire:
    """A connection with its fakes."""

    def __init__(self, options: Options | None = None) -> None:
        self.owner = RecordingOwner()
        self.out = OutBuffer()
        self.connection = Connection(self.owner, ServerUrl("fake"), self.out, options or Options())
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)

    async def handshake(self, step: int = 0) -> bytes:
        """Runs the handshake; returns what the client sent."""
        task = asyncio.ensure_future(self.connection.handshake(ConnectRequest(name="test")))
        feed(self.connection, INFO, step)
        await tick()
        sent = self.transport.take()
        feed(self.connection, b"PONG\r\n", step)
        await task
        return sent


async def tick() -> None:
    """Lets callbacks and tasks run that are due."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def wire() -> Wire:
    wire = Wire()
    await wire.handshake()
    return wire


async def test_nothing_is_sent_before_info_and_connect_comes_first() -> None:
    wire = Wire()
    wire.out.write(b"PUB early 0\r\n\r\n")
    task = asyncio.ensure_future(wire.connection.handshake(ConnectRequest(name="n", user="u", password="p")))
    await tick()
    assert wire.transport.take() == b""
    feed(wire.connection, INFO)
    await tick()
    verb, rest = wire.transport.take().split(b" ", 1)
    body, ping, rest = rest.split(b"\r\n")
    assert (verb, ping, rest) == (b"CONNECT", b"PING", b"")
    connect = json.loads(body)
    assert (connect["user"], connect["pass"], connect["name"]) == ("u", "p", "n")
    assert (connect["headers"], connect["no_responders"], connect["protocol"]) == (True, True, 1)
    assert (connect["verbose"], connect["echo"]) == (False, True)
    assert not task.done()
    feed(wire.connection, b"PONG\r\n")
    await task
    assert wire.connection.info.server_id == "FAKE"
    assert wire.transport.take() == b""  # the out buffer waits until subscriptions are made
    wire.connection.flush()
    assert wire.transport.take() == b"PUB early 0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
async def test_frames_mean_the_same_however_they_are_cut(step: int) -> None:
    wire = Wire()
    await wire.handshake(step)
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    feed(
        wire.connection,
        b"MSG a.b 1 5\r\nhello\r\n"
        b"PING\r\n"
        b"MSG a.b 22 reply.to 4\r\n\r\n\r\n\r\n"
        b"HMSG h 3 %d %d\r\n%bxyz\r\n"
        % (len(header), len(header) + 3, header)
        + b"+OK\r\n"
        + INFO.replace(b"FAKE", b"NEXT")
        + b"-ERR 'Slow Consumer'\r\n"
        b"MSG a.b 1 0\r\n\r\n",
        step,
    )
    assert wire.owner.messages == [
        (1, b"a.b", None, None, b"hello"),
        (22, b"a.b", b"reply.to", None, b"\r\n\r\n"),
        (3, b"h", None, header, b"xyz"),
        (1, b"a.b", None, None, b""),
    ]
    assert wire.transport.take() == b"PONG\r\n"
    assert [info.server_id for info in wire.owner.infos] == ["NEXT"]
    assert wire.owner.texts == ["Slow Consumer"]
    assert wire.owner.lost == []


async def test_what_is_no_frame_ends_the_connection_as_the_servers_fault(wire: Wire) -> None:
    feed(wire.connection, b"MSG a 1 1\r\nx\r\nGARBAGE\r\nMSG a 1 1\r\ny\r\n")
    await tick()
    assert [raw[4] for raw in wire.owner.messages] == [b"x"]
    assert isinstance(wire.owner.lost[0], ProtocolError)


async def test_broken_info_fails_the_handshake() -> None:
    wire = Wire()
    task = asyncio.ensure_future(wire.connection.handshake(ConnectRequest()))
    feed(wire.connection, b'INFO {"max_payload":"much"}\r\n')
    with pytest.raises(ProtocolError, match="max_payload"):
        await task
    assert wire.owner.lost == []  # only connections that were ready are lost


async def test_refused_credentials_fail_the_handshake() -> None:
    wire = Wire()
    task = asyncio.ensure_future(wire.connection.handshake(ConnectRequest()))
    feed(wire.connection, INFO)
    await tick()
    feed(wire.connection, b"-ERR 'Authorization Violation'\r\n")
    with pytest.raises(AuthorizationError):
        await task


async def test_a_server_that_hangs_up_fails_the_handshake() -> None:
    for data in (b"", INFO, INFO + b"PONG\r\n"):
        wire = Wire()
        task = asyncio.ensure_future(wire.connection.handshake(ConnectRequest()))
        await tick()
        feed(wire.connection, data[: len(INFO)])
        await tick()
        feed(wire.connection, data[len(INFO) :])
        wire.connection.connection_lost(None)
        with pytest.raises(DisconnectedError):
            await task
        assert wire.owner.lost == []


async def test_frames_right_behind_the_handshake_reach_the_owner() -> None:
    wire = Wire()
    task = asyncio.ensure_future(wire.connection.handshake(ConnectRequest()))
    feed(wire.connection, INFO)
    await tick()
    feed(wire.connection, b"PONG\r\n-ERR 'Invalid Subject'\r\n" + INFO + b"MSG a 1 0\r\n\r\n")
    await task
    assert (wire.owner.texts, len(wire.owner.infos), len(wire.owner.messages)) == (["Invalid Subject"], 1, 1)


async def test_pings_are_answered_in_order(wire: Wire) -> None:
    wire.out.write(b"PUB a 0\r\n\r\n")
    first = asyncio.ensure_future(wire.connection.ping())
    second = asyncio.ensure_future(wire.connection.ping())
    await tick()
    assert wire.transport.take() == b"PUB a 0\r\n\r\nPING\r\nPING\r\n"
    feed(wire.connection, b"PONG\r\n")
    await tick()
    assert first.done()
    assert not second.done()
    second.cancel()
    third = asyncio.ensure_future(wire.connection.ping())
    await tick()
    feed(wire.connection, b"PONG\r\nPONG\r\n")
    await third  # the cancelled one's PONG was not taken for its own


async def test_a_ping_fails_with_the_connection(wire: Wire) -> None:
    ping = asyncio.ensure_future(wire.connection.ping())
    await tick()
    wire.connection.connection_lost(OSError("cable cut"))
    with pytest.raises(DisconnectedError, match="broke: cable cut"):
        await ping
    assert isinstance(wire.owner.lost[0], DisconnectedError)
    with pytest.raises(DisconnectedError):
        await wire.connection.ping()


async def test_unanswered_pings_make_the_connection_stale() -> None:
    wire = Wire(Options(ping_interval=0.001, max_outstanding_pings=2))
    await wire.handshake()
    async with asyncio.timeout(10):
        await wire.connection.closed
    assert wire.transport.take() == b"PING\r\nPING\r\n"
    assert isinstance(wire.owner.lost[0], StaleConnectionError)


async def test_answered_pings_keep_the_connection() -> None:
    """However slow the machine: the loop runs this task between any two calls of the timer."""
    wire = Wire(Options(ping_interval=0.001, max_outstanding_pings=2))
    await wire.handshake()
    answered = 0
    async with asyncio.timeout(10):
        while answered < 10:
            await asyncio.sleep(0)
            pings = wire.transport.take().count(b"PING")
            feed(wire.connection, b"PONG\r\n" * pings)
            answered += pings
    assert wire.owner.lost == []
    wire.connection.close()


async def test_closing_sends_what_is_left_and_is_no_error(wire: Wire) -> None:
    wire.out.write(b"PUB last 0\r\n\r\n")
    wire.connection.close()
    await wire.connection.closed
    assert wire.transport.take() == b"PUB last 0\r\n\r\n"
    assert wire.owner.lost == [None]


async def test_writers_wait_while_the_socket_is_full(wire: Wire) -> None:
    await wire.connection.writable()
    wire.connection.pause_writing()
    waiters = [asyncio.ensure_future(wire.connection.writable()) for _ in range(2)]
    await tick()
    assert not any(waiter.done() for waiter in waiters)
    waiters[0].cancel()
    wire.connection.resume_writing()
    await waiters[1]


async def test_a_reason_given_by_the_server_is_why_the_connection_was_lost(wire: Wire) -> None:
    feed(wire.connection, b"-ERR 'User Authentication Expired'\r\n")
    wire.connection.connection_lost(None)
    assert isinstance(wire.owner.lost[0], AuthorizationError)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization Violation", AuthorizationError),
        ("Authentication Timeout", AuthorizationError),
        ("User Authentication Revoked", AuthorizationError),
        ("Account Authentication Expired", AuthorizationError),
        ("Stale Connection", StaleConnectionError),
        ("Maximum Payload Violation", ServerRefusedError),
        ("maximum connections exceeded", ServerRefusedError),
    ],
)
def test_error_texts_have_their_exceptions(text: str, kind: type[Exception]) -> None:
    assert type(error_of_text(text)) is kind
