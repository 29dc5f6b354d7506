"""What fuzzers of a whole server share: a server in this process, and clients of it without sockets.

A `Peer` is a connection on a transport that is none: what arrives is given to it, what it writes is kept.
`Host` runs a server, replaces it now and then, and checks after each input that nothing escaped to the loop,
that the server goes on, and that a witness still gets its own message.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import instrumented  # noqa: F401  # before everything of penstock

from penstock import faults
from penstock.kernels.wire.route_frames import RouteParser
from penstock.net.proxy_layer import ProxyLayer
from penstock.net.server_connection import ServerConnection
from penstock.server.config.server_options import ServerOptions
from penstock.server.logging import logs
from penstock.server.server import Server

INPUTS_PER_SERVER = 500
UNREGISTERED_BYTES_MAX = 64 << 10  # that the parser of a server that is not registered may keep
TURNS_MAX = 100  # rounds of the loop until the witness has its message


class FakeTransport(asyncio.Transport):
    """Takes what is written; with `reads` False it keeps it, as a socket whose peer doesn't read."""

    def __init__(self, connection: Any, *, reads: bool = True, waiting_max_bytes: int = sys.maxsize) -> None:
        super().__init__({"peername": ("198.51.100.1", 4000)})
        self.connection = connection
        self.protocol: asyncio.BaseProtocol = connection
        self.reads = reads
        self.waiting_max_bytes = waiting_max_bytes
        self.taken = bytearray()
        self.waiting = 0
        self.closing = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def write(self, data: Any) -> None:
        if self.reads:
            self.taken += data
            return
        self.waiting += len(data)
        if self.waiting > self.waiting_max_bytes:
            raise AssertionError(f"{self.waiting} bytes wait, {self.waiting_max_bytes} may")
        if self.waiting == len(data):
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are this fake's own."""

    def pause_reading(self) -> None:
        """Inputs are short: they are read to the end."""

    def resume_reading(self) -> None:
        """See pause_reading."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class Peer:
    """A connection of a server, driven by hand.

    Args:
        server: which one.
        outer: what accepts the socket; by default what the server's listener for clients makes.
        transport: made for the connection; by default one that reads.
        ends_ticks: reads end ticks, as those of a plain socket do.
    """

    def __init__(
        self,
        server: Server,
        *,
        outer: Any = None,
        transport: Callable[[Any], FakeTransport] = FakeTransport,
        ends_ticks: bool = False,
    ) -> None:
        outer = server._accept() if outer is None else outer
        self.connection = outer._connection if isinstance(outer, ProxyLayer) else outer
        self.transport = transport(self.connection)
        self.transport.set_protocol(outer)
        outer.connection_made(self.transport)
        if ends_ticks:
            assert server._tick is not None
            assert isinstance(self.connection, ServerConnection)
            self.connection._ingress.trigger = server._tick.trigger

    def receive(self, data: bytes) -> None:
        """What arrives in one read, as far as there is room for it at a time."""
        while data and not self.transport.closing:
            reader: Any = self.transport.get_protocol()
            view = memoryview(reader.get_buffer(len(data)))
            size = min(len(view), len(data))
            view[:size] = data[:size]
            view.release()
            reader.buffer_updated(size)
            data = data[size:]

    def go(self) -> None:
        protocol: Any = self.transport.get_protocol()
        protocol.connection_lost(None)

    def take(self) -> bytes:
        taken = bytes(self.transport.taken)
        self.transport.taken.clear()
        return taken


async def turns(count: int = 3) -> None:
    """The loop goes round until the end of the tick has run, and what it scheduled."""
    for _ in range(count):
        await asyncio.sleep(0)


class Host:
    """A server in this process, and a witness that must not notice anything.

    Args:
        options: of the server.
        login: what the witness sends first, given the first line of the server.
        furnish: makes what inputs meet; runs whenever the server is replaced.
    """

    def __init__(
        self,
        options: ServerOptions,
        login: Callable[[bytes], bytes],
        furnish: Callable[[Peer], None] = lambda witness: None,
    ) -> None:
        self._options = options
        self._login = login
        self._furnish = furnish
        self._inputs = 0
        self._escaped: list[dict[str, Any]] = []
        self._fatal: list[str] = []
        self._faults: list[tuple[str, BaseException]] = []
        self._server: Server | None = None
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: self._escaped.append(context))

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def run(self, work: Callable[[], Any]) -> None:
        """Runs a coroutine function on the server, then the checks."""
        with faults.watch(lambda where, error: self._faults.append((where, error))):
            self.loop.run_until_complete(self._run(work))
        if self._faults:
            raise AssertionError(f"contained, but raised: {self._faults}") from self._faults[0][1]
        if self._escaped:
            raise AssertionError(f"escaped to the loop: {self._escaped}") from self._escaped[0].get(
                "exception"
            )

    async def _run(self, work: Callable[[], Any]) -> None:
        if self._inputs % INPUTS_PER_SERVER == 0:
            await self._replace()
        self._inputs += 1
        await work()
        await turns()
        await self._check()

    async def _replace(self) -> None:
        if self._server is not None:
            self.witness.go()
            await self._server.stop()
        self._server = Server(options=self._options, log=logs.Log(self._log, debug=True))
        await self._server.start()
        self.witness = Peer(self._server)
        await turns()
        self.witness.receive(self._login(self.witness.take()) + b"SUB witness.* 1\r\n")
        self._furnish(self.witness)
        await turns()
        self.witness.take()

    def _log(self, label: str, text: str) -> None:
        if label == "FTL":
            self._fatal.append(text)

    async def _check(self) -> None:
        if self._fatal or self.server.failed:
            raise AssertionError(f"the server failed: {self._fatal}")
        self.witness.take()
        self.witness.receive(b"PING\r\nPONG\r\nPUB witness.%d 2\r\nok\r\n" % self._inputs)
        expected = b"MSG witness.%d 1 2\r\nok\r\n" % self._inputs
        got = b""
        for _ in range(TURNS_MAX):  # parts end by the clock: on a busy machine, the witness has several turns
            await turns()
            got += self.witness.take()
            if expected in got:
                return
        raise AssertionError(f"the witness got {got[-500:]!r}, expected {expected!r}")


async def talk_as_server(host: Host, peer: Peer, stream: bytes, read_bytes: int) -> None:
    """Gives what another server sends to the connection of a route or leaf node, in reads of that size, and
    ends it. Checks what the parser keeps meanwhile, and that no interest is left."""
    parser = peer.connection._ingress.parser
    assert isinstance(parser, RouteParser)
    for at in range(0, len(stream), read_bytes):
        peer.receive(stream[at : at + read_bytes])
        while peer.connection._ingress.waiting:  # a socket would not be read meanwhile
            await turns(1)
        if not parser.is_wide:
            assert parser.held_bytes <= UNREGISTERED_BYTES_MAX, parser.held_bytes
    await turns()
    peer.go()
    await turns()
    for account in host.server.accounts.values():
        left = [one for one in account.index.subscriptions() if one.remote]
        assert not left, left
