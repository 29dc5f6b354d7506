"""Fuzzes CONNECT: `python fuzz/fuzz_connect.py -max_total_time=60`.

An input is what a client says of itself, on a server with accounts whose control lines may be long. It
connects with it, twice, subscribes and publishes; the system account then asks who is connected. Whatever it
is: no exception escapes, other clients are served, and no line of the log has a control character in it.
"""

from __future__ import annotations

import re

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from peers import Host, Peer, turns
from seeded import fuzz

from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from tests.support.hostile import CONNECT_FIELDS

CONF = """
listen: "127.0.0.1:-1"
max_control_line: 128KB
accounts {
    A { users: [ { user: a, password: a }, { user: c, password: "$2a$04$%s" } ] }
    S { users: [ { user: s, password: s } ] }
}
system_account: S
"""
# Of the password "c", with the least work that bcrypt knows.
HASH = "xxxxxxxxxxxxxxxxxxxxxu6ZnTiUV9Ml8oYo0BTUYtDYdqQkO3iG6"
WITNESS = b'CONNECT {"verbose":false,"user":"s","pass":"s"}\r\n'
SEEDS = [
    b'{"verbose":false,"user":"a","pass":"a","name":"x","lang":"python","version":"1","protocol":1}',
    b'{"verbose":true,"pedantic":true,"echo":false,"headers":true,"no_responders":true,"user":"c","pass":"c"}',
    *(b'{"user":"a","pass":"a","%s":%s}' % (name.encode(), value)
      for name in CONNECT_FIELDS for value in (b"true", b"1", b'"x"', b"null")),
]  # fmt: skip


class Fuzzer:
    def __init__(self) -> None:
        self.host = Host(options_of(conf_parser.parse(CONF % HASH)), lambda info: WITNESS)

    def __call__(self, data: bytes) -> None:
        line = b"CONNECT " + re.sub(rb"[\r\n]", b" ", data) + b"\r\n"

        async def connected() -> None:
            server = self.host.server
            peer = Peer(server)
            for _ in range(2):
                peer.receive(line + b"PING\r\n")
                await turns()
                peer.receive(b"SUB a.> 1\r\nPUB a.b 1\r\nx\r\n")
            self.host.witness.receive(b'PUB $SYS.REQ.SERVER.PING.CONNZ _R.x 13\r\n{"auth":true}\r\n')
            await turns()
            peer.go()

        self.host.run(connected)


if __name__ == "__main__":
    fuzz(SEEDS, Fuzzer(), mutate)
