"""Trusted operators: the same tokens on ours and on the official server."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocol.claims import (
    ExternalAuthorization,
    PermissionClaim,
    PermissionsClaim,
    ResponsePermissionClaim,
    ScopeClaim,
    TemplateClaim,
    TimeRange,
)
from penstock.server.config.directives import load
from tests.support.conf_servers import answers, received, running_conf
from tests.support.keys import (
    OPERATOR,
    SYSTEM,
    account_token,
    key,
    now_s,
    operator_token,
    signature,
    token_login,
    user_token,
)
from tests.support.nats_servers import KINDS, find_official_server, free_port
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.operators")

A, SIGNING, SCOPED = (key("account", name).public for name in ("A", "A signing", "A scoped"))
JOE = key("user", "joe").public
SCOPE = ScopeClaim(
    key=SCOPED,
    role="worker",
    template=TemplateClaim(
        pub=PermissionClaim(allow=("work.{{name()}}.>", "team.{{tag(team)}}")),
        sub=PermissionClaim(allow=("_INBOX.>",)),
        payload=20,
    ),
)
STORAGE = {"mem_storage": 2**20, "disk_storage": 2**20, "streams": 1, "consumer": -1}
TOKENS = {
    "SYS": account_token("SYS"),
    "A": account_token(
        "A",
        signing_keys=(SIGNING, SCOPE),
        default_permissions=PermissionsClaim(pub=PermissionClaim(deny=("secret",))),
        revocations={key("user", "revoked").public: now_s() + 3600},
        limits={"disallow_bearer": True},
    ),
    "SMALL": account_token("SMALL", limits={"conn": 1, "subs": 2, "payload": 10}),
    "JS": account_token(
        "JS", limits={"mem_storage": 2**20, "disk_storage": 2**20, "streams": 1, "consumer": -1}
    ),
    "OLD": account_token("OLD", head={"issued_at": now_s() - 100, "expires": now_s() - 50}),
    "FOREIGN": account_token("FOREIGN", by=key("operator", "other")),
    "BEARER": account_token("BEARER"),
    "CALLOUT": account_token(
        "CALLOUT", authorization=ExternalAuthorization(auth_users=(key("user", "service").public,))
    ),
}


def conf(tokens: dict[str, str], operator: str = "", extra: str = "") -> str:
    preload = "\n".join(f"  {key('account', name).public}: {token}" for name, token in tokens.items())
    return f"""
operator: {operator or operator_token()}
resolver: MEMORY
resolver_preload {{
{preload}
}}
{extra}
"""


CONF = conf(TOKENS)


def outcome(port: int, name: str, token: str, **connect: object) -> str:
    """ "in", or the text of the -ERR that closes the connection."""
    with Wire(port) as wire:
        sig = signature(name, wire.info["nonce"])
        settings = {"verbose": False, "pedantic": False, "jwt": token, "sig": sig, **connect}
        wire.send(b"CONNECT " + json.dumps(settings).encode() + b"\r\nPING\r\n")
        reported = wire.sock.recv(4096).decode()
        return "in" if reported.startswith("PONG") else reported.strip().removeprefix("-ERR ").strip("'")


VIOLATION = "Authorization Violation"
LATER, EARLIER = {"expires": now_s() + 3600}, {"expires": now_s() - 10, "issued_at": now_s() - 20}


def test_a_user_is_let_in_with_what_its_token_says(port: int) -> None:
    token = user_token(
        "A", "joe", pub=PermissionClaim(allow=("ok",)), sub=PermissionClaim(deny=("no", "q x"))
    )
    joe = token_login(port, "joe", token)
    assert answers(joe, "PUB ok 0\r\n") == []
    assert answers(joe, "PUB no 0\r\n") == ["-ERR 'Permissions Violation for Publish to \"no\"'"]
    assert answers(joe, "SUB no 1") == ["-ERR 'Permissions Violation for Subscription to \"no\"'"]
    joe.close()


def test_a_user_without_permissions_has_the_accounts(port: int) -> None:
    joe = token_login(port, "joe", user_token("A", "joe"))
    assert answers(joe, "PUB secret 0\r\n") == ["-ERR 'Permissions Violation for Publish to \"secret\"'"]
    joe.close()


def test_permission_to_respond_is_a_permission(port: int) -> None:
    token = user_token("A", "joe", resp=ResponsePermissionClaim(max=1, ttl=10**9))
    joe = token_login(port, "joe", token)
    assert answers(joe, "PUB x 0\r\n") == ["-ERR 'Permissions Violation for Publish to \"x\"'"]
    joe.close()


@pytest.mark.parametrize(
    ("account", "name", "token", "expected"),
    [
        ("A", "joe", {}, "in"),
        ("A", "joe", {"head": LATER}, "in"),
        ("A", "joe", {"head": EARLIER}, VIOLATION),
        ("A", "joe", {"head": {"not_before": now_s() + 7200}}, VIOLATION),
        ("A", "joe", {"by": key("account", "A signing")}, "in"),
        ("A", "joe", {"by": key("account", "stranger")}, VIOLATION),
        ("A", "joe", {"by": key("account", "A scoped")}, VIOLATION),
        ("A", "joe", {"by": key("account", "A scoped"), "scoped": True}, "in"),
        ("A", "revoked", {}, VIOLATION),
        ("A", "revoked", {"head": {"issued_at": now_s() + 7200}}, "in"),
        ("A", "joe", {"src": ("127.0.0.0/8",)}, "in"),
        ("A", "joe", {"src": ("10.0.0.0/8", "192.168.0.0/16")}, VIOLATION),
        ("A", "joe", {"src": ("nonsense",)}, VIOLATION),
        ("A", "joe", {"allowed_connection_types": ("STANDARD",)}, "in"),
        ("A", "joe", {"allowed_connection_types": ("standard", "PIGEON")}, "in"),
        ("A", "joe", {"allowed_connection_types": ("MQTT",)}, VIOLATION),
        ("A", "joe", {"allowed_connection_types": ("PIGEON",)}, VIOLATION),
        ("A", "joe", {"bearer_token": True}, VIOLATION),
        ("BEARER", "joe", {"bearer_token": True}, "in"),
        ("OLD", "joe", {}, VIOLATION),
        ("FOREIGN", "joe", {}, VIOLATION),
        ("UNKNOWN", "joe", {}, VIOLATION),
        ("CALLOUT", "service", {}, "in"),
        ("A", "joe", {"pub": PermissionClaim(allow=("a..b",))}, VIOLATION),
    ],
)  # fmt: skip
def test_who_is_let_in(port: int, account: str, name: str, token: dict[str, Any], expected: str) -> None:
    assert outcome(port, name, user_token(account, name, **token)) == expected


@pytest.mark.parametrize(
    ("name", "connect"),
    [
        ("ann", {}),  # signs with another key
        ("joe", {"sig": ""}),
        ("joe", {"jwt": "nonsense"}),
        ("joe", {"jwt": ""}),
        ("joe", {"jwt": "", "user": "a", "pass": "b"}),
        ("joe", {"jwt": operator_token()}),
    ],
)  # fmt: skip
def test_what_proves_nothing_is_refused(port: int, name: str, connect: dict[str, str]) -> None:
    assert outcome(port, name, user_token("A", "joe"), **connect) == VIOLATION


def test_bearers_need_not_sign(port: int) -> None:
    assert outcome(port, "joe", user_token("BEARER", "joe", bearer_token=True), sig="") == "in"


def test_times_of_day(port: int) -> None:
    def span(start: float, end: float) -> tuple[TimeRange, ...]:
        now = datetime.now(UTC)
        first, last = (now + timedelta(hours=hours) for hours in (start, end))
        return (TimeRange(start=f"{first:%H:%M:%S}", end=f"{last:%H:%M:%S}"),)

    for times, expected in ((span(-1, 1), "in"), (span(1, 2), VIOLATION), (span(-2, -1), VIOLATION),
                            (span(1, 2) + span(-1, 1), "in"), (span(-1, 22), "in")):  # fmt: skip
        token = user_token("A", "joe", times=times, times_location="UTC")
        assert outcome(port, "joe", token) == expected, times
    # no server is there
    token = user_token("A", "joe", times=span(-1, 1), times_location="Nowhere/City")
    assert outcome(port, "joe", token) == VIOLATION


def test_a_scoped_key_gives_what_its_template_says(port: int) -> None:
    token = user_token("A", "joe", by=key("account", "A scoped"), scoped=True, tags=("team:red", "team:blue"))
    joe = token_login(port, "joe", token)
    assert answers(joe, "PUB work.joe.1 0\r\n") == []
    assert answers(joe, "PUB team.red 0\r\n") == []
    assert answers(joe, "PUB team.blue 0\r\n") == []
    assert answers(joe, "PUB team.green 0\r\n") == [
        "-ERR 'Permissions Violation for Publish to \"team.green\"'"
    ]
    joe.send(b"PUB work.joe.1 21\r\n" + bytes(21) + b"\r\n")
    assert joe.line() == b"-ERR 'Maximum Payload Violation'"
    joe.close()


def test_limits_of_an_account(port: int) -> None:
    joe = token_login(port, "joe", user_token("SMALL", "joe"), protocol=1)
    assert answers(joe, "SUB a 1") == []
    assert answers(joe, "SUB b 2") == []
    assert answers(joe, "SUB c 3") == ["-ERR 'maximum subscriptions exceeded'"]
    assert outcome(port, "ann", user_token("SMALL", "ann")) == "maximum account active connections exceeded"
    joe.send(b"PUB x 11\r\n" + bytes(11) + b"\r\n")
    assert joe.line() == b"-ERR 'Maximum Payload Violation'"
    joe.close()


def test_limits_of_a_user(port: int) -> None:
    joe = token_login(port, "joe", user_token("A", "joe", subs=1, payload=3))
    assert answers(joe, "SUB a 1") == []
    assert answers(joe, "SUB b 2") == ["-ERR 'maximum subscriptions exceeded'"]
    joe.send(b"PUB x 4\r\nabcd\r\n")
    assert joe.line() == b"-ERR 'Maximum Payload Violation'"
    joe.close()


def test_clients_learn_the_payload_they_may_send(port: int) -> None:
    client = token_login(port, "joe", user_token("A", "joe", payload=3), protocol=1)
    infos = [json.loads(line.split(b" ", 1)[1]) for line in client.control if line.startswith(b"INFO")]
    client.send(b"PING\r\n")
    while (line := client.line()) != b"PONG":
        infos.append(json.loads(line.split(b" ", 1)[1]))
    assert all(info["max_payload"] == 3 for info in infos if info.get("connect_info"))
    client.close()


def test_jetstream_is_what_the_account_has(port: int) -> None:
    rich, poor = (token_login(port, "joe", user_token(name, "joe")) for name in ("JS", "A"))
    info = rich.request("$JS.API.INFO")
    assert info["limits"]["max_memory"] == info["limits"]["max_storage"] == 2**20
    assert info["limits"]["max_streams"] == 1
    config = {"name": "S", "subjects": ["s"], "storage": "memory", "max_bytes": 1000}
    assert "error" not in rich.request("$JS.API.STREAM.CREATE.S", config)
    second = rich.request("$JS.API.STREAM.CREATE.T", {**config, "name": "T", "subjects": ["t"]})
    assert second["error"]["err_code"] == 10027
    assert poor.request("$JS.API.INFO")["error"]["err_code"] == 10039
    rich.close()
    poor.close()


def test_accounts_are_apart(port: int) -> None:
    a, other = (token_login(port, "joe", user_token(name, "joe")) for name in ("A", "BEARER"))
    for client in (a, other):
        client.subscribe("news", 1)
        client.flush()
    a.publish("news")
    assert received(a) == ["news 1"]
    assert received(other) == []
    a.close()
    other.close()


@pytest.mark.feature("monitoring.user-info")
def test_who_am_i(port: int) -> None:
    """`$SYS.REQ.USER.INFO` of a user with a token."""
    token = user_token(
        "A", "joe", head={"expires": now_s() + 100, "name": "Joe"}, pub=PermissionClaim(allow=(">",))
    )
    joe = token_login(port, "joe", token)
    data = joe.request("$SYS.REQ.USER.INFO")["data"]
    assert 90e9 < data.pop("expires") <= 100e9
    assert data == {
        "user": JOE,
        "account": A,
        "account_name": "A",
        "user_name": "Joe",
        "permissions": {"publish": {"allow": [">"]}, "subscribe": {}},
    }
    joe.close()


@pytest.mark.feature("monitoring.http")
@pytest.mark.parametrize("kind", KINDS)
def test_monitoring_shows_tokens_and_who_signed_them(kind: str, tmp_path: Path) -> None:
    """`/connz` with `auth`, and `/accountz`."""
    http_port = free_port()

    def page(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}{path}") as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    with running_conf(kind, conf(TOKENS, extra=f"http: 127.0.0.1:{http_port}"), tmp_path) as port:
        token = user_token("A", "joe", by=key("account", "A signing"), tags=("team:red",))
        joe = token_login(port, "joe", token)
        entry = page("/connz?auth=1")["connections"][0]
        reported = ("authorized_user", "account", "jwt", "issuer_key", "name_tag", "tags")
        assert {name: entry.get(name) for name in reported} == {
            "authorized_user": JOE, "account": A, "jwt": token, "issuer_key": SIGNING, "name_tag": "A",
            "tags": ["team:red"],
        }  # fmt: skip
        detail = page(f"/accountz?acc={A}")["account_detail"]
        assert (detail["name_tag"], detail["issuer_key"], detail["expired"]) == ("A", OPERATOR.public, False)
        assert detail["jwt"] == TOKENS["A"]
        joe.close()


# -- what happens later


def test_a_user_whose_token_expires_is_closed(port: int) -> None:
    with Wire(port) as wire:
        token = user_token("A", "joe", head={"expires": now_s() + 1})
        wire.connect(jwt=token, sig=signature("joe", wire.info["nonce"]))
        assert wire.rest() == b"-ERR 'User Authentication Expired'\r\n"


@pytest.mark.parametrize("kind", KINDS)
def test_an_account_whose_token_expires_closes_its_clients(kind: str, tmp_path: Path) -> None:
    tokens = {"SYS": TOKENS["SYS"], "A": account_token("A", head={"expires": now_s() + 3})}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        with Wire(port) as wire:
            wire.connect(jwt=user_token("A", "joe"), sig=signature("joe", wire.info["nonce"]))
            assert wire.rest().removeprefix(b"PING\r\n") == b"-ERR 'Account Authentication Expired'\r\n"
        assert outcome(port, "joe", user_token("A", "joe")) == VIOLATION


def updated(system: RawNats, account: str, token: str) -> dict[str, Any]:
    """The answer to a new token for an account."""
    system.publish(f"$SYS.REQ.ACCOUNT.{key('account', account).public}.CLAIMS.UPDATE", token.encode(), "_R.u")
    answer = json.loads(system.message().payload)
    return answer.get("data") or answer["error"]  # type: ignore[no-any-return]


def system_login(port: int) -> RawNats:
    system = token_login(port, "admin", user_token("SYS", "admin"))
    system.subscribe("_R.u", 9)
    system.flush()
    return system


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_token_of_an_account_binds_those_who_are_connected(kind: str, tmp_path: Path) -> None:
    signing = key("account", "A signing")
    tokens = {"SYS": TOKENS["SYS"], "A": account_token("A", signing_keys=(signing.public,))}
    bearer = user_token("A", "bearer", bearer_token=True)
    with running_conf(kind, conf(tokens), tmp_path) as port:
        system = system_login(port)
        stays, goes, signed = Wire(port), Wire(port), Wire(port)
        stays.connect(jwt=user_token("A", "joe"), sig=signature("joe", stays.info["nonce"]))
        goes.connect(jwt=user_token("A", "ann"), sig=signature("ann", goes.info["nonce"]))
        signed.connect(jwt=user_token("A", "sam", by=signing), sig=signature("sam", signed.info["nonce"]))
        carries = Wire(port).connect(jwt=bearer)
        time.sleep(1.1)  # the official server ignores an update within a second of the last one
        token = account_token(
            "A",
            revocations={key("user", "ann").public: now_s()},
            limits={"disallow_bearer": True, "payload": 5},
            default_permissions=PermissionsClaim(pub=PermissionClaim(deny=("secret",))),
        )
        answer = updated(system, "A", token)
        assert answer == {"account": A, "code": 200, "message": "jwt updated"}
        assert goes.rest() == b"-ERR 'User Authentication Revoked'\r\n"
        assert carries.rest() == b"-ERR 'Authorization Violation'\r\n"
        assert signed.rest() == b""
        assert (
            stays.ask(b"PUB secret 0\r\n\r\n")
            == b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n"
        )
        stays.send(b"PUB x 6\r\nabcdef\r\n")
        assert stays.rest() == b"-ERR 'Maximum Payload Violation'\r\n"
        assert outcome(port, "ann", user_token("A", "ann")) == VIOLATION
        assert outcome(port, "ann", user_token("A", "ann", head={"issued_at": now_s() + 10})) == "in"
        for wire in (stays, goes, signed, carries):
            wire.close()
        system.close()


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_connections_close_the_youngest(kind: str, tmp_path: Path) -> None:
    tokens = {"SYS": TOKENS["SYS"], "A": account_token("A")}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        system = system_login(port)
        first, second = Wire(port), Wire(port)
        for name, wire in (("joe", first), ("ann", second)):
            wire.connect(jwt=user_token("A", name), sig=signature(name, wire.info["nonce"]))
        time.sleep(1.1)
        assert updated(system, "A", account_token("A", limits={"conn": 1}))["code"] == 200
        assert second.rest() == b"-ERR 'maximum account active connections exceeded'\r\n"
        assert first.ask(b"") == b""
        first.close()
        second.close()
        system.close()


@pytest.mark.parametrize("kind", KINDS)
def test_jetstream_comes_and_goes_with_the_token(kind: str, tmp_path: Path) -> None:
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    tokens = {"SYS": TOKENS["SYS"], "A": account_token("A")}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        system, joe = system_login(port), token_login(port, "joe", user_token("A", "joe"))
        assert joe.request("$JS.API.INFO")["error"]["err_code"] == 10039
        time.sleep(1.1)
        assert updated(system, "A", account_token("A", limits=storage))["code"] == 200
        config = {"name": "S", "subjects": ["s"], "storage": "file"}
        assert "error" not in joe.request("$JS.API.STREAM.CREATE.S", config)
        assert joe.request("s")["seq"] == 1
        joe.close()
        system.close()
    tokens = {"SYS": TOKENS["SYS"], "A": account_token("A", limits=storage)}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        joe = token_login(port, "joe", user_token("A", "joe"))
        assert joe.request("$JS.API.STREAM.INFO.S")["state"]["messages"] == 1
        joe.close()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_are_refused_change_nothing(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, conf(TOKENS), tmp_path) as port:
        system = system_login(port)
        outcome(port, "joe", user_token("A", "joe"))
        time.sleep(1.1)
        refused = "jwt update resulted in error - "
        assert updated(system, "A", "x") == {
            "account": A,
            "code": 500,
            "description": refused + "expected 3 chunks",
        }
        answer = updated(system, "A", TOKENS["BEARER"])
        assert answer["description"] == refused + "subject does not match jwt content"
        answer = updated(system, "A", account_token("A", by=key("operator", "other")))
        assert answer["description"].startswith(refused + "account validation failed")
        answer = updated(system, "UNKNOWN", account_token("UNKNOWN"))
        assert answer["message"] == "jwt update skipped"
        assert outcome(port, "joe", user_token("A", "joe")) == "in"
        system.close()


# -- operators


@pytest.mark.parametrize("kind", KINDS)
def test_a_strict_operator_signs_with_its_signing_keys(kind: str, tmp_path: Path) -> None:
    signing = key("operator", "signing")
    operator = operator_token(signing_keys=(signing.public,), strict_signing_key_usage=True)
    tokens = {
        "SYS": account_token("SYS", by=signing),
        "A": account_token("A", by=signing, signing_keys=(SIGNING,)),
        "B": account_token("B"),
    }
    with running_conf(kind, conf(tokens, operator), tmp_path) as port:
        assert outcome(port, "joe", user_token("A", "joe")) == VIOLATION
        assert outcome(port, "joe", user_token("A", "joe", by=key("account", "A signing"))) == "in"
        assert outcome(port, "joe", user_token("B", "joe")) == VIOLATION


@pytest.mark.parametrize("kind", KINDS)
def test_operators_come_from_files_too(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "op.jwt"
    path.write_text(
        f"-----BEGIN NATS OPERATOR JWT-----\n{operator_token()}\n------END NATS OPERATOR JWT------\n"
    )
    with running_conf(kind, conf(TOKENS, str(path)), tmp_path) as port:
        assert outcome(port, "joe", user_token("A", "joe")) == "in"


@pytest.mark.parametrize("kind", KINDS)
def test_pinned_accounts_are_the_only_ones(kind: str, tmp_path: Path) -> None:
    extra = f"resolver_pinned_accounts: [{A}]"
    with running_conf(kind, conf(TOKENS, extra=extra), tmp_path) as port:
        assert outcome(port, "joe", user_token("A", "joe")) == "in"
        assert outcome(port, "joe", user_token("BEARER", "joe")) == VIOLATION
        assert outcome(port, "joe", user_token("SYS", "joe")) == "in"


ONE = f"operator: {operator_token()}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{ONE}x\nresolver: MEMORY", "error parsing operator JWT"),
        (
            f"operator: {user_token('A', 'joe')}\nresolver: MEMORY",
            "error parsing operator JWT: not operator claim",
        ),
        (
            conf(TOKENS, extra="accounts { X {} }"),
            "operators do not allow Accounts",
        ),
        (
            conf(TOKENS, extra="authorization { users: [ {user: a, password: b} ] }"),
            "operators do not allow users to be configured directly",
        ),
        (
            conf(TOKENS, extra=f"system_account: {A}"),
            "operator JWT must be identical",
        ),
        (conf({"A": TOKENS["A"] + "x"}), "invalid account JWT"),
        (
            f"{ONE}\nresolver: pigeon",
            "error parsing account resolver",
        ),
        (f"{ONE}\nresolver: {{ type: full }}", "dir has no value"),
        (
            f"{ONE}\nresolver: {{ type: full, dir: x, ttl: '1h' }}",
            "FULL does not accept ttl",
        ),
        (
            f"{ONE}\nresolver: {{ type: cache, dir: x, allow_delete: true }}",
            "CACHE does not accept allow_delete",
        ),
    ],
)
def test_both_servers_refuse_the_same_configurations(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nats.conf"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert why in str(caught.value)
    binary = find_official_server()
    if binary is not None:
        command = [binary, "-a", "127.0.0.1", "-p", "-1", "-c", str(path)]
        reported = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        assert reported.returncode != 0
        assert why in reported.stderr


def test_the_system_account_is_the_operators(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(conf(TOKENS))
    options = load(str(path))
    assert options.system_account == SYSTEM.public
    assert OPERATOR.public not in options.resolver_pinned_accounts


def test_operators_need_a_resolver(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(ONE)
    with pytest.raises(ConfigError, match="operators require an account resolver to be configured"):
        load(str(path))
