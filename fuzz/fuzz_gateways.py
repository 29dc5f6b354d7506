"""Fuzzes the gateway port: `python fuzz/fuzz_gateways.py -max_total_time=60`.

The first byte of an input says what it is: everything that a peer sends, what follows a CONNECT, the body of
a CONNECT or of an INFO, or what a registered peer sends, inbound or on a link that this server dialled; the
second byte how it is cut into reads. Whatever it is: no exception escapes, clients get their own messages, a
peer that is not registered makes the parser keep 64 KiB at most, and the end of the connection leaves no
interest behind.

Addresses in INFO are dialled by servers; here they are not.
"""

from __future__ import annotations

import re

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from peers import Host, Peer, turns
from seeded import fuzz

from penstock.cluster.gateways import GatewayRemote
from penstock.cluster.peer_link import Address
from penstock.kernels.wire.route_frames import RouteParser
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.links.gateway_server import GatewayServer

CONF = """
listen: "127.0.0.1:-1"
max_pending: 1M
max_payload: 64K
accounts {
    A { users: [ { user: a, password: a } ], exports: [ { service: "svc.>" }, { stream: "st.>" } ] }
    B { users: [ { user: b, password: b } ], imports: [ { service: { account: A, subject: "svc.>" } } ] }
}
no_auth_user: a
gateway { name: G, listen: "127.0.0.1:-1" }
"""
RAW, AFTER_CONNECT, CONNECT, INFO, INBOUND, OUTBOUND, OPTIMISTIC = range(7)
HELD_MAX = 64 << 10
READ_BYTES = 16 << 10
CONNECT_LINE = b'CONNECT {"name":"P","gateway":"H"}\r\n'
ABOUT = (
    b'"server_id":"P","server_name":"p","gateway":"H","host":"127.0.0.1","port":1,"headers":true,"proto":3'
)
OLD_LINE = b"INFO {" + ABOUT + b"} \r\n"
INFO_LINE = b"INFO {" + ABOUT + b',"gateway_iom":true,"gateway_urls":["127.0.0.1:1"]} \r\n'
WITNESS = b'CONNECT {"verbose":false,"user":"a","pass":"a","headers":true}\r\nSUB a.> 5\r\nSUB a.> q 6\r\n'
MESSAGES = (
    b"RMSG A a.b 2\r\nhi\r\nHMSG A a.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nRMSG A a.b + r q x 1\r\n.\r\n"
    b"HMSG A a.b 53 55\r\nNATS/1.0\r\nNats-Trace-Dest: a.t\r\nNats-Trace-Hop: 1\r\n\r\nhi\r\n"
    b"RMSG A a.c | q 0\r\n\r\nRMSG A a.b _GR_.aaaaaa.bbbbbb.r 1\r\n.\r\n"
    b"RMSG A _GR_.aaaaaa.bbbbbb.a.b 1\r\n.\r\n"
    b"PING\r\nPONG\r\n+OK\r\nRMSG A d $JS.ACK.S.C.1.1.1.1.0@s.t 1\r\n.\r\n"
)
INTEREST = (
    b'INFO {"gateway":"H","gateway_cmd":2,"gateway_cmd_payload":"QQ=="} \r\nRS+ A a.b\r\nRS+ A a.* q 3\r\n'
    b'RS- A a.b\r\nINFO {"gateway":"H","gateway_cmd":3,"gateway_cmd_payload":"QQ=="} \r\nA- A\r\n'
    b"A+ A\r\nA- C\r\n"
    b'INFO {"gateway":"I","gateway_cmd":1,"gateway_urls":["h:1"]} \r\nRS- A x.y\r\nRS+ A x.*\r\n'
)
SEEDS = [
    bytes((INBOUND, 0)) + MESSAGES,
    bytes((INBOUND, 5)) + MESSAGES,
    bytes((OUTBOUND, 0)) + INTEREST,
    bytes((OUTBOUND, 3)) + INTEREST,
    bytes((OPTIMISTIC, 0)) + INTEREST,
    bytes((OPTIMISTIC, 1)) + b"RS- A a.b\r\nA- A\r\nA+ A\r\n" + INTEREST,
    bytes((RAW, 1)) + CONNECT_LINE + INFO_LINE + MESSAGES,
    bytes((AFTER_CONNECT, 0)) + INFO_LINE + b"PING\r\n" + INFO_LINE.replace(b'"P"', b'"Q"'),
    bytes((CONNECT, 0)) + CONNECT_LINE[8:-2],
    bytes((INFO, 0)) + INFO_LINE[5:-3],
    bytes((INFO, 2)) + OLD_LINE[5:-3],
    bytes((INFO, 0)) + INFO_LINE[5:-3].replace(b"127.0.0.1:1", b"h:" + b"1" * 4301),
]


class Fuzzer:
    def __init__(self) -> None:
        GatewayServer.dial = lambda self, remote: None  # type: ignore[method-assign]
        self.host = Host(options_of(conf_parser.parse(CONF)), lambda info: WITNESS)

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        kind, cut, body = data[0] % 7, data[1], data[2:]
        host = self.host

        async def connected() -> None:
            server = host.server.links.gateways
            assert server is not None
            remote = None
            if kind in (OUTBOUND, OPTIMISTIC):
                remote = GatewayRemote("H", (Address("127.0.0.1", 1),))
                remote.choose_address(0)
            peer = Peer(host.server, outer=server._connection(remote))
            parser = peer.connection._ingress.parser
            assert isinstance(parser, RouteParser)
            stream = self._stream(kind, body)
            size = cut * 16 or READ_BYTES
            for at in range(0, len(stream), size):
                peer.receive(stream[at : at + size])
                while peer.connection._ingress.waiting:  # a socket would not be read meanwhile
                    await turns(1)
                if not parser.is_wide:
                    assert parser.held_bytes <= HELD_MAX, parser.held_bytes
            await turns()
            peer.go()
            await turns()
            for account in host.server.accounts.values():
                left = [one for one in account.index.subscriptions() if one.remote]
                assert not left, left
            assert not server.gateways.links

        host.run(connected)

    @staticmethod
    def _stream(kind: int, body: bytes) -> bytes:
        line = re.sub(rb"[\r\n]", b" ", body)
        if kind == RAW:
            return body
        if kind == AFTER_CONNECT:
            return CONNECT_LINE + body
        if kind == CONNECT:
            return b"CONNECT " + line + b"\r\n" + INFO_LINE + MESSAGES
        if kind == INFO:
            return CONNECT_LINE + b"INFO " + line + b"\r\n" + MESSAGES + b"INFO " + line + b"\r\n"
        if kind == INBOUND:
            return CONNECT_LINE + INFO_LINE + body
        return (INFO_LINE if kind == OUTBOUND else OLD_LINE) + body


if __name__ == "__main__":
    fuzz(SEEDS, Fuzzer(), mutate)
