"""One connection to another server of the cluster: a socket, its timers, and the link that it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cluster.peer_link import LinkState
from penstock.cluster.route_link import RouteLink
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.net.reasons import CloseReason
from penstock.server.links.link_session import LinkSession

if TYPE_CHECKING:
    from penstock.cluster.mesh import Mesh
    from penstock.cluster.route_link import Dial
    from penstock.kernels.wire.sinks import DirtyList
    from penstock.net.backlog import BacklogWatch
    from penstock.server.server_context import ServerContext


class RouteSession(LinkSession):
    """A connection to another server of the cluster.

    Args:
        context: options, log and clock.
        mesh: the routes of this server.
        cid: connection number.
        dirty_sinks: the sinks with output for the end of the tick.
        watch: observes routes whose peers are slow.
        dial: why this server dialled; None = the peer did.
        ended: called with the session when its connection is closed.
        hand_over: called with the session when its peer wants to replicate; returns whether it may.
    """

    tag = "rid"
    what = "Router"
    trace_kind = 1

    def __init__(
        self,
        context: ServerContext,
        mesh: Mesh,
        cid: int,
        dirty_sinks: DirtyList,
        watch: BacklogWatch,
        dial: Dial | None,
        ended: Callable[[RouteSession, CloseReason], object],
        hand_over: Callable[[RouteSession], bool],
    ) -> None:
        sink = RouteSink(dirty_sinks, self)
        ingress = RouteIngress(sink, None, RouteParser())
        super().__init__(context, cid, sink, ingress, watch, "route", ended)
        self._mesh = mesh
        self._hand_over = hand_over
        self.link: RouteLink = RouteLink(mesh, cid, self, sink, ingress, dial)

    def _connected(self) -> None:
        cluster = self.context.options.cluster
        assert cluster is not None
        timeout_ns = cluster.auth_timeout_ns
        if cluster.tls is not None:
            timeout_ns += cluster.tls.timeout_ns
        self._limit(timeout_ns / 1e9)
        self.context.log.info(f"{self.name} - Route connection created")
        self._mesh.opened(self.link)

    def hand_over(self) -> bool:
        self._stop_timer()
        self.keep_alive.stop()
        return self._hand_over(self)

    def _on_timeout(self) -> None:
        self._timer = None
        if self.link.state is LinkState.GREETING:
            self.link.refuse("Authentication Timeout", CloseReason.AUTHENTICATION_TIMEOUT)
        elif self.link.state is LinkState.EXPECTING:
            self._on_stale()
