"""Fuzzes tokens: `python fuzz/fuzz_jwt.py -max_total_time=60`.

The first byte says whose claims an input is, and they are signed with a key that is trusted; or that the
input is a token as it stands. A user's token logs in, and its client subscribes and publishes; an account's
goes to the resolver, and the account's user logs in. Whatever it is: no exception escapes, and others are
served.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from peers import Host, Peer, turns
from seeded import fuzz

from penstock.errors import MisuseError
from penstock.protocol import jwt
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from tests.support.keys import OPERATOR, account_token, key, operator_token, signature, user_token
from tests.support.probes import claims_of, operators_conf, signed

USER, ACCOUNT, OTHERS, RAW = range(4)
KINDS = 4


def connect(name: str, token: str, info: bytes) -> bytes:
    """CONNECT of a user with a token, in answer to the first line of a server."""
    nonce = json.loads(info.split(b"\r\n")[0][5:])["nonce"]
    settings = {"verbose": False, "jwt": token, "sig": signature(name, nonce)}
    return b"CONNECT " + json.dumps(settings).encode() + b"\r\n"


class Fuzzer:
    def __init__(self, directory: str) -> None:
        options = options_of(conf_parser.parse('listen: "127.0.0.1:-1"\n' + operators_conf(directory)))
        system = user_token("SYS", "s")
        self.host = Host(options, lambda info: connect("s", system, info))
        self.user_of_h = user_token("H", "h")

    def __call__(self, data: bytes) -> None:
        if not data:
            return
        kind, rest = data[0] % KINDS, data[1:]
        if kind == USER:
            self.log_in("joe", signed(rest, key("account", "A")).decode())
        elif kind == ACCOUNT:
            if key("account", "SYS").public.encode() in rest:
                return  # the operator may take the witness its permissions
            self.update(signed(rest, OPERATOR))
            self.log_in("h", self.user_of_h)
        elif kind == RAW:
            self.update(rest)
            self.log_in("joe", rest.decode("utf-8", "replace"))
        else:
            for signer in (OPERATOR, key("account", "A")):
                with suppress(MisuseError):
                    jwt.decode(signed(rest, signer).decode())

    def log_in(self, name: str, token: str) -> None:
        async def logged_in() -> None:
            peer = Peer(self.host.server)
            await turns()
            peer.receive(connect(name, token, peer.take()) + b"PING\r\n")
            await turns()
            peer.receive(
                b"SUB a.> 1\r\nSUB a.* q 2\r\nPUB a.b c.d 1\r\nx\r\nPUB $SYS.REQ.USER.INFO a.c 0\r\n\r\n"
            )
            await turns()
            peer.go()

        self.host.run(logged_in)

    def update(self, token: bytes) -> None:
        async def updated() -> None:
            self.host.witness.receive(b"PUB $SYS.REQ.CLAIMS.UPDATE _R.x %d\r\n%s\r\n" % (len(token), token))
            await turns()

        self.host.run(updated)


def seeds() -> list[bytes]:
    """Claims with something in every field, and whole tokens."""
    pub = {"allow": ["a.>", "b.{{name()}}"], "deny": ["c"]}
    user = claims_of(user_token("A", "joe"))
    user["nats"] |= {
        "pub": pub, "sub": pub, "resp": {"max": 1, "ttl": 5}, "src": ["10.0.0.0/8"], "tags": ["team:x"],
        "times": [{"start": "01:00:00", "end": "02:00:00"}], "times_location": "Europe/Berlin",
        "allowed_connection_types": ["STANDARD"], "bearer_token": True,
    }  # fmt: skip
    account = claims_of(account_token("H"))
    scope = {"kind": "user_scope", "key": key("account", "scope").public, "template": {"pub": pub}}
    account["nats"] |= {
        "exports": [{"name": "e", "subject": "e.*", "type": "service", "token_req": True,
                     "account_token_position": 2, "revocations": {"*": 1},
                     "service_latency": {"sampling": 5, "results": "r"}}],
        "imports": [{"name": "i", "subject": "s.>", "account": key("account", "A").public, "type": "stream"}],
        "signing_keys": [key("account", "sign").public, scope], "revocations": {"*": 1},
        "default_permissions": {"pub": pub}, "mappings": {"m.*": [{"subject": "n.$1", "weight": 50}]},
        "authorization": {"auth_users": [key("user", "x").public]}, "tags": ["a:b"],
    }  # fmt: skip
    operator = claims_of(operator_token())
    claims = [json.dumps(one).encode() for one in (user, account, operator)]
    tokens = [user_token("A", "joe"), account_token("H"), operator_token()]
    return [bytes([kind]) + one for kind in range(RAW) for one in claims] + [
        bytes([RAW]) + token.encode() for token in tokens
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        fuzz(seeds(), Fuzzer(directory), mutate)
