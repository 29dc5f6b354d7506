"""row 189: an account's JetStream limits, and what other accounts leave it of the server's."""

from __future__ import annotations

import pytest

from tests.support.engine import EngineHarness


@pytest.mark.parametrize(("storage", "code"), [("memory", 10028), ("file", 10047)])
def test_what_other_accounts_reserve_is_not_there(storage: str, code: int) -> None:
    engine = EngineHarness(max_memory=1000, max_storage=1000)
    engine.engine.capacity.reserved_elsewhere = lambda kind: 700
    config = {"name": "A", "subjects": ["a"], "storage": storage}
    answer = engine.api("STREAM.CREATE.A", {**config, "max_bytes": 301})
    assert answer["error"]["err_code"] == code
    assert "error" not in engine.api("STREAM.CREATE.A", {**config, "max_bytes": 300})


@pytest.mark.parametrize(
    ("settings", "elsewhere", "code"),
    [
        ({"account_storage_max": 10}, 0, 10002),
        ({"max_storage": 10}, 0, 10023),
        ({"max_storage": 1000}, 1000, 10023),
    ],
)
def test_a_message_is_refused_where_the_account_or_the_server_is_full(
    settings: dict[str, int], elsewhere: int, code: int
) -> None:
    engine = EngineHarness(**settings)
    engine.engine.capacity.used_elsewhere = lambda kind: elsewhere
    engine.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "storage": "file"})
    engine.request("a", b"x" * 50)
    assert engine.request("a", b"y")["error"]["err_code"] == code
