"""Keys and tokens for tests: an operator, its accounts and their users, always the same ones."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from typing import Any

import msgspec

from penstock.protocol.claims import (
    UNLIMITED,
    AccountClaims,
    AccountFields,
    Operator,
    OperatorClaims,
    UserClaims,
    UserFields,
)
from penstock.protocol.jwt import encode, encode64
from penstock.protocol.nkeys import KeyPair, Prefix
from tests.support.rawnats import RawNats


@cache
def key(kind: str, name: str) -> KeyPair:
    """The key of a name: key("user", "joe")."""
    return KeyPair.from_bytes(Prefix[kind.upper()], hashlib.sha256(f"{kind} {name}".encode()).digest())


OPERATOR = key("operator", "main")
SYSTEM = key("account", "SYS")


def now_s() -> int:
    return int(time.time())


def operator_token(*, issued_at: int | None = None, **fields: Any) -> str:
    """The operator's own token; `fields` of its `nats` part."""
    nats = Operator(**{"system_account": SYSTEM.public, **fields})
    claims = OperatorClaims(subject=OPERATOR.public, name="op", nats=nats)
    return encode(claims, OPERATOR, now_s=now_s() if issued_at is None else issued_at)


def account_token(name: str, *, by: KeyPair = OPERATOR, head: dict[str, Any] | None = None,
                  limits: dict[str, Any] | None = None, **fields: Any) -> str:  # fmt: skip
    """The token of an account without limits; `head`: expires and the like, `fields` of `nats`."""
    bounds = msgspec.structs.replace(UNLIMITED, **(limits or {}))
    head = dict(head or {})
    issued = head.pop("issued_at", None)
    claims = AccountClaims(
        subject=key("account", name).public, name=name, nats=AccountFields(limits=bounds, **fields), **head
    )
    return encode(claims, by, now_s=now_s() if issued is None else issued)


def user_token(account: str, name: str, *, by: KeyPair | None = None, head: dict[str, Any] | None = None,
               scoped: bool = False, **fields: Any) -> str:  # fmt: skip
    """The token of a user without limits; by: a signing key of the account, instead of its own."""
    unlimited = {} if scoped else {"subs": -1, "data": -1, "payload": -1}
    signer = by or key("account", account)
    if signer is not key("account", account):
        fields.setdefault("issuer_account", key("account", account).public)
    head = dict(head or {})
    issued = head.pop("issued_at", None)
    claims = UserClaims(
        subject=key("user", name).public,
        name=head.pop("name", name),
        nats=UserFields(**unlimited | fields),
        **head,
    )
    return encode(claims, signer, now_s=now_s() if issued is None else issued)


def signature(name: str, nonce: str) -> str:
    """A user's signature, as clients send it."""
    return encode64(key("user", name).sign(nonce.encode()))


def nkey_login(port: int, name: str, **connect: Any) -> RawNats:
    """A connection of the user with this key."""
    nkey = key("user", name).public
    return RawNats(port, sign=lambda nonce: signature(name, nonce), nkey=nkey, **connect)


def token_login(port: int, name: str, token: str, **connect: Any) -> RawNats:
    """A connection of the user with this key, and a token for it."""
    return RawNats(port, sign=lambda nonce: signature(name, nonce), jwt=token, **connect)
