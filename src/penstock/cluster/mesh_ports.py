"""What a mesh takes: its options, what it uses of its server, and the addresses of routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from penstock.cluster.peer_link import Address
from penstock.cluster.route_info import RouteInfo
from penstock.cluster.route_link import Dial
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.routing.permissions import PermissionRules


class MeshSettings(Protocol):
    """The options of a mesh; `server.config.cluster_options` documents them."""

    @property
    def routes(self) -> tuple[Address, ...]: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def pool_size(self) -> int:
        """Negative = no pool."""

    @property
    def pinned_accounts(self) -> tuple[str, ...]: ...
    @property
    def no_advertise(self) -> bool: ...
    @property
    def connect_retries(self) -> int: ...
    @property
    def connect_backoff(self) -> bool: ...
    @property
    def compression(self) -> str: ...
    @property
    def rtt_thresholds_ns(self) -> tuple[int, ...]: ...
    @property
    def headers(self) -> bool: ...
    @property
    def permissions_shown(self) -> tuple[Any, Any]:
        """(import, export) as INFO shows them."""


class MeshPorts(Protocol):
    """What a mesh uses of its server."""

    def dial(self, dial: Dial) -> None:
        """Starts to connect. `Mesh.accept` with the dial, `Mesh.dial_failed` or nothing (when the address is
        this server) follows."""

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object: ...
    def random(self) -> float:
        """From [0, 1)."""

    def base_info(self) -> RouteInfo:
        """INFO with what the server knows: identity, address, client URLs."""

    def rules(self) -> PermissionRules | None:
        """The cluster permissions: import as publish, export as subscribe; None = everything is allowed."""

    def urls_changed(self) -> None:
        """Called when `Mesh.client_urls` or `Mesh.cluster_name` has changed."""

    def peer_changed(self, server_id: str, *, is_here: bool) -> None:
        """Called when the first link of a peer is registered, and when its last one has ended."""

    def gateway_lines(self) -> list[bytes]:
        """The lines about other clusters for a new peer."""

    def heard_of_gateway(self, info: RouteInfo) -> bool:
        """A peer tells about another cluster; returns whether this server has gateways."""

    def log_notice(self, text: str) -> None: ...
    def log_error(self, text: str) -> None: ...
    def log_debug(self, text: str) -> None: ...


def address_of(url: str, what: str = "routes") -> Address:
    """The address in the URL of a route or gateway; the scheme does not matter. Raises ConfigError, which
    says `what` it is."""
    try:
        parts = urlsplit(url if "://" in url else f"nats-route://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            f'error parsing {what} url "{url}": {error}; write it as "nats://host:port"'
        ) from error
    if not host or not port:
        raise ConfigError(f'error parsing {what} url "{url}": write it as "nats://host:port"')
    return Address(host, port, unquote(parts.username or ""), unquote(parts.password or ""))
