"""The block `websocket` of nats.conf."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.server.config import conf_parser
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import TlsOptions, WebsocketOptions

pytestmark = pytest.mark.feature("connectivity.websocket")


def test_every_directive_sets_its_option() -> None:
    text = """websocket {
      listen: "127.0.0.1:8080"
      tls { cert_file: c.pem, key_file: k.pem }
      compress: true
      advertise: "[::1]:99"
      ping_interval: "5s"
      same_origin: true
      allowed_origins: ["http://a", "https://b:1"]
      handshake_timeout: "3s"
      authorization { user: u, password: p, timeout: 4 }
      jwt_cookie: j, user_cookie: u, pass_cookie: p, token_cookie: t
      headers { "X-One": a, X-Two: b }
    }"""
    assert options_of(conf_parser.parse(text)).websocket == WebsocketOptions(
        host="127.0.0.1",
        port=8080,
        tls=TlsOptions(cert_file="c.pem", key_file="k.pem"),
        compression=True,
        advertise="[::1]:99",
        ping_interval_ns=5_000_000_000,
        same_origin=True,
        allowed_origins=("http://a", "https://b:1"),
        handshake_timeout_ns=3_000_000_000,
        user="u",
        password="p",
        auth_timeout_ns=4_000_000_000,
        jwt_cookie="j",
        user_cookie="u",
        pass_cookie="p",
        token_cookie="t",
        headers=(("X-One", "a"), ("X-Two", "b")),
    )


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("ws { port: 1, no_tls: true, tls: on }", "must be a map"),
        ("ws { port: 1 }", "websocket requires TLS configuration"),
        ("ws { no_tls: true }", "websocket.port is missing"),
        ("ws { port: 1, no_tls: true, ping_interval: -1 }", "websocket.ping_interval is -1"),
        ("ws { port: 1, no_tls: true, advertise: 'a:b:c' }", 'websocket.advertise is "a:b:c"'),
        ("ws { port: 1, no_tls: true, advertise: 'h:99999' }", 'write it as "host:port"'),
        ("client_advertise: 'h:x'", 'client_advertise is "h:x"'),
        ("ws { port: 1, no_tls: true, authorization { users: [] } }", 'field "users" is not supported'),
        ("ws { port: 1, no_tls: true, no_auth_user: a }", 'websocket no_auth_user: "a" not present'),
        (
            "ws { port: 1, no_tls: true, authorization {user: a, token: b} }",
            "cannot have a user/pass and token",
        ),
        (
            "authorization {users: [{user: a}]}; ws {port: 1, no_tls: true, authorization {user: b}}",
            "websocket authentication cannot have a single user/pass or token and users",
        ),
        ("ws { port: 1, no_tls: true, shiny: a }", 'unknown field "shiny"'),
    ],
)
def test_what_is_wrong_is_named(text: str, reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        options_of(conf_parser.parse(text))
