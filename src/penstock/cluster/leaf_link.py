"""One connection between a leaf node and its hub: handshake, INFO updates, pings, permissions.

States, and what the other side may send in each:

    GREETING    accepted, before CONNECT         INFO (once, to agree on compression), CONNECT
    CHECKING    the login is being checked       nothing is read
    EXPECTING   dialled, before the hub's INFO   INFO, PING, +OK, -ERR
    CONNECTING  CONNECT is sent                  INFO, PING, PONG, +OK, -ERR
    REGISTERED  messages and interest flow       the same, and messages and interest
    CLOSED      nothing is read

    accepted: GREETING -CONNECT-> CHECKING -login-> REGISTERED
    dialled: EXPECTING -INFO-> CONNECTING -INFO-> REGISTERED

The accepting server sends INFO at once. If TLS is required, the handshake follows. With compression on, the
dialling server answers INFO with INFO in clear, both switch, and the accepting server repeats its INFO,
compressed. Then the dialling server sends CONNECT. The INFO that answers it has the account and the
permissions.

Usually the server that dials is the leaf node; with `hub: true` it is the hub.

Invariant: what a state does not allow closes the connection, so a peer that has not logged in can cause no
work but parsing a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster import compression
from penstock.cluster.leaf_info import LeafConnect, LeafInfo, parse_connect, parse_info
from penstock.cluster.leaf_rules import LeafRules
from penstock.cluster.peer_info import NAMELESS
from penstock.cluster.peer_link import ANY, LinkState, PeerLink
from penstock.cluster.route_link import PROTOCOL_TRACE
from penstock.errors import ConfigError, ProtocolError
from penstock.kernels.wire.frames import Op, PyFrame
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.cluster.leaf_nodes import LeafNodes
    from penstock.cluster.leaf_ports import LeafWire, Login
    from penstock.cluster.leaf_remote import LeafRemote
    from penstock.kernels.wire.leaf_links import LeafIngress, LeafSink
    from penstock.kernels.wire.route_links import RoutedReplies
    from penstock.routing.account import Account

RETRY_LATER_S = 30.0
RETRY_VERSION_S = 5.0
SAME_CLUSTER = "remote leafnode has same cluster name"
OLD_VERSION = "connection rejected since minimum version required is"


class LeafLink(PeerLink):
    """One connection to a leaf node or a hub.

    Args:
        nodes: the leaf node links of this server.
        cid: connection number.
        wire: the connection.
        sink: its output half.
        ingress: its input half.
        remote: the configured hub that this server dialled; None = the other side dialled.
    """

    KIND = "Leafnode"
    TAG = "lid"

    def __init__(
        self,
        nodes: LeafNodes,
        cid: int,
        wire: LeafWire,
        sink: LeafSink,
        ingress: LeafIngress,
        remote: LeafRemote | None,
    ) -> None:
        state = LinkState.GREETING if remote is None else LinkState.EXPECTING
        super().__init__(nodes, cid, wire, sink, ingress, state)
        self.nodes = nodes
        self.wire = wire
        self.sink = sink
        self.ingress = ingress
        self.parser.for_leaf()
        self.remote = remote
        self.is_spoke = remote is not None and not remote.settings.hub  # this server is the leaf node
        own = nodes.settings.isolate
        self.is_isolated = own or (remote is not None and remote.settings.isolate)
        self.name = ""  # of the other server
        self.cluster = ""
        self.domain = ""
        self.remote_account = ""
        self.account: Account | None = None
        self.rules: LeafRules | None = None
        self.login: Login | None = None
        self.denied_by_peer: tuple[str, ...] = ()
        self.hub_lists: tuple[object, object] = (None, None)  # import and export of the hub's INFO
        self.nonce = ""

    # -- from the connection

    def opened(self) -> None:
        """The connection is open."""
        if self.remote is None:
            self.nonce = self.nodes.new_nonce()
            self.send(self._greeting().line())

    def closed(self, reason: CloseReason) -> None:
        """The connection is closed. The last call."""
        was_registered = self.account is not None
        self.state = LinkState.CLOSED
        self.sink.forget_all()
        self.nodes.link_closed(self, reason, was_registered=was_registered)

    # -- from the registry

    def note_replies(self, replies: RoutedReplies) -> None:
        """Takes replies that gateways have routed as they are meant."""
        self.ingress.note_replies(replies)

    def retry_in(self, delay_s: float) -> None:
        """Waits that long before the hub is dialled again."""
        if self.remote is not None:
            self.remote.delay_s = delay_s

    def open_gates(self, account: Account, rules: LeafRules, loop_subject: bytes) -> None:
        """The link belongs to this account: messages and interest may come in."""
        self.account = account
        self.state = LinkState.REGISTERED
        self.sink.join(account.index, self.is_spoke, self.cluster.encode())
        self.ingress.bind(account.name.encode())
        self.ingress.watch_loops(loop_subject, self._on_loop)
        self.ingress.mapper = account.mapper
        self.apply(rules)
        self.parser.widen()

    def apply(self, rules: LeafRules) -> None:
        """Enforces these rules from now on."""
        from penstock.kernels.wire.dispatch import DeliveryGuard

        self.rules = rules
        may_send = rules.may_send
        self.sink.restrict(None if may_send is None else DeliveryGuard(may_send))
        self.ingress.restrict_input(rules.may_take, rules.may_accept, self._on_refused)

    # -- handshake of the accepting side

    def _greeting(self) -> LeafInfo:
        info = self.nodes.info(self)
        info.nonce = self.nonce
        return info

    def _on_greeting_info(self, frame: PyFrame) -> None:
        info = parse_info(frame.payload or b"")
        if self._negotiated or not compression.compresses(self.mode):
            raise ProtocolError("INFO before CONNECT")
        if self._agree(info.compression):
            greeting = self._greeting()
            greeting.compression = self._shown_mode()
            self.wire.compress(self.compression)
            self.send(greeting.line())

    def _on_connect(self, frame: PyFrame) -> None:
        connect = parse_connect(frame.payload or b"")
        if connect.lang:
            self.refuse("attempted to connect to leaf node port", CloseReason.WRONG_PORT)
            return
        self.state = LinkState.CHECKING
        self.wire.authenticate(connect, lambda login: self._authenticated(connect, login))

    def _authenticated(self, connect: LeafConnect, login: Login | None) -> None:
        if self.state is not LinkState.CHECKING:
            return
        if login is None:
            self.nodes.log_error(self, "authentication error")
            self.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
        elif not self._is_refused(connect):
            self.login = login
            self.is_spoke = connect.is_hub
            self.is_isolated |= connect.isolate
            self.name, self.cluster, self.domain = connect.name, connect.cluster, connect.domain
            self.remote_account = connect.remote_account
            self.denied_by_peer = tuple(connect.deny_pub or ())
            self.compression = self.compression or connect.compress_mode or compression.NOT_SUPPORTED
            self.sink.accept_headers(connect.headers and self.nodes.settings.headers)
            self.sink.accept_traces(connect.protocol >= PROTOCOL_TRACE)
            self.nodes.register(self, login.account)

    def _is_refused(self, connect: LeafConnect) -> bool:
        own, wanted = self.nodes.cluster_name(), self.nodes.settings.min_version
        if " " in connect.cluster:
            self.refuse("cluster name cannot contain spaces", CloseReason.PROTOCOL_VIOLATION)
        elif connect.cluster == NAMELESS:
            self.refuse("cluster name is reserved", CloseReason.PROTOCOL_VIOLATION)
        elif own and connect.cluster == own:
            self.refuse(SAME_CLUSTER, CloseReason.CLUSTER_NAMES_IDENTICAL)
        elif connect.gateway:
            text = f'Rejecting connection from gateway "{connect.gateway}" on the leafnode port'
            self.refuse(text, CloseReason.WRONG_GATEWAY)
        elif wanted and not is_version_at_least(connect.version, wanted):
            self.refuse(f'{OLD_VERSION} "{wanted}"', CloseReason.MINIMUM_VERSION_REQUIRED)
        return self.state is LinkState.CLOSED

    # -- handshake of the dialling side

    def _on_first_info(self, frame: PyFrame) -> None:
        info, remote = parse_info(frame.payload or b""), self.remote
        assert remote is not None
        if not info.client_id or not (info.leafnode_urls or info.info_on_connect):
            self.nodes.log_error(self, "attempted to connect to wrong port")
            self.close(CloseReason.WRONG_PORT)
            return
        if not remote.is_websocket and (info.tls_required or remote.needs_tls):
            remote.needs_tls = True
            self.wire.encrypt()
        if not self._negotiated and compression.compresses(self.mode) and self._agree(info.compression):
            own = self.nodes.info(self)
            own.compression = self._shown_mode()
            self.send(own.line())
            self.wire.compress(self.compression)
            return
        if " " in info.cluster or info.cluster == NAMELESS:
            what = "is reserved" if info.cluster == NAMELESS else "cannot contain spaces"
            self.refuse(f"cluster name {what}", CloseReason.PROTOCOL_VIOLATION)
            return
        if not self.compression:
            self.compression = compression.OFF if info.compression else compression.NOT_SUPPORTED
        self.name, self.cluster, self.domain = info.server_name or info.server_id, info.cluster, info.domain
        self.sink.accept_headers(info.headers and self.nodes.settings.headers)
        self.sink.accept_traces(info.proto >= PROTOCOL_TRACE)
        self._note_hub(info)
        self._connect(remote, info)

    def _connect(self, remote: LeafRemote, info: LeafInfo) -> None:
        try:
            self.send(self.nodes.connect_line(self, remote, info.nonce))
        except ConfigError as error:
            self.nodes.log_error(self, str(error))
            self.close(CloseReason.AUTHENTICATION_FAILURE)
            return
        self.state = LinkState.CONNECTING
        self.wire.connecting()
        if not info.info_on_connect:
            self.nodes.register(self, remote.settings.account)

    def _on_answer(self, frame: PyFrame) -> None:
        info = parse_info(frame.payload or b"")
        assert self.remote is not None
        self._note_hub(info)
        if info.connect_info:
            self.remote_account = info.remote_account
            self.nodes.register(self, self.remote.settings.account)

    def _note_hub(self, info: LeafInfo) -> None:
        assert self.remote is not None
        try:
            self.remote.note_servers(info)
        except ConfigError as error:
            self.nodes.log_error(self, str(error))
        if info.import_ is not None or info.export is not None:
            self.hub_lists = (info.import_, info.export)

    # -- compression

    def _compression_options(self) -> tuple[str, tuple[int, ...]]:
        """The official server puts the S2 stream around the WebSocket's frames, which no HTTP proxy passes
        on. A WebSocket has a compression of its own, which both sides agree on before INFO, and gets no
        other."""
        if self.wire.is_websocket:
            return compression.NOT_SUPPORTED, ()
        return self.nodes.compression_of(self.remote)

    def _shown_mode(self) -> str:
        return compression.AUTO if self.mode == compression.AUTO else self.compression

    # -- registered

    def _on_info(self, frame: PyFrame) -> None:
        info = parse_info(frame.payload or b"")
        if self.remote is None:
            return  # a leaf node has nothing to tell
        before = self.hub_lists
        self._note_hub(info)
        if self.hub_lists != before:
            self.nodes.renew_rules(self)

    def _note_error(self, text: str) -> None:
        if "Loop detected" in text or SAME_CLUSTER in text:
            self.retry_in(RETRY_LATER_S)
        elif OLD_VERSION in text:
            self.retry_in(RETRY_VERSION_S)

    def _on_loop(self) -> None:
        """This server's interest came back over other servers: messages would go round for ever."""
        if self.account is not None:
            self.nodes.end_loop_soon(self.account.name)

    @property
    def is_looped(self) -> bool:
        """Whether this server's own interest comes from the other side."""
        return self.state is LinkState.REGISTERED and self.ingress.is_looped

    def end_loop(self) -> None:
        """Closes the link, because it closes a circle of servers."""
        account = self.account.name if self.account is not None else ""
        self.retry_in(RETRY_LATER_S)
        self.refuse(loop_text(account), CloseReason.PROTOCOL_VIOLATION)

    def _on_refused(self, is_message: bool, subject: bytes) -> None:
        """The other side sent what the rules do not allow.

        The hub does not know the permissions of a leaf node, so a leaf node drops the message. A leaf node
        knows those of the hub, so one that ignores them is broken or hostile.
        """
        shown = subject.decode("utf-8", "replace")
        if self.is_spoke or self.state is LinkState.CLOSED:
            self.nodes.log_debug(self, f'Not permitted: "{shown}"')
            return
        self.retry_in(RETRY_LATER_S)
        what = "Publish" if is_message else "Subscription"
        self.refuse(f'Permissions Violation for {what} to "{shown}"', CloseReason.PROTOCOL_VIOLATION)


def loop_text(account: str) -> str:
    """The error for a loop, as the official server words it; leaf nodes look for it."""
    return f'Loop detected for leafnode account="{account}". Delaying attempt to reconnect for 30s'


def is_version_at_least(version: str, wanted: str) -> bool:
    """Whether a server's version is at least this one, both as `2.10.0`; unreadable ones are not."""
    try:
        return version_of(version) >= version_of(wanted)
    except ValueError:
        return False


def version_of(text: str) -> tuple[int, int, int]:
    """The numbers of `v2.10.0-beta.1`. Raises ValueError."""
    parts = text.removeprefix("v").split("-")[0].split(".")
    major, minor, update = (int(part) for part in parts[:3])
    return major, minor, update


LeafLink.HANDLERS = {
    LinkState.GREETING: {Op.OP_INFO: LeafLink._on_greeting_info, Op.OP_CONNECT: LeafLink._on_connect},
    LinkState.CHECKING: {},
    LinkState.EXPECTING: {Op.OP_INFO: LeafLink._on_first_info, **ANY},
    LinkState.CONNECTING: {Op.OP_INFO: LeafLink._on_answer, **ANY},
    LinkState.REGISTERED: {Op.OP_INFO: LeafLink._on_info, Op.OP_CONNECT: LeafLink._on_ignored, **ANY},
    LinkState.CLOSED: {},
}
