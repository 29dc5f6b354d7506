"""The options of TLS: the `tls` block of the server, and of its WebSocket listener."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least


class TlsOptions(Struct, frozen=True, kw_only=True):
    """The `tls` block. The files are read when the server starts."""

    cert_file: str = ""
    """PEM file of the server's certificate, with those between it and its authority. `cert_file`."""
    key_file: str = ""
    """PEM file of the certificate's key; both are needed. `key_file`."""
    ca_file: str = ""
    """PEM file of the authorities client certificates must be from. Default: the machine's. `ca_file`."""
    verify: bool = False
    """Clients must have a certificate. Default off. `verify`."""
    verify_and_map: bool = False
    """With `verify`: the certificate says which user a client is. Default off. `verify_and_map`."""
    pinned_certs: frozenset[str] = frozenset()
    """The only client certificates that are let in, by the SHA-256 of their public keys in small hex letters;
    needs `verify`. Default: any. `pinned_certs`."""
    timeout_ns: int = 2 * NS
    """How long a handshake may take, ns, > 0. Default 2 s. `timeout`."""
    handshake_first: bool = False
    """The handshake comes before INFO. Default off. `handshake_first`."""
    handshake_first_wait_ns: int = 0
    """With `handshake_first`: a client that has not begun after this time gets INFO in clear, as without it;
    0 (default) = it never does. `handshake_first: auto` is 50 ms, `handshake_first: "<duration>"` any."""
    min_version: str = "1.2"
    """Oldest version, "1.2" (default) or "1.3". `min_version`."""
    cipher_suites: tuple[str, ...] = ()
    """Suites for TLS 1.2, by their standard names. Default: OpenSSL's choice. `cipher_suites`."""

    def __post_init__(self) -> None:
        if not self.cert_file:
            raise ConfigError("missing 'cert_file' in TLS configuration")
        if not self.key_file:
            raise ConfigError("missing 'key_file' in TLS configuration")
        if self.min_version not in ("1.2", "1.3"):
            raise ConfigError(f'unsupported TLS version "{self.min_version}": min_version must be 1.2 or 1.3')
        at_least("tls.timeout", self.timeout_ns, 1)
        at_least("tls.handshake_first", self.handshake_first_wait_ns, 0)
