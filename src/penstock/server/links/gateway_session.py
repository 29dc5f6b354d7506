"""One connection to a server of another cluster: a socket, its timers, and the link that it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cluster.gateway_link import GatewayLink
from penstock.cluster.peer_link import LinkState
from penstock.kernels.wire.gateway_links import GatewayIngress, GatewaySink
from penstock.kernels.wire.route_frames import RouteParser
from penstock.net.reasons import CloseReason
from penstock.server.links.link_session import LinkSession

if TYPE_CHECKING:
    from penstock.cluster.gateways import GatewayRemote, Gateways
    from penstock.kernels.wire.sinks import DirtyList
    from penstock.net.backlog import BacklogWatch
    from penstock.server.server_context import ServerContext


class GatewaySession(LinkSession):
    """A connection to a server of another cluster.

    Args:
        context: options, log and clock.
        gateways: the gateway links of this server.
        cid: connection number.
        dirty_sinks: the sinks with output for the end of the tick.
        watch: observes links whose peers are slow.
        remote: the cluster that this server dialled; None = the peer dialled.
        ended: called with the session when its connection is closed.
    """

    tag = "gid"
    what = "Gateway"
    trace_kind = 2

    def __init__(
        self,
        context: ServerContext,
        gateways: Gateways,
        cid: int,
        dirty_sinks: DirtyList,
        watch: BacklogWatch,
        remote: GatewayRemote | None,
        ended: Callable[[GatewaySession, CloseReason], object],
    ) -> None:
        sink = GatewaySink(dirty_sinks, self)
        ingress = GatewayIngress(sink, None, RouteParser())
        super().__init__(context, cid, sink, ingress, watch, "gateway", ended)
        self._gateways = gateways
        self.gateway_sink = sink
        self.link: GatewayLink = GatewayLink(gateways, cid, self, sink, ingress, remote)

    def _connected(self) -> None:
        options = self.context.options.gateway
        assert options is not None
        timeout_ns = options.auth_timeout_ns
        if options.tls is not None:
            timeout_ns += options.tls.timeout_ns
        self._limit(timeout_ns / 1e9)
        remote = self.link.remote
        what = "Processing inbound" if remote is None else f'Creating outbound gateway "{remote.name}"'
        self.context.log.info(f"{self.name} - {what} gateway connection")
        self._gateways.opened(self.link)

    def _on_timeout(self) -> None:
        self._timer = None
        if self.link.state is LinkState.GREETING:
            self.link.refuse("Authentication Timeout", CloseReason.AUTHENTICATION_TIMEOUT)
        elif self.link.state is LinkState.EXPECTING:
            self._on_stale()
