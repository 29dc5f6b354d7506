"""The leaf node links of a server: listener, dialling, credentials, reload.

`penstock.cluster.leaf_nodes` decides which links there are; this object has the sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.leaf_info import LeafConnect, LeafInfo
from penstock.cluster.leaf_nodes import LeafNodes
from penstock.errors import ConfigError, MisuseError
from penstock.net.backlog import Bounds
from penstock.net.reasons import CloseReason
from penstock.protocol.hosts import host_checked
from penstock.protocol.ids import NuidGenerator
from penstock.server.config.option_checks import NS, host_and_port
from penstock.server.links.leaf_session import LeafSession
from penstock.server.links.leaf_settings import settings_of
from penstock.server.links.link_server import LinkServer, bounds_for
from penstock.server.server_identity import API_LEVEL, RUNTIME, VERSION

if TYPE_CHECKING:
    from penstock.cluster.interests import AccountInterests
    from penstock.cluster.leaf_link import LeafLink
    from penstock.cluster.leaf_ports import LeafAddress, RemoteSettings
    from penstock.cluster.leaf_remote import LeafRemote
    from penstock.kernels.wire.gateway_links import GatewayReplies
    from penstock.net.server_connection import ServerConnection
    from penstock.net.tls import TlsLayer
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.auth.authenticator import Identity
    from penstock.server.auth.logins import Logins
    from penstock.server.client_tls import Encryption
    from penstock.server.config.leaf_options import LeafOptions, LeafRemoteOptions
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick

TLS_TIMEOUT_NS = 2 * NS


class Leafs(LinkServer[LeafSession]):
    """The leaf node links of one server.

    Args:
        context: options with leaf nodes; log, clock, identity.
        accounts: the accounts of the server.
        logins: how leaf nodes log in.
        interests: what the accounts announce.
        tick: ends of ticks.
        cluster_name: callable() -> the name of this server's cluster, "" = none.
        other_urls: callable() -> addresses for leaf nodes of the other servers of the cluster.
        websocket_urls: callable() -> addresses for WebSocket of all servers of the cluster.
        changed: callable(session, is_here): a link was registered or is gone.
        replies: callable() -> the routed replies of this server.
    """

    kind = "leaf node"

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        logins: Logins,
        interests: AccountInterests,
        tick: Tick,
        *,
        cluster_name: Callable[[], str],
        other_urls: Callable[[], list[str]],
        websocket_urls: Callable[[], list[str]],
        changed: Callable[[LeafSession, bool], object],
        replies: Callable[[], GatewayReplies],
    ) -> None:
        super().__init__(context, accounts, interests, tick, bounds_of(context.options))
        self._logins = logins
        self._cluster_name = cluster_name
        self._other_urls = other_urls
        self._websocket_urls = websocket_urls
        self._changed = changed
        self._replies = replies
        self._by_link: dict[LeafLink, LeafSession] = {}
        self._new_nuid = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)
        self._encryption = _encryption_of(context.options)
        self.nodes = LeafNodes(
            settings_of(context.options),
            self,
            interests,
            context.clock,
            server_id=context.server_id,
            server_name=context.server_name,
        )

    # -- for the server

    async def open(self) -> None:
        """Listens for leaf nodes, if configured, and dials the hubs. Raises ServerError."""
        options = self._options
        self._accounts.when_removed(self.nodes.forget_account)
        self._accounts.when_configured(self.nodes.renew_accounts)
        self._accounts.when_shared(self._expect_replies)
        if options.port:
            await self._listen(self._accepted, options.host, options.port)
            where = f"[{options.host}]" if ":" in options.host else options.host
            self._context.log.info(f"Listening for leafnode connections on {where}:{self.port}")
        self.nodes.start()

    @property
    def _options(self) -> LeafOptions:
        options = self._context.options.leafnodes
        assert options is not None
        return options

    @property
    def sessions(self) -> list[LeafSession]:
        """The registered links, oldest first."""
        return [self._by_link[link] for link in self.nodes.links if link in self._by_link]

    def num_links(self, account: str) -> int:
        """How many links an account has."""
        return len(self.nodes.links_of(account))

    def own_urls(self) -> list[str]:
        """host:port at which leaf nodes reach this server; [] = it takes none, or does not advertise."""
        options = self._options
        if self._listener is None or options.no_advertise:
            return []
        host, port = self._advertised()
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]

    def _advertised(self) -> tuple[str, int]:
        options = self._options
        if options.advertise:
            host, port = host_and_port("leafnodes.advertise", options.advertise)
            return host, port or self.port
        from penstock.server.links.local_addresses import reachable

        return reachable(options.host)[0], self.port

    def lame_duck(self) -> None:
        """Accepts no more leaf nodes."""
        self._stop_listening()

    def _stop_links(self) -> None:
        self.nodes.stop()

    def renew(self) -> None:
        """Applies the current options."""
        self._renew_bounds(bounds_of(self._context.options))
        self.nodes.renew(settings_of(self._context.options))

    def renew_logins(self) -> None:
        """Closes the links of leaf nodes that could not log in now."""
        for session in self.sessions:
            if session.link.remote is None:
                self._check_again(session)

    def _check_again(self, session: LeafSession) -> None:
        before = session.identity

        def decided(identity: Identity | None) -> None:
            if identity is None or identity != before:
                session.link.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)

        session.login.check(session.options, decided)

    def prepared_tls(self, options: ServerOptions) -> Callable[[], object]:
        """Reads the TLS files of these options; returns what uses them for new connections. Raises
        ConfigError."""
        made = _encryption_of(options)
        assert options.leafnodes is not None
        for remote in options.leafnodes.remotes:
            _client_context(remote)

        def commit() -> None:
            self._encryption = made

        return commit

    # -- ports of the links

    def dial(self, remote: LeafRemote, address: LeafAddress) -> None:
        self._start_dial(self._connect(remote, address))

    def new_id(self) -> str:
        return self._new_nuid()

    def base_info(self) -> LeafInfo:
        options = self._options
        host, port = self._advertised() if self._listener is not None else (options.host, 0)
        urls = [*self.own_urls(), *self._other_urls()]
        return LeafInfo(
            server_id=self._context.server_id,
            server_name=self._context.server_name,
            version=VERSION,
            go=RUNTIME,
            host=host,
            port=port,
            ip=f"{host}:{port}",
            max_payload=self._context.options.max_payload,
            tls_required=options.tls is not None,
            tls_verify=options.tls is not None and options.tls.verify,
            leafnode_urls=urls or None,
            ws_connect_urls=(self._websocket_urls() if self.own_urls() else None) or None,
            api_lvl=API_LEVEL,
        )

    def cluster_name(self) -> str:
        return self._cluster_name()

    def proof(self, remote: RemoteSettings, nonce: str) -> LeafConnect:
        if not remote.credentials and not remote.nkey:
            return LeafConnect()
        from penstock.protocol.proofs import from_credentials, from_seed

        try:
            if remote.credentials:
                text = Path(remote.credentials).expanduser().read_text(encoding="utf-8")
                proof = from_credentials(text, self._context.clock() // NS)
            else:
                proof = from_seed(remote.nkey)
            return msgspec.convert(proof.fields(nonce), LeafConnect)
        except (OSError, UnicodeDecodeError, MisuseError) as error:
            where = remote.credentials or "nkey"
            raise ConfigError(f"credentials of a leafnode remote ({where}): {error}") from error

    def has_room(self, account: str) -> bool:
        own = self._accounts.options_of(account)
        return own is None or own.max_leafnodes < 0 or self.num_links(account) < own.max_leafnodes

    def routed_subjects(self) -> tuple[bytes, ...]:
        return (b"_GR_.>",) if self._context.options.gateway is not None else ()

    def joined(self, link: LeafLink) -> None:
        session = self._session_of(link)
        if session is not None:
            self._by_link[link] = session
            self._changed(session, True)

    def left(self, link: LeafLink) -> None:
        session = self._by_link.pop(link, None)
        if session is not None:
            self._changed(session, False)

    # -- connections

    def _session_of(self, link: LeafLink) -> LeafSession | None:
        return self._sessions.get(link.cid)

    def _new_session(self, remote: LeafRemote | None, *, is_websocket: bool = False) -> LeafSession:
        session = LeafSession(
            self._context,
            self.nodes,
            self._logins,
            self._take_cid(),
            self._tick.dirty_sinks,
            self._watch,
            remote,
            self._encrypt,
            self._on_ended,
            is_websocket=is_websocket,
        )
        session.link.note_replies(self._replies())
        return self._keep(session)

    def _accepted(self) -> asyncio.BaseProtocol:
        session = self._new_session(None)
        if self._encryption is None:
            return session.connection
        return self._encryption.wrap(session.connection, session)

    def accepted_websocket(self) -> ServerConnection | None:
        """The connection of a leaf node that came by WebSocket; None = this server accepts no leaf nodes."""
        if self._listener is None:
            return None
        return self._new_session(None, is_websocket=True).connection

    def _layer(self, session: LeafSession, remote: LeafRemote) -> TlsLayer:
        options = self._remote_options(remote)
        timeout_ns = options.tls.timeout_ns if options.tls is not None else TLS_TIMEOUT_NS
        return self._encrypted(session, _client_context(options), timeout_ns, remote.host_name)

    @staticmethod
    def _remote_options(remote: LeafRemote) -> LeafRemoteOptions:
        from penstock.server.config.leaf_options import LeafRemoteOptions

        assert isinstance(remote.settings, LeafRemoteOptions)
        return remote.settings

    def _encrypt(self, session: LeafSession) -> None:
        """The hub asks for TLS on a connection that is open."""
        remote, transport = session.link.remote, session.connection.transport
        assert remote is not None
        if transport is not None:
            self._layer(session, remote).take_over(transport)

    async def _connect(self, remote: LeafRemote, address: LeafAddress) -> None:
        options = self._remote_options(remote)
        timeout_ns = options.dial_timeout_ns or self._options.dial_timeout_ns
        try:
            with host_checked(address.host):
                if address.is_websocket:
                    await self._connect_websocket(remote, address, timeout_ns / NS)
                    return
                place = await self._place_of(options, address, timeout_ns)
                async with asyncio.timeout(timeout_ns / NS):
                    await self._loop.create_connection(lambda: self._dialled(remote), **place)
        except (OSError, ConfigError, ssl.SSLError) as error:  # TimeoutError is an OSError
            text = getattr(error, "strerror", None) or str(error) or "timeout"
            self.nodes.dial_failed(remote, text)

    @staticmethod
    async def _place_of(options: LeafRemoteOptions, address: LeafAddress, timeout_ns: int) -> dict[str, Any]:
        """Where to connect to, for `create_connection`: the hub, or a socket that a proxy connected to it."""
        proxy = options.proxy
        if proxy is None:
            return {"host": address.host, "port": address.port}
        from penstock.net.http_tunnel import open_tunnel  # few servers dial through a proxy

        made = await open_tunnel(
            proxy.address,
            str(address),
            user=proxy.username,
            password=proxy.password,
            timeout_s=(proxy.timeout_ns or timeout_ns) / NS,
        )
        return {"sock": made}

    async def _connect_websocket(self, remote: LeafRemote, address: LeafAddress, timeout_s: float) -> None:
        from penstock.net.websocket_dial import DialledWebsocket  # few servers dial by WebSocket

        options = self._remote_options(remote)
        is_encrypted = address.scheme == "wss" or options.tls is not None
        layer = DialledWebsocket(
            lambda: self._new_session(remote, is_websocket=True).connection,
            str(address),
            f"{address.path.rstrip('/')}/leafnode",
            compression=options.ws_compression,
            handshake_timeout_s=options.first_info_timeout_ns / NS,
            log_error=self._context.log.error,
        )
        place = await self._place_of(options, address, int(timeout_s * NS))
        async with asyncio.timeout(timeout_s):
            await self._loop.create_connection(
                lambda: layer,
                **place,
                ssl=_client_context(options) if is_encrypted else None,
                server_hostname=remote.host_name if is_encrypted else None,
            )
        try:
            await layer.opened
        except asyncio.CancelledError:
            layer.abort()
            raise

    def _dialled(self, remote: LeafRemote) -> asyncio.BaseProtocol:
        session = self._new_session(remote)
        tls = self._remote_options(remote).tls
        return self._layer(session, remote) if tls is not None and tls.handshake_first else session.connection


def _encryption_of(options: ServerOptions) -> Encryption | None:
    """TLS of accepted connections. Raises ConfigError."""
    leafs = options.leafnodes
    if leafs is None or leafs.tls is None or not leafs.port:
        return None
    from penstock.server.client_tls import Encryption

    return Encryption(leafs.tls, plain_allowed=False)


def _client_context(remote: LeafRemoteOptions) -> ssl.SSLContext:
    """TLS of a dialled connection. Raises ConfigError."""
    from penstock.net.tls import client_context

    tls = remote.tls
    if tls is None:
        return client_context()
    return client_context(
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        ca_file=tls.ca_file,
        min_version=tls.min_version,
        cipher_suites=tls.cipher_suites,
        insecure=tls.insecure,
    )


def bounds_of(options: ServerOptions) -> Bounds:
    """Back pressure limits of links."""
    leafs = options.leafnodes
    assert leafs is not None
    return bounds_for(options, leafs.write_deadline_ns, leafs.write_timeout)
