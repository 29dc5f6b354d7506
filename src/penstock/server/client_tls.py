"""TLS of client connections: builds the context, the policy and the layer of each socket from the options.

`pinned_certs` accepts only client certificates with listed keys. A pin is the SHA-256 of a certificate's
public key (SubjectPublicKeyInfo, DER) in hex, as printed by
`openssl x509 -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum`. It stays valid when a
certificate is renewed with the same key. Pins are checked in addition to `verify`, without which clients
present no certificate.
"""

from __future__ import annotations

import hashlib
import math
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.net.server_connection import ServerConnection
from penstock.net.tls import READ_BYTES, TlsLayer, TlsPolicy, server_context
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import TlsOptions

if TYPE_CHECKING:
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.session import Session

NOT_PINNED = "certificate not pinned"


class Encryption:
    """Adds TLS layers to client connections.

    Args:
        options: the block `tls`.
        plain_allowed: whether clients may continue without TLS (`allow_non_tls`).

    Raises:
        ConfigError: certificate, key or CAs cannot be loaded.
    """

    def __init__(self, options: TlsOptions, *, plain_allowed: bool) -> None:
        delay_s = 0.0
        if options.handshake_first:
            delay_s = options.handshake_first_wait_ns / NS or math.inf
        self.options = options
        self.required = not plain_allowed
        self._context = context_of(options)
        self._policy = TlsPolicy(
            options.timeout_ns / NS, delay_s, plain_allowed, certificate_refusal(options)
        )
        self._scratch = bytearray(READ_BYTES)

    def wrap(self, connection: ServerConnection, session: Session | LeafSession) -> TlsLayer:
        """Returns the protocol object of a new socket."""

        def log_debug(text: str) -> None:
            session.context.log.debug(f"{session.name} - {text}")

        return TlsLayer(connection, self._context, self._policy, self._scratch, log_debug)

    def refuses(self, session: Session) -> bool:
        """Whether the current certificate rules would refuse the session's client."""
        refusal, connection = self._policy.refusal, session.connection
        if refusal is None or connection.kind == "websocket" or not connection.tls()[0]:
            return False
        return bool(refusal(connection.certificate()))

    def info(self) -> dict[str, Any]:
        """The TLS fields of INFO."""
        info: dict[str, Any] = {"tls_required" if self.required else "tls_available": True}
        if self.options.verify:
            info["tls_verify"] = True
        return info


def context_of(options: TlsOptions) -> ssl.SSLContext:
    """The SSL context for these options. Raises ConfigError."""
    return server_context(
        cert_file=options.cert_file,
        key_file=options.key_file,
        ca_file=options.ca_file,
        verify=options.verify,
        min_version=options.min_version,
        cipher_suites=options.cipher_suites,
    )


def certificate_refusal(options: TlsOptions) -> Callable[[bytes], str] | None:
    """The certificate check for `TlsPolicy.refusal`, which returns why a client certificate (DER, b"" = none)
    is refused; "" = accepted. None accepts all certificates."""
    if not options.pinned_certs:
        return None

    def refusal(certificate: bytes) -> str:
        return "" if certificate and pin_of(certificate) in options.pinned_certs else NOT_PINNED

    return refusal


def pin_of(certificate: bytes) -> str:
    """The pin of a certificate (DER)."""
    from cryptography import x509  # few servers pin certificates
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
