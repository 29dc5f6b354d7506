"""CONNECT: defaults, later changes, wrong types; what logs may show of it; credentials."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.server.auth.authenticator import ConfiguredUsers, Credentials, Identity
from penstock.server.config.server_options import ServerOptions, User
from penstock.server.connect_message import ConnectMessage, parse_connect
from penstock.server.logging.protocol_trace import redacted
from penstock.server.server_identity import new_server_id

pytestmark = pytest.mark.feature("core.protocol")


def parsed(before: ConnectMessage | None = None, /, **fields: Any) -> ConnectMessage:
    return parse_connect(json.dumps(fields).encode(), before or ConnectMessage())


def test_defaults_are_the_official_ones() -> None:
    options = parsed()
    assert (options.verbose, options.pedantic, options.echo) == (True, True, True)
    assert (options.headers, options.no_responders, options.protocol) == (False, False, 0)


def test_fields_have_their_wire_names() -> None:
    options = parsed(**{"user": "a", "auth_token": "t", "verbose": False, "protocol": 1, "pass": "b"})
    assert (options.user, options.password, options.auth_token) == ("a", "b", "t")
    assert (options.verbose, options.protocol) == (False, 1)


def test_a_later_connect_changes_only_what_it_names() -> None:
    first = parsed(verbose=False, name="me")
    second = parsed(first, echo=False)
    assert (second.verbose, second.name, second.echo) == (False, "me", False)


def test_a_connect_of_null_names_nothing() -> None:
    before = parsed(verbose=False, name="me")
    assert parse_connect(b"null", before) == parse_connect(b" null ", before) == before


def test_null_counts_as_absent_and_unknown_fields_are_ignored() -> None:
    assert parsed(user=None, verbose=None, future="x", tls_required=False) == ConnectMessage()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"verbose":"x"}',
        b'{"protocol":true}',
        b'{"user":1}',
        b"\xff",
        b'"a"',
        b'{"a":' + b"[" * 50_000,
    ],
)
def test_what_is_no_connect_breaks_the_protocol(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_connect(payload, ConnectMessage())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_connect_or_break_the_protocol(payload: bytes) -> None:
    try:
        assert isinstance(parse_connect(payload, ConnectMessage()), ConnectMessage)
    except ProtocolError as error:
        assert "CONNECT" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("field", ["pass", "auth_token", "jwt", "sig"])
def test_logs_show_no_secrets(field: str) -> None:
    payload = json.dumps({"user": "a", field: 's3"cr\\et', "lang": "py"}).encode()
    shown = redacted(payload)
    assert "cr" not in shown
    assert json.loads(shown) == {"user": "a", field: "[REDACTED]", "lang": "py"}


def checked(options: ServerOptions, user: str = "", password: str = "", token: str = "") -> Identity | None:
    return ConfiguredUsers(options).check(Credentials(user=user, password=password, token=token))


def test_without_authorization_everybody_is_let_in_under_the_name_given() -> None:
    assert not ConfiguredUsers(ServerOptions()).required
    assert checked(ServerOptions(), "a", "b") == Identity("$G", "a")


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            ServerOptions(user="a", password="b"),
            {"user": "a", "password": "b"},
            {"user": "a", "password": "c"},
        ),
        (
            ServerOptions(user="a", password="b"),
            {"user": "a", "password": "b"},
            {"user": "c", "password": "b"},
        ),
        (ServerOptions(user="a", password="b"), {"user": "a", "password": "b"}, {}),
        (ServerOptions(user="a", password="b"), {"user": "a", "password": "b"}, {"token": "b"}),
        (ServerOptions(user="a"), {"user": "a"}, {"user": "b"}),
        (ServerOptions(token="t"), {"token": "t"}, {"token": "u"}),
        (ServerOptions(token="t"), {"token": "t"}, {"user": "t", "password": "t"}),
        (
            ServerOptions(users=(User(name="a", password="b"), User(name="c", password="d"))),
            {"user": "c", "password": "d"},
            {"user": "c", "password": "b"},
        ),
    ],
)
def test_only_the_right_credentials_prove_an_identity(
    options: ServerOptions, good: dict[str, str], bad: dict[str, str]
) -> None:
    assert ConfiguredUsers(options).required
    assert checked(options, **good) is not None
    assert checked(options, **bad) is None


def test_a_password_that_looks_like_the_stand_in_for_unknown_users_opens_nothing() -> None:
    assert checked(ServerOptions(user="a", password="b"), "nobody", "\x00") is None


def test_no_auth_user_is_for_those_without_credentials_only() -> None:
    options = ServerOptions(users=(User(name="a", password="b"),), no_auth_user="a")
    assert not ConfiguredUsers(options).required
    assert checked(options) == Identity("$G", "a")
    assert checked(options, "a", "wrong") is None


def test_server_ids_have_the_form_of_a_public_nkey() -> None:
    one, two = new_server_id(), new_server_id()
    assert one != two
    assert len(one) == 56
    assert one[0] == "N"
    assert set(one) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
