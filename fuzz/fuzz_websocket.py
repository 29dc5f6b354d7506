"""Fuzzes WebSocket clients: `python fuzz/fuzz_websocket.py -max_total_time=60`.

The first byte says whether an input is what a socket sends from its first byte on, or the headers of a
handshake, or frames after one that succeeded: pairs of what a frame is and which protocol lines it carries,
now and then damaged. The second byte is how it is cut into reads. Whatever it is: no exception escapes, and
other clients get their messages.
"""

from __future__ import annotations

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from peers import Host, Peer, turns
from seeded import fuzz

from penstock.net.websocket import WebsocketLayer
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from tests.support.file_probes import UPGRADE, WEBSOCKETS, deflated, ws_frame

CONF = """
listen: "127.0.0.1:-1"
max_payload: 64KB
websocket {
    listen: "127.0.0.1:-1", no_tls: true, compression: true
    token_cookie: t, user_cookie: u, pass_cookie: p, jwt_cookie: j, same_origin: false
    allowed_origins: ["http://x:1"]
}
"""
RAW, HEADERS, FRAMES, COMPRESSED = range(4)
KINDS = 4
CONNECT = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
PARTS = (
    CONNECT, b"PING\r\n", b"PONG\r\n", b"SUB a.> 1\r\n", b"UNSUB 1\r\n", b"PUB a.b 5\r\nhello\r\n",
    b"HPUB a.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", b"PUB a.b 100000\r\n", b"", b"x", b"\xc3", b"PU",
    b"PING\r\n" * 500, b"\x03\xe8bye", b" " * 70_000, b"\r\n" * 1000,
)  # fmt: skip
DEFLATED = tuple(map(deflated, PARTS))  # once: it takes longer than the server does
OPCODES = (2, 2, 2, 0, 0, 1, 8, 9, 10, 3, 15)
READS_MAX = 300


def frames(recipe: bytes) -> bytes:
    """Frames by number: two bytes say what a frame is and what it carries, a third may damage it."""
    sent = bytearray()
    for at in range(0, len(recipe) - 2, 3):
        what, part, damage = recipe[at : at + 3]
        rsv1 = part >= 128
        payload = (DEFLATED if rsv1 else PARTS)[part % len(PARTS)]
        frame = bytearray(
            ws_frame(
                payload,
                OPCODES[what % len(OPCODES)],
                fin=what < 160,
                rsv1=rsv1,
                masked=what % 16 != 15,
            )
        )
        if damage > 200:
            frame[damage % len(frame)] ^= 1 << damage % 8
        elif damage > 190:
            del frame[damage % len(frame) :]
        sent += frame
        if len(sent) > 1 << 20:
            break
    return bytes(sent)


def session(kind: int, rest: bytes) -> bytes:
    """What the socket sends."""
    if kind == RAW:
        return rest
    if kind == HEADERS:
        return b"GET / HTTP/1.1\r\n" + UPGRADE + rest + b"\r\n\r\n" + ws_frame(CONNECT + b"PING\r\n")
    extension = b"Sec-WebSocket-Extensions: permessage-deflate\r\n" if kind == COMPRESSED else b""
    return b"GET / HTTP/1.1\r\n" + UPGRADE + extension + b"\r\n" + ws_frame(CONNECT) + frames(rest)


class Fuzzer:
    def __init__(self) -> None:
        self.host = Host(options_of(conf_parser.parse(CONF)), lambda info: CONNECT)

    def __call__(self, data: bytes) -> None:
        if len(data) < 3:
            return
        sent, size = session(data[0] % KINDS, data[2:]), 1 + data[1] ** 2
        size = max(size, len(sent) // READS_MAX)

        async def received() -> None:
            assert self.host.server.websockets is not None
            layer = self.host.server.websockets._accept()
            assert isinstance(layer, WebsocketLayer)
            peer = Peer(self.host.server, outer=layer)
            for at in range(0, len(sent), size):
                peer.receive(sent[at : at + size])
                await turns(1)
            await turns()
            peer.go()

        self.host.run(received)


SEEDS = [
    bytes([FRAMES, 200]) + bytes(x for n in range(len(PARTS)) for x in (n, n, 0)),
    bytes([COMPRESSED, 200]) + bytes(x for n in range(len(PARTS)) for x in (n, 128 + n, 0)),
    bytes([FRAMES, 3]) + bytes(x for n in range(0, 256, 3) for x in (n, n, n)),
    bytes([HEADERS, 200])
    + b"Cookie: u=a; p=b; t=c\r\nOrigin: http://x:1\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8",
    bytes([RAW, 200]) + session(FRAMES, b""),
    *(bytes([RAW, 255]) + session(COMPRESSED, b"") + make(500) for make in WEBSOCKETS.values()),
]

if __name__ == "__main__":
    fuzz(SEEDS, Fuzzer(), mutate)
