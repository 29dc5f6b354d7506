"""TCP proxies between the servers of a cluster, which hold up what one server sends to another.

Each server dials another one at a proxy of this pair, and advertises one more proxy, which the others learn
by gossip; there the first line of the connection (CONNECT) says who dials. So both ends of every connection
between servers are known.

A partition holds bytes up and loses none, as TCP does: what was sent before stays in the buffers of the
operating system, and arrives when the partition ends. A new connection opens only while both directions are
open. A server that ends while a partition lasts is noticed by the others afterwards, as over a network.

The proxies run in a thread of their own: a test that blocks its event loop does not partition the cluster.

Rejected: network namespaces and packet filters (they need root; the project's own tests have such clusters
beside these), and cutting connections (a partition is
silent; a closed connection tells the other side at once).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from penstock.testing.clusters.background_loop import BackgroundLoop

HOST = "127.0.0.1"
CONNECT_BYTES_MAX = 64 * 1024


class _TunnelEnd(asyncio.Protocol):
    """One side of a proxied connection. `forward` gets what it reads."""

    def __init__(self, tunnel: _Tunnel) -> None:
        self._tunnel = tunnel
        self.transport: asyncio.Transport | None = None
        self.is_congested = False  # its buffer for writing is full
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()
        self._tunnel.opened(self)

    def data_received(self, data: bytes) -> None:
        self._tunnel.forward(self, data)

    def pause_writing(self) -> None:
        self.is_congested = True
        self._tunnel.update()

    def resume_writing(self) -> None:
        self.is_congested = False
        self._tunnel.update()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._tunnel.update()

    def let_read(self, allowed: bool) -> None:
        if self.transport is None or self.is_lost or self.transport.is_closing():
            return
        if allowed:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.is_lost:
            self.transport.write(data)

    def close(self) -> None:
        """Writes what is buffered, and closes."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Tunnel:
    """A connection of `dialler` (-1 = not known yet) to `target`, both indexes of servers."""

    def __init__(self, proxies: FaultProxies, dialler: int, target: int) -> None:
        self._proxies = proxies
        self._dialler = dialler
        self._target = target
        self._first = b""  # of an unknown dialler, until its line is complete
        self._forth = bytearray()  # read while the far side was not open: uvloop reads once before it pauses
        self._is_dialling = False
        self.near = _TunnelEnd(self)  # the dialler's side
        self.far = _TunnelEnd(self)

    def opened(self, end: _TunnelEnd) -> None:
        self._proxies.add(self)
        self.update()

    def forward(self, end: _TunnelEnd, data: bytes) -> None:
        if end is self.far:
            self.near.write(data)
        elif self.far.transport is None:
            self._forth += data
        elif self._dialler >= 0:
            self.far.write(data)
        else:
            self._identify(data)

    def _identify(self, data: bytes) -> None:
        self._first += data
        line, ended, _ = self._first.partition(b"\r\n")
        if not ended and len(self._first) <= CONNECT_BYTES_MAX:
            return
        self._dialler = self._proxies.index_of(_name_in(line))
        if self._dialler < 0:
            self.abort()
            return
        self.far.write(self._first)  # at most a handshake is sent before a partition holds the rest
        self._first = b""
        self.update()

    def update(self) -> None:
        """Applies partitions, full buffers and lost ends to both directions."""
        forth = self._proxies.is_open(self._dialler, self._target)
        back = self._proxies.is_open(self._target, self._dialler)
        if self.far.transport is None:
            if self.near.is_lost:
                self.abort()
            elif forth and back and not self._is_dialling:
                self._is_dialling = True
                self._proxies.dial(self, self._target)
            return
        if self._forth and forth:
            data, self._forth = bytes(self._forth), bytearray()
            self.forward(self.near, data)
        # An end that is lost closes the other one, unless a partition hides it.
        if self.near.is_lost and forth:
            self.far.close()
        if self.far.is_lost and back:
            self.near.close()
        if self.near.is_lost and self.far.is_lost:
            self._proxies.discard(self)
        self.near.let_read(forth and not self.far.is_congested)
        self.far.let_read(back and not self.near.is_congested)

    def abort(self) -> None:
        self.near.abort()
        self.far.abort()
        self._proxies.discard(self)


def _name_in(line: bytes) -> str:
    """The id of the server that sent this CONNECT; "" for anything else."""
    verb, _, body = line.partition(b" ")
    if verb.upper() != b"CONNECT":
        return ""
    try:
        found: Any = json.loads(body)
    except ValueError:
        return ""
    return str(found.get("name", "")) if isinstance(found, dict) else ""


class ClusterNetwork(Protocol):
    """The network between the servers of a cluster, which are named by their indexes."""

    def route(self, dialler: int, target: int) -> str:
        """Host and port where one server dials another one."""
        ...

    def advertised(self, target: int) -> str:
        """The host and port that a server advertises to the others."""
        ...

    def learn(self, server_id: str, index: int) -> None:
        """The id of a server that has started."""
        ...

    def block(self, links: Iterable[tuple[int, int]]) -> None:
        """Holds up what the first server of each pair sends to the second."""
        ...

    def unblock(self) -> None:
        """Ends all that `block` did."""
        ...

    def close(self) -> None: ...


class FaultProxies:
    """The proxies of a cluster. ports: where its servers listen for each other, by index."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._thread = BackgroundLoop("penstock-proxies")
        self._blocked: set[tuple[int, int]] = set()  # (from, to)
        self._tunnels: set[_Tunnel] = set()
        self._indexes: dict[str, int] = {}
        self._dialling: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._pairs: dict[tuple[int, int], int] = {}
        self._advertised: dict[int, int] = {}
        self._thread.run(self._listen())

    # -- for the cluster, in any thread

    def route(self, dialler: int, target: int) -> str:
        """Where one server dials another one."""
        return f"{HOST}:{self._pairs[dialler, target]}"

    def advertised(self, target: int) -> str:
        """What a server advertises to the others."""
        return f"{HOST}:{self._advertised[target]}"

    def learn(self, server_id: str, index: int) -> None:
        """The id of a server that has started: gossip leads others to it."""
        self._call(lambda: self._indexes.__setitem__(server_id, index))

    def block(self, links: Iterable[tuple[int, int]]) -> None:
        """Holds up what the first server of each pair sends to the second."""
        added = set(links)
        self._call(lambda: self._set_blocked(self._blocked | added))

    def unblock(self) -> None:
        """Everything flows again, also what was held up."""
        self._call(lambda: self._set_blocked(set()))

    def close(self) -> None:
        """Ends the proxies and their connections."""
        self._thread.run(self._close())
        self._thread.stop()

    def _call(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        self._thread.run(run())

    # -- in the thread of the proxies

    def is_open(self, sender: int, receiver: int) -> bool:
        """Whether bytes flow. A server that is not known yet reaches those that no partition concerns."""
        if sender < 0 or receiver < 0:
            return not any(max(sender, receiver) in pair for pair in self._blocked)
        return (sender, receiver) not in self._blocked

    def index_of(self, server_id: str) -> int:
        """The server with this id, -1 = unknown."""
        return self._indexes.get(server_id, -1)

    def add(self, tunnel: _Tunnel) -> None:
        self._tunnels.add(tunnel)

    def discard(self, tunnel: _Tunnel) -> None:
        self._tunnels.discard(tunnel)

    def dial(self, tunnel: _Tunnel, target: int) -> None:
        """Connects the far end of a tunnel."""
        task = asyncio.get_running_loop().create_task(self._dial(tunnel, target))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, tunnel: _Tunnel, target: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: tunnel.far, HOST, self._ports[target])
        except OSError:
            tunnel.abort()

    def _set_blocked(self, blocked: set[tuple[int, int]]) -> None:
        self._blocked = blocked
        for tunnel in tuple(self._tunnels):
            tunnel.update()

    async def _listen(self) -> None:
        indexes = range(len(self._ports))
        for target in indexes:
            self._advertised[target] = await self._listener(-1, target)
            for dialler in indexes:
                if dialler != target:
                    self._pairs[dialler, target] = await self._listener(dialler, target)

    async def _listener(self, dialler: int, target: int) -> int:
        loop = asyncio.get_running_loop()
        made = await loop.create_server(lambda: _Tunnel(self, dialler, target).near, HOST, 0)
        self._listeners.append(made)
        port: int = made.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for tunnel in tuple(self._tunnels):
            tunnel.abort()
        await asyncio.sleep(0)
