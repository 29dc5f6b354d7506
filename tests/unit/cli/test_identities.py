"""Operators, accounts and users in files: what is signed with which key, and where it is kept."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

import pytest

from penstock.cli.identities.identity_issuing import IdentityIssuing, public_of, read_key
from penstock.cli.identities.identity_limits import account_limits, user_changes
from penstock.cli.identities.identity_store import IdentityError, IdentityStore
from penstock.protocol.claims import UNLIMITED, PermissionClaim, TemplateClaim, UserFields
from penstock.protocol.jwt import decode_user, parse_credentials
from penstock.protocol.nkeys import KeyPair
from penstock.protocol.proofs import from_credentials

NOW_S = 1_800_000_000


@pytest.fixture
def issuing(tmp_path: Path) -> IdentityIssuing:
    times = itertools.count(NOW_S)
    return IdentityIssuing(IdentityStore(tmp_path / "nsc"), lambda: next(times), os.urandom)


@pytest.fixture
def acme(issuing: IdentityIssuing) -> IdentityIssuing:
    issuing.add_operator("ACME")
    issuing.add_account("ACME", "ORDERS")
    return issuing


def test_an_operator_signs_itself_and_its_system_account(issuing: IdentityIssuing) -> None:
    operator = issuing.add_operator("ACME", tags=["Prod"])
    system = issuing.store.account("ACME", "SYSTEM")
    assert operator.claims.issuer == operator.subject == system.claims.issuer
    assert operator.claims.nats.system_account == system.subject
    assert operator.claims.nats.tags == ("prod",)
    assert issuing.store.operators() == ["ACME"]


def test_accounts_are_signed_with_the_signing_key_if_there_is_one(issuing: IdentityIssuing) -> None:
    operator = issuing.add_operator("ACME", signing_key=True)
    assert issuing.add_account("ACME", "A").claims.issuer == operator.claims.nats.signing_keys[0]


def test_users_log_in_with_the_credentials_that_the_store_writes(acme: IdentityIssuing) -> None:
    user = acme.add_user("ACME", "ORDERS", "bob")
    text = acme.credentials("ACME", "ORDERS", "bob")
    assert from_credentials(text, NOW_S).key.public == user.subject
    assert user.claims.account == acme.store.account("ACME", "ORDERS").subject
    assert user.claims.nats.payload == user.claims.nats.subs == -1


def test_credentials_may_expire_before_the_stored_token(acme: IdentityIssuing) -> None:
    acme.add_user("ACME", "ORDERS", "bob")
    token, _ = parse_credentials(acme.credentials("ACME", "ORDERS", "bob", expires_s=NOW_S + 60))
    assert decode_user(token).expires == NOW_S + 60
    assert acme.store.user("ACME", "ORDERS", "bob").claims.expires == 0


def test_a_user_of_a_scoped_key_has_no_limits_of_its_own(acme: IdentityIssuing) -> None:
    template = TemplateClaim(pub=PermissionClaim(allow=("orders.>",)))
    key = acme.add_account_key("ACME", "ORDERS", "writer", template)
    user = acme.add_user("ACME", "ORDERS", "bob", key="writer")
    account = acme.store.account("ACME", "ORDERS")
    assert (user.claims.issuer, user.claims.nats.issuer_account) == (key, account.subject)
    assert user.claims.nats.payload == 0
    with pytest.raises(IdentityError, match="have the limits of its template; leave out payload"):
        acme.add_user("ACME", "ORDERS", "eve", key="writer", payload=5)
    with pytest.raises(IdentityError, match="edit that one"):
        acme.edit_user("ACME", "ORDERS", "bob", payload=5)
    with pytest.raises(IdentityError, match="role 'writer' already"):
        acme.add_account_key("ACME", "ORDERS", "writer", template)
    acme.remove_account_key("ACME", "ORDERS", "writer")
    assert acme.store.account("ACME", "ORDERS").claims.nats.signing_keys == ()


def test_an_edit_changes_only_what_is_named(acme: IdentityIssuing) -> None:
    acme.add_user("ACME", "ORDERS", "bob", **user_changes(UserFields(), pub_allow=["a"], payload=7))
    fields = acme.store.user("ACME", "ORDERS", "bob").claims.nats
    changed = acme.edit_user("ACME", "ORDERS", "bob", **user_changes(fields, pub_deny=["b"])).claims.nats
    assert changed.pub == PermissionClaim(allow=("a",), deny=("b",))
    assert changed.payload == 7


def test_jetstream_is_off_until_it_is_turned_on() -> None:
    on = account_limits(UNLIMITED, {"js_disk": 10, "payload": None}, jetstream=True, bearer=None)
    assert (on.disk_storage, on.mem_storage, on.payload, on.has_jetstream) == (10, -1, -1, True)
    assert not account_limits(on, {}, jetstream=False, bearer=None).has_jetstream
    assert account_limits(UNLIMITED, {}, jetstream=None, bearer=False).disallow_bearer


def test_files_are_readable_for_the_owner_only(acme: IdentityIssuing) -> None:
    acme.add_user("ACME", "ORDERS", "bob")
    paths = list(acme.store.root.rglob("*"))
    assert any(path.suffix == ".nk" for path in paths)
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_removed_account_takes_its_users_and_keys_with_it(acme: IdentityIssuing) -> None:
    before = {path for path in acme.store.root.rglob("*") if path.is_file()}
    acme.add_account("ACME", "OLD")
    acme.add_account_key("ACME", "OLD")
    acme.add_user("ACME", "OLD", "bob")
    acme.store.remove_account("ACME", "OLD")
    assert {path for path in acme.store.root.rglob("*") if path.is_file()} == before


def test_errors_name_what_there_is(acme: IdentityIssuing) -> None:
    with pytest.raises(IdentityError, match="no operator 'X'; there are ACME"):
        acme.store.operator("X")
    with pytest.raises(IdentityError, match="no account 'X'; there are ORDERS, SYSTEM"):
        acme.store.account("ACME", "X")
    with pytest.raises(IdentityError, match="no user 'X'; there is none yet"):
        acme.store.user("ACME", "ORDERS", "X")
    with pytest.raises(IdentityError, match="exists already"):
        acme.add_account("ACME", "ORDERS")
    with pytest.raises(IdentityError, match="name of a file"):
        acme.add_account("ACME", "../EVIL")


def test_a_seed_is_found_in_a_file_with_other_lines_and_never_shown(acme: IdentityIssuing) -> None:
    pair = read_key(f"# mine\n  {acme.store.key(acme.store.operator('ACME').subject).seed}\n")
    assert isinstance(pair, KeyPair)
    assert public_of(pair.seed) == public_of(pair.public) == pair.public
    with pytest.raises(IdentityError) as caught:
        read_key(pair.seed[:20] + ("B" if pair.seed[20] == "A" else "A") + pair.seed[21:])
    assert pair.seed[5:20] not in str(caught.value)
    with pytest.raises(IdentityError, match="no seed"):
        read_key("nothing")


def test_the_generated_configuration_has_the_operator_and_all_accounts(acme: IdentityIssuing) -> None:
    from penstock.server.config.conf_parser import ConfMap, parse

    items = parse(acme.server_config("ACME")).items
    assert set(items) == {"operator", "system_account", "resolver", "resolver_preload"}
    preload = items["resolver_preload"].value
    accounts = {acme.store.account("ACME", name).subject for name in acme.store.accounts("ACME")}
    assert isinstance(preload, ConfMap)
    assert set(preload.items) == accounts
