"""The blocking connection against a scripted server."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import errors
from penstock.spark.connection_options import ConnectionOptions
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

pytestmark = pytest.mark.feature("spark.read")

CERTIFICATE = Path(__file__).parents[2] / "support" / "tls.pem"  # for 127.0.0.1, self-signed, with its key
INFO = b'INFO {"server_id":"X","version":"2.14.0","headers":true,"max_payload":1048576}\r\n'


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def secure(self, context: ssl.SSLContext) -> None:
        self.sock = context.wrap_socket(self.sock, server_side=True)
        self.file = self.sock.makefile("rb")

    def line(self) -> bytes:
        return self.file.readline().removesuffix(b"\r\n")

    def greet(self) -> dict[str, object]:
        """INFO, CONNECT, PING, PONG and the subscription for answers; returns what CONNECT said."""
        self.send(INFO)
        connect = self.line()
        assert self.line() == b"PING"
        self.send(b"PONG\r\n")
        assert self.line().startswith(b"SUB _INBOX.")
        return json.loads(connect.removeprefix(b"CONNECT "))  # type: ignore[no-any-return]

    def request(self) -> tuple[bytes, bytes, bytes]:
        """(subject, reply, payload) of the next PUB."""
        verb, subject, reply, size = self.line().split()
        assert verb == b"PUB"
        payload = self.file.read(int(size) + 2)[:-2]
        return subject, reply, payload

    def answer(self, reply: bytes, payload: bytes) -> None:
        self.send(b"MSG %s 1 %d\r\n%s\r\n" % (reply, len(payload), payload))


@contextmanager
def scripted(*scripts: Callable[[Peer], None]) -> Iterator[int]:
    """A listener whose n-th connection is served by the n-th script, then closed."""
    failures: list[BaseException] = []

    def serve() -> None:
        for script in scripts:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(5)
                try:
                    script(Peer(sock))
                except Exception as error:  # noqa: BLE001 - told below, in the test's own thread
                    failures.append(error)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(5)
    assert not failures, failures


def options(port: int, **given: str) -> ConnectionOptions:
    timeouts = {"connectTimeoutSeconds": "2", "requestTimeoutSeconds": "2", **given}
    return SourceOptions.parse({"stream": "S", "servers": f"127.0.0.1:{port}", **timeouts}).connection


def test_a_request_is_answered_among_pings_and_other_messages() -> None:
    def script(peer: Peer) -> None:
        connect = peer.greet()
        assert (connect["user"], connect["pass"], connect["headers"]) == ("ada", "pw", True)
        subject, reply, payload = peer.request()
        assert (subject, payload) == (b"$JS.API.INFO", b"{}")
        peer.send(b"PING\r\n" + INFO + b"MSG other 9 2\r\nno\r\n")
        assert peer.line() == b"PONG"
        peer.answer(reply, b"yes")

    with (
        scripted(script) as port,
        BlockingConnection.open(options(port, user="ada", password="pw")) as connection,
    ):
        assert connection.request("$JS.API.INFO", b"{}") == b"yes"
        assert connection.info.version == "2.14.0"


def test_an_answer_cut_at_every_byte_is_still_the_answer() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        _, reply, _ = peer.request()
        for byte in b"MSG %s 1 5\r\nhello\r\n" % reply:
            peer.send(bytes([byte]))

    with scripted(script) as port, BlockingConnection.open(options(port)) as connection:
        assert connection.request("q", b"") == b"hello"


def test_no_responders_is_an_error_of_its_own() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        subject, reply, _ = peer.request()
        header = b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n" % subject
        peer.send(b"HMSG %s 1 %d %d\r\n%s\r\n" % (reply, len(header), len(header), header))

    with (
        scripted(script) as port,
        BlockingConnection.open(options(port)) as connection,
        pytest.raises(errors.NoRespondersError, match="no subscriber"),
    ):
        connection.request("q", b"")


def test_silence_is_a_timeout_and_the_connection_stays_usable() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        _, late, _ = peer.request()
        _, reply, _ = peer.request()
        peer.answer(late, b"too late")
        peer.answer(reply, b"in time")

    with scripted(script) as port, BlockingConnection.open(options(port)) as connection:
        with pytest.raises(errors.RequestTimeoutError, match=r"on 'slow' within 0\.05 s"):
            connection.request("slow", b"", timeout_s=0.05)
        assert connection.request("quick", b"") == b"in time"


def test_a_closed_connection_is_an_error_of_its_own() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()

    with (
        scripted(script) as port,
        BlockingConnection.open(options(port)) as connection,
        pytest.raises(errors.DisconnectedError, match="closed the connection"),
    ):
        connection.request("q", b"")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"'Authorization Violation'", errors.AuthorizationError),
        (b"'User Authentication Expired'", errors.AuthorizationError),
        (b"'maximum connections exceeded'", errors.ServerRefusedError),
    ],
)
def test_a_refused_connect_raises_by_its_kind(text: bytes, kind: type[errors.ClientError]) -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO)
        peer.line()
        peer.send(b"-ERR " + text + b"\r\n")

    with scripted(script) as port, pytest.raises(kind):
        BlockingConnection.open(options(port))


def test_a_permissions_violation_names_the_subject_and_the_connection_lives() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request()
        peer.send(b"-ERR 'Permissions Violation for Publish to \"secret.x\"'\r\n")
        _, reply, _ = peer.request()
        peer.answer(reply, b"fine")

    with scripted(script) as port, BlockingConnection.open(options(port)) as connection:
        with pytest.raises(errors.PermissionsError) as caught:
            connection.request("secret.x", b"")
        assert caught.value.subject == "secret.x"
        assert connection.request("open", b"") == b"fine"


def test_who_speaks_something_else_is_named_with_what_is_wrong() -> None:
    def web(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def silent(peer: Peer) -> None:
        peer.line()

    for script in (web, silent):
        with scripted(script) as port, pytest.raises(errors.NoServersError, match=f"127.0.0.1:{port}"):
            BlockingConnection.open(options(port, connectTimeoutSeconds="0.2"))


def test_tls_is_not_given_up_when_the_server_offers_none() -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO)

    with scripted(script) as port, pytest.raises(errors.NoServersError, match="the server offers none"):
        BlockingConnection.open(options(port, tls="true"))


@pytest.mark.parametrize("asked", [{"tls": "true"}, {"scheme": "tls"}, {}])
def test_tls_is_spoken_when_asked_for_or_required(asked: dict[str, str]) -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO.replace(b"}", b',"tls_required":true,"tls_available":true}'))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        peer.secure(context)
        assert json.loads(peer.line().removeprefix(b"CONNECT "))["tls_required"] is True
        peer.line()
        peer.send(b"PONG\r\n")
        peer.line()
        _, reply, _ = peer.request()
        peer.answer(reply, b"secret")

    with scripted(script) as port:
        scheme = asked.get("scheme", "nats")
        given = {key: value for key, value in asked.items() if key != "scheme"}
        secured = options(port, servers=f"{scheme}://127.0.0.1:{port}", tlsCa=str(CERTIFICATE), **given)
        with BlockingConnection.open(secured) as connection:
            assert connection.request("q", b"") == b"secret"


def test_a_certificate_of_no_known_authority_is_refused() -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO.replace(b"}", b',"tls_required":true}'))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        with contextlib.suppress(ssl.SSLError, OSError):  # the client hangs up
            peer.secure(context)

    with scripted(script) as port, pytest.raises(errors.NoServersError, match="CERTIFICATE_VERIFY_FAILED"):
        BlockingConnection.open(options(port))


def test_the_next_server_is_tried_when_one_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        down = int(probe.getsockname()[1])
    with scripted(lambda peer: peer.greet() and None) as port:
        both = SourceOptions.parse(
            {"stream": "S", "servers": f"127.0.0.1:{down},127.0.0.1:{port}"}
        ).connection
        with BlockingConnection.open(both) as connection:
            assert connection.address.port == port


def test_an_api_refusal_is_the_exception_of_its_code() -> None:
    from penstock.protocol import api

    def script(peer: Peer) -> None:
        peer.greet()
        _, reply, _ = peer.request()
        peer.answer(reply, b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}')

    with (
        scripted(script) as port,
        BlockingConnection.open(options(port)) as connection,
        pytest.raises(errors.StreamNotFoundError),
    ):
        connection.api(api.StreamInfoResponse, "STREAM.INFO.S")
