"""TLS of client connections, as the options want it: context, policy, and one layer for each socket."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.net.server_connection import ServerConnection
from penstock.net.tls import READ_BYTES, TlsLayer, TlsPolicy, server_context
from penstock.server.config.option_checks import NS
from penstock.server.config.server_options import TlsOptions

if TYPE_CHECKING:
    from penstock.server.session import Session


class Encryption:
    """Puts TLS between sockets and connections.

    Args:
        options: the block `tls`.
        plain_allowed: clients may go on without (`allow_non_tls`).

    Raises:
        ConfigError: certificate, key or authorities can't be loaded.
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

    def wrap(self, connection: ServerConnection, session: Session) -> TlsLayer:
        """The protocol object of a new socket."""

        def told(text: str) -> None:
            session.server.log.debug(f"{session.name} - {text}")

        return TlsLayer(connection, self._context, self._policy, self._scratch, told)

    def refuses(self, session: Session) -> bool:
        """Would the client of a session not be let in now, because of its certificate?"""
        refusal, connection = self._policy.refusal, session.connection
        if refusal is None or connection.kind == "websocket" or not connection.tls()[0]:
            return False
        return bool(refusal(connection.certificate()))

    def info(self) -> dict[str, Any]:
        """What INFO says of it."""
        info: dict[str, Any] = {"tls_required" if self.required else "tls_available": True}
        if self.options.verify:
            info["tls_verify"] = True
        return info


def context_of(options: TlsOptions) -> ssl.SSLContext:
    """What a listener with these options encrypts with. Raises ConfigError."""
    return server_context(
        cert_file=options.cert_file,
        key_file=options.key_file,
        ca_file=options.ca_file,
        verify=options.verify,
        min_version=options.min_version,
        cipher_suites=options.cipher_suites,
    )


def certificate_refusal(options: TlsOptions) -> Callable[[bytes], str] | None:
    """Why a client's certificate is refused, as `TlsPolicy` wants it; None = any is good."""
    if not options.pinned_certs:
        return None
    from penstock.server.auth.pinned_certs import refusal_of  # few servers pin certificates

    return refusal_of(options.pinned_certs)
