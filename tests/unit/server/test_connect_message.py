"""CONNECT: what a client says of itself, and what it can not."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.server.connect_message import ConnectMessage, parse_connect

pytestmark = pytest.mark.feature("core.protocol")


@pytest.mark.parametrize("value", ["1e400", "1" * 5000, "[" * 500 + "]" * 500, '{"a":[1e400]}'])
def test_fields_of_connect_that_mean_nothing_are_skipped_whatever_they_hold(value: str) -> None:
    assert parse_connect(b'{"unknown":%s,"name":"x"}' % value.encode(), ConnectMessage()).name == "x"


@pytest.mark.parametrize("value", ["1e400", "1" * 5000, "[" * 500 + "]" * 500, '{"a":[1e400]}', '"\\ud800"'])
def test_fields_of_connect_that_hold_no_value_of_theirs_are_refused(value: str) -> None:
    for name in ("verbose", "protocol", "user"):
        with pytest.raises(ProtocolError, match="CONNECT with"):
            parse_connect(b'{"%s":%s}' % (name.encode(), value.encode()), ConnectMessage())


def test_names_of_fields_match_in_any_case_and_the_last_value_wins() -> None:
    sent = b'{"Verbose":true,"PASS":"old","verbose":false,"pass":"new","\xc5\xbfig":"s"}'
    found = parse_connect(sent, ConnectMessage())
    assert (found.verbose, found.password, found.sig) == (False, "new", "s")


def test_null_and_absent_fields_keep_what_was_there() -> None:
    before = ConnectMessage(verbose=False, name="n", protocol=1)
    assert parse_connect(b'{"verbose":null,"name":null,"protocol":null}', before) == before
    assert parse_connect(b"{}", before) == parse_connect(b"null", before) == before


@pytest.mark.parametrize(
    ("sent", "kind"), [(b'{"verbose":1}', "int"), (b'{"protocol":true}', "bool"), (b'{"Name":{}}', "dict")]
)
def test_a_value_of_another_type_is_named_without_the_value(sent: bytes, kind: str) -> None:
    with pytest.raises(ProtocolError, match=f"^CONNECT with a {kind} as "):
        parse_connect(sent, ConnectMessage())
