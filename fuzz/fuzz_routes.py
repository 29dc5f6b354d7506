"""Fuzzes the route port: `python fuzz/fuzz_routes.py -max_total_time=60`.

The first byte of an input says what it is: everything that a peer sends, what follows a CONNECT, the body of
a CONNECT or of an INFO, or what a registered peer sends, plain, compressed, or on a dedicated route; the
second byte how it is cut into reads. Whatever it is: no exception escapes, clients get their own messages, a
peer that is not registered makes the parser keep 64 KiB at most, and the end of the connection leaves no
interest behind.

Addresses in INFO are dialled by servers; here they are not.
"""

from __future__ import annotations

import re

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from peers import Host, Peer, talk_as_server
from seeded import fuzz

from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.links.routes import Routes

CONF = """
listen: "127.0.0.1:-1"
max_pending: 1M
max_payload: 64K
accounts {
    A { users: [ { user: a, password: a } ], exports: [ { service: "svc.>" }, { stream: "st.>" } ] }
    B { users: [ { user: b, password: b } ], imports: [ { service: { account: A, subject: "svc.>" } } ] }
}
no_auth_user: a
cluster { name: c, listen: "127.0.0.1:-1", accounts: [B], compression: %s }
"""
RAW, AFTER_CONNECT, CONNECT, INFO, REGISTERED, COMPRESSED, DEDICATED = range(7)
READ_BYTES = 16 << 10
CONNECT_LINE = b'CONNECT {"name":"P","cluster":"c","headers":true,"lnoc":true,"ln":true}\r\n'
ABOUT = (
    b'"server_id":"P","server_name":"p","cluster":"c","host":"127.0.0.1","port":1,"headers":true,"proto":3'
)
INFO_LINE = b"INFO {" + ABOUT + b',"route_pool_size":3} \r\n'
DEDICATED_LINE = b"INFO {" + ABOUT + b',"route_pool_size":3,"route_account":"B"} \r\n'
WANTS_S2 = b"INFO {" + ABOUT + b',"route_pool_size":3,"compression":"s2_fast"} \r\n'
WITNESS = b'CONNECT {"verbose":false,"user":"a","pass":"a","headers":true}\r\nSUB a.> 5\r\nSUB a.> q 6\r\n'
FRAMES = (
    b"RS+ A a.b\r\nRS+ A a.* q 3\r\nRMSG A a.b 2\r\nhi\r\nHMSG A a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"HMSG A a.b 53 55\r\nNATS/1.0\r\nNats-Trace-Dest: a.t\r\nNats-Trace-Hop: 1\r\n\r\nhi\r\n"
    b"RMSG A a.b + r q x 1\r\n.\r\nRMSG A a.c | q 0\r\n\r\nLS+ leaf A a.d q 2\r\nLS- leaf A a.d q\r\n"
    b"LMSG leaf A a.b 0 1\r\n.\r\nRS- A a.b\r\nPING\r\nPONG\r\nA+ A\r\n+OK\r\n"
    b"RMSG A d $JS.ACK.S.C.1.1.1.1.0@s.t 1\r\n.\r\n"
)
SEEDS = [
    bytes((REGISTERED, 0)) + FRAMES,
    bytes((REGISTERED, 7)) + FRAMES,
    bytes((COMPRESSED, 0)) + FRAMES,
    bytes((DEDICATED, 3)) + FRAMES.replace(b" A ", b" "),
    bytes((RAW, 1)) + CONNECT_LINE + INFO_LINE + FRAMES,
    bytes((AFTER_CONNECT, 0)) + INFO_LINE + b"PING\r\n" + INFO_LINE.replace(b'"P"', b'"Q"'),
    bytes((CONNECT, 0)) + CONNECT_LINE[8:-2],
    *(
        bytes((INFO, 0)) + b"{" + ABOUT + more + b"}"
        for more in (
            b"", b',"route_pool_idx":2', b',"route_account":"B"', b',"ldm":true', b',"compression":"s2_auto"',
            b',"connect_urls":["h:1"],"ws_connect_urls":[]', b',"import":{"allow":["a"]},"export":null',
            b',"ip":"nats-route://h:1/","gossip_mode":2', b',"route_acc_add_reqid":"x","route_account":"A"',
            b',"gateway":"g","leafnode_urls":["x"],"cluster_dynamic":true,"jetstream":true',
        )
    ),
]  # fmt: skip


class Fuzzer:
    def __init__(self) -> None:
        Routes.dial = lambda self, dial: None  # type: ignore[method-assign]
        options = [options_of(conf_parser.parse(CONF % mode)) for mode in ("off", "accept")]
        self.hosts = [Host(one, lambda info: WITNESS) for one in options]

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        kind, cut, body = data[0] % 7, data[1], data[2:]
        host = self.hosts[kind == COMPRESSED]

        async def connected() -> None:
            routes = host.server.links.routes
            assert routes is not None
            peer = Peer(host.server, outer=routes._connection(None))
            await talk_as_server(host, peer, self._stream(kind, body), cut * 16 or READ_BYTES)
            assert not routes.mesh.links
            assert not routes.mesh.pending

        host.run(connected)

    @staticmethod
    def _stream(kind: int, body: bytes) -> bytes:
        line = re.sub(rb"[\r\n]", b" ", body)
        if kind == RAW:
            return body
        if kind == AFTER_CONNECT:
            return CONNECT_LINE + body
        if kind == CONNECT:
            return b"CONNECT " + line + b"\r\n" + INFO_LINE + FRAMES
        if kind == INFO:
            return CONNECT_LINE + b"INFO " + line + b"\r\n" + FRAMES + b"INFO " + line + b"\r\n"
        if kind == COMPRESSED:
            packed = IDENTIFIER + encode_chunks(INFO_LINE) + encode_chunks(body[: len(body) // 2])
            return CONNECT_LINE + WANTS_S2 + packed + body[len(body) // 2 :]
        return CONNECT_LINE + (DEDICATED_LINE if kind == DEDICATED else INFO_LINE) + body


if __name__ == "__main__":
    fuzz(SEEDS, Fuzzer(), mutate)
