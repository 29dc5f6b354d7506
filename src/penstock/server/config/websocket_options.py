"""The options of the listener for WebSocket clients: the `websocket` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least, between, host_and_port

if TYPE_CHECKING:
    from penstock.server.config.tls_options import TlsOptions


class WebsocketOptions(Struct, frozen=True, kw_only=True):
    """The `websocket` block."""

    port: int = 0
    """Port for WebSocket clients, 1..65535; -1 = any free port. Needed. `port` or in `listen`."""
    host: str = "0.0.0.0"
    """Address to listen on. Default all IPv4 addresses. `host` or in `listen`."""
    tls: TlsOptions | None = None
    """TLS of the listener. Needed, unless `no_tls` says that there is none. `tls`."""
    no_tls: bool = False
    """Without TLS: for a proxy in front that has it, and for tests. Default off. `no_tls`."""
    compression: bool = False
    """Use permessage-deflate with clients that offer it. Default off. `compression`."""
    same_origin: bool = False
    """A page in a browser must be from the host and port that it connects to. Default off. `same_origin`."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that a page in a browser must be from. Default: any. `allowed_origins`."""
    handshake_timeout_ns: int = 2 * NS
    """How long a handshake may take, ns, > 0. Default 2 s. `handshake_timeout`."""
    user: str = ""
    """The single user of these clients, instead of the server's. Default none. `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    token: str = ""
    """Token these clients must give. Excludes `user`. `authorization.token`."""
    auth_timeout_ns: int = 0
    """Time they have for their CONNECT; 0 (default) = the server's. `authorization.timeout`."""
    no_auth_user: str = ""
    """User whom these clients become without credentials. Default: the server's. `no_auth_user`."""
    jwt_cookie: str = ""
    """Cookie that holds the token of a user, for clients whose CONNECT has none. `jwt_cookie`."""
    user_cookie: str = ""
    """The same for the user. `user_cookie`."""
    pass_cookie: str = ""
    """The same for the password. `pass_cookie`."""
    token_cookie: str = ""
    """The same for the token of `authorization`. `token_cookie`."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of the answer to a handshake. Default none. `headers`."""
    ping_interval_ns: int = 0
    """How long these connections may be silent; 0 (default) = as long as others. `ping_interval`."""
    advertise: str = ""
    """host[:port] that other servers of a cluster tell their clients; one that stands alone shows it in varz.
    Default none. `advertise`."""

    @property
    def has_own_users(self) -> bool:
        """Are these clients known by what this block says?"""
        return bool(self.user or self.token or self.no_auth_user)

    def __post_init__(self) -> None:
        between("websocket.port", self.port, -1, 65535)
        if self.port == 0:
            raise ConfigError("websocket.port is missing; give the port to listen on, or -1 for any free one")
        at_least("websocket.handshake_timeout", self.handshake_timeout_ns, 1)
        if self.tls is None and not self.no_tls:
            raise ConfigError("websocket requires TLS configuration; give it `tls`, or `no_tls: true`")
        if self.user and self.token:
            raise ConfigError("websocket authorization cannot have a user/pass and token")
        at_least("websocket.ping_interval", self.ping_interval_ns, 0)
        if self.advertise:
            host_and_port("websocket.advertise", self.advertise)
