"""Variables that are defined inside a block of nats.conf and used there: both servers take them.

Whatever a block has beside its directives is an unknown field, unless a value further on refers to it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import parse
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import ServerOptions
from tests.support.conf_servers import official_verdict

pytestmark = [pytest.mark.official, pytest.mark.feature("operations.configuration")]

USERS = "users: [ {user: a, password: b} ]"
ISSUER = "ABJHLOVMPA4CI6R5KLNGOB4GSLNIY7IOUPAJC4YFNDLQVIOBYQGUWVLA"
# Each with the variable and without; what comes out must be the same.
BLOCKS = {
    "authorization": ("authorization { V = secret\n user: a\n password: $V }", "secret"),
    "a block inside": ("authorization { V = x\n users: [ {user: a, password: $V} ] }", "x"),
    "a user": ("authorization { users: [ {V = x\n user: a, password: $V} ] }", "x"),
    "a whole map": (
        'authorization { V = {publish: "a.>"}\n users: [{user: a, password: b, permissions: $V}] }',
        '{publish: "a.>"}',
    ),
    "permissions": (
        'authorization { users: [{user: a, password: b, permissions: {V = "x"\n publish: $V}}] }',
        '"x"',
    ),
    "permissions of one kind": (
        "authorization { users: [{user: a, password: b, permissions: {publish: {V = [x]\n allow: $V}}}] }",
        "[x]",
    ),
    "responses": (
        "authorization { users: [{user: a, password: b, permissions: {allow_responses: {V = 3\n max: $V}}}]}",
        "3",
    ),
    "auth callout": (
        f"authorization {{ {USERS}\n auth_callout {{ V = {ISSUER}\n issuer: $V\n auth_users: [a] }} }}",
        ISSUER,
    ),
    "accounts": (
        "accounts { V = [ {user: a, password: b} ]\n A { users: $V } }",
        "[ {user: a, password: b} ]",
    ),
    "an account": ("accounts { A { V = x\n users: [ {user: a, password: $V} ] } }", "x"),
    "limits of an account": (
        f"accounts {{ A {{ limits {{ V = 5\n max_connections: $V }}\n {USERS} }} }}",
        "5",
    ),
    "exports": (f'accounts {{ A {{ exports: [ {{V = "s.>"\n stream: $V}} ]\n {USERS} }} }}', '"s.>"'),
    "imports": (
        f'accounts {{ A {{ exports: [{{stream: "s.>"}}]\n {USERS} }}, '  # noqa: ISC004
        'B { users: [{user: c, password: d}]\n imports: [{stream: {V = "s.>"\n account: A, subject: $V}}]}}',
        '"s.>"',
    ),
    "jetstream": ("jetstream { V = 5\n limits { max_ack_pending: $V } }", "5"),
    "limits of jetstream": ("jetstream { limits { V = 5\n max_ack_pending: $V } }", "5"),
    "websocket": ("websocket { V = 8765\n port: $V\n no_tls: true }", "8765"),
    "a block without effect": ("leafnodes { V = x\n advertise: $V }", "x"),
    "proxies": ("proxies { V = []\n trusted: $V }", "[]"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_variable_of_a_block_is_no_unknown_field(name: str, tmp_path: Path) -> None:
    text, value = BLOCKS[name]
    before, _, after = text.partition(f"V = {value}")
    conf = tmp_path / "v.conf"
    conf.write_text(text)
    assert "is valid" in official_verdict(conf)
    assert options(text) == options(before + after.replace("$V", value))
    unused = text.replace("$V", value)
    conf.write_text(unused)
    assert "is valid" not in official_verdict(conf)
    with pytest.raises(ConfigError):
        options(unused)


def options(text: str) -> ServerOptions:
    return options_of(parse(text, "t.conf", environ={}))
