"""One connection to a server of another cluster: handshake, gossip, commands, pings.

States, and what the peer may send in each:

    GREETING    accepted, before CONNECT         CONNECT
    EXPECTING   before the peer's first INFO     INFO, PING, PONG, +OK, -ERR
    REGISTERED  messages or interest flow        the same, and messages (inbound) or interest (outbound)
    CLOSED      nothing is read

    inbound: GREETING -CONNECT-> EXPECTING -INFO-> REGISTERED      outbound: EXPECTING -INFO-> REGISTERED

The accepting server sends INFO at once. The dialling one answers it with CONNECT and its own INFO.

Messages leave on outbound links, and interest comes back on them. INFO later tells other addresses of the
cluster, other clusters (gossip), or that the interest in an account follows (commands).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.gateway_info import (
    COMMAND_ALL_COMPLETE,
    COMMAND_ALL_START,
    COMMAND_GOSSIP,
    GatewayInfo,
    parse_connect,
    parse_info,
)
from penstock.cluster.peer_link import ANY, LinkState, PeerLink, Wire
from penstock.cluster.route_link import PROTOCOL_TRACE
from penstock.errors import ProtocolError
from penstock.kernels.wire.frames import Op, PyFrame
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.gateways import GatewayRemote, Gateways
    from penstock.kernels.wire.gateway_links import GatewayIngress, GatewaySink


class GatewayLink(PeerLink):
    """One connection to a server of another cluster.

    Args:
        gateways: the gateway links of this server.
        cid: connection number.
        wire: the connection.
        sink: its output half.
        ingress: its input half.
        remote: the cluster that this server dialled; None = the peer dialled.
    """

    KIND = "Gateway"
    TAG = "gid"

    def __init__(
        self,
        gateways: Gateways,
        cid: int,
        wire: Wire,
        sink: GatewaySink,
        ingress: GatewayIngress,
        remote: GatewayRemote | None,
    ) -> None:
        state = LinkState.GREETING if remote is None else LinkState.EXPECTING
        super().__init__(gateways, cid, wire, sink, ingress, state)
        self.gateways = gateways
        self.wire = wire
        self.sink = sink
        self.ingress = ingress
        self.remote = remote
        self.address = remote.address if remote is not None else None
        self.cluster = remote.name if remote is not None else ""
        self.name = ""  # of the other server
        self.remote_id = ""
        self.is_optimistic = False  # the peer wants messages until it refuses them
        self.no_reconnect = False
        ingress.direct(remote is not None)
        ingress.serve(gateways.index_of)
        ingress.note_replies(gateways.replies)
        sink.route_replies(gateways.replies)

    @property
    def is_outbound(self) -> bool:
        """Whether this server dialled, so that messages leave on this link."""
        return self.remote is not None

    # -- from the connection

    def opened(self) -> None:
        """The connection is open, and encrypted if the configuration says so."""
        if not self.is_outbound:
            self.parser.lock()
            self.send(self.gateways.info().line())

    def closed(self, reason: CloseReason) -> None:
        """The connection is closed. The last call."""
        self.state = LinkState.CLOSED
        self.sink.forget_all()
        self.gateways.link_closed(self)

    # -- handshake

    def _on_connect(self, frame: PyFrame) -> None:
        gateways, connect = self.gateways, parse_connect(frame.payload or b"")
        if not connect.gateway or connect.lang:
            self.refuse("attempted to connect to gateway port", CloseReason.WRONG_PORT)
        elif not gateways.is_authorized(connect.user, connect.password):
            gateways.log_error(self, "authentication error")
            self.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
        elif not gateways.accepts(connect.gateway):
            gateways.log_error(self, f'Rejecting connection from gateway "{connect.gateway}"')
            self.refuse(f'Connection to gateway "{gateways.name}" rejected', CloseReason.WRONG_GATEWAY)
        else:
            self.cluster = connect.gateway
            self.state = LinkState.EXPECTING
            self.parser.unlock()

    def _on_first_info(self, frame: PyFrame) -> None:
        gateways, info = self.gateways, parse_info(frame.payload or b"")
        if not info.gateway:
            text = f'Attempt to connect to gateway "{self.cluster}" using wrong port'
            self.refuse(text, CloseReason.WRONG_PORT)
            return
        if info.gateway != self.cluster:
            self._refuse_name(info.gateway)
            return
        if gateways.has_server_named(info.server_name):
            gateways.log_error(self, f'Remote server has a duplicate name: "{info.server_name}"')
            self.close(CloseReason.DUPLICATE_SERVER_NAME)
            return
        self.name, self.remote_id = info.server_name or info.server_id, info.server_id
        self.is_optimistic = not info.gateway_iom
        self.sink.accept_headers(info.headers and gateways.settings.headers)
        self.sink.accept_traces(info.proto >= PROTOCOL_TRACE)
        if self.remote is not None:
            assert self.address is not None
            self.send(gateways.connect_line(self.address))
            self.send(gateways.info().line())
            self.remote.renew_urls(info.gateway_urls or ())
        self.state = LinkState.REGISTERED
        self.parser.widen()
        self.wire.registered()
        self.ping()
        gateways.register(self, info)

    def _refuse_name(self, found: str) -> None:
        gateways = self.gateways
        gateways.log_error(
            self, f'Failing connection to gateway "{self.cluster}", remote gateway name is "{found}"'
        )
        text = (
            f'Connection from "{gateways.name}" rejected, wanted to connect to "{self.cluster}", '
            f'this is "{found}"'
        )
        self.refuse(text, CloseReason.WRONG_GATEWAY)

    # -- registered

    def _on_info(self, frame: PyFrame) -> None:
        info = parse_info(frame.payload or b"")
        if self.remote is None:
            return  # a server that sends messages has nothing to tell
        if info.gateway_cmd in (COMMAND_ALL_START, COMMAND_ALL_COMPLETE):
            self._on_command(info)
        elif info.gateway != self.cluster:
            if info.gateway_cmd != COMMAND_GOSSIP:
                self._refuse_name(info.gateway)
            else:
                self.gateways.heard_of(info.gateway, info.gateway_urls or ())
        elif info.gateway_cmd:
            self.gateways.log_debug(self, f"Received unknown command {info.gateway_cmd}")
        else:
            self.remote.renew_urls(info.gateway_urls or ())
            self.gateways.tell_cluster(self.remote)

    def _on_command(self, info: GatewayInfo) -> None:
        is_complete = info.gateway_cmd == COMMAND_ALL_COMPLETE
        if not info.gateway_cmd_payload:
            what = "complete" if is_complete else "start"
            raise ProtocolError(f"Account absent from receive-all-subscriptions-{what} command")
        index = self.gateways.index_of(info.gateway_cmd_payload)
        if index is not None:
            self.sink.announces(info.gateway_cmd_payload, index, is_complete)

    def _on_pong(self, frame: PyFrame) -> None:
        super()._on_pong(frame)
        if self.rtt_ns:
            self.sink.measured(self.rtt_ns)


GatewayLink.HANDLERS = {
    LinkState.GREETING: {Op.OP_CONNECT: GatewayLink._on_connect},
    LinkState.EXPECTING: {Op.OP_INFO: GatewayLink._on_first_info, **ANY},
    LinkState.REGISTERED: {Op.OP_INFO: GatewayLink._on_info, Op.OP_CONNECT: GatewayLink._on_ignored, **ANY},
    LinkState.CLOSED: {},
}
