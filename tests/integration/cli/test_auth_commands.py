"""`penstock auth`: what it signs works on both servers, and the official command line reads its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS

pytestmark = pytest.mark.feature("cli.auth")


@pytest.fixture
def shell(tmp_path: Path) -> CommandShell:
    return CommandShell(tmp_path)


@pytest.fixture
def acme(shell: CommandShell) -> CommandShell:
    shell.ok("auth", "operator", "add", "ACME")
    shell.ok("auth", "account", "add", "ORDERS", "--jetstream")
    return shell


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, acme: CommandShell, tmp_path: Path) -> Iterator[str]:
    """A server that trusts ACME."""
    conf = acme.ok("auth", "operator", "config", "ACME", "--resolver-dir", str(tmp_path / "jwt")).text
    with running_conf(request.param, conf, tmp_path / "server") as port:
        yield f"nats://127.0.0.1:{port}"


def test_a_user_logs_in_with_its_credentials_and_has_its_permissions(
    acme: CommandShell, url: str, tmp_path: Path
) -> None:
    creds = tmp_path / "bob.creds"
    acme.ok("auth", "user", "add", "bob", "ORDERS", "--pub-allow", "$JS.API.>,$KV.>,_INBOX.>",
            "--credential", str(creds))  # fmt: skip
    bob = CommandShell(tmp_path, url, ("--creds", str(creds)))
    bob.ok("kv", "add", "B")
    bob.ok("kv", "put", "B", "k", "v")
    refused = bob.run("server", "list", "--timeout", "2s")
    assert (refused.status, "Permissions Violation" in refused.err) == (1, True), refused.err
    expired = tmp_path / "expired.creds"
    acme.ok("auth", "user", "credential", str(expired), "bob", "ORDERS", "--expire", "1ns")
    ran = CommandShell(tmp_path, url, ("--creds", str(expired))).run("kv", "ls")
    assert (ran.status, "expired" in ran.err) == (1, True)


def test_users_of_a_role_have_its_permissions_and_a_revoked_one_is_refused(
    acme: CommandShell, url: str, tmp_path: Path
) -> None:
    # The server has the account without the role until it is pushed.
    acme.ok("auth", "account", "keys", "add", "ORDERS", "reader", "--sub-allow", "orders.>,_INBOX.>")
    creds = tmp_path / "eve.creds"
    acme.ok("auth", "user", "add", "eve", "ORDERS", "--key", "reader", "--credential", str(creds))
    eve = CommandShell(tmp_path, url, ("--creds", str(creds)))
    assert eve.run("kv", "ls").status == 1
    admin = tmp_path / "admin.creds"
    acme.ok("auth", "user", "add", "admin", "SYSTEM", "--credential", str(admin))
    system = CommandShell(tmp_path, url, ("--creds", str(admin)))
    assert "has the token of account ORDERS" in system.ok("auth", "account", "push", "ORDERS").text
    eve.ok("kv", "ls")
    served = system.json("auth", "account", "query", "ORDERS")
    assert served == acme.json("auth", "account", "info", "ORDERS")
    acme.ok("auth", "user", "rm", "eve", "ORDERS", "--revoke", "--force")
    system.ok("auth", "account", "push", "ORDERS")
    assert eve.run("kv", "ls").status == 1


def test_operators_accounts_and_users_are_listed_shown_and_edited(acme: CommandShell) -> None:
    acme.ok("auth", "operator", "edit", "ACME", "--service", "nats://one:4222", "--tags", "Prod")
    operator = acme.json("auth", "operator", "info")
    assert operator["nats"]["operator_service_urls"] == ["nats://one:4222"]
    assert operator["nats"]["tags"] == ["prod"]
    assert "Operator ACME" in acme.ok("auth", "operator", "info", "ACME").text
    assert acme.ok("auth", "operator", "ls", "--names").text == "ACME\n"
    assert acme.json("auth", "account", "ls") == ["ORDERS", "SYSTEM"]
    acme.ok("auth", "account", "edit", "ORDERS", "--connections", "5", "--js-disk", "1GB", "--no-bearer")
    limits = acme.json("auth", "account", "info", "ORDERS")["nats"]["limits"]
    assert (limits["conn"], limits["disk_storage"], limits["disallow_bearer"]) == (5, 1 << 30, True)
    assert "Account ORDERS" in acme.ok("auth", "account", "info", "ORDERS").text
    acme.ok("auth", "user", "add", "bob", "ORDERS", "--payload", "1K", "--expiry", "1h")
    acme.ok("auth", "user", "edit", "bob", "ORDERS", "--sub-deny", "secret.>", "--expiry", "0")
    user = acme.json("auth", "user", "info", "bob", "ORDERS")
    assert (user["nats"]["payload"], user["nats"]["sub"], user.get("exp")) == (
        1024,
        {"deny": ["secret.>"]},
        None,
    )
    assert "Subscribe deny: secret.>" in acme.ok("auth", "user", "info", "bob", "ORDERS").text
    assert acme.ok("auth", "user", "ls", "ORDERS", "-n").text == "bob\n"
    acme.ok("auth", "account", "rm", "ORDERS", "--force")
    assert acme.json("auth", "account", "ls") == ["SYSTEM"]


def test_signing_keys_are_added_and_removed(acme: CommandShell) -> None:
    key = acme.json("auth", "operator", "keys", "add", "ACME")["key"]
    assert acme.json("auth", "operator", "keys", "ls", "ACME") == [key]
    acme.ok("auth", "account", "add", "NEW")
    assert acme.json("auth", "account", "info", "NEW")["iss"] == key
    acme.ok("auth", "operator", "keys", "rm", "ACME", key, "--force")
    role = acme.json("auth", "account", "keys", "add", "NEW", "reader", "--pub-deny", ">")["key"]
    assert "reader" in acme.ok("auth", "account", "keys", "ls", "NEW").text
    acme.ok("auth", "account", "keys", "rm", "NEW", "reader", "--force")
    assert role.startswith("A")
    assert acme.json("auth", "account", "keys", "ls", "NEW") == []
    both = acme.run("auth", "account", "keys", "add", "NEW")
    assert (both.status, "role or --unscoped" in both.err) == (1, True)


def test_several_operators_need_a_selection(acme: CommandShell) -> None:
    acme.ok("auth", "operator", "add", "OTHER")
    asked = acme.run("auth", "account", "ls")
    assert (asked.status, "ACME, OTHER" in asked.err) == (2, True)
    acme.ok("auth", "operator", "select", "ACME")
    assert acme.json("auth", "account", "ls") == ["ORDERS", "SYSTEM"]
    assert acme.json("auth", "account", "ls", "--operator", "OTHER") == ["SYSTEM"]


def test_nkeys_sign_and_verify_seal_and_unseal(shell: CommandShell, tmp_path: Path) -> None:
    data, seed, signature = tmp_path / "data", tmp_path / "user.nk", tmp_path / "data.sig"
    data.write_bytes(b"hello")
    public = shell.ok("auth", "nkey", "gen", "user", "--output", str(seed)).text.strip()
    assert shell.ok("auth", "nkey", "show", str(seed)).text.strip() == public
    signature.write_text(shell.ok("auth", "nkey", "sign", str(data), str(seed)).text)
    shell.ok("auth", "nkey", "verify", str(data), str(signature), str(seed))
    data.write_bytes(b"changed")
    assert shell.run("auth", "nkey", "verify", str(data), str(signature), str(seed)).status == 1
    curves = {}
    for name in ("a", "b"):
        made = shell.json("auth", "nkey", "gen", "curve")
        (tmp_path / name).write_text(made["seed"])
        curves[name] = made["public"]
    sealed = tmp_path / "sealed"
    shell.ok("auth", "nkey", "seal", str(data), str(tmp_path / "a"), curves["b"], "--output", str(sealed))
    opened = shell.ok("auth", "nkey", "unseal", str(sealed), str(tmp_path / "b"), curves["a"])
    assert opened.out == b"changed"
    assert shell.run("auth", "nkey", "gen", "user", "--output", str(seed)).status == 1


def test_a_token_is_decoded_from_a_text_or_a_file(acme: CommandShell, tmp_path: Path) -> None:
    creds = tmp_path / "bob.creds"
    acme.ok("auth", "user", "add", "bob", "ORDERS", "--credential", str(creds))
    claims = json.loads(acme.ok("auth", "decode", str(creds)).out)
    assert claims == acme.json("auth", "user", "info", "bob", "ORDERS")
    assert acme.run("auth", "decode", "eyJ.rubbish.x").status == 2


@pytest.mark.feature("cli.nats")
def test_both_command_lines_work_on_the_same_store(acme: CommandShell, tmp_path: Path) -> None:
    acme.ok("auth", "user", "add", "bob", "ORDERS")
    acme.ok("auth", "operator", "select", "ACME")
    assert "ORDERS" in acme.official("auth", "account", "ls")
    assert "bob" in acme.official("auth", "user", "ls", "ORDERS")
    theirs = tmp_path / "theirs.creds"
    acme.official("auth", "user", "add", "eve", "ORDERS", "--defaults", "--credential", str(theirs))
    assert acme.json("auth", "user", "ls", "ORDERS") == ["bob", "eve"]
    assert json.loads(acme.ok("auth", "decode", str(theirs)).out)["name"] == "eve"
    acme.official("auth", "account", "add", "THEIRS", "--defaults")
    acme.ok("auth", "user", "add", "joe", "THEIRS")
    assert "joe" in acme.official("auth", "user", "ls", "THEIRS")
