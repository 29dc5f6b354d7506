"""TLS between a socket and its connection.

A `TlsLayer` is the protocol of the socket and the transport of the connection. It keeps nothing back once the
handshake is done: what the connection writes is encrypted into the socket's transport at once, so that
backlogs, their limits and their deadlines mean the same with TLS and without.

What comes first on a new socket:

    INFO in clear, then the handshake       the default
    the handshake, then INFO                handshake_first: true
    the handshake, if it begins in time     handshake_first: "auto" or a duration; else as by default
    INFO in clear, then either              allow_non_tls: the client's first byte decides

Phases: UNDECIDED (nothing has come) -> HANDSHAKE -> OPEN. A client that goes on without TLS leaves UNDECIDED
by taking the socket over: then the layer is out of the way, and such a client costs nothing more.

Invariant: after INFO, nothing leaves in clear. A client whose handshake takes too long reads the end: an -ERR
would be no record of TLS, and with handshake_first the first bytes that it ever got.

Rejected: `loop.start_tls`. It can't look at the first byte before it decides, has no way to be handed bytes
that have come already, and keeps a write buffer of its own that no limit of ours sees.
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
# The names of RFC 5246 that nats.conf and monitoring use, and OpenSSL's. TLS 1.3 suites have one name.
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
    """What a listener encrypts with.

    Args:
        cert_file: PEM file of the certificate, and those between it and the authority.
        key_file: PEM file of its key.
        ca_file: PEM file of the authorities that client certificates are checked with; "" = the machine's.
        verify: clients must have a certificate.
        min_version: "1.2" or "1.3".
        cipher_suites: names of SUITES for TLS 1.2; those of TLS 1.3 can't be chosen. Empty: OpenSSL's choice.

    Raises:
        ConfigError: a file can't be read or is no certificate or key, or an unknown cipher suite.
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
    """How a listener's clients come to TLS.

    timeout_s: how long a handshake may take.
    info_delay_s: how long INFO waits for a handshake to begin: 0 = not at all, inf = for ever.
    plain_allowed: a client may go on without TLS.
    refusal: says why a client's certificate (DER, b"" = none) is refused, "" = it isn't; None = any is good.
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
        connection: who reads and writes through it.
        context: what is encrypted with.
        policy: what comes first, and how long that may take.
        scratch: where the socket is read into; layers of one event loop may share it.
        told: what debug lines say about the handshake.
    """

    def __init__(
        self,
        connection: ServerConnection,
        context: ssl.SSLContext,
        policy: TlsPolicy,
        scratch: bytearray,
        told: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._policy = policy
        self._scratch = memoryview(scratch)
        self._told = told
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._phase = TlsPhase.UNDECIDED
        self._in_clear = policy.info_delay_s == 0.0
        self._has_more = False  # there may be something to decrypt
        self._is_working = False
        self._held: list[bytes] = []  # written by the connection before it may leave

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._connection.connection_made(self)
        if self._connection.close_reason is not None:
            return
        delay_s = self._policy.info_delay_s
        if delay_s == 0.0:
            self._show_info()
        elif math.isinf(delay_s):
            self._begin()
        else:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._show_info)

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
                self._connection.wait_turn()  # there is more, which the loop would read at once

    def announced(self) -> None:
        """The socket takes what follows from a proxy that has announced the client: a client that is waited
        for does not hesitate."""
        if self._phase is TlsPhase.UNDECIDED and not self._in_clear and not self._policy.plain_allowed:
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
            # What came before the end is the connection's to work on, in its turns.
            self.finish()
        self._connection.connection_lost(exc)

    # -- from the connection

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._phase is TlsPhase.OPEN:
            rest = memoryview(data)
            while rest:
                rest = rest[self._ssl.write(rest) :]
            self._send()
        elif self._phase is TlsPhase.UNDECIDED and self._in_clear:
            self._raw.write(data)
        else:
            self._held.append(bytes(data))

    def close(self) -> None:
        if self._phase is TlsPhase.OPEN and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the peer's farewell is missing, nobody waits for it
                self._ssl.unwrap()
            self._send()
        self._raw.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl if self._phase is TlsPhase.OPEN else default
        return super().get_extra_info(name, default)

    # -- own

    def _show_info(self) -> None:
        """INFO leaves in clear; what comes next is a handshake, or where allowed may be anything."""
        self._stop_timer()
        self._in_clear = True
        self._connection.flush()
        self._raw.write(b"".join(self._held))
        self._held.clear()
        if not self._policy.plain_allowed:
            self._begin()

    def _begin(self) -> None:
        self._stop_timer()
        if self._policy.info_delay_s:
            self._connection.flush()  # INFO, into what is held until the handshake is done
        self._phase = TlsPhase.HANDSHAKE
        self._told("Starting TLS client connection handshake")
        self._timer = asyncio.get_running_loop().call_later(self._policy.timeout_s, self._on_timeout)

    def _shake(self) -> None:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
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
        self._told(f"TLS handshake complete; TLS version {version}, cipher suite {suite}")
        for data in self._held:
            self.write(data)
        self._held.clear()

    def _work(self) -> None:
        """Hands over what can be decrypted, in as few pieces as the connection's buffer allows, until the
        connection's part of this turn is over."""
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
                # The parser's buffer can't move while there is a view.
                with connection.get_buffer(-1) as buffer:
                    filled, self._has_more = self._decrypt(buffer)
                if filled:
                    connection.buffer_updated(filled)
                if self._has_more and not self._is_ending and budget.is_over():
                    connection.wait_turn()
        finally:
            self._is_working = False
            budget.end_part()
        self._send()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """(bytes put into the buffer, whether there may be more)."""
        filled = 0
        try:
            while filled < len(buffer):
                # With a buffer it returns a count, which typeshed doesn't know.
                count = cast(int, self._ssl.read(len(buffer) - filled, buffer[filled:]))
                if not count:
                    self._raw.close()  # the peer's farewell
                    return filled, False
                filled += count
        except ssl.SSLWantReadError:
            return filled, False
        except ssl.SSLError as error:
            self._told(f"read error: {error}")
            self._connection.abort(CloseReason.READ_ERROR)
            return 0, False
        return filled, True

    def _send(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _step_aside(self, data: bytes) -> None:
        """The client does without TLS: from now on its connection has the socket."""
        self._stop_timer()
        connection = self._connection
        if not self._in_clear:
            self._show_info()
        connection.use(self._raw)
        self._raw.set_protocol(connection)
        while data and connection.close_reason is None:
            with connection.get_buffer(len(data)) as buffer:
                count = min(len(data), len(buffer))
                buffer[:count] = data[:count]
            data = data[count:]
            connection.buffer_updated(count)

    def _fail(self, text: str) -> None:
        self._told(f"TLS handshake error: {text}")
        self._connection.close(CloseReason.TLS_HANDSHAKE_FAILURE)

    def _on_timeout(self) -> None:
        self._timer = None
        self._told("TLS handshake timeout")
        self._connection.close(CloseReason.TLS_HANDSHAKE_FAILURE)
