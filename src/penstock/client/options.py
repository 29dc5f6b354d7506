"""What a client can be told when it connects. Frozen and checked once; the defaults are here alone.

Times are seconds, sizes bytes. Rejected: reading environment variables or context files here (the command
line does that and passes what it found).
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from penstock.client.credentials import SignatureCallback, TokenCallback
from penstock.errors import MisuseError

if TYPE_CHECKING:
    from penstock.client.client import Client

# Event callbacks may be plain functions or coroutine functions.
ClientCallback = Callable[["Client"], Awaitable[Any] | None]
ErrorCallback = Callable[["Client", Exception], Awaitable[Any] | None]

DEFAULT_SERVER = "nats://127.0.0.1:4222"


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of `connect`; `Options` says what each means and its default."""

    name: str
    user: str | None
    password: str | None
    token: str | None
    nkey_seed: str | None
    nkey_seed_file: str | os.PathLike[str] | None
    credentials: str | os.PathLike[str] | tuple[str, str] | None
    user_jwt_cb: TokenCallback | None
    signature_cb: SignatureCallback | None
    tls: ssl.SSLContext | bool | None
    tls_hostname: str | None
    tls_handshake_first: bool
    connect_timeout: float
    request_timeout: float
    drain_timeout: float
    ping_interval: float
    max_outstanding_pings: int
    reconnect: bool
    max_reconnects: int | None
    reconnect_wait: float
    reconnect_wait_max: float
    reconnect_buffer_bytes: int
    randomize: bool
    echo: bool
    pedantic: bool
    inbox_prefix: str
    max_pending_messages: int
    max_pending_bytes: int
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
    """Shown by the server's connection listing."""
    user: str | None = None
    """User name; credentials in a server's URL win over these."""
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    """Seed of the user's nkey (`SU...`), which signs what the server asks to."""
    nkey_seed_file: str | os.PathLike[str] | None = None
    """File that holds the seed; read anew for each connection."""
    credentials: str | os.PathLike[str] | tuple[str, str] | None = field(default=None, repr=False)
    """Credentials file of a user (JWT and seed), read anew for each connection; or (JWT, seed)."""
    user_jwt_cb: TokenCallback | None = None
    """Called (or awaited) for the user's JWT before each connection, in place of `credentials`."""
    signature_cb: SignatureCallback | None = None
    """Called (or awaited) with the server's nonce, returns the 64 bytes of the signature; with `user_jwt_cb`,
    which a bearer token has alone."""
    tls: ssl.SSLContext | bool | None = None
    """A context, or True for the system's default one. Servers that require TLS get it anyway."""
    tls_hostname: str | None = None
    """Name to check the certificate against; default: the URL's host."""
    tls_handshake_first: bool = False
    """Start TLS before the server's INFO, for servers configured with `handshake_first`."""
    connect_timeout: float = 5.0
    """For one server: TCP, TLS and the NATS handshake together."""
    request_timeout: float = 5.0
    """Default of `request` and `flush`."""
    drain_timeout: float = 30.0
    """How long `Client.drain` lets subscribers work off what arrived."""
    ping_interval: float = 120.0
    max_outstanding_pings: int = 2
    """So many unanswered PINGs make the connection stale."""
    reconnect: bool = True
    max_reconnects: int | None = None
    """Failed attempts in a row before a server is given up; None: never."""
    reconnect_wait: float = 0.1
    """Wait before the second round through the servers; doubles each round up to reconnect_wait_max, and a
    random part of up to half is taken off, so that clients don't come back all at once."""
    reconnect_wait_max: float = 5.0
    reconnect_buffer_bytes: int = 8 * 1024 * 1024
    """What is published while disconnected, up to so many bytes; beyond, publish raises DisconnectedError."""
    randomize: bool = True
    """Shuffle the server list."""
    echo: bool = True
    """Whether own subscriptions get own publishes."""
    pedantic: bool = False
    """Let the server check publish subjects too."""
    inbox_prefix: str = "_INBOX"
    max_pending_messages: int = 524_288
    """Default bound of a subscription's queue; beyond, messages are dropped and SlowConsumerError told."""
    max_pending_bytes: int = 64 * 1024 * 1024
    on_disconnected: ErrorCallback | None = None
    """Called with the client and why, each time a connection is lost."""
    on_reconnected: ClientCallback | None = None
    on_closed: ClientCallback | None = None
    on_error: ErrorCallback | None = None
    """Called with errors that belong to no call: slow consumers, permissions, failing callbacks.
    Default: they are logged as warnings of logger `penstock.client`."""
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
        ways = ("nkey_seed", "nkey_seed_file", "credentials", "user_jwt_cb")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise MisuseError(f"{' and '.join(given)} are given; a client has one of them")
        if self.signature_cb is not None and self.user_jwt_cb is None:
            raise MisuseError("signature_cb is given without user_jwt_cb, whose JWT it proves")
        if (self.user is None) != (self.password is None):
            raise MisuseError("user and password belong together; one of them is missing")
