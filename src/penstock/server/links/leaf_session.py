"""One connection to a leaf node or a hub: a socket, its timers, its login, and the link that it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from penstock.cluster.leaf_link import LeafLink
from penstock.cluster.peer_link import LinkState
from penstock.kernels.wire.leaf_links import LeafIngress, LeafSink
from penstock.kernels.wire.route_frames import RouteParser
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason
from penstock.server.auth.client_login import ClientLogin
from penstock.server.connect_message import ConnectMessage
from penstock.server.links.link_session import LinkSession

if TYPE_CHECKING:
    from penstock.cluster.leaf_info import LeafConnect
    from penstock.cluster.leaf_nodes import LeafNodes
    from penstock.cluster.leaf_ports import Login
    from penstock.cluster.leaf_remote import LeafRemote
    from penstock.kernels.wire.sinks import DirtyList
    from penstock.net.backlog import BacklogWatch
    from penstock.server.auth.authenticator import Identity
    from penstock.server.auth.logins import Logins
    from penstock.server.server_context import ServerContext

CONNECT_TIMEOUT_S = 2.0
ENCRYPT_TIMEOUT_S = 2.0
STALE = "Stale Leaf Node Connection - Closing"


class LeafSession(LinkSession):
    """A connection to a leaf node or a hub.

    It has what services and monitoring read of a client's session: `identity`, `options`, `cid`,
    `connection`, `started_ns`, `rtt_ns`.

    Args:
        context: options, log and clock.
        nodes: the leaf node links of this server.
        logins: how leaf nodes log in.
        cid: connection number.
        dirty_sinks: the sinks with output for the end of the tick.
        watch: observes links whose other side is slow.
        remote: the hub that this server dialled; None = the other side dialled.
        encrypt: begins TLS as client on the session's connection.
        ended: called with the session when its connection is closed.
        is_websocket: the connection is a WebSocket.
    """

    tag = "lid"
    what = "Leafnode"
    trace_kind = 4

    def __init__(
        self,
        context: ServerContext,
        nodes: LeafNodes,
        logins: Logins,
        cid: int,
        dirty_sinks: DirtyList,
        watch: BacklogWatch,
        remote: LeafRemote | None,
        encrypt: Callable[[LeafSession], object],
        ended: Callable[[LeafSession, CloseReason], object],
        *,
        is_websocket: bool = False,
    ) -> None:
        sink = LeafSink(dirty_sinks, self)
        ingress = LeafIngress(sink, None, RouteParser())
        super().__init__(context, cid, sink, ingress, watch, "leaf", ended)
        self.is_websocket = is_websocket
        self._nodes = nodes
        self._encrypt = encrypt
        self.identity: Identity | None = None
        self.options = ConnectMessage()
        self.is_peer_known = True
        self.proxy_key: str | None = None
        self.link: LeafLink = LeafLink(nodes, cid, self, sink, ingress, remote)
        self.login = ClientLogin(self, logins)

    # -- for the login

    @property
    def nonce(self) -> str:
        """What the leaf node had to sign."""
        return self.link.nonce

    @property
    def rtt_ns(self) -> int:
        """Round trip time, ns."""
        return self.link.rtt_ns or self.keep_alive.rtt_ns

    def refuse(self, text: str, reason: CloseReason) -> None:
        self.link.refuse(text, reason)

    # -- for message traces

    @property
    def account(self) -> str | None:
        return self.link.account.name if self.link.account is not None else None

    def may_take(self, subject: str) -> bool:
        check = self.link.rules.may_take if self.link.rules is not None else None
        return check is None or bool(check(subject.encode()))

    # -- from the connection

    def _connected(self) -> None:
        options, remote = self.context.options.leafnodes, self.link.remote
        assert options is not None
        if remote is not None:
            self._limit(remote.settings.first_info_timeout_ns / 1e9 + self._tls_timeout_s())
        else:
            self._limit(options.auth_timeout_ns / 1e9 + self._tls_timeout_s())
        about = f" for account: {remote.settings.account}" if remote is not None else ""
        self.context.log.info(f"{self.name} - Leafnode connection created{about}")
        self._nodes.opened(self.link)

    def _tls_timeout_s(self) -> float:
        """The time that a TLS handshake may take in addition."""
        options, remote = self.context.options.leafnodes, self.link.remote
        assert options is not None
        if self.is_websocket:
            return 0.0  # the handshake is done
        if remote is None:
            return options.tls.timeout_ns / 1e9 if options.tls is not None else 0.0
        return ENCRYPT_TIMEOUT_S

    def closed(self, reason: CloseReason) -> None:
        self.login.end()
        super().closed(reason)

    # -- for the link

    def encrypt(self) -> None:
        if self.connection.tls()[0] or isinstance(self.connection.transport, Layer):
            return
        self._encrypt(self)

    def authenticate(self, connect: LeafConnect, then: Callable[[Login | None], None]) -> None:
        self._stop_timer()
        self.options = structs.replace(
            ConnectMessage(),
            user=connect.user,
            password=connect.password,
            auth_token=connect.auth_token if not connect.user or not connect.password else "",
            nkey=connect.nkey,
            sig=connect.sig,
            jwt=connect.jwt,
            proxy_sig=connect.proxy_sig,
            name=connect.name,
            version=connect.version,
        )

        def decided(identity: Identity | None) -> None:
            if identity is not None and identity.proxy_required and not self._is_behind_proxy():
                identity = None
            self.identity = identity
            then(identity)
            if self.link.state is LinkState.REGISTERED:
                self.control(self.ingress.process())

        self.login.check_with_service(self.options, decided)

    def _is_behind_proxy(self) -> bool:
        if not self.options.proxy_sig:
            return False
        from penstock.server.auth.trusted_proxies import proven_key

        self.proxy_key = proven_key(self.context.options, self.options, self.nonce)
        return bool(self.proxy_key)

    def connecting(self) -> None:
        """CONNECT is sent: the hub must answer soon."""
        self._limit(CONNECT_TIMEOUT_S)

    # -- timers

    def _on_timeout(self) -> None:
        self._timer = None
        if self.link.state is LinkState.GREETING:
            self.link.refuse("Authentication Timeout", CloseReason.AUTHENTICATION_TIMEOUT)
        elif self.link.state is LinkState.CONNECTING:
            self.link.refuse(STALE, CloseReason.STALE_CONNECTION)
        elif self.link.state is LinkState.EXPECTING:
            self.link.close(CloseReason.READ_ERROR)
