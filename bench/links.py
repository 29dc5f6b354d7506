"""Rows "across a route" and "over a leaf link": two servers of the same kind beside each other, publishers at
one, the hub of a leaf link, and subscribers at the other.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import permutations
from pathlib import Path

import load
from rows import Scenario
from servers import ServerProcess, free_port

SIZE_BYTES = 128
REMOTE_SUBSCRIPTIONS = 100_000
MESH_SERVERS = 5
MESH_MAX_MS = 2000
ROUTE, LEAF = "route", "leaf link"
CONFS = {
    ROUTE: """
        server_name: %s
        cluster { name: bench, listen: "127.0.0.1:%d", routes: [%s] }
    """,
    LEAF: """
        server_name: %s
        leafnodes { port: %d, remotes: [%s] }
    """,
}


@dataclass
class Pair:
    """Two connected servers: `near` has the publishers and requesters, `far` the others."""

    near: ServerProcess
    far: ServerProcess

    def stop(self) -> None:
        self.near.stop()
        self.far.stop()


@dataclass
class Pairs:
    """A pair of each server for each kind of link."""

    folder: Path
    started: dict[tuple[str, str], Pair] = field(default_factory=dict)

    def of(self, server: ServerProcess, kind: str = ROUTE) -> Pair:
        found = self.started.get((server.name, kind))
        if found is None:
            found = self.started[server.name, kind] = self._start(server, kind)
        return found

    def fresh(self, server: ServerProcess) -> Pair:
        """A pair with a route that has seen nothing yet, in place of the one before."""
        if (before := self.started.pop((server.name, ROUTE), None)) is not None:
            before.stop()
        return self.of(server)

    def mesh(self, server: ServerProcess) -> list[ServerProcess]:
        """Servers that are not started, each with a route to the first one."""
        ports = [free_port() for _ in range(MESH_SERVERS)]
        return [self._server(server, ROUTE, f"m{i}", port, ports[0]) for i, port in enumerate(ports)]

    def _start(self, server: ServerProcess, kind: str) -> Pair:
        ports = free_port(), free_port()
        pair = Pair(
            self._server(server, kind, "near", ports[0]),
            self._server(server, kind, "far", ports[1], ports[0]),
        )
        pair.near.start()
        pair.far.start()
        with load.wire(pair.near.port) as near, load.wire(pair.far.port) as far:
            load.await_interest(near, far)
        return pair

    def _server(
        self, server: ServerProcess, kind: str, name: str, port: int, to_port: int = 0
    ) -> ServerProcess:
        """One of the same kind, not started. port: of its links; to_port: that it dials."""
        url = f'"nats://127.0.0.1:{to_port}"' if to_port else ""
        other = f"{{ url: {url} }}" if url and kind == LEAF else url
        conf = self.folder / f"{server.name}-{name}-{kind.replace(' ', '-')}.conf"
        conf.write_text(CONFS[kind] % (name, port, other))
        store = self.folder / f"{server.name}-{name}"
        more = ("-c", str(conf))
        return ServerProcess(server.name, server.command, store, more=more, has_jetstream=False)

    def stop(self) -> None:
        for pair in self.started.values():
            pair.stop()


def scenarios(share: int, pairs: Pairs) -> list[Scenario]:
    """Core messages and requests across one route or leaf link, and the propagation of many subscriptions."""

    def flow(server: ServerProcess, subscribers: int, kind: str = ROUTE) -> float:
        pair = pairs.of(server, kind)
        return load.core_msgs_per_s(
            pair.near.port,
            to_port=pair.far.port,
            messages=1_000_000 // share // subscribers,
            subscribers=subscribers,
            size_bytes=SIZE_BYTES,
        )

    def latency(server: ServerProcess, kind: str = ROUTE) -> float:
        pair = pairs.of(server, kind)
        return load.request_reply_median_us(pair.near.port, to_port=pair.far.port, requests=2_000 // share)

    def throughput(server: ServerProcess, kind: str = ROUTE) -> float:
        pair = pairs.of(server, kind)
        return load.requests_per_s(
            pair.near.port, to_port=pair.far.port, requests=20_000 // share, in_flight=50
        )

    @cache
    def lines() -> bytes:
        return b"".join(b"SUB many.%d %d\r\n" % (i, i) for i in range(REMOTE_SUBSCRIPTIONS // share))

    def propagation_ms(server: ServerProcess) -> float:
        pair = pairs.of(server)
        with load.wire(pair.near.port) as near, load.wire(pair.far.port) as far:
            many = lines()
            started = time.perf_counter()
            far.sock.sendall(many)
            load.await_interest(near, far)
            return (time.perf_counter() - started) * 1e3

    def memory_mib(server: ServerProcess) -> float:
        """By which the server grows that knows the subscriptions of the other one."""
        pair = pairs.fresh(server)
        with load.wire(pair.near.port) as near, load.wire(pair.far.port) as far:
            load.await_interest(near, far)
            before = pair.near.resident_mib()
            far.sock.sendall(lines())
            load.await_interest(near, far)
            return pair.near.resident_mib() - before

    def mesh_ms(server: ServerProcess) -> float:
        """From the start of the processes until each has a route to each other one: interest crosses one
        route only."""
        servers = pairs.mesh(server)
        try:
            started = time.perf_counter()
            with ThreadPoolExecutor(MESH_SERVERS) as threads:
                list(threads.map(ServerProcess.start, servers))
            with ExitStack() as stack:
                wires = [stack.enter_context(load.wire(one.port)) for one in servers]
                for near, far in permutations(wires, 2):
                    load.await_interest(near, far)
            return (time.perf_counter() - started) * 1e3
        finally:
            for one in servers:
                one.stop()

    return [
        Scenario(
            "across a route, core 1:1, 128 B", "msg/s published", partial(flow, subscribers=1), goal=1.5
        ),
        Scenario(
            "across a route, core 1:4, 128 B", "msg/s published", partial(flow, subscribers=4), goal=1.5
        ),
        Scenario(
            "across a route, request/reply, 1 in flight", "us", latency, bigger_is_better=False, goal=1.0
        ),
        Scenario("across a route, request/reply, 50 in flight", "replies/s", throughput, goal=1.0),
        Scenario(
            f"across a route, until {REMOTE_SUBSCRIPTIONS // share:,} subscriptions are known",
            "ms",
            propagation_ms,
            bigger_is_better=False,
            goal=1.0,
        ),
        Scenario(
            f"across a route, memory of {REMOTE_SUBSCRIPTIONS // share:,} subscriptions",
            "MiB",
            memory_mib,
            bigger_is_better=False,
            goal=1.0,
        ),
        Scenario(
            f"across routes, until {MESH_SERVERS} servers are a full mesh, their start included",
            "ms",
            mesh_ms,
            bigger_is_better=False,
            most=MESH_MAX_MS,
        ),
        Scenario(
            "over a leaf link, core 1:1, 128 B",
            "msg/s published",
            partial(flow, subscribers=1, kind=LEAF),
            goal=1.5,
        ),
        Scenario(
            "over a leaf link, core 1:4, 128 B",
            "msg/s published",
            partial(flow, subscribers=4, kind=LEAF),
            goal=1.5,
        ),
        Scenario(
            "over a leaf link, request/reply, 1 in flight",
            "us",
            partial(latency, kind=LEAF),
            bigger_is_better=False,
            goal=1.0,
        ),
        Scenario(
            "over a leaf link, request/reply, 50 in flight",
            "replies/s",
            partial(throughput, kind=LEAF),
            goal=1.0,
        ),
    ]
