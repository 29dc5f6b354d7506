"""What connects this server to others: routes, leaf nodes, gateways, and replication over the routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.kernels.wire.gateway_links import GatewayReplies
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.auth.logins import Logins
    from penstock.server.client_info import ClientInfo
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.links.gateway_server import GatewayServer
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.links.leafs import Leafs
    from penstock.server.links.link_session import LinkSession
    from penstock.server.links.replication_service import ReplicationService, ReplicationSetup
    from penstock.server.links.routes import Routes
    from penstock.server.monitoring.system_service import SystemService
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick


class ServerLinks:
    """The links of one server. Each kind is None where it is not configured, and until open().

    Args:
        context: options, log and identity of the server.
        accounts: whose clients and messages cross the links.
        logins: check leaf nodes that connect.
        system: publishes events of links.
        jetstream: the server's JetStream, None = it has none.
        info: INFO for clients, which tells the addresses of others.
        urls_changed: called when the client URLs of other servers differ.
        setup: groups to replicate where JetStream has none of its own.
    """

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        logins: Logins,
        system: SystemService,
        jetstream: Callable[[], JetStreamService | None],
        info: ClientInfo,
        urls_changed: Callable[[], None],
        setup: ReplicationSetup | None,
    ) -> None:
        self.routes: Routes | None = None
        self.leafs: Leafs | None = None
        self.gateways: GatewayServer | None = None
        self.replication: ReplicationService | None = None
        self._context = context
        self._accounts = accounts
        self._logins = logins
        self._system = system
        self._jetstream = jetstream
        self._info = info
        self._urls_changed = urls_changed
        self._setup = setup
        self._is_closing = False

    async def open(self, tick: Tick) -> None:
        """Listens for other servers and dials them: leaf nodes first, so that routes can tell their
        addresses. Raises ServerError."""
        options = self._context.options
        if options.cluster is None and options.leafnodes is None and options.gateway is None:
            return
        from penstock.cluster.interests import AccountInterests

        counts_remote = options.leafnodes is not None or options.gateway is not None
        interests = AccountInterests(self._accounts, counts_remote=counts_remote)
        await self._open_gateways(tick, interests)  # before leaf nodes and routes, which tell its address
        await self._open_leafs(tick, interests)
        await self._open_routes(tick, interests)
        if self.gateways is not None:
            self.gateways.start()

    async def hand_over(self) -> None:
        """Hands over what this server leads to other servers."""
        if self.replication is not None:
            await self.replication.hand_over()

    def lame_duck(self) -> None:
        """Tells other servers that clients must not connect to this one any more.

        Gateways go on, and accept others, as on the official server: the clients that are left here may have
        no other way to other clusters.
        """
        if self.leafs is not None:
            self.leafs.lame_duck()
        if self.routes is not None:
            self.routes.lame_duck()

    def shutting_down(self) -> None:
        """From now on links that come or go are no events."""
        self._is_closing = True

    async def close(self) -> None:
        """Closes all links. Idempotent."""
        self._is_closing = True
        if self.leafs is not None:
            await self.leafs.close()
        self._close_replication()
        if self.gateways is not None:
            await self.gateways.close()
        if self.routes is not None:
            await self.routes.close()

    async def _open_gateways(self, tick: Tick, interests: AccountInterests) -> None:
        if self._context.options.gateway is None:
            return
        from penstock.server.links.gateway_server import GatewayServer

        self.gateways = GatewayServer(
            self._context,
            self._accounts,
            interests,
            tick,
            mesh=lambda: self.routes.mesh if self.routes is not None else None,
            changed=self._system.gateways_changed,
        )
        self.gateways.report_traces(self._take_traced)
        await self.gateways.open()
        self._info.rebuild()

    async def _open_leafs(self, tick: Tick, interests: AccountInterests) -> None:
        if self._context.options.leafnodes is None:
            return
        from penstock.server.links.leafs import Leafs

        self.leafs = Leafs(
            self._context,
            self._accounts,
            self._logins,
            interests,
            tick,
            cluster_name=self._cluster_name,
            other_urls=lambda: self.routes.leaf_urls() if self.routes is not None else [],
            websocket_urls=self._info.all_websocket_urls,
            changed=self._on_leaf_changed,
            replies=self._routed_replies,
        )
        self._accounts.keep_linked(lambda name: self.leafs is not None and self.leafs.num_links(name) > 0)
        self.leafs.report_traces(self._take_traced)
        await self.leafs.open()

    async def _open_routes(self, tick: Tick, interests: AccountInterests) -> None:
        if self._context.options.cluster is None:
            return
        from penstock.server.links.routes import Routes

        self.routes = Routes(
            self._context,
            self._accounts,
            interests,
            tick,
            client_urls=self._info.own_urls,
            leaf_urls=lambda: self.leafs.own_urls() if self.leafs is not None else [],
            urls_changed=self._on_urls_changed,
            peer_changed=self._system.peer_changed,
            gateways=lambda: self.gateways,
        )
        self._open_replication(self.routes)
        self.routes.report_traces(self._take_traced)
        await self.routes.open()
        self._info.rebuild()

    def _open_replication(self, routes: Routes) -> None:
        setup, jetstream = self._setup, self._jetstream()
        if jetstream is not None and jetstream.cluster is not None:
            setup = jetstream.cluster.setup(jetstream, routes.count_peers)
        if setup is not None:
            from penstock.server.links.replication_service import ReplicationService

            self.replication = ReplicationService(self._context, routes, setup)

    def _close_replication(self) -> None:
        jetstream = self._jetstream()
        if jetstream is not None and jetstream.cluster is not None:
            jetstream.cluster.close()
        if self.replication is not None:
            self.replication.close()

    def _routed_replies(self) -> GatewayReplies:
        """Replies that gateways have routed; a server without gateways may have them from leaf nodes."""
        from penstock.kernels.wire.gateway_links import GatewayReplies

        return self.gateways.gateways.replies if self.gateways is not None else GatewayReplies()

    def _take_traced(self, session: LinkSession, *message: Any) -> int | bytes | None:
        from penstock.server.monitoring.message_trace import TracePorts, take_traced  # rarely needed

        ports = TracePorts(self._context, self._accounts, self._jetstream, self._system)
        return take_traced(ports, session, *message)

    def _cluster_name(self) -> str:
        """The name of this server's cluster; "" = none."""
        return (
            self.routes.mesh.cluster_name
            if self.routes is not None
            else self._context.options.name_of_cluster
        )

    def _on_urls_changed(self) -> None:
        """The client URLs of other servers differ."""
        self._urls_changed()
        if self.leafs is not None and not self._is_closing:
            self.leafs.nodes.urls_changed()

    def _on_leaf_changed(self, session: LeafSession, is_here: bool) -> None:
        """A leaf node link was registered, or is gone."""
        if self._is_closing:
            return
        self._system.leaf_changed(session, is_here)
        jetstream = self._jetstream()
        if jetstream is not None and is_here and session.link.account is not None:
            jetstream.resume_sourcing(session.link.account.name)
