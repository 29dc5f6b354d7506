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
