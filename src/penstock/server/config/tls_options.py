"""TLS options: the `tls` block of the server and of its WebSocket listener."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least


class RemoteTlsOptions(Struct, frozen=True, kw_only=True):
    """The `tls` block of a connection that this server dials."""

    cert_file: str = ""
    """PEM file of the certificate that this server presents. Default none. `cert_file`."""
    key_file: str = ""
    """PEM file of its private key. Required with `cert_file`. `key_file`."""
    ca_file: str = ""
    """PEM file of the CAs of the other server's certificate. Default: the system's CAs. `ca_file`."""
    timeout_ns: int = 2 * NS
    """Time limit of a handshake, ns, > 0. Default 2 s. `timeout`."""
    handshake_first: bool = False
    """Handshake before INFO. Default off. `handshake_first`."""
    min_version: str = "1.2"
    """Minimum version, "1.2" (default) or "1.3". `min_version`."""
    cipher_suites: tuple[str, ...] = ()
    """TLS 1.2 cipher suites by standard name. Default: OpenSSL's. `cipher_suites`."""
    insecure: bool = False
    """Check neither the other server's certificate nor its name. Default off. `insecure`."""

    def __post_init__(self) -> None:
        if self.cert_file and not self.key_file:
            raise ConfigError("missing 'key_file' in TLS configuration")
        if self.key_file and not self.cert_file:
            raise ConfigError("missing 'cert_file' in TLS configuration")
        if self.min_version not in ("1.2", "1.3"):
            raise ConfigError(f'unsupported TLS version "{self.min_version}": min_version must be 1.2 or 1.3')
        at_least("tls.timeout", self.timeout_ns, 1)


class TlsOptions(Struct, frozen=True, kw_only=True):
    """The `tls` block. The files are read when the server starts."""

    cert_file: str = ""
    """PEM file of the server's certificate chain. Required. `cert_file`."""
    key_file: str = ""
    """PEM file of the private key. Required. `key_file`."""
    ca_file: str = ""
    """PEM file of the CAs of client certificates. Default: the system's CAs. `ca_file`."""
    verify: bool = False
    """Require client certificates. Default off. `verify`."""
    verify_and_map: bool = False
    """With `verify`: map the client certificate to a user. Default off. `verify_and_map`."""
    pinned_certs: frozenset[str] = frozenset()
    """Accepted client certificates, by the SHA-256 of their public keys in lower-case hex; requires `verify`.
    Default: all. `pinned_certs`."""
    timeout_ns: int = 2 * NS
    """Time limit of a handshake, ns, > 0. Default 2 s. `timeout`."""
    handshake_first: bool = False
    """Handshake before INFO. Default off. `handshake_first`."""
    handshake_first_wait_ns: int = 0
    """With `handshake_first`: time after which a client that has not started the handshake gets plain INFO; 0
    (default) = never. `handshake_first: auto` is 50 ms, `handshake_first: "<duration>"` any time."""
    min_version: str = "1.2"
    """Minimum version, "1.2" (default) or "1.3". `min_version`."""
    cipher_suites: tuple[str, ...] = ()
    """TLS 1.2 cipher suites by standard name. Default: OpenSSL's. `cipher_suites`."""

    insecure: bool = False
    """On connections to other servers, check neither their certificates nor their names. Default off.
    `insecure`."""

    def __post_init__(self) -> None:
        if not self.cert_file:
            raise ConfigError("missing 'cert_file' in TLS configuration")
        if not self.key_file:
            raise ConfigError("missing 'key_file' in TLS configuration")
        if self.min_version not in ("1.2", "1.3"):
            raise ConfigError(f'unsupported TLS version "{self.min_version}": min_version must be 1.2 or 1.3')
        at_least("tls.timeout", self.timeout_ns, 1)
        at_least("tls.handshake_first", self.handshake_first_wait_ns, 0)
