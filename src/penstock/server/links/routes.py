"""The routes of a server: listener, dialling, client URLs, reload.

`penstock.cluster.mesh` decides which links there are; this object has the sockets.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cluster.mesh import Mesh
from penstock.cluster.peer_link import Address
from penstock.cluster.route_info import RouteInfo
from penstock.cluster.route_link import Dial
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.net import sockets
from penstock.net.backlog import Bounds
from penstock.net.route_connection import RouteConnection
from penstock.protocol.hosts import host_checked
from penstock.server.config.option_checks import host_and_port
from penstock.server.links import local_addresses
from penstock.server.links.link_server import Encrypted, LinkServer, bounds_for, is_address
from penstock.server.links.replication_session import ReplicationSession
from penstock.server.links.route_session import RouteSession
from penstock.server.links.route_settings import settings_of
from penstock.server.server_identity import RUNTIME, VERSION

if TYPE_CHECKING:
    import ssl

    from penstock.cluster.interests import AccountInterests
    from penstock.replication.replication_link import ReplicationLink
    from penstock.routing.permissions import PermissionRules
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.links.gateway_server import GatewayServer
    from penstock.server.links.replication_session import SessionOwner
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick

DIAL_TIMEOUT_S = 1.0


class Routes(LinkServer[RouteSession]):
    """The routes of one server.

    Args:
        context: options with a cluster; log, clock, identity.
        accounts: the accounts of the server.
        interests: what they announce.
        tick: ends of ticks.
        client_urls: callable(kind) -> this server's own URLs for clients, kind "nats" or "websocket".
        leaf_urls: callable() -> its addresses for leaf nodes.
        urls_changed: the URLs of other servers differ, and clients must learn of it.
        peer_changed: callable(server id, is_here): another server came or went.
        gateways: callable() -> the gateway links of this server; None = there are none.
    """

    kind = "route"

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        interests: AccountInterests,
        tick: Tick,
        *,
        client_urls: Callable[[str], list[str]],
        leaf_urls: Callable[[], list[str]],
        urls_changed: Callable[[], object],
        peer_changed: Callable[[str, bool], object],
        gateways: Callable[[], GatewayServer | None],
    ) -> None:
        super().__init__(context, accounts, interests, tick, bounds_of(context.options))
        self._own_urls = client_urls
        self._leaf_urls = leaf_urls
        self._on_urls = urls_changed
        self._on_peer = peer_changed
        self._gateways = gateways
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        self._replication = 0
        self._on_replication: Callable[[RouteConnection], object] | None = None
        self.is_leaving = False
        self._open_tls(context.options)
        name = context.options.name_of_cluster
        self.mesh = Mesh(
            settings_of(context.options),
            self,
            interests,
            context.clock,
            server_id=context.server_id,
            server_name=context.server_name,
            cluster_name=name or _new_name(),
            is_dynamic=not name,
        )

    # -- for the server

    async def open(self) -> None:
        """Listens for other servers, and dials the configured ones. Raises ServerError."""
        cluster = self._context.options.cluster
        assert cluster is not None
        for account in self._accounts.values():
            self.mesh.interest.watch(account)
        self._accounts.when_created(self.mesh.interest.watch)
        self._accounts.when_removed(self.mesh.forget)
        self._accounts.when_shared(self._expect_replies)
        await self._listen(lambda: self._connection(None), cluster.host, cluster.port)
        log = self._context.log
        log.info(f"Cluster name is {self.mesh.cluster_name}")
        if self.mesh.is_dynamic:
            log.warning("Cluster name was dynamically generated, consider setting one")
        log.info(f"Listening for route connections on {Address(cluster.host, self.port)}")
        self.mesh.start()

    @property
    def sessions(self) -> list[RouteSession]:
        """The registered routes, oldest first."""
        links = set(self.mesh.links)
        return [session for session in self._sessions.values() if session.link in links]

    def lame_duck(self) -> None:
        """Accepts no more servers, and tells the others that clients shall go elsewhere."""
        self.is_leaving = True
        self._stop_listening()
        self.mesh.lame_duck()

    def _stop_links(self) -> None:
        self.mesh.stop()

    def renew(self) -> None:
        """Applies the current options."""
        self._renew_bounds(bounds_of(self._context.options))
        self.mesh.rename(self._context.options.name_of_cluster)
        self.mesh.renew(settings_of(self._context.options))

    def prepared_tls(self, options: ServerOptions) -> Callable[[], object]:
        """Reads the TLS files of these options; returns what uses them for new connections. Raises
        ConfigError."""
        made = _contexts_of(options)

        def commit() -> None:
            self._contexts = made

        return commit

    def leaf_urls(self) -> list[str]:
        """The addresses for leaf nodes of the other servers, each once."""
        found: dict[str, None] = {}
        for link in self.mesh.peers.values():
            if link.remote is not None:
                found.update(dict.fromkeys(link.remote.leafnode_urls or ()))
        return list(found)

    # -- ports of the mesh

    def dial(self, dial: Dial) -> None:
        self._start_dial(self._connect(dial))

    def base_info(self) -> RouteInfo:
        options = self._context.options
        cluster = options.cluster
        assert cluster is not None
        host, port, ip = cluster.host, self.port, ""
        if cluster.advertise:
            host, advertised = host_and_port("cluster.advertise", cluster.advertise)
            port = advertised or port
            ip = f"nats-route://{Address(host, port)}/"
        own = [] if self.is_leaving else self._own_urls("nats")
        gateways = self._gateways()
        return RouteInfo(
            server_id=self._context.server_id,
            server_name=self._context.server_name,
            version=VERSION,
            go=RUNTIME,
            host=host,
            port=port,
            ip=ip,
            max_payload=options.max_payload,
            tls_required=cluster.tls is not None,
            tls_verify=cluster.tls is not None,
            connect_urls=own or None,
            ws_connect_urls=([] if self.is_leaving else self._own_urls("websocket")) or None,
            leafnode_urls=self._leaf_urls() or None,
            replication=self._replication,
            gateway_url=gateways.own_url if gateways is not None else "",
        )

    def rules(self) -> PermissionRules | None:
        cluster = self._context.options.cluster
        assert cluster is not None
        return None if cluster.permissions is None else cluster.permissions.rules

    def urls_changed(self) -> None:
        self._on_urls()

    def peer_changed(self, server_id: str, *, is_here: bool) -> None:
        self._on_peer(server_id, is_here)
        gateways = self._gateways()
        if gateways is not None:
            gateways.peer_changed(server_id, is_here)

    def gateway_lines(self) -> list[bytes]:
        gateways = self._gateways()
        return gateways.lines_for_route() if gateways is not None else []

    def heard_of_gateway(self, info: RouteInfo) -> bool:
        gateways = self._gateways()
        if gateways is not None:
            gateways.heard_from_route(info)
        return gateways is not None

    # -- connections

    def _connection(self, dial: Dial | None) -> asyncio.BufferedProtocol:
        """The protocol object of a new socket."""
        session = RouteSession(
            self._context,
            self.mesh,
            self._take_cid(),
            self._tick.dirty_sinks,
            self._watch,
            dial,
            self._on_ended,
            self._hand_over,
        )
        self._keep(session)
        gateways = self._gateways()
        if gateways is not None:
            session.ingress.note_replies(gateways.gateways.replies)
        return self._outermost(session, None if dial is None else dial.address.host)

    def _outermost(self, session: Encrypted, host: str | None) -> asyncio.BufferedProtocol:
        """The protocol object of a session's socket; host: as dialled, None = accepted."""
        if self._contexts is None:
            return session.connection
        cluster = self._context.options.cluster
        assert cluster is not None
        assert cluster.tls is not None
        accepting, connecting = self._contexts
        if host is None:
            return self._encrypted(session, accepting, cluster.tls.timeout_ns, None)
        return self._encrypted(session, connecting, cluster.tls.timeout_ns, self._tls_name(host))

    # -- replicated groups

    def count_peers(self) -> tuple[int, int]:
        """How many servers there are routes to, and how many of these replicate."""
        peers = self.mesh.peers.values()
        return len(peers), sum(one.remote is not None and one.remote.replication > 0 for one in peers)

    def serve_replication(self, version: int, accepted: Callable[[RouteConnection], object]) -> None:
        """Connections whose peers want to replicate go to `accepted`, after the authorization of a route. New
        INFO says that this server takes them."""
        self._replication, self._on_replication = version, accepted

    def _hand_over(self, session: RouteSession) -> bool:
        if self._on_replication is None:
            return False
        self._forget(session)
        self._on_replication(session.connection)
        return True

    def replication_session(
        self, link: ReplicationLink, owner: SessionOwner, connect_line: Callable[[RouteInfo], bytes]
    ) -> ReplicationSession:
        """A session for a connection that this server dials."""
        session = ReplicationSession(self._context, link, owner, connect_line)
        ingress = RouteIngress(RouteSink(self._tick.dirty_sinks, session), None, RouteParser())
        session.begin(RouteConnection(ingress, self._watch, session, kind="route"))
        return session

    async def dial_replication(self, address: Address, session: ReplicationSession) -> None:
        """Connects such a session. Raises OSError."""
        host = await self._address(address)
        if not host:
            raise OSError(f"{address} is this server's own")
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await self._loop.create_connection(
                lambda: self._outermost(session, address.host), host, address.port
            )

    def _tls_name(self, host: str) -> str:
        """The name that a server's certificate must have. An address from a peer gets the first host
        name among the routes, because certificates seldom name addresses."""
        names = [one.host for one in self.mesh.settings.routes if not is_address(one.host)]
        return names[0] if is_address(host) and names else host

    async def _connect(self, dial: Dial) -> None:
        try:
            host = await self._address(dial.address)
            if not host:
                return
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._loop.create_connection(lambda: self._connection(dial), host, dial.address.port)
        except OSError as error:  # TimeoutError is one
            self.mesh.dial_failed(dial, error.strerror or str(error) or "timeout")

    async def _address(self, address: Address) -> str:
        """One of the addresses of the host, at random; "" if all are this server's."""
        with host_checked(address.host):
            found = await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        hosts = list(dict.fromkeys(str(one[4][0]) for one in found))
        if address.port == self.port and self._context.options.cluster is not None:
            hosts = [host for host in hosts if not self._is_own(host)]
        return hosts[int(self._context.random() * len(hosts))] if hosts else ""

    def _is_own(self, host: str) -> bool:
        assert self._listener is not None
        listening = self._listener.host
        return host == listening or (listening in sockets.WILDCARDS and local_addresses.is_own(host))

    def _open_tls(self, options: ServerOptions) -> None:
        self._contexts = _contexts_of(options)


def _contexts_of(options: ServerOptions) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    assert options.cluster is not None
    tls = options.cluster.tls
    if tls is None:
        return None
    from penstock.net.tls import peer_contexts

    return peer_contexts(
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        ca_file=tls.ca_file,
        min_version=tls.min_version,
        cipher_suites=tls.cipher_suites,
        insecure=tls.insecure,
    )


def bounds_of(options: ServerOptions) -> Bounds:
    """Back pressure limits of routes."""
    cluster = options.cluster
    assert cluster is not None
    return bounds_for(options, cluster.write_deadline_ns, cluster.write_timeout)


def _new_name() -> str:
    """A generated cluster name."""
    import os

    from penstock.protocol.ids import NuidGenerator

    return NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)()
