"""When the activations of an account's imports are checked again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.protocol.claims import Activation, ActivationClaims, ExportClaim, ImportClaim
from penstock.protocol.jwt import encode
from penstock.server.auth.operators import Operators
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import ResolverOptions, ServerOptions
from penstock.server.server_context import ServerContext
from tests.support.keys import account_token, key, operator_token

pytestmark = pytest.mark.feature("security.operators")

BEGIN_S = 1_000_000_000
END_S = BEGIN_S + 100
FROM, TO = key("account", "FROM"), key("account", "TO")


class _SteppingClock:
    """A clock that moves on by a step with every reading, as between two lines of a program."""

    def __init__(self) -> None:
        self.now_ns = BEGIN_S * NS
        self.step_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


class _Accounts:
    """What `Operators` tells the accounts of a server."""

    def __init__(self) -> None:
        self.shared = 0

    def open(self, name: str) -> None: ...

    def limits_changed(self, name: str, limits: object) -> None: ...

    def share(self) -> None:
        self.shared += 1


def _import(subject: str) -> ImportClaim:
    claims = ActivationClaims(
        subject=TO.public, nats=Activation(subject=subject, kind="stream"), expires=END_S
    )
    token = encode(claims, FROM, now_s=BEGIN_S - 10)
    return ImportClaim(account=FROM.public, subject=subject, type="stream", token=token)


def _operators(clock: _SteppingClock, accounts: _Accounts) -> Operators:
    exports = (ExportClaim(subject="private.>", type="stream", token_req=True),)
    issued = {"issued_at": BEGIN_S - 10}
    tokens = {
        FROM.public: account_token("FROM", head=issued, exports=exports),
        TO.public: account_token("TO", head=issued, imports=tuple(map(_import, ("private.a", "private.b")))),
    }
    options = ServerOptions(
        operators=(operator_token(issued_at=BEGIN_S - 10),),
        resolver=ResolverOptions(type="memory"),
        resolver_preload=tuple(tokens.items()),
    )
    context = ServerContext(options, cast(Any, SimpleNamespace()), clock=clock)
    return Operators(context, cast(Any, accounts), cast(Any, SimpleNamespace()))


def _activated(operators: Operators) -> list[bool]:
    options = operators.options_of(TO.public)
    assert options is not None
    return [one.activated for one in options.imports]


@pytest.mark.parametrize("early_ns", [150_000, 70_000, 10_000, 0])
def test_a_check_while_activations_end_is_followed_by_another(early_ns: int) -> None:
    """Timers can be early; the second in which the activations end begins between two readings here."""
    clock, accounts = _SteppingClock(), _Accounts()

    async def ended() -> None:
        operators = _operators(clock, accounts)
        clock.now_ns = END_S * NS - 1_000_000
        operators.account(TO.public)
        assert _activated(operators) == [True, True]
        clock.now_ns = END_S * NS - early_ns
        clock.step_ns = 60_000
        while _activated(operators) != [False, False]:
            await asyncio.sleep(0)
        operators.close()

    asyncio.run(asyncio.wait_for(ended(), 10))
    assert accounts.shared >= 2
