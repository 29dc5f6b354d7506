"""`penstock auth`: what it signs works on both servers, and the official command line reads its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS
from tests.support.terminals import at_terminal

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


@pytest.mark.parametrize("kind", KINDS)
def test_accounts_share_subjects(kind: str, acme: CommandShell, tmp_path: Path) -> None:
    acme.ok("auth", "account", "add", "BILLING")
    exports, imports = ("auth", "account", "exports"), ("auth", "account", "imports")
    acme.ok(*exports, "add", "orders", "orders.>", "ORDERS")
    acme.ok(*exports, "add", "rpc", "rpc.price", "ORDERS", "--service")
    acme.ok(
        *imports, "add", "orders", "orders.new", "BILLING", "--source", "ORDERS", "--local", "incoming.new"
    )
    acme.ok(
        *imports, "add", "rpc", "rpc.price", "BILLING", "--source", "ORDERS", "--service", "--local", "price"
    )
    creds = {account: tmp_path / f"{account}.creds" for account in ("ORDERS", "BILLING")}
    for account, path in creds.items():
        acme.ok("auth", "user", "add", "bob", account, "--credential", str(path))
    conf = acme.ok("auth", "operator", "config", "ACME").text
    with running_conf(kind, conf, tmp_path / "server") as port:
        url = f"nats://127.0.0.1:{port}"
        orders, billing = (CommandShell(tmp_path, url, ("--creds", str(path))) for path in creds.values())
        with billing.start("sub", "incoming.new", "--count", "1", "--raw") as sub:
            assert sub.stderr is not None
            assert b"Subscribing" in sub.stderr.readline()
            orders.ok("pub", "orders.old", "no")
            orders.ok("pub", "orders.new", "one")
            assert sub.communicate(timeout=20)[0] == b"one\n"
        with orders.start("reply", "rpc.price", "12", "--count", "1") as replier:
            assert replier.stderr is not None
            assert b"Listening" in replier.stderr.readline()
            assert billing.ok("req", "price", "apple", "--raw").out == b"12\n"
            replier.communicate(timeout=20)


def test_exports_and_imports_are_shown_changed_and_removed(acme: CommandShell) -> None:
    exports, imports = ("auth", "account", "exports"), ("auth", "account", "imports")
    acme.ok("auth", "account", "add", "BILLING")
    acme.ok(*exports, "add", "orders", "orders.>", "ORDERS", "--description", "all orders", "--advertise")
    assert "orders.>" in acme.official(*exports, "ls", "ORDERS")
    assert "all orders" in acme.official(*exports, "info", "orders.>", "ORDERS")
    acme.official(*exports, "add", "rpc", "rpc.*", "ORDERS", "--service")
    assert [(one["name"], one["type"]) for one in acme.json(*exports, "ls", "ORDERS")] == [
        ("orders", "stream"), ("rpc", "service")
    ]  # fmt: skip
    acme.ok(*exports, "edit", "rpc.*", "ORDERS", "--token-position", "2", "--url", "https://x")
    assert acme.json(*exports, "info", "rpc.*", "ORDERS") == {
        "name": "rpc", "subject": "rpc.*", "type": "service", "account_token_position": 2,
        "info_url": "https://x",
    } | {key: value for key, value in acme.json(*exports, "info", "rpc.*", "ORDERS").items()
         if key in ("response_type", "service_latency")}  # fmt: skip
    assert "Export info for rpc" in acme.ok(*exports, "info", "rpc.*", "ORDERS").text
    again = acme.run(*exports, "add", "x", "rpc.*", "ORDERS")
    assert (again.status, "has an export 'rpc.*' already" in again.err) == (1, True)
    wrong = acme.run(*exports, "rm", "rcp", "ORDERS", "-f")
    assert (wrong.status, "there are orders.>, rpc.*" in wrong.err) == (1, True)
    assert acme.run(*exports, "edit", "rpc.*", "ORDERS").status == 1
    acme.ok(*exports, "rm", "rpc.*", "ORDERS", "-f")
    assert acme.ok(*exports, "ls", "ORDERS", "--names").text == "orders\n"

    acme.ok(*imports, "add", "orders", "orders.>", "BILLING", "--source", "ORDERS")
    assert "orders.>" in acme.official(*imports, "ls", "BILLING")
    assert "orders" in acme.official(*imports, "info", "orders.>", "BILLING")
    twice = acme.run(*imports, "add", "more", "orders.>", "BILLING", "--source", "ORDERS")
    assert (twice.status, "see --local" in twice.err) == (1, True)
    acme.ok(*imports, "edit", "orders.>", "BILLING", "--local", "in.>", "--traceable")
    (found,) = acme.json(*imports, "ls", "BILLING")
    assert (found["local_subject"], found["allow_trace"], found["subject"]) == ("in.>", True, "orders.>")
    page = acme.ok(*imports, "info", "in.>", "BILLING").text
    assert "From Account: ORDERS" in page
    assert "ORDERS" in acme.ok(*imports, "ls", "BILLING").text
    unknown = acme.run(*imports, "add", "y", "y", "BILLING", "--source", "NOBODY")
    assert (unknown.status, "has no account 'NOBODY'" in unknown.err) == (1, True)
    acme.ok(*imports, "rm", "in.>", "BILLING", "-f")
    assert acme.json(*imports, "ls", "BILLING") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_hashed_password_logs_in(kind: str, shell: CommandShell, tmp_path: Path) -> None:
    page = shell.json("server", "passwd", "--generate", "--cost", "4")
    assert page["hash"].startswith("$2a$04$")
    other = shell.ok("server", "passwd", "--pass", "correct horse", "-c", "4").text.strip()
    conf = f"""authorization {{ users: [
        {{user: bob, password: "{page["hash"]}"}}, {{user: ann, password: "{other}"}} ] }}"""
    with running_conf(kind, conf, tmp_path / "server") as port:
        for user, password in (("bob", page["password"]), ("ann", "correct horse")):
            login = ("--server", f"nats://127.0.0.1:{port}", "--user", user, "--password")
            shell.ok("rtt", *login, password)
            assert shell.run("rtt", *login, "wrong password").status == 1


def test_passwords_that_can_not_be_are_refused(shell: CommandShell) -> None:
    for words, status, says in (
        (("--pass", "short"), 1, "at least 10"),
        (("--pass", "x" * 73), 1, "at most 72"),
        ((), 2, "give --pass or --generate"),
        (("--pass", "long enough", "--generate"), 2, "both given"),
        (("--generate", "--cost", "99"), 2, "it is 4 to 31"),
    ):
        ran = shell.run("server", "passwd", *words)
        assert (ran.status, says in ran.err) == (status, True), ran


@pytest.mark.parametrize(("again", "status"), [("correct horse", 0), ("wrong horse", 1)])
def test_a_password_is_asked_for_twice_and_not_shown(shell: CommandShell, again: str, status: int) -> None:
    with at_terminal(["server", "passwd", "--cost", "4"], PASSWORD="") as screen:
        screen.answer("Enter password:", "correct horse")
        screen.answer("Reenter password:", again)
        assert screen.end() == status
        assert "horse" not in screen.shown
        assert ("$2a$04$" if status == 0 else "the passwords differ") in screen.shown
