"""An account's JetStream limits, and what other accounts leave it of the server's."""

from __future__ import annotations

import json

import pytest

from penstock.jetstream.engine import SharedState
from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("security.account-limits")


@pytest.mark.parametrize(("storage", "code"), [("memory", 10028), ("file", 10047)])
def test_what_other_accounts_reserve_is_not_there(storage: str, code: int) -> None:
    other = EngineHarness()
    config = {"name": "A", "subjects": ["a"], "storage": storage}
    other.api("STREAM.CREATE.A", {**config, "max_bytes": 700})
    shared = SharedState(engines=[other.engine])
    engine = EngineHarness(shared=shared, max_memory=1000, max_storage=1000)
    answer = engine.api("STREAM.CREATE.A", {**config, "max_bytes": 301})
    assert answer["error"]["err_code"] == code
    assert "error" not in engine.api("STREAM.CREATE.A", {**config, "max_bytes": 300})


@pytest.mark.parametrize("at_once", [True, False])
def test_what_would_exceed_the_limit_is_refused_and_a_smaller_message_is_not(at_once: bool) -> None:
    engine = EngineHarness(account_storage_max=1000)
    for name in ("A", "B"):
        engine.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()], "storage": "file"})
    engine.request("b", b"x" * 100)
    heard = engine.listen(b"answer.*")
    for i, size in enumerate((200, 200, 200, 400, 100, 10)):
        publish(engine.index, b"a", b"answer.%d" % i, b"", b"x" * size)
        if not at_once:
            engine.tick()
    engine.tick()
    refused = [json.loads(payload).get("error", {}).get("err_code") for _, _, payload in heard]
    assert refused == [None, None, None, 10002, None, None]
    assert engine.api("INFO")["storage"] <= 1000


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
    other = EngineHarness()
    other.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "storage": "file"})
    other.request("a", b"x" * elsewhere)
    engine = EngineHarness(shared=SharedState(engines=[other.engine]), **settings)
    engine.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"], "storage": "file"})
    engine.request("a", b"x" * 50)
    assert engine.request("a", b"y")["error"]["err_code"] == code
