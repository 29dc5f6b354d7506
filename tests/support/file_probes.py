"""Probes of what comes as a file or by another protocol: nats.conf, HTTP, WebSocket, archives of streams."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.kernels.log.archive import checksum
from penstock.protocol import snapshot_archive
from penstock.protocol.api import ApiConsumerConfig, StreamState
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.server import reload
from penstock.server.config import directives
from penstock.server.server import Server
from tests.support import hostile
from tests.support.hostile import SIZES, Hostile, with_field
from tests.support.probes import CONF, MAX_PAYLOAD
from tests.support.rawnats import RawNats
from tests.support.scanner import LATER_S, Probe, Session, frame

# -- nats.conf

DIRECTIVES = (
    *directives._TOP, "listen", "http", "authorization", "jetstream", "mappings", "cluster", "unknown_field",
    "include",
)  # fmt: skip
_USER = "accounts { Z { users: [ { user: z, password: x, permissions: { %s } } ] } }"
NESTED: dict[str, str] = {
    "accounts users": "accounts { Z { users: %s } }",
    "accounts exports": "accounts { Z { exports: %s } }",
    "accounts imports": "accounts { Z { imports: %s } }",
    "accounts jetstream": "accounts { Z { jetstream: %s } }",
    "accounts mappings": "accounts { Z { mappings: %s } }",
    "accounts limits": "accounts { Z { limits: %s } }",
    "permissions publish": _USER % "publish: %s",
    "permissions subscribe": _USER % "subscribe: %s",
    "permissions responses": _USER % "allow_responses: %s",
    "permissions allow": _USER % "subscribe: { allow: %s }",
    "accounts user": "accounts { Z { users: [ { user: %s, password: x } ] } }",
    "accounts password": "accounts { Z { users: [ { user: z, password: %s } ] } }",
    "accounts mapping": "accounts { Z { mappings: { z: %s } } }",
    "jetstream limits": "jetstream { limits: %s }",
    "jetstream max_mem": "jetstream { max_mem: %s }",
    "websocket": "websocket { port: -1, no_tls: true, allowed_origins: %s }",
    "tls": "tls { cert_file: %s }",
    "key": "%s: 1",
    "text": "%s",
}  # fmt: skip
WORDS_OF_CONF = {
    "integer of 5,000 digits": b"1" * 5000,
    "suffix of 5,000 digits": b"1" * 5000 + b"KB",
    "float of 5,000 digits": b"0." + b"1" * 5000,
    "float out of range": b"9" * 400 + b".5",
    "exabytes": b"9999999999999e",
    "other digits": "١٢٣".encode(),
    "time": b"2024-99-99T99:99:99Z",
    "bcrypt": b"$2a$99$" + b"x" * 53,
    "variable": b"$unknown_field",
    "its own variable": b"$max_payload",
    "block": b"(\n" + b"x\n" * 50 + b")\n",
    "block left open": b"(\nx\n",
    "include": b"include 'nats.conf'",
    "bad UTF-8": b"\xff\xfe",
    "duration": b'"1h1h1h"',
    "infinite": b"1e400",
    "not a number": b"nan",
}
LARGE_OF_CONF: dict[str, Callable[[int], bytes]] = {
    **hostile.CONTAINERS,
    "quoted": lambda size: b'"' + b"x" * size + b'"',
    "escapes": lambda size: b'"' + rb"\x41" * (size // 4) + b'"',
    "bare": lambda size: b"x" * size,
    "digits": lambda size: b"1" * size,
    "line feeds": lambda size: b"\n" * size + b"1",
    "comments": lambda size: b"#\n" * (size // 2) + b"1",
    "block": lambda size: b"(\n" + b"x\n" * (size // 2) + b")\n",
    "block of blanks": lambda size: b"(" + b"\n " * (size // 2) + b"x\n)\n",
    "deep maps": lambda size: b"{a:" * (size // 4) + b"1" + b"}" * (size // 4),
    "maps left open": lambda size: b"{a:" * (size // 3),
    "variables": lambda size: b"{v:1\n" + b"a:$v\n" * (size // 5) + b"}",
    "distant variables": lambda size: (
        b"{v:1 " + b"a:{" * (size // 20) + b"b:$v " * (size // 20) + b"}" * (size // 20) + b"}"
    ),
    "includes": lambda size: b"{" + b"include 'x'\n" * (size // 12) + b"}",
}  # fmt: skip


def conf_probe(value: Hostile) -> Probe:
    """A reload of a file that has this at its end."""

    def run(session: Session) -> None:
        good = (CONF % session.directory).encode()
        session.conf.write_bytes(good + b"\n" + value.data[:MAX_PAYLOAD] + b"\n")
        session.server.run(_reloaded(session))
        session.step("reload", 0.1)
        session.conf.write_bytes(good)  # whose limits let others in
        session.server.run(_reloaded(session))

    return Probe("nats.conf", value.shape, "accounts", run)


async def _reloaded(session: Session) -> None:
    server = session.server.server
    base = _without_file(server.options)
    with contextlib.suppress(PenstockError):  # that is how it says what is wrong with a file
        await reload.apply_reload(server, lambda: directives.load(str(session.conf), base))


def _without_file(options: directives.ServerOptions) -> directives.Options:
    """What the file does not say: where the test's server listens."""
    return directives.ServerOptions(host=options.host, port=options.port)


def conf_probes() -> Iterator[Probe]:
    places = {name: name + ": %s" for name in DIRECTIVES} | NESTED
    for name, place in places.items():
        before, _, after = place.encode().partition(b"%s")
        for shape, word in WORDS_OF_CONF.items():
            yield conf_probe(hostile.plain(f"{name}: {shape}", before + word + after))
        for value in (*hostile.json_words(), *hostile.sized(LARGE_OF_CONF, SIZES[1])):
            yield conf_probe(value.within(f"{name}: ", partial(_between, before, after)))
    for value in hostile.sized(LARGE_OF_CONF, SIZES[2]):
        yield conf_probe(value.within("unknown_field: ", partial(_between, b"unknown_field: ", b"")))
        yield conf_probe(value.within("accounts: ", partial(_between, b"accounts: ", b"")))


def _between(before: bytes, after: bytes, data: bytes) -> bytes:
    return before + data + after


# -- HTTP

PAGES = (
    "/",
    "/varz",
    "/connz",
    "/subsz",
    "/jsz",
    "/healthz",
    "/accountz",
    "/accstatz",
    "/metrics",
    "/routez",
    "/x",
)
QUERIES = (
    "sort", "limit", "offset", "cid", "state", "subs", "auth", "acc", "user", "test", "accounts", "streams",
    "consumers", "config", "js-enabled-only", "stream", "consumer", "account", "unused", "raft",
)  # fmt: skip
HTTP_SIZES = (4_000, 200_000)


def http_probe(port: Callable[[Server], int], where: str, value: Hostile) -> Probe:
    def run(session: Session) -> None:
        session.raw(session.server.call(port), value.data)
        session.step("request", LATER_S)

    return Probe("HTTP", f"{where} {value.shape}", "accounts", run)


def monitor_port(server: Server) -> int:
    assert server.monitor is not None
    return server.monitor.port


def websocket_port(server: Server) -> int:
    assert server.websockets is not None
    return server.websockets.port


UPGRADE = (
    b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
WEB_HEADERS = (
    "Host", "Origin", "Cookie", "X-Forwarded-For", "Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Key", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "unknown",
)  # fmt: skip


def http_probes() -> Iterator[Probe]:
    for query in QUERIES:
        for value in hostile.header_values(HTTP_SIZES):
            page = PAGES[len(query + value.shape) % len(PAGES)]
            inside = value.within(f"{page}?{query}=", partial(_query, page, query))
            yield http_probe(monitor_port, "monitor", inside)
    for name in WEB_HEADERS:
        for value in hostile.header_values(HTTP_SIZES):
            inside = value.within(f"{name}: ", partial(_headed, b"GET / HTTP/1.1\r\n", name))
            yield http_probe(monitor_port, "monitor", inside)
            yield http_probe(websocket_port, "websocket", inside)
    for value in (*hostile.header_values(HTTP_SIZES), *hostile.header_blocks(HTTP_SIZES)):
        yield http_probe(monitor_port, "monitor", value)
        yield http_probe(websocket_port, "websocket", value)
    for size in HTTP_SIZES:
        for shape, make in {
            "chunks": lambda size: b"1\r\nx\r\n" * (size // 6),
            "pipelined": lambda size: b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n" * (size // 400),
        }.items():
            head = (
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                if shape == "chunks"
                else b""
            )
            value = Hostile(
                f"{shape} ({size})", partial(lambda head, make, size: head + make(size), head, make, size)
            )
            yield http_probe(monitor_port, "monitor", value)
            yield http_probe(websocket_port, "websocket", value)


def _query(page: str, name: str, value: bytes) -> bytes:
    text = value.replace(b" ", b"%20").replace(b"\r\n", b"")
    return b"GET %s?%s=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (
        page.encode(),
        name.encode(),
        text,
    )


def _headed(line: bytes, name: str, value: bytes) -> bytes:
    return line + UPGRADE + b"%s: %s\r\n\r\n" % (name.encode(), value)


# -- WebSocket

FRAMES_SIZES = (60_000, 1_000_000)
_CONNECT = b'CONNECT {"verbose":false,"user":"a","pass":"a"}\r\n'


def ws_frame(
    payload: bytes, opcode: int = 2, *, fin: bool = True, rsv1: bool = False, masked: bool = True
) -> bytes:
    """A frame of a client, masked with zeros."""
    head = bytes([fin << 7 | rsv1 << 6 | opcode])
    length = len(payload)
    mask = masked << 7
    if length < 126:
        head += bytes([mask | length])
    elif length < 1 << 16:
        head += bytes([mask | 126]) + struct.pack("!H", length)
    else:
        head += bytes([mask | 127]) + struct.pack("!Q", length)
    return head + (bytes(4) if masked else b"") + payload


def deflated(data: bytes) -> bytes:
    """A message as permessage-deflate has it."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (made.compress(data) + made.flush(zlib.Z_SYNC_FLUSH))[:-4]


def _fragments(size: int, piece: bytes, opcode: int = 2) -> bytes:
    count = size // (len(piece) + 6)
    return ws_frame(piece, opcode, fin=False) + ws_frame(piece, 0, fin=False) * count + ws_frame(b"", 0)


WEBSOCKETS: dict[str, Callable[[int], bytes]] = {
    "empty fragments": lambda size: _fragments(size, b""),
    "fragments of a byte": lambda size: _fragments(size, b"\r"),
    "fragments of text": lambda size: _fragments(size, b"\xc3", 1),
    "empty frames": lambda size: ws_frame(b"") * (size // 6),
    "frames of a PING": lambda size: ws_frame(b"PING\r\n") * (size // 12),
    "frames of a byte": lambda size: (
        b"".join(map(ws_frame, (b"P", b"I", b"N", b"G", b"\r", b"\n"))) * (size // 42)
    ),
    "control frames": lambda size: ws_frame(b"x" * 100, 9) * (size // 106),
    "empty control frames": lambda size: ws_frame(b"", 9) * (size // 6),
    "pongs": lambda size: ws_frame(b"", 10) * (size // 6),
    "compressed PINGs": lambda size: ws_frame(deflated(b"PING\r\n" * size), rsv1=True),
    "compressed blanks": lambda size: ws_frame(deflated(b" " * (10 * size)), rsv1=True),
    "compressed line ends": lambda size: ws_frame(deflated(b"\r\n" * (10 * size)), rsv1=True),
    "compressed PUBs": lambda size: ws_frame(deflated(b"PUB h 1\r\nx\r\n" * size), rsv1=True),
    "compressed SUBs": lambda size: ws_frame(deflated(b"SUB h 1\r\nUNSUB 1\r\n" * (size // 2)), rsv1=True),
    "compressed empties": lambda size: ws_frame(b"\x02\x00", rsv1=True) * (size // 8),
    "PINGs": lambda size: ws_frame(b"PING\r\n" * (size // 6)),
    "CONNECTs": lambda size: ws_frame(_CONNECT * (size // len(_CONNECT))),
    "text": lambda size: ws_frame(b"\xc3\xa9" * (size // 2), 1),
    "unmasked": lambda size: ws_frame(b"PING\r\n" * (size // 6), masked=False),
    "a length of 2^63": lambda size: b"\x82\xff" + b"\xff" * 8 + b"x" * size,
    "reserved opcode": lambda size: ws_frame(b"", 7) + b"x" * size,
    "bad deflate": lambda size: ws_frame(b"\xff" * size, rsv1=True),
    "close frames": lambda size: ws_frame(b"\x03\xe8", 8) * (size // 8),
}


def websocket_probe(value: Hostile) -> Probe:
    def run(session: Session) -> None:
        port = session.server.call(websocket_port)
        extensions = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        session.raw(port, b"GET / HTTP/1.1\r\n" + UPGRADE + extensions + ws_frame(_CONNECT) + value.data)
        session.step("frames", LATER_S)

    return Probe("WebSocket", value.shape, "accounts", run)


def websocket_probes() -> Iterator[Probe]:
    for size in FRAMES_SIZES:
        for value in hostile.sized(WEBSOCKETS, size):
            yield websocket_probe(value)


# -- archives of streams

_STATE = {"messages": 2, "bytes": 100, "first_seq": 1, "last_seq": 2, "consumer_count": 1}
_ARCHIVED: dict[str, Any] = {
    "config": {"durable_name": "c", "name": "c", "ack_policy": "explicit"},
    "state": {"delivered": {"consumer_seq": 1, "stream_seq": 1}, "ack_floor": {}, "pending": {}},
}


def entry(name: str, payload: bytes, time: int = 0, seq: int = 0, header: bytes = b"") -> bytes:
    """An entry, whatever its parts."""
    fields = (len(name.encode()), time << 1, seq, len(header), len(payload))
    return b"".join(map(snapshot_archive._varint, fields)) + name.encode() + header + payload


def packed(plain: bytes) -> bytes:
    return IDENTIFIER + encode_chunks(plain)


def archived(state: bytes, *rest: bytes) -> bytes:
    """A plain archive: the state, then entries."""
    return snapshot_archive.MARK + entry(snapshot_archive.STATE_NAME, state) + b"".join(rest)


def _messages(count: int) -> bytes:
    return b"".join(entry("h.a", b"x", 1, seq) for seq in range(1, count + 1))


def _s2_repeats(size: int) -> bytes:
    """A chunk whose block is one byte repeated to `size` bytes, at most 4 MiB: a few bytes on the wire."""
    size = min(size, 4 * 1024 * 1024)
    block = bytearray(snapshot_archive._varint(size)) + b"\x00x"
    left = size - 1
    while left > 0:  # copies of 64 bytes at offset 1
        length = min(64, left)
        block += bytes([(length - 1) << 2 | 2, 1, 0])
        left -= length
    body = checksum(b"x" * size).to_bytes(4, "little") + bytes(block)
    return b"\x00" + len(body).to_bytes(3, "little") + body


def _announced(size: int) -> bytes:
    """A state of 60 MB that is filled by repeats."""
    head = snapshot_archive.MARK + b"".join(map(snapshot_archive._varint, (10, 0, 0, 0, 60 * 1000 * 1000)))
    return packed(head + b"state.json") + _s2_repeats(4 << 20) * max(1, size // 200_000)


def _of_messages(size: int) -> bytes:
    count = size // 9
    state = {**_STATE, "messages": count, "last_seq": count, "consumer_count": 0}
    return packed(archived(_json(state), _messages(count), snapshot_archive.END))


def _of_consumers(size: int) -> bytes:
    count = size // 150
    entries = (entry(f"consumers/c{n}", _json(_ARCHIVED)) for n in range(count))
    return packed(archived(_json({**_STATE, "consumer_count": count}), *entries))


def _of_state(**state: object) -> bytes:
    """One consumer, with more in its state."""
    consumer = {**_ARCHIVED, "state": {**_ARCHIVED["state"], **state}}
    return packed(
        archived(_json(_STATE), entry("consumers/c", _json(consumer)), _messages(2), snapshot_archive.END)
    )


def _with_gap(size: int) -> bytes:
    state = {**_STATE, "last_seq": size**6, "consumer_count": 0}
    return packed(
        archived(_json(state), entry("h", b"x", 1, 1), entry("h", b"x", 1, size**6), snapshot_archive.END)
    )


ARCHIVES: dict[str, Callable[[int], bytes]] = {
    "announced and repeated": _announced,
    "messages": _of_messages,
    "consumers": _of_consumers,
    "pending": lambda size: _of_state(
        pending={str(n): {"Sequence": n, "Timestamp": 1} for n in range(size // 40)}
    ),
    "redelivered": lambda size: _of_state(redelivered={str(n): n for n in range(size // 14)}),
    "gap": _with_gap,
    "name": lambda size: packed(archived(_json(_STATE), entry("consumers/" + "c" * size, b"{}"))),
    "blanks": lambda size: packed(archived(b" " * size + _json(_STATE))),
    "bytes behind": lambda size: packed(
        archived(_json({**_STATE, "consumer_count": 0}), _messages(2), snapshot_archive.END, b"x" * size)
    ),
    "skipped chunks": lambda size: IDENTIFIER + b"\xfe\x00\x00\x00" * (size // 4),
    "empty chunks": lambda size: (
        IDENTIFIER + (b"\x01\x04\x00\x00" + checksum(b"").to_bytes(4, "little")) * (size // 8)
    ),
    "identifiers": lambda size: IDENTIFIER * (size // 10),
}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def archive_probe(value: Hostile, config: bytes = b'{"name":"H","subjects":["h.>"],"storage":"memory"}',
                  piece: int = 100_000) -> Probe:  # fmt: skip
    """A restore; the archive is sent in pieces, and a few more bytes one by one."""

    def run(session: Session) -> None:
        client = session.client("a")
        client.send(b"SUB _A.> 9\r\n")
        client.send(frame("$JS.API.STREAM.RESTORE.H", b'{"config":%s,"state":{}}' % config, reply="_A.begun"))
        subject = _deliver_subject(client)
        if subject:
            data = value.data[:MAX_PAYLOAD]
            chunks = [data[at : at + piece] for at in range(0, len(data), piece)]
            chunks += [b"x"] * 20
            session.send(b"".join(frame(subject, chunk, reply="_A.chunk") for chunk in chunks))
            session.step("chunks", 0.1)
            session.publish(subject, b"", reply="_A.end")
            session.step("end of it", 0.1)
        session.step("later", 6.0)
        session.send(b"UNSUB 9\r\n")
        session.publish("$JS.API.STREAM.DELETE.H")

    return Probe("archives", value.shape, "accounts", run)


def _deliver_subject(client: RawNats) -> str:
    while True:
        message = client.message()
        if message.sid == b"9":
            found = json.loads(message.payload)
            return found.get("deliver_subject", "")  # type: ignore[no-any-return]


class _ArchivedState(msgspec.Struct):
    delivered: snapshot_archive.SequencePair
    ack_floor: snapshot_archive.SequencePair
    pending: dict[int, snapshot_archive.PendingMessage]
    redelivered: dict[int, int]


class _ArchivedConsumer(msgspec.Struct):
    config: ApiConsumerConfig
    state: _ArchivedState


def archive_probes() -> Iterator[Probe]:
    for size in SIZES:
        for value in hostile.sized(ARCHIVES, size):
            yield archive_probe(value)
        for value in hostile.sized({"random": os.urandom}, size):
            yield archive_probe(value.within("", partial(_between, IDENTIFIER, b"")))
    for field in hostile.fields_of(StreamState):
        for value in hostile.field_values(field, SIZES[1:2]):
            yield archive_probe(value.within(f"state {field.name}: ", partial(_with_state, field.path)))
    for field in hostile.fields_of(_ArchivedConsumer):
        for value in hostile.field_values(field, SIZES[1:2]):
            yield archive_probe(value.within(f"consumer {field.name}: ", partial(_with_consumer, field.path)))
    for value in hostile.broken_bodies(_STATE, SIZES[1:2]):
        yield archive_probe(value.within("state ", lambda data: packed(archived(data))))


def _with_state(path: hostile.Path, value: bytes) -> bytes:
    return packed(archived(with_field(_STATE, path, value)))


def _with_consumer(path: hostile.Path, value: bytes) -> bytes:
    consumer = entry("consumers/c", with_field(_ARCHIVED, path, value))
    return packed(archived(_json(_STATE), consumer, _messages(2), snapshot_archive.END))


FILE_PROBES: dict[str, Callable[[], Iterator[Probe]]] = {
    "nats.conf": conf_probes,
    "HTTP": http_probes,
    "WebSocket": websocket_probes,
    "archives": archive_probes,
}
