"""One connection to another server: handshake, INFO updates, pings.

States, and what the peer may send in each:

    GREETING    accepted, before CONNECT     CONNECT
    EXPECTING   before the peer is registered    INFO, PING, PONG, +OK, -ERR
    REGISTERED  messages and interest flow        the same, and messages and interest
    CLOSED      nothing is read

    accepted: GREETING -CONNECT-> EXPECTING -INFO-> REGISTERED      dialled: EXPECTING -INFO-> REGISTERED

The accepting server sends INFO at once. The dialling one sends CONNECT at once, and its own INFO when it has
read the peer's: only then it knows which place in the pool is free. With compression on, the first INFO of
the peer leads to an agreement instead. The dialling server answers in clear, then both switch, and the
accepting server repeats its INFO, compressed; that one leads to registration.

Invariant: what a state does not allow closes the connection with a protocol violation, so a peer that is not
registered can cause no work but parsing one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.cluster import compression
from penstock.cluster.peer_info import NAMELESS
from penstock.cluster.peer_link import ANY, Address, LinkState, PeerLink, Wire
from penstock.cluster.route_info import RouteInfo, parse_connect, parse_info
from penstock.kernels.wire.frames import Op, PyFrame
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.mesh import Mesh
    from penstock.kernels.wire.route_links import RouteIngress, RouteSink

PROTOCOL_TRACE = 3
"""The protocol version of route INFO: 1 INFO updates, 2 accounts, 3 message traces."""


class Dial(msgspec.Struct, kw_only=True):
    """A wish to connect to a server.

    is_explicit: configured, so it is dialled for ever; others were learnt from peers.
    account: of a dedicated link.
    gossip_mode: what the INFO of the link shall tell the peer.
    attempts: failed ones since the last connection.
    """

    address: Address
    is_explicit: bool
    account: str = ""
    gossip_mode: int = 0
    is_first: bool = True
    attempts: int = 0
    delay_s: float = 0.0


class RouteLink(PeerLink):
    """One connection to another server.

    Args:
        mesh: the routes of this server.
        cid: connection number.
        wire: the connection.
        sink: its output half.
        ingress: its input half.
        dial: why this server dialled; None = the peer did.
    """

    KIND = "Route"
    TAG = "rid"

    def __init__(
        self,
        mesh: Mesh,
        cid: int,
        wire: Wire,
        sink: RouteSink,
        ingress: RouteIngress,
        dial: Dial | None,
    ) -> None:
        state = LinkState.GREETING if dial is None else LinkState.EXPECTING
        super().__init__(mesh, cid, wire, sink, ingress, state)
        self.mesh = mesh
        self.wire = wire
        self.sink = sink
        self.ingress = ingress
        self.is_dialled = dial is not None
        self.did_solicit = dial is not None  # or it stands for a link that this server dialled
        self.is_explicit = dial is not None and dial.is_explicit
        self.address = dial.address if dial is not None else None
        self.account = dial.account if dial is not None else ""
        self.gossip_mode = dial.gossip_mode if dial is not None else 0
        self.remote: RouteInfo | None = None
        self.remote_id = ""
        self.pool_index = -1
        self.is_poolless = False
        self.retry = False
        self.no_reconnect = False
        self.next_dial: Dial | None = None
        ingress.serve(mesh.interest.index_of)

    # -- from the connection

    def opened(self) -> None:
        """The connection is open, and encrypted if the configuration says so."""
        mesh = self.mesh
        if not self.did_solicit:
            self.parser.lock()
            self.send(mesh.info(self.account, gossip_mode=self.gossip_mode).line())
            return
        assert self.address is not None
        self._restrict()
        self.send(mesh.connect_line(self.address))
        if not self._info_waits:
            self.send(mesh.info(self.account, gossip_mode=self.gossip_mode).line())

    def closed(self, reason: CloseReason) -> None:
        """The connection is closed. The last call."""
        self.state = LinkState.CLOSED
        self.sink.forget_all()
        self.mesh.link_closed(self, reason)

    # -- from the mesh

    @property
    def name(self) -> str:
        """Of the peer, for log lines."""
        return self.remote.server_name if self.remote is not None else ""

    def open_gates(self, index: int) -> None:
        """The mesh has registered the link, at this place of the pool."""
        self.pool_index = index
        self.state = LinkState.REGISTERED
        self.parser.widen()
        if self.account:
            self.parser.dedicate(self.account.encode())

    def send_delayed_info(self) -> None:
        """The INFO that waited for the peer's. With compression, it went before the agreement only."""
        if not self.did_solicit or not self._info_waits:
            return
        index = 0 if self.account else self.pool_index
        info = self.mesh.info(self.account, pool_index=index, gossip_mode=self.gossip_mode)
        settings = self.mesh.settings
        if settings.compression != compression.AUTO and compression.compresses(settings.compression):
            info.compression = self.compression
        self.send(info.line())

    # -- handshake

    @property
    def _info_waits(self) -> bool:
        settings = self.mesh.settings
        pooled = not self.account and settings.pool_size >= 1
        return self.did_solicit and (pooled or compression.compresses(settings.compression))

    def _restrict(self) -> None:
        """Applies the configured permissions to the peer's interest."""
        rules = self.mesh.rules
        self.ingress.limit_exports(None if rules is None else rules.may_subscribe)

    def renew_permissions(self) -> None:
        """Applies changed permissions."""
        self._restrict()

    def _on_connect(self, frame: PyFrame) -> None:
        mesh, connect = self.mesh, parse_connect(frame.payload or b"")
        if connect.lang:
            self.refuse("attempted to connect to route port", CloseReason.WRONG_PORT)
            return
        if not mesh.is_authorized(connect.user, connect.password):
            mesh.log_error(self, "authentication error")
            self.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
            return
        if connect.gateway:
            text = f'Rejecting connection from gateway "{connect.gateway}" on the Route port'
            self.refuse(text, CloseReason.WRONG_GATEWAY)
            return
        if connect.cluster == NAMELESS:
            text = f'Rejecting connection, cluster name "{NAMELESS}" is reserved'
            self.refuse(text, CloseReason.CLUSTER_NAME_CONFLICT)
            return
        self.remote_id = connect.name
        if not mesh.agree_on_name(
            connect.cluster, is_dynamic=connect.cluster_dynamic, remote_id=connect.name
        ):
            text = (
                f'Rejecting connection, cluster name "{connect.cluster}" does not match "{mesh.cluster_name}"'
            )
            self.refuse(text, CloseReason.CLUSTER_NAME_CONFLICT)
            return
        if connect.replication:
            self._hand_over()
            return
        self._restrict()
        self.sink.accept_headers(connect.headers and mesh.settings.headers)
        self.sink.accept_origins(connect.lnoc)
        self.state = LinkState.EXPECTING
        self.parser.unlock()

    def _hand_over(self) -> None:
        """The peer is authorized as for a route, and speaks another protocol from here on."""
        if self.wire.hand_over():
            self.state = LinkState.CLOSED
            self.mesh.link_closed(self, CloseReason.CLIENT_CLOSED)
        else:
            self.refuse("this server has no replicated groups", CloseReason.WRONG_PORT)

    def _on_first_info(self, frame: PyFrame) -> None:
        mesh, info = self.mesh, parse_info(frame.payload or b"")
        if info.server_id == mesh.server_id:
            self.remote_id = info.server_id
            mesh.log_debug(self, "detected route to self")
            self.no_reconnect = True
            self.close(CloseReason.DUPLICATE_ROUTE)
            return
        is_named = info.cluster != NAMELESS and (
            not info.cluster
            or mesh.agree_on_name(info.cluster, is_dynamic=info.cluster_dynamic, remote_id=info.server_id)
        )
        if not is_named:
            self.close(CloseReason.CLUSTER_NAME_CONFLICT)
            return
        if not self.did_solicit and mesh.has_server_named(info.server_name):
            mesh.log_error(self, f'Remote server has a duplicate name: "{info.server_name}"')
            self.close(CloseReason.DUPLICATE_SERVER_NAME)
            return
        if self._negotiates(info):
            return
        self.remote, self.remote_id = info, info.server_id
        self.sink.accept_headers(info.headers and mesh.settings.headers)
        self.sink.accept_traces(info.proto >= PROTOCOL_TRACE)
        self.sink.accept_origins(info.lnoc)
        if not info.ip:
            host, _ = self.wire.peer
            info.ip = f"nats-route://{Address(host, info.port)}/"
        if self.address is None:
            self.address = Address(info.host, info.port)
        if self.did_solicit:
            info.route_account = self.account
        else:
            self.account = info.route_account
        mesh.register(self, info)

    def _negotiates(self, info: RouteInfo) -> bool:
        """Agrees on compression; returns whether another INFO follows."""
        mesh, settings = self.mesh, self.mesh.settings
        if self._negotiated:
            return False
        if not self._agree(info.compression):
            return False
        own = mesh.info(self.account)
        if settings.compression != compression.AUTO:
            own.compression = self.compression
        if self.did_solicit:
            self.send(own.line())
        self.wire.compress(self.compression)
        if not self.did_solicit:
            self.send(own.line())
        return True

    # -- registered

    def _on_info(self, frame: PyFrame) -> None:
        info = parse_info(frame.payload or b"")
        if info.route_acc_add_reqid:
            self.mesh.dedicate(self, info)
        elif info.gateway:
            self.mesh.heard_of_gateway(self, info)
        elif info.server_id != self.remote_id:
            self.mesh.heard_of(info, self)
        else:
            self.mesh.renewed(self, info)

    def _on_pong(self, frame: PyFrame) -> None:
        super()._on_pong(frame)
        self.mesh.ponged(self)

    def _compression_options(self) -> tuple[str, tuple[int, ...]]:
        settings = self.mesh.settings
        return settings.compression, settings.rtt_thresholds_ns


RouteLink.HANDLERS = {
    LinkState.GREETING: {Op.OP_CONNECT: RouteLink._on_connect},
    LinkState.EXPECTING: {Op.OP_INFO: RouteLink._on_first_info, **ANY},
    LinkState.REGISTERED: {Op.OP_INFO: RouteLink._on_info, Op.OP_CONNECT: RouteLink._on_ignored, **ANY},
    LinkState.CLOSED: {},
}
