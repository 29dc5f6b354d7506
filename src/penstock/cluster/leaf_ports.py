"""The ports of a server's leaf node links: their options, what they use of the server, addresses of hubs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from penstock.cluster.peer_link import Wire
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cluster.leaf_info import LeafConnect, LeafInfo
    from penstock.cluster.leaf_link import LeafLink
    from penstock.cluster.leaf_remote import LeafRemote
    from penstock.routing.permissions import Permissions

DEFAULT_PORT = 7422
WEBSOCKET_SCHEMES = ("ws", "wss")


class LeafAddress(NamedTuple):
    """Where a hub is dialled, and as whom."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str | None = None
    path: str = ""
    """Of a WebSocket, before `/leafnode`."""

    @property
    def is_websocket(self) -> bool:
        return self.scheme in WEBSOCKET_SCHEMES

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def shown(self) -> str:
        """The URL without its password."""
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{self}"

    def is_same(self, other: LeafAddress) -> bool:
        """Whether both name the same host and port."""
        return self.host.lower() == other.host.lower() and self.port == other.port


def leaf_address_of(url: str) -> LeafAddress:
    """The address in the URL of a remote. Raises ConfigError."""
    try:
        parts = urlsplit(url if "://" in url else f"nats-leaf://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            f'error parsing leafnode url "{url}": {error}; write it as "nats-leaf://host:port"'
        ) from error
    if not host:
        raise ConfigError(f'error parsing leafnode url "{url}": write it as "nats-leaf://host:port"')
    password = None if parts.password is None else unquote(parts.password)
    return LeafAddress(
        parts.scheme.lower(),
        host,
        port or DEFAULT_PORT,
        unquote(parts.username or ""),
        password,
        parts.path if parts.scheme.lower() in WEBSOCKET_SCHEMES else "",
    )


class RemoteSettings(Protocol):
    """The options of one remote; `server.config.leaf_options` documents them."""

    @property
    def addresses(self) -> tuple[LeafAddress, ...]: ...
    @property
    def account(self) -> str: ...
    @property
    def credentials(self) -> str: ...
    @property
    def nkey(self) -> str: ...
    @property
    def hub(self) -> bool: ...
    @property
    def deny_imports(self) -> tuple[str, ...]: ...
    @property
    def deny_exports(self) -> tuple[str, ...]: ...
    @property
    def compression(self) -> str: ...
    @property
    def rtt_thresholds_ns(self) -> tuple[int, ...]: ...
    @property
    def isolate(self) -> bool: ...
    @property
    def request_isolation(self) -> bool: ...
    @property
    def no_randomize(self) -> bool: ...
    @property
    def disabled(self) -> bool: ...
    @property
    def ignore_discovered_servers(self) -> bool: ...
    @property
    def first_info_timeout_ns(self) -> int: ...
    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for two options of the same remote."""

    @property
    def handshake(self) -> tuple[object, ...]:
        """The options that the handshake agrees on. A change of them ends the connection."""


class LeafSettings(Protocol):
    """The options that all links of a server share."""

    @property
    def remotes(self) -> tuple[RemoteSettings, ...]: ...
    @property
    def reconnect_ns(self) -> int: ...
    @property
    def compression(self) -> str: ...
    @property
    def rtt_thresholds_ns(self) -> tuple[int, ...]: ...
    @property
    def isolate(self) -> bool: ...
    @property
    def min_version(self) -> str: ...
    @property
    def headers(self) -> bool: ...
    @property
    def domain(self) -> str: ...
    @property
    def has_jetstream(self) -> bool: ...
    @property
    def extension_hint(self) -> str: ...
    @property
    def default_domains(self) -> Mapping[str, str]: ...
    @property
    def system_account(self) -> str:
        """ "" = there is none."""


class Login(Protocol):
    """An accepted login."""

    @property
    def account(self) -> str: ...
    @property
    def permissions(self) -> Permissions | None: ...


class LeafWire(Wire, Protocol):
    """What a link uses of its connection."""

    @property
    def is_websocket(self) -> bool:
        """The connection is a WebSocket."""

    def encrypt(self) -> None:
        """Begins the TLS handshake as client, unless the connection is encrypted. Output waits for it."""

    def authenticate(self, connect: LeafConnect, then: Callable[[Login | None], None]) -> None:
        """Checks a CONNECT; calls then(login), None = refused. Input waits until then."""

    def connecting(self) -> None:
        """Called when CONNECT is sent. Limits the time for the hub's answer."""


class LeafPorts(Protocol):
    """What the links use of their server."""

    def dial(self, remote: LeafRemote, address: LeafAddress) -> None:
        """Starts to connect. `LeafNodes.opened` or `LeafNodes.dial_failed` follows."""

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object: ...
    def random(self) -> float:
        """From [0, 1)."""

    def base_info(self) -> LeafInfo:
        """INFO with what the server knows: identity, address, URLs."""

    def cluster_name(self) -> str:
        """Name of this server's cluster; "" = none."""

    def proof(self, remote: RemoteSettings, nonce: str) -> LeafConnect:
        """CONNECT with the remote's credentials: token and signature. Raises ConfigError."""

    def has_room(self, account: str) -> bool:
        """Whether the account may have one more leaf node."""

    def new_id(self) -> str:
        """A unique name, one subject token."""

    def routed_subjects(self) -> tuple[bytes, ...]:
        """What replies begin with that gateways have routed; () = this server has no gateways."""

    def joined(self, link: LeafLink) -> None:
        """Called when a link is registered."""

    def left(self, link: LeafLink) -> None:
        """Called when a registered link has ended."""

    def log_notice(self, text: str) -> None: ...
    def log_warning(self, text: str) -> None: ...
    def log_error(self, text: str) -> None: ...
    def log_debug(self, text: str) -> None: ...
