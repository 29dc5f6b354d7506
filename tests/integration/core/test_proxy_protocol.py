"""`proxy_protocol`: who a client is that comes through a proxy, on both servers."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.net import proxy_layer
from penstock.net.reasons import CloseReason
from penstock.protocol.proxy_protocol import V2_SIGNATURE
from penstock.server.server import Server
from tests.support.certificates import Certificates, make_certificates
from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("connectivity.proxy-protocol")

CONF = """
    proxy_protocol: true
    system_account: SYS
    accounts { SYS { users: [{user: sys, password: sys}] }, A { users: [{user: a, password: a}] } }
"""
V1 = b"PROXY TCP4 203.0.113.50 127.0.0.1 54321 4222\r\n"
V2 = V2_SIGNATURE + b"\x21\x11\x00\x0c" + bytes([203, 0, 113, 50, 127, 0, 0, 1]) + b"\xd4\x31\x10\x7e"
V2_IPV6 = V2_SIGNATURE + b"\x21\x21\x00\x24" + b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01" + bytes(16)
V2_IPV6 += b"\xd4\x31\x10\x7e"
LOCAL = V2_SIGNATURE + b"\x20\x00\x00\x00"
CONNECT = b'CONNECT {"user":"a","pass":"a","protocol":1,"verbose":false,"name":"behind"}\r\nPING\r\n'
ANYBODY = b'CONNECT {"protocol":1,"verbose":false}\r\nPING\r\n'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_as_configured(request.param, CONF, tmp_path_factory.mktemp("proxied")) as port:
        yield port


class Behind:
    """A client behind a proxy, and what the server says to it, in lines."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError(self.buffer)
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line().removeprefix(b"INFO "))
        return found

    def login(self, sent: bytes) -> str:
        """Sends that, which ends in CONNECT and PING, and returns the address that INFO shows then."""
        self.sock.send(sent)
        return self.admitted()

    def admitted(self) -> str:
        assert self.line() == b"PONG"
        return str(self.info()["client_ip"])

    def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            while data := self.sock.recv(65536):
                self.buffer += data
        except ConnectionResetError:
            pass
        return self.buffer


def shown(port: int, name: str) -> list[tuple[str, int]]:
    """(ip, port) of the connections of this name."""
    client = RawNats(port, user="sys", **{"pass": "sys"})
    found = client.request("$SYS.REQ.SERVER.PING.CONNZ", {"auth": True})["data"]["connections"]
    client.close()
    return [(each["ip"], each["port"]) for each in found if each.get("name") == name]


@pytest.mark.parametrize(
    ("header", "peer"),
    [(V1, ("203.0.113.50", 54321)), (V2, ("203.0.113.50", 54321)), (V2_IPV6, ("2001:db8::1", 54321))],
    ids=["v1", "v2", "v2-ipv6"],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_client_is_who_the_proxy_says(port: int, header: bytes, peer: tuple[str, int], step: int) -> None:
    client = Behind(port)
    assert "client_ip" not in client.info()  # it would be the proxy's
    sent = header + CONNECT
    for at in range(0, len(sent), step):
        client.sock.send(sent[at : at + step])
    assert client.admitted() == peer[0]
    assert shown(port, "behind") == [peer]
    client.sock.close()


@pytest.mark.parametrize("header", [LOCAL, b"PROXY UNKNOWN\r\n", b""], ids=["local", "unknown", "none"])
def test_who_is_not_announced_is_who_connects(port: int, header: bytes) -> None:
    client = Behind(port)
    client.info()
    assert client.login(header + CONNECT) == "127.0.0.1"
    assert shown(port, "behind") == [client.sock.getsockname()]
    client.sock.close()


@pytest.mark.parametrize(
    "header",
    [b"PROXY TCP4 nobody 127.0.0.1 1 2\r\n", b"PROXY " + b"x" * 200, LOCAL[:12] + b"\x31\x11\x00\x00"],
    ids=["address", "length", "version"],
)
def test_a_bad_header_ends_the_connection_without_a_word(port: int, header: bytes) -> None:
    client = Behind(port)
    client.info()
    client.sock.send(header + CONNECT)
    assert client.rest() == b""


@pytest.mark.parametrize("settings", ["", "allow_non_tls: true"], ids=["required", "allowed"])
@pytest.mark.parametrize("kind", KINDS)
def test_tls_comes_after_the_header(
    kind: str, settings: str, certificates: Certificates, tmp_path: Path
) -> None:
    tls = f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}" }}\n{settings}'
    conf = f"proxy_protocol: true\n{tls}"
    with running_as_configured(kind, conf, tmp_path) as port:
        client = Behind(port)
        client.info()
        client.sock.send(V2)
        context = certificates.client_context()
        client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
        assert client.login(ANYBODY) == "203.0.113.50"
        client.sock.close()
        if settings:
            client = Behind(port)
            client.info()
            assert client.login(V1 + ANYBODY) == "203.0.113.50"


@pytest.mark.parametrize("handshake_first", ["true", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_handshake_that_comes_first_comes_after_the_header(
    kind: str, handshake_first: str, certificates: Certificates, tmp_path: Path
) -> None:
    tls = f'cert_file: "{certificates.cert}", key_file: "{certificates.key}"'
    conf = f"proxy_protocol: true\ntls {{ {tls}, handshake_first: {handshake_first} }}"
    with running_as_configured(kind, conf, tmp_path) as port:
        client = Behind(port)
        client.sock.send(V1)
        context = ssl.create_default_context(cafile=certificates.ca)
        client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
        client.info()
        assert client.login(ANYBODY) == "203.0.113.50"


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_announced_in_time_may_begin_its_handshake_later(
    kind: str, certificates: Certificates, tmp_path: Path
) -> None:
    tls = f'cert_file: "{certificates.cert}", key_file: "{certificates.key}"'
    conf = f"proxy_protocol: true\ntls {{ {tls}, handshake_first: 200ms }}"
    with running_as_configured(kind, conf, tmp_path) as port:
        client = Behind(port)
        client.sock.send(V1)
        client.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):  # no INFO in clear
            client.line()
        client.sock.settimeout(10)
        client.sock = certificates.client_context().wrap_socket(client.sock, server_hostname="localhost")
        assert client.info()["tls_required"] is True


@pytest.mark.parametrize("sent", [b"", b"PROXY", V2[:20]])
async def test_a_header_that_does_not_come_ends_the_connection(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_layer, "HEADER_TIMEOUT_S", 0.05)
    async with Server(proxy_protocol=True) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n")
            assert await reader.read() == b""
        writer.close()
        assert server.sessions.closed[0].reason is CloseReason.PROTOCOL_VIOLATION


async def test_a_proxy_that_leaves_before_its_header_is_closed() -> None:
    async with Server(proxy_protocol=True) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await reader.readuntil(b"\r\n")
        writer.close()
        async with asyncio.timeout(10):
            while not server.sessions.closed:
                await asyncio.sleep(0)
        assert server.sessions.closed[0].reason is CloseReason.PROTOCOL_VIOLATION
