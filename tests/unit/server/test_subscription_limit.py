"""The subscription limit of a client: the lowest of server, user and account."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.server.client_subscriptions import ClientSubscriptions

LIMITS = (-1, 0, 1, 7)


def limit_of(server: int, user: int, account: int | None) -> int:
    own = None if account is None else SimpleNamespace(max_subscriptions=account)
    session: Any = SimpleNamespace(
        identity=SimpleNamespace(account="A", max_subscriptions=user),
        context=SimpleNamespace(options=SimpleNamespace(max_subscriptions=server)),
        ports=SimpleNamespace(accounts=SimpleNamespace(options_of=lambda name: own)),
    )
    return ClientSubscriptions(session)._limit()


@pytest.mark.parametrize(("server", "user"), itertools.product(LIMITS, LIMITS))
@pytest.mark.parametrize("account", [None, *LIMITS])
def test_the_limit_is_the_lowest_one_that_is_set(server: int, user: int, account: int | None) -> None:
    """0 is "no limit" for the server, and none allowed for users and accounts."""
    limits = [server or -1, user, -1 if account is None else account]
    assert limit_of(server, user, account) == min((n for n in limits if n >= 0), default=-1)
