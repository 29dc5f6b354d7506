"""One connection to another server: handshake, INFO updates, pings.

States, and what the peer may send in each:

    GREETING    accepted, before CONNECT     CONNECT
    KNOWN       before the peer is registered     INFO, PING, PONG, +OK, -ERR
    REGISTERED  messages and interest flow        the same, and messages and interest
    CLOSED      nothing is read

    accepted: GREETING -CONNECT-> KNOWN -INFO-> REGISTERED      dialled: KNOWN -INFO-> REGISTERED

The accepting server sends INFO at once. The dialling one sends CONNECT at once, and its own INFO when it has
read the peer's: only then it knows which place in the pool is free. With compression on, the first INFO of
the peer leads to an agreement instead. The dialling server answers in clear, then both switch, and the
accepting server repeats its INFO, compressed; that one leads to registration.

Invariant: what a state does not allow closes the connection with a protocol violation, so a peer that is not
registered can cause no work but parsing one line.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from penstock.cluster import compression
from penstock.cluster.route_info import NAMELESS, RouteInfo, parse_connect, parse_info
from penstock.errors import ProtocolError
from penstock.kernels.wire.frames import Op, ParseError, PyFrame
from penstock.kernels.wire.route_frames import RouteParser
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.mesh import Mesh
    from penstock.kernels.wire.route_links import RouteIngress, RouteSink

PING = b"PING\r\n"
PONG = b"PONG\r\n"
PROTOCOL_TRACE = 3
"""The protocol version of route INFO: 1 INFO updates, 2 accounts, 3 message traces."""


class Address(NamedTuple):
    """Where a server is dialled, and as whom."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def is_same(self, other: Address) -> bool:
        return self.host.lower() == other.host.lower() and self.port == other.port


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


class Wire(Protocol):
    """What a link uses of its connection."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address of the other end."""

    def close(self, reason: CloseReason) -> None:
        """Sends what is in the out buffer, then closes. `RouteLink.closed` follows."""

    def compress(self, mode: str) -> None:
        """Sends what is in the out buffer in clear. Everything after that, and everything not yet parsed, is
        compressed."""

    def change_level(self, mode: str) -> None:
        """Compresses output in this mode from now on."""

    def registered(self) -> None:
        """The peer has proved itself: pings begin."""

    def ponged(self) -> None:
        """The peer has answered a ping."""


class LinkState(Enum):
    GREETING = "greeting"
    KNOWN = "known"
    REGISTERED = "registered"
    CLOSED = "closed"


class RouteLink:
    """One connection to another server.

    Args:
        mesh: the routes of this server.
        cid: connection number.
        wire: the connection.
        sink: its output half.
        ingress: its input half.
        dial: why this server dialled; None = the peer did.
    """

    def __init__(
        self,
        mesh: Mesh,
        cid: int,
        wire: Wire,
        sink: RouteSink,
        ingress: RouteIngress,
        dial: Dial | None,
    ) -> None:
        self.mesh = mesh
        self.cid = cid
        self.wire = wire
        self.sink = sink
        self.ingress = ingress
        assert isinstance(ingress.parser, RouteParser)
        self.parser = ingress.parser
        self.state = LinkState.GREETING if dial is None else LinkState.KNOWN
        self.did_solicit = dial is not None
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
        self.compression = ""
        self.next_dial: Dial | None = None
        self.rtt_ns = 0
        self.started_ns = mesh.clock()
        self._ping_sent_ns = 0
        self._negotiated = False
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

    def control(self, op: int) -> None:
        """Handles the frame at which the ingress stopped, and those that follow."""
        while op != Op.OP_NEED_MORE and self.state is not LinkState.CLOSED:
            if op == Op.OP_ERROR:
                self._on_broken_protocol()
                return
            handler = _HANDLERS[self.state].get(op)
            if handler is None:
                self._on_broken_protocol()
                return
            try:
                handler(self, self.ingress.control())
            except ProtocolError as error:
                self.refuse(str(error), CloseReason.PROTOCOL_VIOLATION)
                return
            op = self.ingress.process()

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

    def send(self, data: bytes) -> None:
        self.sink.write(data)

    def ping(self) -> None:
        """Measures the round trip time; the answer also proves that the peer accepted this server."""
        self._ping_sent_ns = self.mesh.clock()
        self.send(PING)

    def close(self, reason: CloseReason) -> None:
        if self.state is not LinkState.CLOSED:
            self.state = LinkState.CLOSED
            self.wire.close(reason)

    def refuse(self, text: str, reason: CloseReason) -> None:
        """Sends -ERR and closes."""
        self.mesh.log_error(self, text)
        self.send(f"-ERR '{text}'\r\n".encode())
        self.close(reason)

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
        self._restrict()
        self.sink.accept_headers(connect.headers and mesh.settings.headers)
        self.sink.accept_origins(connect.lnoc)
        self.state = LinkState.KNOWN
        self.parser.unlock()

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
        self._negotiated = True
        rtt_ns = self.rtt_ns or max(1, mesh.clock() - self.started_ns)
        self.compression = compression.agreed(
            settings.compression, info.compression, rtt_ns, settings.rtt_thresholds_ns
        )
        if not compression.compresses(self.compression):
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
            self.mesh.log_debug(
                self, f'received information about gateway "{info.gateway}", which is not configured'
            )
        elif info.server_id != self.remote_id:
            self.mesh.heard_of(info, self)
        else:
            self.mesh.renewed(self, info)

    def _on_ping(self, frame: PyFrame) -> None:
        self.send(PONG)

    def _on_pong(self, frame: PyFrame) -> None:
        if self._ping_sent_ns:
            self.rtt_ns = max(1, self.mesh.clock() - self._ping_sent_ns)
            self._ping_sent_ns = 0
            self._adapt_level()
        self.wire.ponged()
        self.mesh.ponged(self)

    def _adapt_level(self) -> None:
        settings = self.mesh.settings
        if settings.compression != compression.AUTO or not compression.compresses(self.compression):
            return
        level = compression.level_for(self.rtt_ns, settings.rtt_thresholds_ns)
        if level != self.compression:
            self.compression = level
            self.wire.change_level(level)

    def _on_error(self, frame: PyFrame) -> None:
        text = (frame.payload or b"").decode("utf-8", "replace")
        self.mesh.log_error(self, f"Route Error '{text}'")
        if text != "Invalid Subscription":
            self.close(CloseReason.PARSE_ERROR)

    def _on_ignored(self, frame: PyFrame) -> None:
        """+OK."""

    def _on_broken_protocol(self) -> None:
        if self.state is LinkState.GREETING:
            self.mesh.log_error(self, "authentication error")
            self.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
            return
        error = ParseError(self.parser.error).name.removeprefix("ERROR_").replace("_", " ").lower()
        self.mesh.log_error(self, f"Route parser ERROR in state {self.state.value}: {error}")
        self.close(CloseReason.PROTOCOL_VIOLATION)


_Handler = Callable[[RouteLink, PyFrame], None]
_ANY: dict[int, _Handler] = {
    Op.OP_PING: RouteLink._on_ping,
    Op.OP_PONG: RouteLink._on_pong,
    Op.OP_OK: RouteLink._on_ignored,
    Op.OP_ERR: RouteLink._on_error,
}
_HANDLERS: dict[LinkState, dict[int, _Handler]] = {
    LinkState.GREETING: {Op.OP_CONNECT: RouteLink._on_connect},
    LinkState.KNOWN: {Op.OP_INFO: RouteLink._on_first_info, **_ANY},
    LinkState.REGISTERED: {Op.OP_INFO: RouteLink._on_info, Op.OP_CONNECT: RouteLink._on_ignored, **_ANY},
    LinkState.CLOSED: {},
}
