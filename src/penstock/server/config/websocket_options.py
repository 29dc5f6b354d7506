"""WebSocket options: the `websocket` block."""

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
    """Port for WebSocket clients, 1..65535; -1 = any free port. Required. `port` or in `listen`."""
    host: str = "0.0.0.0"
    """Address to listen on. Default all IPv4 addresses. `host` or in `listen`."""
    tls: TlsOptions | None = None
    """TLS of the listener. Required unless `no_tls` is set. `tls`."""
    no_tls: bool = False
    """No TLS: for a TLS proxy in front, and for tests. Default off. `no_tls`."""
    compression: bool = False
    """Use permessage-deflate with clients that offer it. Default off. `compression`."""
    same_origin: bool = False
    """Require that a browser page's origin is the host and port it connects to. Default off.
    `same_origin`."""
    allowed_origins: tuple[str, ...] = ()
    """Allowed origins of browser pages. Default: all. `allowed_origins`."""
    handshake_timeout_ns: int = 2 * NS
    """Time limit of a handshake, ns, > 0. Default 2 s. `handshake_timeout`."""
    user: str = ""
    """Single user of these clients, instead of the server's users. Default none. `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    token: str = ""
    """Token of these clients. Excludes `user`. `authorization.token`."""
    auth_timeout_ns: int = 0
    """Time limit for CONNECT, ns; 0 (default) = the server's. `authorization.timeout`."""
    no_auth_user: str = ""
    """User for clients without credentials. Default: the server's. `no_auth_user`."""
    jwt_cookie: str = ""
    """Cookie with a user JWT, for clients whose CONNECT has none. `jwt_cookie`."""
    user_cookie: str = ""
    """Cookie with the user name. `user_cookie`."""
    pass_cookie: str = ""
    """Cookie with the password. `pass_cookie`."""
    token_cookie: str = ""
    """Cookie with the token of `authorization`. `token_cookie`."""
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers of the handshake response. Default none. `headers`."""
    ping_interval_ns: int = 0
    """Idle time before a ping, ns; 0 (default) = the server's. `ping_interval`."""
    advertise: str = ""
    """host[:port] that other servers of a cluster advertise; without clustering shown in varz only. Default
    none. `advertise`."""

    @property
    def has_own_users(self) -> bool:
        """Whether the block has its own user, token or no_auth_user."""
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
