"""`proxies` and `proxy_required`: clients that a proxy vouches for, on both servers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason
from penstock.protocol.jwt import encode64
from penstock.server.config.directives import load
from penstock.server.config.server_options import ServerOptions, User
from tests.integration.server.test_reload import Make, reloading  # noqa: F401
from tests.support.conf_servers import running_conf, write_conf
from tests.support.keys import key, signature
from tests.support.nats_servers import KINDS, free_port
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.trusted-proxies")

PROXY, OTHER, STRANGER = (key("server", name) for name in ("proxy", "other", "stranger"))
JOE = key("user", "joe").public
CONF = f"""
    http: 127.0.0.1:%d
    proxies {{ trusted: [ {{ key: {PROXY.public} }}, {{ public_key: {OTHER.public} }} ] }}
    accounts {{ A {{ users: [
        {{ user: free, password: free }}
        {{ user: behind, password: behind, proxy_required: true }}
        {{ nkey: {JOE}, proxy_required: true }}
    ] }} }}
"""
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


class Running:
    def __init__(self, port: int, http_port: int) -> None:
        self.port, self.http_port = port, http_port

    def page(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def shown(self, name: str) -> object:
        """The proxy of the connection with this name."""
        return next(
            each.get("proxy") for each in self.page("connz")["connections"] if each.get("name") == name
        )

    def reason(self) -> str:
        """Why the connection that was closed last was."""
        found: str = self.page("connz?state=closed&sort=stop")["connections"][0]["reason"]
        return found


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    http_port = free_port()
    with running_conf(request.param, CONF % http_port, tmp_path_factory.mktemp("trusted")) as port:
        yield Running(port, http_port)


def vouched(by: Any) -> Callable[[str], str]:
    return lambda nonce: encode64(by.sign(nonce.encode()))


def through(port: int, proxy: Any, user: str, **connect: object) -> RawNats:
    """A client that comes through a proxy with this key."""
    return Proxied(port, proxy, user=user, **{"pass": user}, **connect)


class Proxied(RawNats):
    """`proxy_sig` in place of `sig`."""

    def __init__(self, port: int, proxy: Any, **connect: object) -> None:
        self.proxy = proxy
        super().__init__(port, **connect)

    def send(self, data: bytes) -> None:
        if data.startswith(b"CONNECT "):
            fields = json.loads(data.removeprefix(b"CONNECT "))
            fields["proxy_sig"] = vouched(self.proxy)(self.info["nonce"])
            if fields.get("nkey"):
                fields["sig"] = signature("joe", self.info["nonce"])
            data = b"CONNECT " + json.dumps(fields).encode() + b"\r\n"
        super().send(data)


@pytest.mark.parametrize("proxy", [PROXY, OTHER], ids=["first", "second"])
@pytest.mark.parametrize("user", ["free", "behind"])
def test_who_comes_through_a_trusted_proxy_is_let_in(running: Running, user: str, proxy: Any) -> None:
    client = through(running.port, proxy, user, name="proxied")
    assert running.shown("proxied") == {"key": proxy.public}
    client.close()


def test_who_needs_no_proxy_may_come_without(running: Running) -> None:
    client = RawNats(running.port, user="free", name="direct", **{"pass": "free"})
    assert running.shown("direct") is None
    client.close()


@pytest.mark.parametrize("user", ["free", "behind"])
def test_a_proxy_that_is_not_trusted_is_refused_for_any_client(running: Running, user: str) -> None:
    with pytest.raises(ConnectionError):
        through(running.port, STRANGER, user)
    assert running.reason() == "Proxy Not Trusted"


def test_who_needs_a_proxy_is_refused_without(running: Running) -> None:
    with Wire(running.port) as wire:
        wire.send(b'CONNECT {"user":"behind","pass":"behind"}\r\n')
        assert wire.rest() == VIOLATION
    assert running.reason() == "Proxy Required"


def test_owners_of_nkeys_can_need_proxies_too(running: Running) -> None:
    Proxied(running.port, PROXY, nkey=JOE).close()
    with pytest.raises(ConnectionError):
        RawNats(running.port, sign=lambda nonce: signature("joe", nonce), nkey=JOE)
    assert running.reason() == "Proxy Required"


def test_a_signature_that_is_none_is_no_trusted_one(running: Running) -> None:
    for text in ("!", "AAAA", "A" * 86):
        with Wire(running.port) as wire:
            wire.send(b'CONNECT {"user":"free","pass":"free","proxy_sig":"%s"}\r\n' % text.encode())
            assert wire.rest() == VIOLATION


def test_the_pages_name_the_trusted_ones(running: Running) -> None:
    assert running.page("varz")["proxies"] == {"trusted": [{"key": PROXY.public}, {"key": OTHER.public}]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", ["user: u, password: u", "token: t"])
def test_a_single_user_or_a_token_can_need_a_proxy(kind: str, who: str, tmp_path: Path) -> None:
    conf = (
        f"authorization {{ {who}, proxy_required: true }}\nproxies {{ trusted: [{{key: {PROXY.public}}}] }}"
    )
    shown = {"auth_token": "t"} if "token" in who else {"user": "u", "pass": "u"}
    with running_conf(kind, conf, tmp_path) as port:
        Proxied(port, PROXY, **shown).close()
        with pytest.raises(ConnectionError):
            RawNats(port, **shown)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_means_nothing_where_no_proxy_is_trusted(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, "", tmp_path) as port, Wire(port) as wire:
        assert "nonce" not in wire.info
        wire.connect(proxy_sig="whatever")


def test_a_reload_closes_clients_of_proxies_that_are_trusted_no_more(reloading: Make) -> None:  # noqa: F811
    users = (User(name="free", password="free"), User(name="behind", password="behind", proxy_required=True))
    server = reloading(users=users, trusted_proxies=(PROXY.public, OTHER.public))
    first = through(server.port, PROXY, "free")
    second = through(server.port, OTHER, "behind")
    assert server.change(trusted_proxies=(OTHER.public,))
    second.flush()
    with pytest.raises(ConnectionError):
        first.flush()
    assert server.embedded.server.sessions.closed[-1].reason is CloseReason.PROXY_NOT_TRUSTED
    direct = RawNats(server.port, user="free", **{"pass": "free"})
    assert server.change(users=(replace(users[0], proxy_required=True), users[1]))
    second.flush()
    with pytest.raises(ConnectionError):
        direct.flush()
    assert server.embedded.server.sessions.closed[-1].reason is CloseReason.PROXY_REQUIRED


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("proxies: 1", "must be a map"),
        ("proxies { trusted: 1 }", "expected proxies' trusted field to be an array"),
        ("proxies { trusted: [1] }", "must be a map"),
        ("proxies { trusted: [{key: SABC}] }", 'invalid proxy key "SABC"'),
        ("proxies { trusted: [{}] }", 'proxy trusted key "" is invalid'),
        ("proxies { other: [] }", 'unknown field "other"'),
    ],
)
def test_what_is_no_key_is_refused(conf: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nats\.conf:1:") as refused:
        load(str(write_conf(conf, tmp_path)))
    assert text in str(refused.value)
    with pytest.raises(ConfigError, match="proxy trusted key"):
        ServerOptions(trusted_proxies=("x",))
