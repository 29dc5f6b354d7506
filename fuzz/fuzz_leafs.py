"""Fuzzes leaf node links: `python fuzz/fuzz_leafs.py -max_total_time=60`.

The first byte of an input says what it is: everything that a leaf node sends, what follows a CONNECT, the
body of a CONNECT or of an INFO, what a registered leaf node sends, plain or compressed, or what a hub sends
that this server dialled, from its first byte, as its INFO, or once it is registered; the second byte how it
is cut into reads. Whatever it is: no exception escapes, clients get their own messages, a peer that has not
logged in makes the parser keep 64 KiB at most, and the end of the connection leaves no interest behind.

Addresses in INFO are dialled by leaf nodes; here they are not.
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
from penstock.server.links.leafs import Leafs

CONF = """
listen: "127.0.0.1:-1"
max_pending: 1M
max_payload: 64K
accounts {
    A {
        users: [ { user: a, password: a }, { user: l, password: l, permissions: { publish: ["a.>", "d"] } } ]
        exports: [ { service: "svc.>" }, { stream: "st.>" } ]
        mappings: { "a.old": "a.new" }
    }
    B { users: [ { user: b, password: b } ], imports: [ { service: { account: A, subject: "svc.>" } } ] }
}
no_auth_user: a
leafnodes {
    listen: "127.0.0.1:-1"
    compression: %s
    remotes: [ { url: "nats-leaf://127.0.0.1:1", account: B, deny_imports: ["no.>"], compression: %s } ]
}
"""
KINDS = 9
RAW, AFTER_CONNECT, CONNECT, INFO, REGISTERED, COMPRESSED, HUB_RAW, HUB_INFO, HUB_REGISTERED = range(KINDS)
OF_HUBS = (HUB_RAW, HUB_INFO, HUB_REGISTERED)
READ_BYTES = 16 << 10
CONNECT_LINE = (
    b'CONNECT {"version":"2.15.2","user":"a","pass":"a","server_id":"L","name":"l","cluster":"c",'
    b'"headers":true,"jetstream":true,"domain":"d"}\r\n'
)
WANTS_S2 = b'INFO {"server_id":"L","server_name":"l","compression":"s2_fast"} \r\n'
ABOUT = b'"server_id":"H","server_name":"h","client_id":7,"headers":true,"proto":1,"info_on_connect":true'
HUB_LINE = b"INFO {" + ABOUT + b',"nonce":"n","leafnode_urls":["h:1"]} \r\n'
ANSWER_LINE = b"INFO {" + ABOUT + b',"connect_info":true,"remote_account":"HUB"} \r\n'
WITNESS = b'CONNECT {"verbose":false,"user":"a","pass":"a","headers":true}\r\nSUB a.> 5\r\nSUB a.> q 6\r\n'
FRAMES = (
    b"LS+ a.b\r\nLS+ a.* q 3\r\nLMSG a.b 2\r\nhi\r\nHMSG a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"HMSG a.b 53 55\r\nNATS/1.0\r\nNats-Trace-Dest: a.t\r\nNats-Trace-Hop: 1\r\n\r\nhi\r\n"
    b"LMSG a.b + r q x 1\r\n.\r\nLMSG a.c | q 0\r\n\r\nLMSG a.old r 1\r\n.\r\nLMSG svc.x _R_.1 1\r\n.\r\n"
    b"LS- a.b\r\nLS- a.* q\r\nPING\r\nPONG\r\n+OK\r\nLS+ $LDS.x\r\nLS+ _GR_.>\r\nLS+ $JS.d.API.>\r\n"
    b"LMSG d $JS.ACK.S.C.1.1.1.1.0@s.t 1\r\n.\r\nLMSG no.x 1\r\n.\r\n-ERR 'Invalid Subscription'\r\n"
)
SEEDS = [
    bytes((REGISTERED, 0)) + FRAMES,
    bytes((REGISTERED, 7)) + FRAMES,
    bytes((COMPRESSED, 4)) + FRAMES,  # in small reads, so that the clear half comes later
    bytes((HUB_REGISTERED, 0)) + FRAMES,
    bytes((HUB_REGISTERED, 3)) + FRAMES + b"-ERR 'Loop detected for leafnode account'\r\n",
    bytes((RAW, 1)) + CONNECT_LINE + FRAMES,
    bytes((RAW, 0)) + WANTS_S2 + CONNECT_LINE,
    bytes((AFTER_CONNECT, 0)) + WANTS_S2 + b"PING\r\n" + CONNECT_LINE,
    bytes((HUB_RAW, 0)) + HUB_LINE + ANSWER_LINE + FRAMES,
    bytes((HUB_RAW, 0)) + HUB_LINE.replace(b',"info_on_connect":true', b"") + FRAMES,
    *(
        bytes((CONNECT, 0)) + CONNECT_LINE[8:-3] + more + b"}"
        for more in (
            b"", b',"is_hub":true,"isolate":true', b',"deny_pub":["a.>","b"]', b',"user":"l","pass":"l"',
            b',"nkey":"U","sig":"x","jwt":"y"', b',"compress_mode":"s2_best","gateway":"g"', b',"lang":"go"',
            b',"remote_account":"X","protocol":3,"proxy_sig":"z","auth_token":"t"',
        )
    ),
    *(
        bytes((kind, 0)) + b"{" + ABOUT + more + b"}"
        for kind in (INFO, HUB_INFO)
        for more in (
            b"", b',"compression":"s2_auto"', b',"compression":"s2_fast"', b',"connect_info":true',
            b',"import":{"allow":["a"],"deny":["b"]},"export":null', b',"cluster":"c","domain":"d"',
            b',"leafnode_urls":["h:1","[::1]:2","x"],"ws_connect_urls":["w:1"]', b',"acc_is_sys":true',
            b',"leafnode_urls":["h:%s"]' % (b"1" * 4301),
            b',"nonce":"n","tls_verify":true,"jetstream":true,"gateway_url":"x"',
        )
    ),
]  # fmt: skip


class Fuzzer:
    def __init__(self) -> None:
        Leafs.dial = lambda self, remote, address: None  # type: ignore[method-assign]
        options = [options_of(conf_parser.parse(CONF % (mode, mode))) for mode in ("off", "accept")]
        self.hosts = [Host(one, lambda info: WITNESS) for one in options]

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        kind, cut, body = data[0] % KINDS, data[1], data[2:]
        compresses = kind in (COMPRESSED, INFO) or (kind in OF_HUBS and cut & 1)
        host = self.hosts[bool(compresses)]

        async def connected() -> None:
            leafs = host.server.links.leafs
            assert leafs is not None
            remote = leafs.nodes.remotes[0] if kind in OF_HUBS else None
            peer = Peer(host.server, outer=leafs._new_session(remote).connection)
            await talk_as_server(host, peer, self._stream(kind, body), cut * 16 or READ_BYTES)
            assert not leafs.nodes.links
            assert not leafs.sessions

        host.run(connected)

    @staticmethod
    def _stream(kind: int, body: bytes) -> bytes:
        line = re.sub(rb"[\r\n]", b" ", body)
        half = len(body) // 2
        streams = {
            RAW: body,
            AFTER_CONNECT: CONNECT_LINE + body,
            CONNECT: b"CONNECT " + line + b"\r\n" + FRAMES,
            INFO: b"INFO " + line + b"\r\n" + CONNECT_LINE + b"INFO " + line + b"\r\n",
            REGISTERED: CONNECT_LINE + body,
            COMPRESSED: (
                WANTS_S2 + IDENTIFIER + encode_chunks(CONNECT_LINE) + encode_chunks(body[:half]) + body[half:]
            ),
            HUB_RAW: body,
            HUB_INFO: b"INFO " + line + b"\r\n" + ANSWER_LINE + FRAMES + b"INFO " + line + b"\r\n",
            HUB_REGISTERED: HUB_LINE + ANSWER_LINE + body,
        }
        return streams[kind]


if __name__ == "__main__":
    fuzz(SEEDS, Fuzzer(), mutate)
