"""Options of a client. Frozen and validated once; the defaults are defined here only.

Times are in seconds, sizes in bytes. Rejected: reading environment variables or context files here (the
command line does that).
"""

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from penstock.client.credentials import Secret, SignatureCallback, TokenCallback
from penstock.client.info import ServerInfo
from penstock.client.servers import ServerCandidate
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.client.tracing import Tracing

# Event callbacks may be plain functions or coroutine functions.
ClientCallback = Callable[["Client"], Awaitable[Any] | None]
ErrorCallback = Callable[["Client", Exception], Awaitable[Any] | None]

HeaderMap = Mapping[str, "str | Iterable[str]"]
WebsocketHeaders = HeaderMap | Callable[[], "HeaderMap | Awaitable[HeaderMap]"]
ChooseServer = Callable[[tuple[ServerCandidate, ...], ServerInfo | None], tuple[str | None, float]]

OpenSocket = Callable[[], Awaitable[socket.socket]]

DEFAULT_SERVER = "nats://127.0.0.1:4222"


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `connect`; `Options` documents them."""

    name: str
    user: Secret | None
    password: Secret | None
    token: Secret | None
    nkey_seed: str | None
    nkey_seed_file: str | os.PathLike[str] | None
    credentials: str | os.PathLike[str] | tuple[str, str] | None
    credentials_text: str | None
    user_jwt_cb: TokenCallback | None
    signature_cb: SignatureCallback | None
    tls: ssl.SSLContext | bool | None
    tls_hostname: str | None
    tls_handshake_first: bool
    open_socket: OpenSocket | None
    websocket_headers: WebsocketHeaders | None
    websocket_compression: bool
    connect_timeout: float
    request_timeout: float
    drain_timeout: float
    ping_interval: float
    max_outstanding_pings: int
    retry_on_failed_connect: bool
    reconnect: bool
    max_reconnects: int | None
    reconnect_wait: float
    reconnect_wait_max: float
    reconnect_delay: Callable[[int], float] | None
    reconnect_buffer_bytes: int
    choose_server: ChooseServer | None
    randomize: bool
    ignore_discovered: bool
    echo: bool
    pedantic: bool
    inbox_prefix: str
    max_pending_messages: int
    max_pending_bytes: int
    tracing: "Tracing | None"
    on_connected: ClientCallback | None
    on_disconnected: ErrorCallback | None
    on_reconnected: ClientCallback | None
    on_closed: ClientCallback | None
    on_error: ErrorCallback | None
    on_lame_duck: ClientCallback | None
    on_discovered: ClientCallback | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one client."""

    name: str = ""
    """Connection name, shown in the server's connection list."""
    user: Secret | None = None
    """User name, or a function or coroutine function that returns it for each connection; `password` and
    `token` likewise. Credentials in a server URL take precedence."""
    password: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    """Seed of the user's nkey (`SU...`), which signs the server's nonce."""
    nkey_seed_file: str | os.PathLike[str] | None = None
    """File with the seed, read for each connection."""
    credentials: str | os.PathLike[str] | tuple[str, str] | None = field(default=None, repr=False)
    """Credentials file of a user (JWT and seed), read for each connection; or (JWT, seed)."""
    credentials_text: str | None = field(default=None, repr=False)
    """The content of a credentials file."""
    user_jwt_cb: TokenCallback | None = None
    """Function or coroutine function that returns the user's JWT for each connection."""
    signature_cb: SignatureCallback | None = None
    """Function or coroutine function that gets the server's nonce and returns the 64-byte signature. Needed
    with `user_jwt_cb` unless the JWT is a bearer token."""
    tls: ssl.SSLContext | bool | None = None
    """TLS context, or True for the system's default. Used in any case if the server requires TLS."""
    tls_hostname: str | None = None
    """Name to verify the certificate against; default: the URL's host."""
    tls_handshake_first: bool = False
    """Start TLS before the server's INFO, for servers configured with `handshake_first`."""
    open_socket: OpenSocket | None = None
    """Coroutine function that returns a connected, non-blocking stream socket for each connection, in place
    of one to the URL's host and port: for tunnels, and for servers in the same process."""
    websocket_headers: WebsocketHeaders | None = field(default=None, repr=False)
    """Further headers of a WebSocket handshake (`ws://`, `wss://`), or a function or coroutine function that
    returns them for each connection. A value may be a list."""
    websocket_compression: bool = False
    """Offer compression (permessage-deflate) to WebSocket servers."""
    connect_timeout: float = 5.0
    """Per server, for TCP, TLS and the NATS handshake together."""
    request_timeout: float = 5.0
    """Default of `request` and `flush`."""
    drain_timeout: float = 30.0
    """How long `Client.drain` waits for subscribers to process received messages."""
    ping_interval: float = 120.0
    max_outstanding_pings: int = 2
    """Number of unanswered PINGs after which the connection is stale."""
    retry_on_failed_connect: bool = False
    """If no server can be reached at first, `connect` returns a client in state `connecting`, which goes on
    as after a lost connection. `Client.wait_connected` waits for it."""
    reconnect: bool = True
    max_reconnects: int | None = None
    """Consecutive failed attempts after which a server is removed; None: no limit."""
    reconnect_wait: float = 0.1
    """Pause before the second round through the servers. It doubles each round up to reconnect_wait_max, and
    is randomly shortened by up to half, so that clients do not reconnect all at once."""
    reconnect_wait_max: float = 5.0
    reconnect_delay: Callable[[int], float] | None = None
    """Returns the pause in seconds after the n-th round (from 1), without jitter; replaces the two above."""
    reconnect_buffer_bytes: int = 8 * 1024 * 1024
    """Bytes of publishes buffered while disconnected; beyond, publish raises DisconnectedError."""
    choose_server: ChooseServer | None = None
    """Function that chooses the server of each attempt to reconnect. It gets the candidates and the latest
    INFO, and returns the URL of a candidate (None: the next in turn) and the seconds to wait before."""
    randomize: bool = True
    """Shuffle the server list."""
    ignore_discovered: bool = False
    """Do not connect to servers that the cluster announces, only to the given ones."""
    echo: bool = True
    """Whether subscriptions receive this client's own publishes."""
    pedantic: bool = False
    """Let the server validate publish subjects too."""
    inbox_prefix: str = "_INBOX"
    max_pending_messages: int = 524_288
    """Default limit of a subscription's queue. Beyond it messages are dropped with a SlowConsumerError."""
    max_pending_bytes: int = 64 * 1024 * 1024
    tracing: "Tracing | None" = None
    """Tracer that puts contexts into messages and restores them: `penstock.client.tracing.Tracing`."""
    on_connected: ClientCallback | None = None
    """Called once, with the first connection."""
    on_disconnected: ErrorCallback | None = None
    """Called with the client and the cause each time a connection is lost."""
    on_reconnected: ClientCallback | None = None
    on_closed: ClientCallback | None = None
    on_error: ErrorCallback | None = None
    """Called with asynchronous errors: slow consumers, permissions, failing callbacks. Default: they are
    logged by logger `penstock.client`."""
    on_lame_duck: ClientCallback | None = None
    """The server will shut down soon."""
    on_discovered: ClientCallback | None = None
    """The server announced other servers of its cluster."""

    def __post_init__(self) -> None:
        positive = (
            "connect_timeout",
            "request_timeout",
            "drain_timeout",
            "ping_interval",
            "max_outstanding_pings",
            "reconnect_wait",
            "reconnect_wait_max",
            "max_pending_messages",
            "max_pending_bytes",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise MisuseError(f"{name} is {getattr(self, name)!r}; it must be above 0")
        if self.reconnect_buffer_bytes < 0:
            raise MisuseError("reconnect_buffer_bytes is negative; 0 keeps nothing while disconnected")
        if self.token is not None and self.user is not None:
            raise MisuseError("token and user are both given; a server takes one of them")
        ways = ("nkey_seed", "nkey_seed_file", "credentials", "credentials_text", "user_jwt_cb")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise MisuseError(f"{' and '.join(given)} are given; a client has one of them")
        if self.signature_cb is not None and self.user_jwt_cb is None:
            raise MisuseError("signature_cb is given without user_jwt_cb, whose JWT it proves")
        if (self.user is None) != (self.password is None):
            raise MisuseError("user and password belong together; one of them is missing")
