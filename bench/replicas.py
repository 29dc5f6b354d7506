"""Rows about replicas: clusters of three servers of each kind, interleaved. Streams have three replicas in
files, and the load is on the server that leads the stream.

penstock syncs before each ack, as by default; "unsynced" rows set `sync_interval: 2m`, which is what the
official server does by default.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import batches
import consumers
import load
from load import ConsumerRun, LoadError, wire
from rows import Scenario
from servers import ServerProcess, cpu_s, free_port

SIZE = 3
WINDOW = 2000
DEFAULT, UNSYNCED, ALWAYS = "default", "unsynced", "always"
CONF = """
server_name: %s
http: "127.0.0.1:%d"
jetstream { store_dir: "%s"%s }
cluster { name: bench, listen: "127.0.0.1:%d", routes: [%s] }
"""
READY_S = 60.0
CATCH_UP_S = 180.0
CATCH_UP_MESSAGES = 1_000_000
IDLE_STREAMS = 1000
IDLE_CONSUMERS = 3
FEW_STREAMS = 50  # creating a thousand takes the official server ten minutes
IDLE_S = 20.0
SETTLE_S = 15.0  # elections and first syncs are over
IDLE_CORE_PERCENT_MAX = 5
IDLE_MESSAGES_MAX = 100
CREATED_AT_ONCE = 20
ANSWERED_S = 5.0
MADE = re.compile(rb"MSG _INBOX\.made\.(\d+) ")
SEGMENTS = re.compile(r"data_segs_out:(\d+)")


@dataclass
class Member:
    """A server of a cluster. http: its monitoring port."""

    process: ServerProcess
    http: int

    def page(self, name: str) -> dict[str, object]:
        """A page of the monitoring port; {} while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/{name}", timeout=5) as answer:
                found: dict[str, object] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}


class Cluster:
    """Three servers of one kind."""

    def __init__(self, kind: ServerProcess, folder: Path, more: str) -> None:
        """more: of the JetStream configuration."""
        folder.mkdir(parents=True)
        ports = [free_port() for _ in range(SIZE)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.members: dict[str, Member] = {}
        for name, port in zip("abc", ports, strict=True):
            http, conf = free_port(), folder / f"{name}.conf"
            conf.write_text(CONF % (name, http, folder / name, more, port, routes))
            process = ServerProcess(
                f"{kind.name}-{name}",
                kind.command,
                folder / name,
                more=("-c", str(conf)),
                has_jetstream=False,
                source=kind.source,
            )
            self.members[name] = Member(process, http)

    def start(self) -> None:
        for member in self.members.values():
            member.process.start()
        self.create("READY", "ready")

    def stop(self) -> None:
        for member in self.members.values():
            member.process.stop(signal.SIGKILL)

    @property
    def port(self) -> int:
        """Of a server that runs."""
        return next(one.process.port for one in self.members.values() if one.process.process is not None)

    def create(self, name: str, subject: str, **more: object) -> int:
        """Creates a stream with three replicas, in place of all that there are. Returns the port of its
        leader when all replicas are current."""
        config = {"name": name, "subjects": [subject], "num_replicas": SIZE, "storage": "file", **more}
        body = json.dumps(config).encode()
        failure = ""
        with wire(self.port) as control:
            deadline = time.perf_counter() + READY_S
            while time.perf_counter() < deadline:
                try:
                    control.sock.settimeout(10.0)
                    if not failure:
                        _delete_all(control)
                    control.request(f"$JS.API.STREAM.CREATE.{name}", body)
                    return self.leader_port(name)
                except (LoadError, TimeoutError) as error:
                    failure = str(error) or "no answer"
                    time.sleep(0.1)
        raise LoadError(f"stream {name} is not created after {READY_S:g} s: {failure}")

    def leader_port(self, name: str) -> int:
        """The port of the server that leads a stream, when its replicas are current."""
        deadline = time.perf_counter() + READY_S
        with wire(self.port) as control:
            while time.perf_counter() < deadline:
                group = control.request(f"$JS.API.STREAM.INFO.{name}").get("cluster")
                assert isinstance(group, dict)
                replicas = group.get("replicas") or []
                if group.get("leader") and len(replicas) == SIZE - 1 and all(map(_is_current, replicas)):
                    return self.members[group["leader"]].process.port
                time.sleep(0.02)
        raise LoadError(f"the replicas of stream {name} are not current after {READY_S:g} s")

    def rest_port(self, name: str, away: Member) -> int:
        """The port of the leader of a stream while one member is away."""
        away.process.stop()
        deadline = time.perf_counter() + READY_S
        with wire(self.port) as control:
            while time.perf_counter() < deadline:
                group = control.request(f"$JS.API.STREAM.INFO.{name}")["cluster"]
                assert isinstance(group, dict)
                if group.get("leader"):
                    return self.members[group["leader"]].process.port
                time.sleep(0.02)
        raise LoadError(f"stream {name} has no leader without one of its replicas")

    def follower(self, name: str) -> Member:
        """A server that has a stream and does not lead it."""
        leader = self.leader_port(name)
        return next(one for one in self.members.values() if one.process.port != leader)


def _is_current(replica: dict[str, object]) -> bool:
    return bool(replica["current"]) and not replica.get("lag")


def _delete_all(control: load.Wire) -> None:
    for name in control.request("$JS.API.STREAM.NAMES").get("streams") or ():  # type: ignore[attr-defined]
        control.request(f"$JS.API.STREAM.DELETE.{name}")


@dataclass
class Clusters:
    """The clusters of both kinds that a row measures: those of other configurations end before."""

    folder: Path
    running: dict[tuple[str, str], Cluster] = field(default_factory=dict)
    count: int = 0

    def of(self, server: ServerProcess, mode: str) -> Cluster:
        """The running cluster of this kind of server."""
        found = self.running.get((server.name, mode))
        if found is None:
            for key in [key for key in self.running if key[1] != mode]:
                self.running.pop(key).stop()
            self.count += 1
            more = ""
            if mode == UNSYNCED and server.is_penstock:
                more = ', sync_interval: "2m"'
            elif mode == ALWAYS and not server.is_penstock:
                more = ", sync_interval: always"
            found = Cluster(server, self.folder / f"cluster-{self.count}", more)
            self.running[server.name, mode] = found
            found.start()
        return found

    def stop(self) -> None:
        for cluster in self.running.values():
            cluster.stop()
        self.running.clear()


# --- work ------------------------------------------------------------------------------------------


def acked_per_s(cluster: Cluster, *, messages: int, window: int) -> float:
    """Publishes to a new stream with at most `window` unacked; acks per second."""
    port = cluster.create("BENCH", "bench.js.>")
    return load.publish_acked(port, messages=messages, window=window)


def fast_per_s(cluster: Cluster, *, messages: int) -> float:
    """One fast batch to a new stream; messages per second."""
    port = cluster.create("FAST", "bench.fast.*", allow_batched=True)
    return batches.publish_fast(port, messages=messages)


def consumed_per_s(cluster: Cluster, *, messages: int) -> float:
    """A durable pull consumer with three replicas and explicit acks reads a filled stream."""
    port = cluster.create("BENCH", "bench.js.>")
    load.publish_acked(port, messages=messages, window=WINDOW)
    return consumers.consume_msgs_per_s(ConsumerRun(port, messages, "BENCH"))


def catch_up_s(cluster: Cluster, *, messages: int) -> float:
    """From the start of a server that missed `messages`, until it has them."""
    cluster.create("BENCH", "bench.js.>")
    late = cluster.follower("BENCH")
    if late.page("jsz").get("messages") != 0:
        raise LoadError(f"the server of another stream: {late.page('jsz')}")
    load.publish_acked(cluster.rest_port("BENCH", late), messages=messages, window=WINDOW)
    started = time.perf_counter()
    late.process.start()
    while late.page("jsz").get("messages") != messages:
        if time.perf_counter() - started > CATCH_UP_S:
            raise LoadError(f"a server has not caught up after {CATCH_UP_S:g} s: {late.page('jsz')}")
        time.sleep(0.01)
    took_s = time.perf_counter() - started
    cluster.leader_port("BENCH")
    return took_s


# --- idle streams ----------------------------------------------------------------------------------


@dataclass
class IdleRuns:
    """Many streams with consumers and without load; each run has the figures of several rows."""

    clusters: Clusters
    streams: int
    filled: set[str] = field(default_factory=set)
    done: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    read: dict[tuple[str, str], int] = field(default_factory=dict)

    def figure(self, key: str, server: ServerProcess) -> float:
        """The next run's figure: of a run that another row has measured, else of a new one."""
        runs = self.done.setdefault(server.name, [])
        number = self.read.get((server.name, key), 0)
        self.read[server.name, key] = number + 1
        if number == len(runs):
            runs.append(self._run(server))
        return runs[number][key]

    def _run(self, server: ServerProcess) -> dict[str, float]:
        cluster = self.clusters.of(server, f"{self.streams} idle")
        if server.name not in self.filled:
            self.filled.add(server.name)
            _fill_idle(cluster, self.streams)
            time.sleep(SETTLE_S)
        members = [one.process for one in cluster.members.values()]
        used_s, sent = sum(map(_used_s, members)), sum(map(_segments, members))
        started = time.perf_counter()
        time.sleep(IDLE_S)
        took_s = time.perf_counter() - started
        used_s, sent = sum(map(_used_s, members)) - used_s, sum(map(_segments, members)) - sent
        return {
            "cpu_percent": 100 * used_s / took_s / SIZE,
            "messages_per_s": sent / took_s / SIZE,
            "mib": sum(one.resident_mib() for one in members) / SIZE,
        }


def _used_s(server: ServerProcess) -> float:
    assert server.process is not None
    return cpu_s(server.process.pid)


def _segments(server: ServerProcess) -> int:
    """TCP segments with data that a server has sent so far on its connections: of one without load, its
    messages to the others."""
    assert server.process is not None
    found = subprocess.run(["ss", "-tinHpO"], capture_output=True, text=True, check=True).stdout
    owned = [line for line in found.splitlines() if f"pid={server.process.pid}," in line]
    return sum(int(number) for line in owned for number in SEGMENTS.findall(line))


def _fill_idle(cluster: Cluster, streams: int) -> None:
    fields = {"num_replicas": SIZE, "storage": "file"}
    made = [
        (f"STREAM.CREATE.I{i}", {"name": f"I{i}", "subjects": [f"idle.{i}"], **fields})
        for i in range(streams)
    ]
    _ask_all(cluster.port, made)
    consumer = {"ack_policy": "explicit", "num_replicas": SIZE}
    made = [
        (
            f"CONSUMER.CREATE.I{i}.c{c}",
            {"stream_name": f"I{i}", "config": {"name": f"c{c}", "durable_name": f"c{c}", **consumer}},
        )
        for i in range(streams)
        for c in range(IDLE_CONSUMERS)
    ]
    _ask_all(cluster.port, made)


def _ask_all(port: int, requests: Sequence[tuple[str, dict[str, object]]]) -> None:
    """Requests of the API, some at a time; those that get no answer again: they change nothing that is as
    they want it."""
    with wire(port) as control:
        control.sock.sendall(b"SUB _INBOX.made.* 1\r\n")
        control.sock.settimeout(ANSWERED_S)
        for at in range(0, len(requests), CREATED_AT_ONCE):
            left = {
                number: (subject.encode(), json.dumps(body).encode())
                for number, (subject, body) in enumerate(requests[at : at + CREATED_AT_ONCE], at)
            }
            deadline = time.perf_counter() + READY_S
            while left:
                if time.perf_counter() > deadline:
                    raise LoadError(f"no answer after {READY_S:g} s: {sorted(left)}")
                control.sock.sendall(
                    b"".join(
                        b"PUB $JS.API.%s _INBOX.made.%d %d\r\n%s\r\n" % (subject, number, len(body), body)
                        for number, (subject, body) in left.items()
                    )
                )
                _take_answers(control, left)


def _take_answers(control: load.Wire, left: dict[int, tuple[bytes, bytes]]) -> None:
    """Removes the requests that are answered, until none is left or none has been for a while."""
    data = b""
    while left:
        try:
            data += control.read()
        except TimeoutError:
            return
        whole, _, data = data.rpartition(b"\r\n")
        if b'"error"' in whole:
            raise LoadError(whole[whole.index(b'"error"') :][:200].decode(errors="replace"))
        for number in MADE.findall(whole):
            left.pop(int(number), None)


def _idle_scenarios(runs: IdleRuns, *, alone: bool) -> list[Scenario]:
    what = f"replicas: {runs.streams:,} idle streams with {IDLE_CONSUMERS} consumers each"
    limits = (
        ("CPU of a server", "% of a core", "cpu_percent", IDLE_CORE_PERCENT_MAX),
        ("messages of a server", "1/s", "messages_per_s", IDLE_MESSAGES_MAX),
        ("memory of a server", "MiB", "mib", None),
    )
    return [
        Scenario(
            f"{what}, {label}",
            unit,
            partial(runs.figure, key),
            bigger_is_better=False,
            most=most if alone else None,
            alone=alone,
        )
        for label, unit, key, most in limits
    ]


# --- the rows --------------------------------------------------------------------------------------


def scenarios(share: int, clusters: Clusters) -> list[Scenario]:
    """The rows; `share`: the divisor of the number of messages."""

    def acked(mode: str, messages: int, window: int = WINDOW) -> Callable[[ServerProcess], float]:
        return lambda server: acked_per_s(
            clusters.of(server, mode), messages=messages // share, window=window
        )

    def memory_mib(server: ServerProcess) -> float:
        members = clusters.of(server, DEFAULT).members.values()
        return sum(one.process.resident_mib() for one in members) / SIZE

    return [
        Scenario("replicas: acked publish, 2000 in flight, synced, official without", "acks/s",
                 acked(DEFAULT, 200_000), goal=2.0),
        Scenario("replicas: pull consume, explicit acks", "msg/s",
                 lambda s: consumed_per_s(clusters.of(s, DEFAULT), messages=100_000 // share), goal=2.0),
        Scenario("replicas: fast ingest, one publisher, 128 B", "msg/s",
                 lambda s: fast_per_s(clusters.of(s, DEFAULT), messages=300_000 // share), goal=3.0),
        Scenario(f"replicas: catch-up of {CATCH_UP_MESSAGES // share:,} messages", "s",
                 lambda s: catch_up_s(clusters.of(s, DEFAULT), messages=CATCH_UP_MESSAGES // share),
                 bigger_is_better=False, goal=2.0),
        Scenario("replicas: memory of a server afterwards", "MiB", memory_mib, bigger_is_better=False),
        Scenario("replicas: acked publish, 2000 in flight, synced on both", "acks/s",
                 acked(ALWAYS, 100_000), goal=10.0),
        Scenario("replicas: acked publish, 2000 in flight, unsynced", "acks/s",
                 acked(UNSYNCED, 200_000), goal=3.0),
        Scenario("replicas: acked publish, 1 in flight, unsynced", "acks/s",
                 acked(UNSYNCED, 3000, 1), goal=1.0),
        *_idle_scenarios(IdleRuns(clusters, FEW_STREAMS), alone=False),
        *_idle_scenarios(IdleRuns(clusters, IDLE_STREAMS // share), alone=True),
    ]  # fmt: skip
