"""A busy connection reads its socket itself between two parts. It must not where the socket's bytes are not
those of the protocol: behind a layer, and in a compressed stream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.kernels.wire.ticks import CROWD_PERIOD_NS, SHORT_BUDGET_NS, TickTrigger
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason
from penstock.net.route_connection import RouteConnection
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks

ITERATIONS_MAX = 100_000


class SocketTransport(asyncio.Transport):
    """The transport of one end of a socket pair; the test decides what the event loop reads."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self.written = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock if name == "socket" else default

    def write(self, data: Any) -> None:
        self.written += data

    def set_protocol(self, protocol: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = abort = close = pause_reading

    def is_closing(self) -> bool:
        return False


class PlainLayer(Layer):
    """A layer that has the socket's transport below it, as TLS has."""

    def __init__(self, raw: SocketTransport) -> None:
        super().__init__()
        self._raw = raw

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self._raw.write(data)

    def _work(self) -> None:
        pass


class BusyRoute:
    """A route that has more input than fits in a part, beside a client with little to do: under these
    conditions an ingress reads its socket. The clock runs with the messages."""

    def __init__(self) -> None:
        self.now_ns = CROWD_PERIOD_NS
        self.soon: list[Callable[[], object]] = []
        self.served: list[bytes] = []
        self.trigger = TickTrigger(self.soon.append, self._end, lambda: self.now_ns)
        index = SubscriptionIndex()
        index.insert(SinkSubscription(ServiceSink(self._serve), b">"))
        bounds = Bounds(64 << 20, 10.0)
        loop = asyncio.get_running_loop()
        watch = BacklogWatch(loop, bounds, flush_all=lambda: False, trigger=self.trigger)
        self.sink = RouteSink(self.trigger.dirty_sinks)
        parser = RouteParser()
        parser.widen()
        self.ingress = RouteIngress(self.sink, index, parser)
        self.ingress.serve(lambda account: index)
        self.connection = RouteConnection(self.ingress, watch, self)
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.transport = SocketTransport(self.ours)
        self._light = Ingress(RouteSink(self.trigger.dirty_sinks))
        self._light.trigger, self._light.on_control, self._light.is_direct = self.trigger, int, True
        self.connection.connection_made(self.transport)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def _serve(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self.served.append(payload)
        self.now_ns += SHORT_BUDGET_NS // 8

    def _end(self) -> None:
        self.trigger.begin()
        self.trigger.done()
        self.trigger.flush()

    def read(self, data: bytes) -> None:
        """The event loop reads until the buffer is full; what is left stays in the socket."""
        self._crowd()
        while data:
            room = memoryview(self.connection.get_buffer(-1))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            room.release()
            self.connection.buffer_updated(count)
            data = data[count:]

    def iterate_until_idle(self) -> None:
        for _ in range(ITERATIONS_MAX):
            if not self.soon:
                return
            self._crowd()
            due, self.soon[:] = self.soon[:], []
            for callback in due:
                callback()
        raise AssertionError("it never comes to an end")

    def _crowd(self) -> None:
        self._light.parser.feed(b"PING\r\n")
        self._light.go_on()
        assert self.trigger.budget.crowded

    def left_in_the_socket(self) -> int:
        try:
            return len(self.ours.recv(1 << 20, socket.MSG_PEEK))
        except BlockingIOError:
            return 0

    # -- of the handler

    def connected(self) -> None:
        pass

    def control(self, op: int) -> None:
        raise AssertionError(f"frame {op}: the parser got bytes of another format")

    def fell_behind(self) -> None:
        raise AssertionError("nothing waits for this receiver")

    def closed(self, reason: CloseReason) -> None:
        raise AssertionError(reason)


@contextmanager
def busy_route() -> Iterator[BusyRoute]:
    route = BusyRoute()
    try:
        yield route
    finally:
        route.close()


LEFT = 100  # messages that are left in the socket


def messages(route: BusyRoute) -> tuple[bytes, bytes, list[bytes]]:
    """A full read, what is left in the socket behind it, and the payloads of both. The read ends within a
    message."""
    with memoryview(route.connection.get_buffer(-1)) as room:
        size = len(room)
    payloads = [b"%05d" % n for n in range(size // 20 + LEFT)]
    data = b"".join(b"RMSG $G a 5\r\n%s\r\n" % payload for payload in payloads)
    assert len(data) > size
    return data[:size], data[size:], payloads


async def read_a_plain_socket() -> None:
    with busy_route() as route:
        whole_read, left, payloads = messages(route)
        route.theirs.send(left)
        route.read(whole_read)
        route.iterate_until_idle()
        assert route.served == payloads
        assert route.left_in_the_socket() == 0


def test_a_busy_route_without_compression_reads_its_socket_between_its_parts() -> None:
    """Without this the tests below would show nothing."""
    asyncio.run(read_a_plain_socket())


async def read_a_compressed_stream(mode: str) -> None:
    with busy_route() as route:
        whole_read, left, payloads = messages(route)
        compressed = encode_chunks(left)
        route.connection.compress(mode)
        assert not route.transport.written, "the identifier leaves with the first chunk"
        route.theirs.send(compressed)
        route.read(IDENTIFIER + encode_chunks(whole_read))
        route.iterate_until_idle()
        assert route.served == payloads[: len(route.served)]
        assert route.left_in_the_socket() == len(compressed), (
            "compressed bytes are for the event loop to read"
        )
        route.read(compressed)
        route.iterate_until_idle()
        assert route.served == payloads
        route.connection.flush()
        assert (route.sink.socket, route.ingress.socket, route.ingress.is_direct) == (-1, -1, False)
        for _ in range(2):
            route.sink.write(b"PING\r\n")
            route.connection.flush()
        chunk = encode_chunks(b"PING\r\n", compress=mode == "s2_fast")
        assert bytes(route.transport.written) == IDENTIFIER + chunk + chunk


@pytest.mark.parametrize("mode", ["s2_fast", "s2_uncompressed"])
def test_a_busy_compressed_route_leaves_its_socket_to_the_event_loop(mode: str) -> None:
    asyncio.run(read_a_compressed_stream(mode))


async def read_behind_a_layer() -> None:
    with busy_route() as route:
        whole_read, left, payloads = messages(route)
        route.connection.use(PlainLayer(route.transport))
        route.theirs.send(left)
        route.read(whole_read)
        route.iterate_until_idle()
        assert route.served == payloads[: len(route.served)]
        assert route.left_in_the_socket() == len(left), "the layer's bytes, not the parser's"
        route.connection.flush()
        assert (route.sink.socket, route.ingress.socket, route.ingress.is_direct) == (-1, -1, False)
        route.connection.use(route.transport)  # the layer is removed
        assert route.ingress.socket == route.ours.fileno()


def test_a_busy_connection_behind_a_layer_leaves_the_socket_to_the_layer() -> None:
    asyncio.run(read_behind_a_layer())
