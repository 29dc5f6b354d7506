"""TLS between a socket and its connection.

A `TlsLayer` is the protocol of the socket and the transport of the connection. After the handshake it buffers
no output: it encrypts what the connection writes into the socket's transport at once, so that backlogs,
their limits and deadlines mean the same with and without TLS.

Order of INFO and handshake on a new socket:

    plain INFO, then the handshake       the default
    the handshake, then INFO                handshake_first: true
    the handshake, if it begins in time     handshake_first: "auto" or a duration; else as by default
    plain INFO, then either              allow_non_tls: the client's first byte decides

Phases: UNDECIDED (no input yet) -> HANDSHAKE -> OPEN. If a client continues without TLS, its connection takes
over the socket, and the layer costs nothing more.

Invariant: after INFO, all output is encrypted. A handshake that times out ends in a plain close: an -ERR
would not be a TLS record, and with handshake_first the client has seen no plain bytes at all.

Rejected: `loop.start_tls`. It cannot inspect the first byte before it decides, cannot take bytes that were
read already, and has a write buffer outside our limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from penstock.errors import ConfigError
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection

HANDSHAKE_RECORD = 0x16  # the first byte of a ClientHello (RFC 8446, 5.1)
READ_BYTES = 256 * 1024
# TLS 1.2 suites: the RFC 5246 names of nats.conf and monitoring -> OpenSSL names. TLS 1.3 uses one name.
SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
SUITES_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_STANDARD_NAMES = {openssl: standard for standard, openssl in SUITES.items()}


def server_context(
    *,
    cert_file: str,
    key_file: str,
    ca_file: str = "",
    verify: bool = False,
    min_version: str = "1.2",
    cipher_suites: Sequence[str] = (),
) -> ssl.SSLContext:
    """The SSL context of a listener.

    Args:
        cert_file: PEM file of the certificate chain.
        key_file: PEM file of its private key.
        ca_file: PEM file of the CAs that verify client certificates; "" = the system's CAs.
        verify: whether clients must present a certificate.
        min_version: "1.2" or "1.3".
        cipher_suites: keys of SUITES for TLS 1.2; Empty = OpenSSL's default. TLS 1.3 suites are fixed.

    Raises:
        ConfigError: a file is unreadable or no certificate or key, or a cipher suite is unknown.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"error parsing X509 certificate/key pair {cert_file}, {key_file}: {error}"
        ) from error
    if verify:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            if ca_file:
                context.load_verify_locations(cafile=ca_file)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"failed to parse root ca certificate {ca_file}: {error}") from error
    chosen = [_openssl_name(name) for name in cipher_suites if name not in SUITES_1_3]
    if chosen:
        context.set_ciphers(":".join(chosen))
    return context


def peer_contexts(
    *,
    cert_file: str,
    key_file: str,
    ca_file: str,
    min_version: str,
    cipher_suites: Sequence[str],
    insecure: bool,
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The SSL contexts of links to other servers: (accepting, connecting). Both sides present a certificate.

    Args:
        insecure: the connecting side checks neither chain nor name. The accepting side always checks.

    Raises:
        ConfigError: as `server_context`.
    """
    accepting = server_context(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        verify=True,
        min_version=min_version,
        cipher_suites=cipher_suites,
    )
    connecting = client_context(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        min_version=min_version,
        cipher_suites=cipher_suites,
        insecure=insecure,
    )
    return accepting, connecting


def client_context(
    *,
    cert_file: str = "",
    key_file: str = "",
    ca_file: str = "",
    min_version: str = "1.2",
    cipher_suites: Sequence[str] = (),
    insecure: bool = False,
) -> ssl.SSLContext:
    """The SSL context of a connection that this server dials.

    Args:
        cert_file, key_file: of the certificate that it presents; "" = none.
        ca_file: PEM file of the CAs of the other side's certificate; "" = the system's CAs.
        insecure: check neither chain nor name.

    Raises:
        ConfigError: as `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    try:
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
        if ca_file:
            context.load_verify_locations(cafile=ca_file)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"error in TLS files {cert_file}, {key_file}, {ca_file}: {error}") from error
    chosen = [_openssl_name(name) for name in cipher_suites if name not in SUITES_1_3]
    if chosen:
        context.set_ciphers(":".join(chosen))
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _openssl_name(suite: str) -> str:
    name = SUITES.get(suite)
    if name is None:
        known = ", ".join((*SUITES_1_3, *SUITES))
        raise ConfigError(f"unrecognized cipher suite {suite}; known are {known}")
    return name


def described(encrypted: ssl.SSLObject | ssl.SSLSocket) -> tuple[str, str]:
    """(version, cipher suite) as monitoring shows them: ("1.3", "TLS_AES_128_GCM_SHA256")."""
    suite = (encrypted.cipher() or ("", "", 0))[0]
    return (encrypted.version() or "").removeprefix("TLSv"), _STANDARD_NAMES.get(suite, suite)


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """TLS rules of a listener.

    timeout_s: time limit of a handshake.
    info_delay_s: how long INFO waits for a handshake to begin: 0 = not at all, inf = for ever.
    plain_allowed: clients may continue without TLS.
    refusal: returns why a client certificate (DER, b"" = none) is refused, "" = accepted; None accepts all.
    """

    timeout_s: float
    info_delay_s: float = 0.0
    plain_allowed: bool = False
    refusal: Callable[[bytes], str] | None = None


class TlsPhase(Enum):
    UNDECIDED = "undecided"
    HANDSHAKE = "handshake"
    OPEN = "open"


class TlsLayer(asyncio.BufferedProtocol, Layer):
    """TLS of one accepted socket.

    Args:
        connection: reads and writes through the layer. context: SSL context. policy: order and time limit of
        the handshake. scratch: read buffer; layers of one event loop may share it. log_debug: called with
        debug lines about the handshake. server_name: of the server, if this is the connecting side; "" = its
        certificate's name is not checked.
            None: this is the accepting side.
    """

    def __init__(
        self,
        connection: ServerConnection,
        context: ssl.SSLContext,
        policy: TlsPolicy,
        scratch: bytearray,
        log_debug: Callable[[str], None],
        *,
        server_name: str | None = None,
    ) -> None:
        super().__init__()
        self._is_client = server_name is not None
        self._connection = connection
        self._policy = policy
        self._scratch = memoryview(scratch)
        self._log_debug = log_debug
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=not self._is_client,
            server_hostname=server_name or None,
        )
        self._phase = TlsPhase.UNDECIDED
        self._info_sent = policy.info_delay_s == 0.0
        self._has_more = False  # there may be more to decrypt
        self._is_working = False
        self._deferred_output: list[bytes] = []  # output of the connection until the handshake is done

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._connection.connection_made(self)
        if self._connection.close_reason is not None:
            return
        delay_s = self._policy.info_delay_s
        if self._is_client:
            self._begin()
            self._shake()  # the connecting side speaks first
        elif delay_s == 0.0:
            self._show_info()
        elif math.isinf(delay_s):
            self._begin()
        else:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._show_info)

    def take_over(self, transport: asyncio.Transport) -> None:
        """Begins the handshake, as client, on a connection that was plain so far. Its later output is
        encrypted."""
        self._raw = transport
        self._connection.flush()
        self._connection.use(self)
        transport.set_protocol(self)
        self._begin()
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._connection.close_reason is not None:
            return
        if self._phase is TlsPhase.UNDECIDED:
            if self._policy.plain_allowed and self._scratch[0] != HANDSHAKE_RECORD:
                self._step_aside(bytes(self._scratch[:nbytes]))
                return
            self._begin()
        self._incoming.write(self._scratch[:nbytes])
        self._has_more = True
        if self._phase is TlsPhase.HANDSHAKE:
            self._shake()
        if self._phase is TlsPhase.OPEN:
            self._work()
            if nbytes == len(self._scratch) and self._connection.close_reason is None:
                self._connection.end_full_read()

    def announced(self) -> None:
        """The socket takes the bytes that follow a PROXY header."""
        if self._phase is TlsPhase.UNDECIDED and not self._info_sent and not self._policy.plain_allowed:
            self._begin()

    def eof_received(self) -> bool:
        if self._phase is TlsPhase.HANDSHAKE:
            self._fail("EOF")
        return False

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._phase is TlsPhase.HANDSHAKE and self._connection.close_reason is None:
            self._connection.close_reason = CloseReason.TLS_HANDSHAKE_FAILURE
        if self._phase is TlsPhase.OPEN:
            # The connection processes input that came before the end in its parts.
            self.finish()
        self._connection.connection_lost(exc)

    # -- from the connection

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._phase is TlsPhase.OPEN:
            rest = memoryview(data)
            while rest:
                rest = rest[self._ssl.write(rest) :]
            self._send()
        elif self._phase is TlsPhase.UNDECIDED and self._info_sent:
            self._raw.write(data)
        else:
            self._deferred_output.append(bytes(data))

    def close(self) -> None:
        if self._phase is TlsPhase.OPEN and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the peer's close_notify is not awaited
                self._ssl.unwrap()
            self._send()
        self._raw.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl if self._phase is TlsPhase.OPEN else default
        return super().get_extra_info(name, default)

    # -- internal

    def _show_info(self) -> None:
        """Sends plain INFO. Then the handshake follows or, where allowed, plain input."""
        self._stop_timer()
        self._info_sent = True
        self._connection.flush()
        self._raw.write(b"".join(self._deferred_output))
        self._deferred_output.clear()
        if not self._policy.plain_allowed:
            self._begin()

    def _begin(self) -> None:
        self._stop_timer()
        if self._policy.info_delay_s:
            self._connection.flush()  # INFO, deferred until the handshake is done
        self._phase = TlsPhase.HANDSHAKE
        self._log_debug(f"Starting TLS {'server' if self._is_client else 'client'} connection handshake")
        self._timer = asyncio.get_running_loop().call_later(self._policy.timeout_s, self._on_timeout)

    def _shake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._send()  # the alert
            self._fail(str(error))
            return
        self._stop_timer()
        self._send()
        refusal = self._policy.refusal
        if refusal is not None and (reason := refusal(self._ssl.getpeercert(binary_form=True) or b"")):
            self._fail(reason)
            return
        self._phase = TlsPhase.OPEN
        version, suite = described(self._ssl)
        self._log_debug(f"TLS handshake complete; TLS version {version}, cipher suite {suite}")
        for data in self._deferred_output:
            self.write(data)
        self._deferred_output.clear()

    def _work(self) -> None:
        """Decrypts input into the connection's buffer, in pieces as large as that buffer allows, until the
        connection's part is over."""
        connection, budget = self._connection, self._connection.budget
        if self._is_working or self._phase is not TlsPhase.OPEN:
            return
        self._is_working = True
        budget.begin_part()
        try:
            while (
                self._has_more
                and connection.close_reason is None
                and (self._is_ending or not self._is_paused)
            ):
                # The parser must not move its buffer while a view of it exists.
                with memoryview(connection.get_buffer(-1)) as buffer:
                    filled, self._has_more = self._decrypt(buffer)
                if filled:
                    connection.buffer_updated(filled)
                if self._has_more and not self._is_ending and budget.is_over():
                    connection.queue_part()
        finally:
            self._is_working = False
            budget.end_part()
        self._send()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Returns (bytes put into the buffer, whether there may be more)."""
        filled = 0
        try:
            while filled < len(buffer):
                # With a buffer, read() returns a count, which typeshed does not declare.
                count = cast(int, self._ssl.read(len(buffer) - filled, buffer[filled:]))
                if not count:
                    self._raw.close()  # close_notify of the peer
                    return filled, False
                filled += count
        except ssl.SSLWantReadError:
            return filled, False
        except ssl.SSLError as error:
            self._log_debug(f"read error: {error}")
            self._connection.abort(CloseReason.READ_ERROR)
            return 0, False
        return filled, True

    def _send(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _step_aside(self, data: bytes) -> None:
        """The client continues without TLS: its connection takes over the socket."""
        self._stop_timer()
        connection = self._connection
        if not self._info_sent:
            self._show_info()
        connection.use(self._raw)
        self._raw.set_protocol(connection)
        while data and connection.close_reason is None:
            with memoryview(connection.get_buffer(len(data))) as buffer:
                count = min(len(data), len(buffer))
                buffer[:count] = data[:count]
            data = data[count:]
            connection.buffer_updated(count)

    def _fail(self, text: str) -> None:
        self._log_debug(f"TLS handshake error: {text}")
        self._connection.close(CloseReason.TLS_HANDSHAKE_FAILURE)

    def _on_timeout(self) -> None:
        self._timer = None
        self._log_debug("TLS handshake timeout")
        self._connection.close(CloseReason.TLS_HANDSHAKE_FAILURE)
