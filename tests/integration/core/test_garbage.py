"""Whatever bytes come in, the server lives on and other clients don't notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.testing import EmbeddedServer
from penstock.testing import server as penstock_server
from tests.support.wire import Wire, send_slowly

pytestmark = pytest.mark.feature("core.hostile-input")

FRAMES = [
    b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n',
    b"PING\r\n",
    b"PONG\r\n",
    b"SUB a.> q 1\r\n",
    b"SUB * 2\r\n",
    b"UNSUB 1 3\r\n",
    b"PUB a.b r 5\r\nhello\r\n",
    b"HPUB a.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"PUB $JS.API.INFO r 0\r\n\r\n",
    b"PUB $JS.API.STREAM.CREATE.X r 2\r\n{}\r\n",
    b"PUB $JS.ACK.a.b.1.2.3.4.5 4\r\n-NAK\r\n",
    b"+OK\r\n",
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Valid frames with some bytes replaced, removed or repeated."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=8))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1)) if data else 0
        kind = draw(st.integers(0, 2))
        if kind == 0:
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == 1:
            del data[at : at + draw(st.integers(1, 9))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with penstock_server(jetstream=True) as running:
        yield running


@pytest.fixture(scope="module")
def witness(server: EmbeddedServer) -> Iterator[Wire]:
    with Wire(server.port) as wire:
        yield wire.connect()


def hears(witness: Wire) -> bytes:
    """What the witness gets of its own message; the server may ping it as well."""
    return witness.ask(b"SUB mine 9\r\nPUB mine 2\r\nhi\r\nUNSUB 9\r\n").replace(b"PING\r\n", b"")


@settings(max_examples=150)
@given(data=damaged())
def test_damaged_frames_harm_no_other_client(server: EmbeddedServer, witness: Wire, data: bytes) -> None:
    with Wire(server.port) as wire:
        send_slowly(wire, [data[: len(data) // 2], data[len(data) // 2 :]])
        # What the frames brought about is over once the witness has its answer, sent after them.
        assert hears(witness) == b"MSG mine 9 2\r\nhi\r\n"


@settings(max_examples=50)
@given(data=st.binary(max_size=300))
def test_any_bytes_harm_no_other_client(server: EmbeddedServer, witness: Wire, data: bytes) -> None:
    with Wire(server.port) as wire:
        send_slowly(wire, [data])
        assert hears(witness) == b"MSG mine 9 2\r\nhi\r\n"


def test_everything_the_garbage_subscribed_is_gone(server: EmbeddedServer, witness: Wire) -> None:
    async def sessions() -> int:
        return len(server.server.sessions)

    with Wire(server.port) as wire:
        wire.connect()
    while server.run(sessions()) > 1:
        witness.ask(b"")

    async def subscriptions() -> set[bytes]:
        index = server.server.accounts["$G"].index
        return {s.subject for s in index.subscriptions() if not s.subject.startswith(b"$")}

    assert server.run(subscriptions()) == set()


def test_a_consumer_whose_name_is_no_utf8_is_refused(server: EmbeddedServer) -> None:
    stream = b'{"name":"UTF8","subjects":["utf8"],"storage":"memory"}'
    consumer = b'{"stream_name":"UTF8","config":{}}'
    with Wire(server.port) as wire:
        wire.connect()
        wire.ask(b"SUB r 1\r\nSUB $JS.EVENT.ADVISORY.API 2\r\n")
        wire.ask(b"PUB $JS.API.STREAM.CREATE.UTF8 r %d\r\n%s\r\n" % (len(stream), stream))
        request = b"PUB $JS.API.CONSUMER.CREATE.UTF8.\xd7 r %d\r\n%s\r\n"
        assert b'"err_code":10003' in wire.ask(request % (len(consumer), consumer))
