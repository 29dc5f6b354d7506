"""Accounts that other servers of a cluster have: their tokens are looked up without a client, and a reload
may configure them here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.server.accounts import account_registry
from penstock.server.accounts.account_registry import AccountRegistry
from penstock.server.auth.operators import Operators
from penstock.server.config.server_options import (
    AccountOptions,
    ClusterOptions,
    JetStreamOptions,
    ResolverOptions,
    ServerOptions,
)
from penstock.server.server_context import ServerContext
from penstock.server.session_registry import SessionRegistry
from tests.support.keys import account_token, key, operator_token

pytestmark = pytest.mark.feature("security.operators")

NAME = key("account", "A").public
TOKEN = account_token("A", limits={"disk_storage": 1000})


class OpenedAccounts:
    """Which accounts have JetStream."""

    def __init__(self) -> None:
        self.with_jetstream: list[str] = []

    def open(self, name: str) -> None: ...

    def limits_changed(self, name: str, limits: object) -> None:
        if limits is not None:
            self.with_jetstream.append(name)

    def share(self) -> None: ...


def server(accounts: OpenedAccounts, **options: Any) -> Operators:
    kinds: dict[str, Any] = {
        "jetstream": JetStreamOptions(store_dir="unused"),
        "cluster": ClusterOptions(port=-1),
        **options,
    }
    context = ServerContext(
        ServerOptions(
            operators=(operator_token(),),
            resolver=ResolverOptions(type="memory"),
            server_name="s",
            cluster_name="c",
            **kinds,
        ),
        cast(Any, SimpleNamespace(debug=lambda text: None)),
    )
    return Operators(context, cast(Any, accounts), cast(Any, SimpleNamespace()))


async def test_an_account_whose_token_is_here_has_jetstream_soon() -> None:
    accounts = OpenedAccounts()
    operators = server(accounts)
    operators.resolver.store(NAME, TOKEN, 0)
    operators.expect(NAME)
    assert accounts.with_jetstream == []  # not while a frame of the other server is read
    await asyncio.sleep(0)
    assert accounts.with_jetstream == [NAME]


async def test_an_account_whose_token_comes_later_has_jetstream_then() -> None:
    accounts = OpenedAccounts()
    operators = server(accounts)
    operators.token_stored(NAME)
    operators.expect(NAME)
    await asyncio.sleep(0)
    assert accounts.with_jetstream == []
    operators.resolver.store(NAME, TOKEN, 0)
    operators.token_stored(NAME)
    assert accounts.with_jetstream == [NAME]


@pytest.mark.parametrize("missing", ["jetstream", "cluster"])
async def test_other_servers_look_accounts_up_for_their_clients_only(missing: str) -> None:
    accounts = OpenedAccounts()
    operators = server(accounts, **{missing: None})
    operators.resolver.store(NAME, TOKEN, 0)
    operators.expect(NAME)
    await asyncio.sleep(0)
    assert accounts.with_jetstream == []


# -- accounts of the configuration


def registry(*names: str) -> AccountRegistry:
    options = ServerOptions(accounts=tuple(AccountOptions(name=name) for name in names))
    context = ServerContext(options, cast(Any, SimpleNamespace(debug=lambda text: None)))
    return AccountRegistry(context, SessionRegistry())


def test_an_account_that_another_server_names_is_the_one_that_a_reload_adds() -> None:
    accounts = registry("A")
    expected = accounts.expect("B")
    assert expected is not None
    assert accounts.expect("B") is expected
    assert accounts.get("B") is None, "clients and pages do not see it"
    assert accounts.look_up("B") is None
    assert accounts.open("B") is expected


def test_other_servers_cannot_name_accounts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_registry, "EXPECTED_MAX", 2)
    accounts = registry()
    assert [accounts.expect(name) is None for name in "ABCA"] == [False, False, True, False]
    accounts.open("A")
    assert accounts.expect("C") is not None
