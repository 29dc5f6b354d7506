"""A connection whose reads are worked on in parts: nothing is lost or out of order, whatever is between it
and the socket, and whatever ends it. Time is a count of frames."""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.frames import OP_ERROR, OP_NEED_MORE
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.kernels.wire.ticks import CROWD_PERIOD_NS, SHORT_BUDGET_NS, TickTrigger
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection
from penstock.net.tls import TlsLayer, TlsPolicy
from penstock.net.websocket import CROWDED_READ_BYTES, AcceptedWebsocket, WebsocketPolicy

PEM = str(Path(__file__).parents[2] / "support" / "tls.pem")
KINDS = ("plain", "tls", "websocket")
A_PART = 4  # frames of a part
SCRATCH = 1 << 20
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Raw(asyncio.Transport):
    """The socket's transport: remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closing = False
        self.written = bytearray()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class Harness:
    """One client's connection, and a loop whose iterations the test runs. Each frame takes a quarter of the
    budget."""

    def __init__(self, kind: str) -> None:
        self.now_ns = CROWD_PERIOD_NS
        self.soon: list[Callable[[], object]] = []
        self.trigger = TickTrigger(self.soon.append, self._end, lambda: self.now_ns)
        self.served: list[bytes] = []
        self.ended: list[CloseReason] = []
        self.counts: list[int] = []  # frames of each iteration
        index = SubscriptionIndex()
        index.insert(SinkSubscription(ServiceSink(self._serve), b">"))
        loop = asyncio.get_running_loop()
        watch = BacklogWatch(loop, Bounds(64 << 20, 10.0), flush_all=lambda: False, trigger=self.trigger)
        self.sink = ClientSink(self.trigger.dirty_sinks)
        self.ingress = Ingress(self.sink, index)
        self.connection = ServerConnection(self.ingress, watch, self)
        self.sink.owner = self.connection
        self.raw = Raw()
        self.watch = watch
        self._make_crowd()
        self.protocol, self.encode = getattr(self, f"_{kind}")()

    def _make_crowd(self) -> None:
        sink = ClientSink(self.trigger.dirty_sinks)
        light = Ingress(sink)
        light.trigger, light.on_control, light.is_direct = self.trigger, lambda op: None, True
        light.parser.feed(b"PING\r\n")
        light.go_on()
        assert self.trigger.budget.crowded

    def _plain(self) -> tuple[Any, Callable[[bytes], bytes]]:
        self.connection.connection_made(self.raw)
        return self.connection, bytes

    def _tls(self) -> tuple[Any, Callable[[bytes], bytes]]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(PEM)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        layer = TlsLayer(
            self.connection,
            server,
            TlsPolicy(10.0, info_delay_s=float("inf")),
            bytearray(SCRATCH),
            lambda text: None,
        )
        layer.connection_made(self.raw)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        peer = client.wrap_bio(incoming, outgoing)
        while True:
            try:
                peer.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._give(layer, outgoing.read())
                incoming.write(bytes(self.raw.written))
                self.raw.written.clear()
        self._give(layer, outgoing.read())

        def encode(data: bytes) -> bytes:
            peer.write(data)
            return outgoing.read()

        return layer, encode

    def _websocket(self) -> tuple[Any, Callable[[bytes], bytes]]:
        layer = AcceptedWebsocket(
            lambda cookies, claimed: self.connection, WebsocketPolicy(), bytearray(SCRATCH), lambda text: None
        )
        layer.connection_made(self.raw)
        self._give(layer, UPGRADE)

        def encode(data: bytes) -> bytes:
            """Frames of seven bytes: most protocol lines are cut."""
            pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
            return b"".join(
                struct.pack(">BB", 0x82, 0x80 | len(piece)) + bytes(4) + piece for piece in pieces
            )

        return layer, encode

    @staticmethod
    def _give(protocol: Any, data: bytes) -> None:
        while data:
            room = memoryview(protocol.get_buffer(len(data)))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            del room
            protocol.buffer_updated(count)
            data = data[count:]

    # -- of the handler

    def connected(self) -> None:
        pass

    def control(self, op: int) -> None:
        while op != OP_NEED_MORE and self.connection.close_reason is None:
            if op == OP_ERROR:
                self.served.append(b"error")
                self.connection.close(CloseReason.PARSE_ERROR)
                return
            self._note(b"op %d" % op)
            self.ingress.control()
            op = self.ingress.process()

    def closed(self, reason: CloseReason) -> None:
        self.ended.append(reason)

    def fell_behind(self) -> None:
        raise AssertionError("nothing waits for this receiver")

    # -- of the test

    def _serve(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._note(payload)

    def _note(self, what: bytes) -> None:
        self.served.append(what)
        self.now_ns += SHORT_BUDGET_NS // A_PART

    def _end(self) -> None:
        self.trigger.begin()
        self.trigger.done()
        self.trigger.flush()

    def read(self, data: bytes) -> None:
        """The loop reads bytes as they are on the wire; it does so only where reading is not paused."""
        self._run_until(lambda: self.raw.reading)
        before = len(self.served)
        self._give(self.protocol, data)
        self.counts.append(len(self.served) - before)

    def iterate(self) -> None:
        due, self.soon[:] = self.soon[:], []
        before = len(self.served)
        for callback in due:
            callback()
        self.counts.append(len(self.served) - before)

    def settle(self) -> None:
        self._run_until(lambda: not self.soon)

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if is_done():
                return
            self.iterate()
        raise AssertionError("it never comes to an end")


def publishes(count: int) -> bytes:
    return b"".join(b"PUB a 3\r\n%03d\r\n" % n for n in range(count))


def served(count: int) -> list[bytes]:
    return [b"%03d" % n for n in range(count)]


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(kind: str) -> None:
        asyncio.run(test(kind))

    run.__name__ = test.__name__
    return pytest.mark.parametrize("kind", KINDS)(run)


@in_a_loop
async def test_a_large_read_is_worked_on_in_parts_and_reading_pauses_until_its_end(kind: str) -> None:
    harness = Harness(kind)
    harness.read(harness.encode(publishes(100)))
    assert not harness.raw.reading
    harness.settle()
    assert harness.served == served(100)
    assert max(harness.counts) <= A_PART + 1
    assert harness.raw.reading


@in_a_loop
async def test_input_split_at_every_byte_is_served_in_order(kind: str) -> None:
    talk = publishes(6) + b"PING\r\n" + publishes(6) + b"SUB x 1\r\nPONG\r\n"
    expected = [*served(6), b"op 7", *served(6), b"op 3", b"op 8"]
    size = len(Harness(kind).encode(talk))
    for at in range(size):
        harness = Harness(kind)
        data = harness.encode(talk)
        harness.read(data[:at])
        harness.read(data[at:])
        harness.settle()
        assert harness.served == expected


@in_a_loop
async def test_what_came_before_the_end_of_the_socket_is_worked_on_before_the_session_ends(kind: str) -> None:
    for error in (None, ConnectionResetError()):
        harness = Harness(kind)
        harness.read(harness.encode(publishes(100)))
        assert len(harness.served) < 100
        harness.protocol.connection_lost(error)
        assert harness.ended == []
        harness.settle()
        assert harness.served == served(100)
        assert harness.ended == [CloseReason.READ_ERROR if error else CloseReason.CLIENT_CLOSED]
        assert max(harness.counts) <= A_PART + 1


@in_a_loop
async def test_a_session_that_ends_frees_its_read_buffer(kind: str) -> None:
    harness = Harness(kind)
    harness.read(harness.encode(b"PUB a 2000\r\n" + bytes(100)))
    harness.settle()
    assert harness.ingress.parser.held_bytes > 0
    harness.protocol.connection_lost(None)
    harness.settle()
    assert harness.ingress.parser.held_bytes == 0
    assert harness.ended == [CloseReason.CLIENT_CLOSED]


@in_a_loop
async def test_what_a_layer_keeps_for_later_turns_comes_before_the_end_of_the_socket(kind: str) -> None:
    size = 4_000 if kind == "websocket" else 16_000  # its test frames have seven bytes
    large = 40 * [b"x" * size]
    wire = b"".join(b"PUB a %d\r\n" % size + body + b"\r\n" for body in large)
    for end in (None, ConnectionResetError()):
        harness = Harness(kind)
        harness.read(harness.encode(wire))
        assert len(harness.served) < 40
        if kind != "plain":
            assert harness.ingress.parser.pending < len(wire) // 2, (
                "a layer hands over what there is budget for"
            )
        harness.protocol.connection_lost(end)
        harness.settle()
        assert harness.served == large
        assert len(harness.ended) == 1
        assert max(harness.counts) <= A_PART + 1


@in_a_loop
async def test_a_socket_that_fails_while_reading_is_paused_ends_the_session_after_its_input(
    kind: str,
) -> None:
    if kind != "plain":
        return  # layers leave all reads to the event loop
    harness = Harness(kind)
    with harness.connection.get_buffer(-1) as room:
        size = len(room)
        room[:] = (publishes(100) * (size // len(publishes(100)) + 1))[:size]
    harness.connection.buffer_updated(size)  # it filled its buffer: more waits in the socket
    reading, writing = os.pipe()  # no socket: recv() fails
    harness.ingress.socket = reading
    for _ in range(10_000):
        if harness.connection.close_reason is not None:
            break
        harness.iterate()
        harness._make_crowd()
    os.close(reading)
    os.close(writing)
    assert harness.connection.close_reason is CloseReason.READ_ERROR
    assert harness.ingress.parser.pending < len(publishes(1))
    assert harness.raw.closing


@in_a_loop
async def test_a_session_that_is_closed_after_its_socket_ends_with_the_rest_unread(kind: str) -> None:
    harness = Harness(kind)
    harness.read(harness.encode(publishes(100)))
    harness.protocol.connection_lost(None)
    before = len(harness.served)
    harness.connection.close(CloseReason.STALE_CONNECTION)
    harness.settle()
    await asyncio.sleep(0)
    assert harness.ended == [CloseReason.STALE_CONNECTION]
    assert len(harness.served) == before


@in_a_loop
async def test_a_broken_frame_in_the_rest_closes_the_connection_and_nothing_behind_it_is_served(
    kind: str,
) -> None:
    harness = Harness(kind)
    harness.read(harness.encode(publishes(10) + b"NO SUCH VERB\r\n" + publishes(10)))
    harness.settle()
    assert harness.served == [*served(10), b"error"]
    assert harness.connection.close_reason is CloseReason.PARSE_ERROR


@in_a_loop
async def test_a_server_that_stops_works_through_what_it_has_read(kind: str) -> None:
    harness = Harness(kind)
    harness.read(harness.encode(publishes(100)))
    harness.connection.finish()
    assert harness.served == served(100)
    harness.settle()
    assert harness.served == served(100)


@in_a_loop
async def test_nothing_is_worked_on_while_a_client_input_is_paused_and_all_afterwards(kind: str) -> None:
    harness = Harness(kind)
    harness.settle()
    harness.connection.pause_input()
    assert not harness.raw.reading
    Harness._give(harness.protocol, harness.encode(publishes(20)))
    harness.settle()
    assert harness.served == []
    harness.connection.resume_input()
    harness.settle()
    assert (harness.served, harness.raw.reading) == (served(20), True)
    harness.read(harness.encode(publishes(20)))
    harness.connection.pause_input()
    count = len(harness.served)
    harness.settle()
    assert len(harness.served) == count, "it was served, and it is held"
    harness.connection.resume_input()
    harness.settle()
    assert harness.served == served(20) * 2


@in_a_loop
async def test_a_stalled_publisher_has_no_turns_until_it_goes_on(kind: str) -> None:
    harness = Harness(kind)
    harness.settle()
    harness.read(harness.encode(publishes(40)))
    harness.connection._stall()
    count = len(harness.served)
    harness.settle()
    assert len(harness.served) == count
    harness.connection._resume()
    harness.settle()
    assert (harness.served, harness.raw.reading) == (served(40), True)
    harness.watch.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_a_later_part_ends_that_connection_alone(
    kind: str, noted_faults: list[BaseException]
) -> None:
    asyncio.run(raise_in_a_later_part(kind))
    assert [str(fault) for fault in noted_faults] == ["no"]
    noted_faults.clear()


async def raise_in_a_later_part(kind: str) -> None:
    harness = Harness(kind)
    others: list[int] = []
    harness.read(harness.encode(publishes(A_PART) + b"PING\r\n" * 10))

    def fail(op: int) -> None:
        raise ValueError("no")

    harness.ingress.on_control = fail
    harness.trigger.budget.wait(lambda: others.append(1))
    harness.settle()
    assert (harness.connection.close_reason, others) == (CloseReason.READ_ERROR, [1])
    assert harness.raw.closing


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_raises_at_once_ends_its_connection(
    kind: str, noted_faults: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: ServerConnection) -> None:
        raise ValueError("no")

    async def main() -> None:
        harness = Harness(kind)
        harness.settle()
        monkeypatch.setattr(ServerConnection, "_run_part", fail)
        harness.read(harness.encode(publishes(100)))
        harness.settle()
        assert harness.connection.close_reason == CloseReason.READ_ERROR
        assert harness.raw.closing

    asyncio.run(main())
    assert [str(fault) for fault in noted_faults] == ["no"]
    noted_faults.clear()


async def test_small_reads_where_others_wait_do_not_make_a_flood_a_client_with_little_to_do() -> None:
    harness = Harness("websocket")
    payload = b"PUB a 3000\r\n" + b"x" * 3000 + b"\r\n"  # about one a read, which is little work
    frame = struct.pack(">BBH", 0x82, 0x80 | 126, len(payload)) + bytes(4) + payload
    sent, at = frame * 1000, 0
    while (room := harness.protocol.get_buffer(-1)).nbytes == CROWDED_READ_BYTES and at + len(room) < len(
        sent
    ):
        room[:] = sent[at : at + len(room)]
        at += len(room)
        harness.protocol.buffer_updated(len(room))
        harness.settle()
        harness.now_ns += CROWD_PERIOD_NS // 100
    assert at, "it begins among others"
    assert room.nbytes > CROWDED_READ_BYTES, "it is alone, and reads as if others were there"
