"""Rows "across a route" and "over a leaf link": two servers of the same kind beside each other, publishers at
one, the hub of a leaf link, and subscribers at the other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import load
from rows import Scenario
from servers import ServerProcess, free_port

SIZE_BYTES = 128
REMOTE_SUBSCRIPTIONS = 100_000
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

    def _start(self, server: ServerProcess, kind: str) -> Pair:
        ports, made = (free_port(), free_port()), []
        for i, name in enumerate(("near", "far")):
            conf = self.folder / f"{server.name}-{name}-{kind.replace(' ', '-')}.conf"
            url = f'"nats://127.0.0.1:{ports[0]}"'
            other = (f"{{ url: {url} }}" if kind == LEAF else url) if i else ""
            conf.write_text(CONFS[kind] % (name, ports[i], other))
            store = self.folder / f"{server.name}-{name}"
            made.append(
                ServerProcess(server.name, server.command, store, more=("-c", str(conf)), has_jetstream=False)
            )
            made[-1].start()
        pair = Pair(*made)
        with load.wire(pair.near.port) as near, load.wire(pair.far.port) as far:
            load.await_interest(near, far)
        return pair

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

    def propagation_ms(server: ServerProcess) -> float:
        pair = pairs.of(server)
        with load.wire(pair.near.port) as near, load.wire(pair.far.port) as far:
            lines = b"".join(b"SUB many.%d %d\r\n" % (i, i) for i in range(REMOTE_SUBSCRIPTIONS // share))
            started = time.perf_counter()
            far.sock.sendall(lines)
            load.await_interest(near, far)
            return (time.perf_counter() - started) * 1e3

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
            "over a leaf link, core 1:1, 128 B",
            "msg/s published",
            partial(flow, subscribers=1, kind=LEAF),
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
