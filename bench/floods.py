"""The processes of the "bystander" rows: `flood NAME PORT WEBSOCKET_PORT` and `ask PORT SECONDS`.

A flood sends prepared frames over one or more connections as fast as the server accepts them, and reads and
discards the responses. It waits for nothing and uses one thread, so that it needs little CPU beside the
server. The bystander sends one request at a time, at a steady pace, to a responder in its own process. Each
is a separate process: threads would share the flood's interpreter. The bystander connects, prints "ready",
and starts when it reads a line; the flood ends with its input. Each prints one JSON object at its end.
"""

from __future__ import annotations

import base64
import json
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from load import CONNECT, READ_BYTES, LoadError, Wire, create_stream, wire

CHUNK_BYTES = 128 * 1024
PACE_S = 0.002
ANSWER_S = 30.0
CONNECTIONS_AT_ONCE = 25
KV_KEYS = 100
STREAM = "FLOOD"


@dataclass(frozen=True)
class Ports:
    """The server's ports."""

    client: int
    websocket: int


@dataclass(frozen=True)
class Flood:
    """One kind of load.

    frames(number) -- the bytes of one unit; the chunk that is sent repeatedly has many.
    prepare(port, replicas) -- creates its streams, with so many replicas, and consumers.
    first -- what each connection sends once.
    """

    frames: Callable[[int], bytes]
    prepare: Callable[..., object] = lambda port, replicas=1: None
    first: bytes = CONNECT + b"SUB _INBOX.flood.> 1\r\n"
    connections: int = 1
    units_max: int = 1000


def pub(subject: str, body: bytes = b"", reply: str = "") -> bytes:
    words = f"PUB {subject} {reply} {len(body)}" if reply else f"PUB {subject} {len(body)}"
    return b"%s\r\n%s\r\n" % (words.encode(), body)


def request(subject: str, fields: object = None) -> Callable[[int], bytes]:
    """Frames of one API request; "{n}" in subject and body is the number of the frame."""
    text = json.dumps(fields) if fields is not None else ""

    def frames(number: int) -> bytes:
        body = text.replace("{n}", str(number)).encode()
        return pub(subject.replace("{n}", str(number)), body, f"_INBOX.flood.{number}")

    return frames


def acked(size: int) -> Callable[[int], bytes]:
    return lambda number: pub("flood.js.a", b"x" * size, f"_INBOX.flood.{number}")


def masked(payload: bytes) -> bytes:
    """A binary WebSocket frame of a client, with a zero mask."""
    size = len(payload)
    head = struct.pack(">BB", 0x82, 0x80 | size) if size < 126 else struct.pack(">BBH", 0x82, 0xFE, size)
    return head + bytes(4) + payload


def flood_stream(port: int, replicas: int = 1) -> None:
    create_stream(port, STREAM, "flood.js.>", num_replicas=replicas)


def with_consumer(port: int, replicas: int = 1) -> None:
    flood_stream(port, replicas)
    config = {"durable_name": "C", "ack_policy": "explicit"}
    with wire(port) as control:
        control.request(
            f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.C",
            json.dumps({"stream_name": STREAM, "config": config}).encode(),
        )


def with_message(port: int, replicas: int = 1) -> None:
    create_stream(port, STREAM, "flood.js.>", allow_direct=True, num_replicas=replicas)
    with wire(port) as control:
        control.request("flood.js.a", b"x" * 128)


def bucket(port: int, replicas: int = 1) -> None:
    fields = {"max_msgs_per_subject": 1, "allow_direct": True, "num_replicas": replicas}
    create_stream(port, "KV_flood", "$KV.flood.>", **fields)  # type: ignore[arg-type]
    with wire(port) as control:
        for key in range(KV_KEYS):
            control.request(f"$KV.flood.k{key}", b"value")


def created_consumer() -> Callable[[int], bytes]:
    config = {"ack_policy": "explicit", "inactive_threshold": 1_000_000_000, "mem_storage": True}
    return request(f"$JS.API.CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})


def watched_keys() -> Callable[[int], bytes]:
    """The requests of a client that watches a bucket's keys and stops: creates a consumer, which delivers,
    and deletes it."""
    config = {
        "deliver_subject": "_INBOX.flood.{n}",
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "max_deliver": 1,
        "filter_subject": "$KV.flood.>",
        "flow_control": True,
        "idle_heartbeat": 5_000_000_000,
        "mem_storage": True,
        "name": "watch{n}",
    }
    made = request(
        "$JS.API.CONSUMER.CREATE.KV_flood.watch{n}.$KV.flood.>",
        {"stream_name": "KV_flood", "config": config},
    )
    gone = request("$JS.API.CONSUMER.DELETE.KV_flood.watch{n}")
    return lambda number: made(number) + gone(number)


def subscribed(number: int) -> bytes:
    return b"SUB flood.sub.%d s%d\r\nUNSUB s%d\r\n" % (number, number, number)


CORE = Flood(lambda number: pub("flood.core", b"x" * 128))
ACKED = Flood(acked(128), flood_stream)
INFO = Flood(request(f"$JS.API.STREAM.INFO.{STREAM}"), flood_stream)
FLOODS = {
    "core publishes, 128 B": CORE,
    "acked publishes, 128 B": ACKED,
    "acked publishes, 16 KiB": Flood(acked(16 * 1024), flood_stream),
    "publishes without subscribers": Flood(lambda n: pub("flood.none", b"x" * 128, f"_INBOX.flood.{n}")),
    "STREAM.INFO requests": INFO,
    "PINGs": Flood(lambda number: b"PING\r\n", units_max=100_000),
    "CONNECTs": Flood(lambda number: CONNECT),
    "connections": Flood(lambda number: CONNECT + b"PING\r\n", connections=0),
    "SUB and UNSUB": Flood(subscribed),
    "consumer creates": Flood(created_consumer(), flood_stream),
    "pulls without messages": Flood(
        request(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.C", {"batch": 1, "no_wait": True}), with_consumer
    ),
    "direct gets": Flood(request(f"$JS.API.DIRECT.GET.{STREAM}.flood.js.a"), with_message),
    "KV watches": Flood(watched_keys(), bucket),
    "$SYS requests": Flood(request("$SYS.REQ.USER.INFO")),
    "WebSocket frames": Flood(lambda number: masked(pub("flood.core", b"x" * 128)), first=masked(CONNECT)),
    "eight of core publishes, 128 B": Flood(CORE.frames, connections=8),
    "eight of acked publishes, 128 B": Flood(ACKED.frames, flood_stream, connections=8),
    "eight of STREAM.INFO requests": Flood(INFO.frames, flood_stream, connections=8),
}


def chunk_of(flood: Flood) -> tuple[bytes, int]:
    """Returns (the chunk to send repeatedly, the units in it)."""
    units: list[bytes] = []
    size = 0
    while size < CHUNK_BYTES and len(units) < flood.units_max:
        units.append(flood.frames(len(units)))
        size += len(units[-1])
    return b"".join(units), len(units)


def upgrade(sock: socket.socket) -> None:
    """The WebSocket handshake."""
    key = base64.b64encode(bytes(16)).decode()
    sock.sendall(
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(READ_BYTES)
    if b" 101 " not in answer:
        raise LoadError(answer.decode(errors="replace"))


def send(name: str, ports: Ports) -> dict[str, float]:
    """Sends the flood's chunk over its connections until its input ends."""
    flood = FLOODS[name]
    chunk, units = chunk_of(flood)
    view, sent = memoryview(chunk), 0
    scratch = bytearray(READ_BYTES)
    at: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(flood.connections):
            is_websocket = name.startswith("WebSocket")
            port = ports.websocket if is_websocket else ports.client
            sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
            if is_websocket:
                upgrade(sock)
            sock.sendall(flood.first)
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            at[sock.fileno()] = 0
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        started = time.perf_counter()
        is_over = False
        while not is_over:
            for key, events in selector.select(timeout=1):
                if key.fd == sys.stdin.fileno():
                    is_over = True
                    break
                sock = key.fileobj  # type: ignore[assignment]
                if events & selectors.EVENT_READ and not sock.recv_into(scratch):
                    raise LoadError(f"{name}: the server closed the connection")
                if events & selectors.EVENT_WRITE:
                    count = sock.send(view[at[key.fd] :])
                    sent += count
                    at[key.fd] = (at[key.fd] + count) % len(chunk)
        took_s = time.perf_counter() - started
    return {"per_s": sent / len(chunk) * units / took_s}


def connect(ports: Ports) -> dict[str, float]:
    """Opens connections in groups, sends CONNECT and PING on them, and closes them."""
    done = 0
    started = time.perf_counter()
    hello = CONNECT + b"PING\r\n"
    while not select.select([sys.stdin], [], [], 0)[0]:
        some = [
            socket.create_connection(("127.0.0.1", ports.client), timeout=ANSWER_S)
            for _ in range(CONNECTIONS_AT_ONCE)
        ]
        for sock in some:
            sock.sendall(hello)
        for sock in some:
            data = b""
            while b"PONG\r\n" not in data:
                data += sock.recv(READ_BYTES)
            # Reset instead of close: thousands of sockets would remain in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        done += len(some)
    return {"per_s": done / (time.perf_counter() - started)}


def ask_for(port: int, seconds: float) -> dict[str, float]:
    """Round trips, one at a time, at most one per PACE_S: median, p99 and maximum in ms."""
    times_s: list[float] = []
    asked, replied = pub("by.stander", b"x" * 128, "_INBOX.by.1"), pub("_INBOX.by.1", b"x" * 128)
    with wire(port) as requester, wire(port) as responder:
        responder.sock.sendall(b"SUB by.stander 1\r\n")
        responder.ping()
        requester.sock.sendall(b"SUB _INBOX.by.* 1\r\n")
        requester.ping()
        print("ready", flush=True)
        sys.stdin.readline()
        started = now = time.perf_counter()
        while now - started < seconds:
            requester.sock.sendall(asked)
            _until_whole(responder)
            responder.sock.sendall(replied)
            _until_whole(requester)
            after = time.perf_counter()
            times_s.append(after - now)
            time.sleep(max(0.0, now + PACE_S - after))
            now = time.perf_counter()
    times_s.sort()
    return {
        "p50_ms": times_s[len(times_s) // 2] * 1e3,
        "p99_ms": times_s[min(len(times_s) - 1, int(len(times_s) * 0.99))] * 1e3,
        "longest_ms": times_s[-1] * 1e3,
        "count": len(times_s),
    }


def _until_whole(end: Wire) -> None:
    """Reads one message; a PING may arrive with it or before it."""
    data = b""
    while b"xxxx\r\n" not in data:
        data += end.read()
        if b"PING\r\n" in data:
            data = data.replace(b"PING\r\n", b"")
            end.sock.sendall(b"PONG\r\n")


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "ask":
        figures = ask_for(int(arguments[0]), float(arguments[1]))
    else:
        name, client, websocket = arguments
        ports = Ports(int(client), int(websocket))
        figures = connect(ports) if name == "connections" else send(name, ports)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
