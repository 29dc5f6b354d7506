"""Directories of account tokens: the same requests of the system account on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.claims import GenericClaims
from penstock.protocol.jwt import encode
from penstock.protocol.nkeys import KeyPair
from tests.integration.auth.test_operators import VIOLATION, outcome
from tests.support.conf_servers import running_conf
from tests.support.keys import (
    OPERATOR,
    SYSTEM,
    account_token,
    key,
    now_s,
    operator_token,
    token_login,
    user_token,
)
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.resolver")

A = key("account", "A").public


@contextmanager
def resolving(kind: str, directory: Path, resolver: str, **tokens: str) -> Iterator[tuple[int, Path]]:
    """A server whose tokens are files: (port, their directory)."""
    files = directory / "tokens"
    files.mkdir(exist_ok=True)
    for name, token in tokens.items():
        (files / f"{key('account', name).public}.jwt").write_text(token)
    conf = f"operator: {operator_token()}\nresolver {{ {resolver}, dir: '{files}' }}"
    with running_conf(kind, conf, directory / "server") as port:
        yield port, files


def admin(port: int) -> RawNats:
    client = token_login(port, "admin", user_token("SYS", "admin"))
    client.subscribe("_R.a", 9)
    client.flush()
    return client


def asked(client: RawNats, subject: str, body: str | bytes = "") -> bytes:
    client.publish(subject, body.encode() if isinstance(body, str) else body, "_R.a")
    return client.message().payload


def answered(client: RawNats, subject: str, body: str = "") -> Any:
    """`data` or `error` of the answer."""
    answer = json.loads(asked(client, subject, body))
    return answer["data"] if "data" in answer else answer["error"]


def deletion(*accounts: str, by: KeyPair = OPERATOR, subject: str = "") -> str:
    claims = GenericClaims(subject=subject or by.public, nats={"accounts": list(accounts)})
    return encode(claims, by, now_s=now_s())


FULL = "type: full, allow_delete: true"


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_directory_takes_looks_up_lists_and_packs(kind: str, tmp_path: Path) -> None:
    system, first = account_token("SYS"), account_token("A", head={"issued_at": now_s() - 10})
    with resolving(kind, tmp_path, FULL, SYS=system) as (port, files):
        client = admin(port)
        answer = answered(client, "$SYS.REQ.CLAIMS.UPDATE", first)
        assert answer == {"account": A, "code": 200, "message": "jwt updated"}
        assert (files / f"{A}.jwt").read_text() == first
        assert outcome(port, "joe", user_token("A", "joe")) == "in"
        assert sorted(answered(client, "$SYS.REQ.CLAIMS.LIST")) == sorted([A, SYSTEM.public])
        assert asked(client, f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.LOOKUP").decode() == first
        assert asked(client, f"$SYS.REQ.ACCOUNT.{key('account', 'B').public}.CLAIMS.LOOKUP") == b""
        packed = {asked(client, "$SYS.REQ.CLAIMS.PACK").decode()}
        while piece := client.message().payload:
            packed.add(piece.decode())
        assert packed == {f"{A}|{first}", f"{SYSTEM.public}|{system}"}
        digests = [int.from_bytes(sha256(token.encode()).digest(), "big") for token in (system, first)]
        assert asked(client, "$SYS.REQ.CLAIMS.PACK", (digests[0] ^ digests[1]).to_bytes(32, "big")) == b""
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_must_fit_its_subject_and_be_sound(kind: str, tmp_path: Path) -> None:
    with resolving(kind, tmp_path, FULL, SYS=account_token("SYS")) as (port, files):
        client = admin(port)
        bad = "jwt update resulted in error - "
        update = f"$SYS.REQ.ACCOUNT.{A}.CLAIMS.UPDATE"
        assert answered(client, update, "x") == {
            "account": "n/a", "code": 500, "description": bad + "expected 3 chunks"
        }  # fmt: skip
        answer = answered(client, "$SYS.REQ.CLAIMS.UPDATE", user_token("A", "joe"))
        assert answer["description"] == bad + "not account claim"
        answer = answered(client, update, account_token("B"))
        assert answer["description"] == bad + "subject does not match jwt content"
        unsound = account_token("A", signing_keys=("U",))
        answer = answered(client, "$SYS.REQ.CLAIMS.UPDATE", unsound)
        assert answer["account"] == A
        assert answer["description"].startswith("jwt validation failed - validation errors: [")
        assert [path.name for path in files.glob("*.jwt")] == [f"{SYSTEM.public}.jwt"]
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_deletes_accounts(kind: str, tmp_path: Path) -> None:
    with resolving(kind, tmp_path, FULL, SYS=account_token("SYS"), A=account_token("A")) as (port, files):
        client, joe = admin(port), token_login(port, "joe", user_token("A", "joe"))
        delete = "$SYS.REQ.CLAIMS.DELETE"
        failed = f"delete accounts request by {OPERATOR.public} failed - "
        reported = answered(client, delete, deletion(SYSTEM.public))["description"]
        assert reported == failed + "not allowed to delete system account"
        assert answered(client, delete, deletion("nonsense"))["description"] == failed + "malformed request"
        stranger = key("operator", "other")
        assert answered(client, delete, deletion(A, by=stranger))["description"].endswith(
            "failed - not trusted"
        )
        reported = answered(client, delete, deletion(A, subject=key("operator", "x").public))["description"]
        assert reported.endswith("failed - not self signed")
        assert answered(client, delete, deletion(A)) == {"code": 200, "message": "deleted 1 accounts"}
        assert joe.line() == b"-ERR 'Account Authentication Expired'"
        assert outcome(port, "joe", user_token("A", "joe")) == VIOLATION
        assert answered(client, "$SYS.REQ.CLAIMS.LIST") == [SYSTEM.public]
        assert not (files / f"{A}.jwt").exists()
        assert (files / f"{A}.jwt.deleted").exists()
        client.close()
        joe.close()


@pytest.mark.parametrize("kind", KINDS)
def test_deletion_must_be_allowed(kind: str, tmp_path: Path) -> None:
    with resolving(kind, tmp_path, "type: full", SYS=account_token("SYS"), A=account_token("A")) as (port, _):
        client = admin(port)
        reported = answered(client, "$SYS.REQ.CLAIMS.DELETE", deletion(A))["description"]
        assert reported.endswith("failed - delete must be enabled in server config")
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_has_room_for_so_many(kind: str, tmp_path: Path) -> None:
    with resolving(kind, tmp_path, "type: full, limit: 1", SYS=account_token("SYS")) as (port, _):
        client = admin(port)
        reported = answered(client, "$SYS.REQ.CLAIMS.UPDATE", account_token("A"))["description"]
        assert reported == "jwt update resulted in error - jwt store is full"
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_system_account_works_before_its_token_is_there(kind: str, tmp_path: Path) -> None:
    with resolving(kind, tmp_path, FULL) as (port, files):
        client = admin(port)
        assert answered(client, "$SYS.REQ.CLAIMS.UPDATE", account_token("SYS"))["code"] == 200
        assert answered(client, "$SYS.REQ.CLAIMS.UPDATE", account_token("A"))["code"] == 200
        assert outcome(port, "joe", user_token("A", "joe")) == "in"
        assert len(list(files.glob("*.jwt"))) == 2
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_takes_tokens_of_accounts_it_knows(kind: str, tmp_path: Path) -> None:
    tokens = {"SYS": account_token("SYS"), "A": account_token("A", head={"issued_at": now_s() - 10})}
    with resolving(kind, tmp_path, "type: cache", **tokens) as (port, files):
        client = admin(port)
        answer = answered(client, "$SYS.REQ.CLAIMS.UPDATE", account_token("A", limits={"conn": 5}))
        assert answer == {"account": A, "code": 200, "message": "jwt update cache skipped"}
        assert outcome(port, "joe", user_token("A", "joe")) == "in"
        newer = account_token("A", limits={"conn": 0})
        assert answered(client, "$SYS.REQ.CLAIMS.UPDATE", newer)["message"] == "jwt updated cache"
        assert (files / f"{A}.jwt").read_text() == newer
        assert outcome(port, "joe", user_token("A", "joe")) == "maximum account active connections exceeded"
        client.close()
