"""`pinned_certs`: which client certificates are accepted, on both servers."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason
from penstock.server.client_tls import pin_of
from penstock.server.config.directives import load
from tests.integration.server.test_reload import Make, reloading  # noqa: F401
from tests.support.certificates import Certificates, make_certificates
from tests.support.conf_servers import running_as_configured, write_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.pinned-certs")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def pin(path: str) -> str:
    return pin_of(ssl.PEM_cert_to_DER_cert(Path(path).read_text(encoding="ascii")))


def context(certificates: Certificates, who: str) -> ssl.SSLContext:
    """What a client trusts; who: "client" (its certificate is pinned), "server" (not pinned) or "unknown"."""
    found = certificates.client_context(certificate=who == "client")
    if who == "server":
        found.load_cert_chain(certificates.cert, certificates.key)
    return found


def is_let_in(port: int, certificates: Certificates, who: str) -> bool:
    try:
        with Wire(port) as wire:
            wire.encrypt(context(certificates, who))
            wire.connect()
            return True
    except (ConnectionError, ssl.SSLError, AssertionError):
        return False


def conf(certificates: Certificates, *more: str) -> str:
    files = f'cert_file: "{certificates.cert}", key_file: "{certificates.key}", ca_file: "{certificates.ca}"'
    return f"{files}, {', '.join(more)}"


@pytest.mark.parametrize("kind", KINDS)
def test_only_pinned_certificates_are_let_in(kind: str, certificates: Certificates, tmp_path: Path) -> None:
    pins = f'pinned_certs: ["{"a" * 64}", "{pin(certificates.client_cert).upper()}"]'
    tls = conf(certificates, "verify: true", pins, "insecure: true")
    with running_as_configured(kind, f"tls {{ {tls} }}", tmp_path) as port:
        assert is_let_in(port, certificates, "client")
        assert not is_let_in(port, certificates, "server")
        assert not is_let_in(port, certificates, "unknown")


@pytest.mark.parametrize("kind", KINDS)
def test_without_verify_no_client_shows_a_certificate(
    kind: str, certificates: Certificates, tmp_path: Path
) -> None:
    tls = conf(certificates, f'pinned_certs: ["{pin(certificates.client_cert)}"]')
    with running_as_configured(kind, f"tls {{ {tls} }}", tmp_path) as port:
        assert not is_let_in(port, certificates, "client")


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_list_pins_nothing(kind: str, certificates: Certificates, tmp_path: Path) -> None:
    tls = conf(certificates, "verify: true", "pinned_certs: []")
    with running_as_configured(kind, f"tls {{ {tls} }}", tmp_path) as port:
        assert is_let_in(port, certificates, "server")


def test_websocket_clients_are_held_to_pins_as_well(certificates: Certificates, tmp_path: Path) -> None:
    own = free_port()
    tls = conf(certificates, "verify: true", f'pinned_certs: ["{pin(certificates.client_cert)}"]')
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    with running_as_configured("penstock", f"websocket {{ port: {own}, tls {{ {tls} }} }}", tmp_path):
        for who, answer in (("client", b"HTTP/1.1 101"), ("server", b"")):
            heard = b""
            with (
                socket.create_connection(("127.0.0.1", own), timeout=10) as raw,
                suppress(ConnectionError, ssl.SSLError),
                context(certificates, who).wrap_socket(raw, server_hostname="localhost") as sock,
            ):
                sock.sendall(request)
                heard = sock.recv(4096)
            assert heard[:12] == answer, who


def test_a_reload_closes_clients_whose_certificates_are_pinned_no_more(
    certificates: Certificates,
    reloading: Make,  # noqa: F811
) -> None:
    pinned, other = pin(certificates.client_cert), pin(certificates.cert)
    options = certificates.options(verify=True, pinned_certs=frozenset((pinned, other)))
    server = reloading(tls=options)
    with Wire(server.port) as stays, Wire(server.port) as goes:
        stays.encrypt(context(certificates, "client"))
        stays.connect()
        goes.encrypt(context(certificates, "server"))
        goes.connect()
        assert server.change(tls=replace(options, pinned_certs=frozenset((pinned,))))
        assert goes.rest() == b""
        stays.connect()
    closed = server.embedded.server.sessions.closed
    assert CloseReason.TLS_HANDSHAKE_FAILURE in [one.reason for one in closed]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "expected 'pinned_certs' to be a list"),
        ('["ab"]', "'pinned_certs' key ab does not look like hex-encoded sha256"),
        (f'["{"g" * 64}"]', "does not look like hex-encoded sha256"),
    ],
)
def test_what_is_no_pin_is_refused(value: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nats\.conf:1:") as refused:
        load(str(write_conf(f"tls {{ cert_file: a, key_file: b, pinned_certs: {value} }}", tmp_path)))
    assert text in str(refused.value)
