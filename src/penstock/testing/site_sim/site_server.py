"""One server of a site: that of `cluster_sim`, with gateway links and leaf node links.

What the server's own code would add is left out: sockets, TLS, compression, pings, users. A leaf node logs in
as a user with the name of the account that it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.cluster.gateway_info import GatewayInfo
from penstock.cluster.gateway_link import GatewayLink
from penstock.cluster.gateways import GatewayRemote, Gateways, cluster_hash
from penstock.cluster.leaf_info import LeafConnect, LeafInfo
from penstock.cluster.leaf_link import LeafLink
from penstock.cluster.leaf_nodes import LeafNodes
from penstock.cluster.leaf_ports import LeafAddress, Login, RemoteSettings
from penstock.cluster.leaf_remote import LeafRemote
from penstock.cluster.peer_link import Address
from penstock.cluster.route_info import RouteInfo
from penstock.kernels.wire.gateway_links import GatewayIngress, GatewayReplies, GatewaySink
from penstock.kernels.wire.leaf_links import LeafIngress, LeafSink
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.routing.account import Account
from penstock.routing.permissions import Permissions
from penstock.testing.cluster_sim.sim_member import Door, SimMember, SimSettings, SimWire
from penstock.testing.cluster_sim.sim_network import SimEnd, SimNetwork

GATEWAY_PORT, LEAF_PORT = 2, 3


@dataclass(frozen=True)
class SimGatewayRemote:
    """See `penstock.cluster.gateways.GatewayRemoteSettings`."""

    name: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class SimGatewaySettings:
    """See `penstock.cluster.gateways.GatewaySettings`."""

    name: str
    remotes: tuple[SimGatewayRemote, ...]
    user: str = ""
    password: str = ""
    reject_unknown: bool = False
    connect_retries: int = 0
    connect_backoff: bool = False
    headers: bool = True


@dataclass(frozen=True)
class SimLeafRemote:
    """See `penstock.cluster.leaf_ports.RemoteSettings`."""

    addresses: tuple[LeafAddress, ...]
    account: str
    credentials: str = ""
    nkey: str = ""
    hub: bool = False
    deny_imports: tuple[str, ...] = ()
    deny_exports: tuple[str, ...] = ()
    compression: str = "off"
    rtt_thresholds_ns: tuple[int, ...] = ()
    isolate: bool = False
    request_isolation: bool = False
    no_randomize: bool = False
    disabled: bool = False
    ignore_discovered_servers: bool = False
    first_info_timeout_ns: int = 1_000_000_000
    identity: tuple[str, ...] = ()
    handshake: tuple[object, ...] = ()


@dataclass(frozen=True)
class SimLeafSettings:
    """See `penstock.cluster.leaf_ports.LeafSettings`."""

    remotes: tuple[SimLeafRemote, ...] = ()
    reconnect_ns: int = 1_000_000_000
    compression: str = "off"
    rtt_thresholds_ns: tuple[int, ...] = ()
    isolate: bool = False
    min_version: str = ""
    headers: bool = True
    domain: str = ""
    has_jetstream: bool = False
    extension_hint: str = ""
    default_domains: Mapping[str, str] = field(default_factory=dict)
    system_account: str = "SYS"


@dataclass(frozen=True)
class SiteLogin:
    """A leaf node that has logged in."""

    account: str
    permissions: Permissions | None = None


class LeafSimWire(SimWire):
    """The connection of a leaf node link."""

    is_websocket = False

    def encrypt(self) -> None:
        raise AssertionError("the simulation does not encrypt")

    def authenticate(self, connect: LeafConnect, then: Callable[[Login | None], None]) -> None:
        then(SiteLogin(connect.user) if connect.user else None)

    def connecting(self) -> None:
        """Nothing to do: a hub that does not answer is cut off."""


class SimGateways:
    """The gateway links of a server, and what they use of it."""

    def __init__(self, server: SiteServer, settings: SimGatewaySettings, clock: Callable[[], int]) -> None:
        self._server = server
        self.registry = Gateways(
            settings,
            self,
            server.interests,
            clock,
            server_id=server.server_id,
            server_name=server.server_name,
            monotonic_ns=clock,
        )
        for account in server.accounts.values():
            self.registry.watch(account)

    def accept(self, end: SimEnd) -> None:
        """A server of another cluster has connected."""
        self._attach(end, None)

    def _attach(self, end: SimEnd, remote: GatewayRemote | None) -> None:
        server = self._server
        sink = GatewaySink(server.dirty)
        ingress = GatewayIngress(sink, None, RouteParser())
        link = GatewayLink(self.registry, server.take_cid(), SimWire(end), sink, ingress, remote)
        server.carry(end, link, sink, ingress)
        self.registry.opened(link)

    def dial(self, remote: GatewayRemote) -> None:
        assert remote.address is not None
        self._server.connect(
            number_of(remote.address.host),
            GATEWAY_PORT,
            lambda end: self._attach(end, remote),
            lambda error: self.registry.dial_failed(remote, error),
        )

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        return self._server.call_later(delay_s, work)

    def random(self) -> float:
        return self._server.random()

    def base_info(self) -> GatewayInfo:
        server = self._server
        return GatewayInfo(
            server_id=server.server_id,
            server_name=server.server_name,
            host=f"host-{server.number}",
            port=GATEWAY_PORT,
            gateway_url=f"host-{server.number}:{GATEWAY_PORT}",
        )

    def accounts(self) -> Iterable[Account]:
        return self._server.accounts.values()

    def tell_routes(self, line: bytes) -> None:
        for link in self._server.mesh.peers.values():
            link.send(line)

    def route_of(self, account: bytes, server_hash: str) -> tuple[RouteSink, bytes] | None:
        for link in self._server.mesh.carriers(account.decode()):
            if cluster_hash(link.remote_id) == server_hash:
                return link.sink, b"" if link.account else account + b" "
        return None

    def has_server_named(self, name: str) -> bool:
        peers = self._server.mesh.peers.values()
        return any(link.remote is not None and link.remote.server_name == name for link in peers)

    def changed(self) -> None:
        """Ignored."""

    def log_notice(self, text: str) -> None:
        """No log."""

    def log_error(self, text: str) -> None:
        """No log."""

    def log_debug(self, text: str) -> None:
        """No log."""


class SimLeafs:
    """The leaf node links of a server, and what they use of it."""

    def __init__(self, server: SiteServer, settings: SimLeafSettings, clock: Callable[[], int]) -> None:
        self._server = server
        self._next_id = 1
        self._no_replies = GatewayReplies(clock=clock)
        self.registry = LeafNodes(
            settings,
            self,
            server.interests,
            clock,
            server_id=server.server_id,
            server_name=server.server_name,
        )

    def accept(self, end: SimEnd) -> None:
        """A leaf node has connected."""
        self._attach(end, None)

    def _attach(self, end: SimEnd, remote: LeafRemote | None) -> None:
        server = self._server
        sink = LeafSink(server.dirty)
        ingress = LeafIngress(sink, None, RouteParser())
        link = LeafLink(self.registry, server.take_cid(), LeafSimWire(end), sink, ingress, remote)
        gateways = server.gateways
        link.note_replies(gateways.registry.replies if gateways is not None else self._no_replies)
        server.carry(end, link, sink, ingress)
        self.registry.opened(link)

    def dial(self, remote: LeafRemote, address: LeafAddress) -> None:
        self._server.connect(
            number_of(address.host),
            LEAF_PORT,
            lambda end: self._attach(end, remote),
            lambda error: self.registry.dial_failed(remote, error),
        )

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        return self._server.call_later(delay_s, work)

    def random(self) -> float:
        return self._server.random()

    def base_info(self) -> LeafInfo:
        server = self._server
        urls = [f"host-{server.number}:{LEAF_PORT}"]
        for link in server.mesh.peers.values():
            assert link.remote is not None
            urls += link.remote.leafnode_urls or ()
        return LeafInfo(
            server_id=server.server_id,
            server_name=server.server_name,
            host=f"host-{server.number}",
            port=LEAF_PORT,
            leafnode_urls=urls,
        )

    def cluster_name(self) -> str:
        return self._server.mesh.cluster_name

    def proof(self, remote: RemoteSettings, nonce: str) -> LeafConnect:
        return LeafConnect()

    def has_room(self, account: str) -> bool:
        return True

    def new_id(self) -> str:
        """Unique: the id of the server is."""
        self._next_id += 1
        return f"{self._server.server_id}-{self._next_id}".ljust(16, "x")

    def routed_subjects(self) -> tuple[bytes, ...]:
        return (b"_GR_.>",) if self._server.gateways is not None else ()

    def joined(self, link: LeafLink) -> None:
        """Ignored."""

    def left(self, link: LeafLink) -> None:
        """Ignored."""

    def log_notice(self, text: str) -> None:
        """No log."""

    def log_warning(self, text: str) -> None:
        """No log."""

    def log_error(self, text: str) -> None:
        """No log."""

    def log_debug(self, text: str) -> None:
        """No log."""


class SiteServer(SimMember):
    """A server of a site. See `SimMember` for the rest.

    Args:
        gateway: options of its gateway links; None = it has none.
        leafs: options of its leaf node links.
    """

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        incarnation: int,
        settings: SimSettings,
        find: Callable[[int], SimMember | None],
        cluster_name: str,
        *,
        gateway: SimGatewaySettings | None,
        leafs: SimLeafSettings,
        compares_ids: bool = True,
    ) -> None:
        self._clock = network.clock_ns
        self._gateway_settings, self._leaf_settings = gateway, leafs
        self.gateways: SimGateways | None = None
        super().__init__(
            network,
            number,
            incarnation,
            settings,
            find,
            cluster_name,
            has_other_links=True,
            compares_ids=compares_ids,
        )

    def _open(self) -> None:
        if self._gateway_settings is not None:
            self.gateways = SimGateways(self, self._gateway_settings, self._clock)
            self.gateways.registry.start()
        self.leafs = SimLeafs(self, self._leaf_settings, self._clock)
        self.leafs.registry.start()

    def door(self, port: int) -> Door:
        if port == LEAF_PORT:
            return self.leafs
        if port == GATEWAY_PORT:
            assert self.gateways is not None
            return self.gateways
        return super().door(port)

    def _route_made(self, ingress: RouteIngress) -> None:
        if self.gateways is not None:
            ingress.note_replies(self.gateways.registry.replies)

    # -- ports of the mesh

    def base_info(self) -> RouteInfo:
        info = super().base_info()
        info.leafnode_urls = [f"host-{self.number}:{LEAF_PORT}"]
        if self.gateways is not None:
            info.gateway_url = f"host-{self.number}:{GATEWAY_PORT}"
        return info

    def urls_changed(self) -> None:
        self.leafs.registry.urls_changed()

    def gateway_lines(self) -> list[bytes]:
        return self.gateways.registry.lines_for_route() if self.gateways is not None else []

    def heard_of_gateway(self, info: RouteInfo) -> bool:
        if self.gateways is not None:
            self.gateways.registry.heard_of(info.gateway, info.gateway_urls or ())
        return self.gateways is not None

    def peer_changed(self, server_id: str, *, is_here: bool) -> None:
        super().peer_changed(server_id, is_here=is_here)
        if self.gateways is None:
            return
        link = self.mesh.peers.get(server_id) if is_here else None
        if link is not None and link.remote is not None:
            self.gateways.registry.peer_joined(server_id, link.remote.gateway_url)
        else:
            self.gateways.registry.peer_left(server_id)


def number_of(host: str) -> int:
    """The number of the server at `host-<number>`."""
    return int(host.removeprefix("host-"))
