"""The routes of a server: listener, dialling, client URLs, reload.

`penstock.cluster.mesh` decides which links there are; this object has the sockets. Each dial is a task that
ends with the server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import faults
from penstock.cluster.mesh import Mesh
from penstock.cluster.route_info import RouteInfo
from penstock.cluster.route_link import Address, Dial
from penstock.errors import ServerError
from penstock.net import sockets
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.listener import Listener
from penstock.net.reasons import CloseReason
from penstock.server.config.option_checks import NS, host_and_port
from penstock.server.links import local_addresses
from penstock.server.links.route_session import RouteSession
from penstock.server.links.route_settings import settings_of
from penstock.server.monitoring.server_counters import TrafficCounters
from penstock.server.server_identity import RUNTIME, VERSION

if TYPE_CHECKING:
    import ssl

    from penstock.cluster.interests import AccountInterests
    from penstock.routing.permissions import PermissionRules
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick

DIAL_TIMEOUT_S = 1.0
STOP_GRACE_S = 1.0


class Routes:
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
    """

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
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._tick = tick
        self._own_urls = client_urls
        self._leaf_urls = leaf_urls
        self._on_urls = urls_changed
        self._on_peer = peer_changed
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._next_cid = 1
        self._sessions: dict[int, RouteSession] = {}
        self._none_left = asyncio.Event()
        self._dials: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        self._scratch = bytearray()
        self.is_leaving = False
        self.past = TrafficCounters(0, 0, 0, 0)  # of closed routes
        self.slow_peers = 0
        self.dropped_msgs = 0  # of closed routes
        self._watch = BacklogWatch(
            self._loop, bounds_of(context.options), flush_all=tick.flush, trigger=tick.trigger
        )
        self._open_tls(context.options)
        name = context.options.cluster_name
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
        self._accounts.when_removed(self.mesh.interest.forget)
        self._accounts.when_shared(self._expect_replies)
        self._listener = Listener(lambda: self._connection(None))
        try:
            await self._listener.open(cluster.host, max(0, cluster.port))
        except OSError as error:
            raise ServerError(sockets.failure(cluster.host, cluster.port, error)) from error
        log = self._context.log
        log.info(f"Cluster name is {self.mesh.cluster_name}")
        if self.mesh.is_dynamic:
            log.warning("Cluster name was dynamically generated, consider setting one")
        log.info(f"Listening for route connections on {Address(cluster.host, self.port)}")
        self.mesh.start()

    def _expect_replies(self) -> None:
        for account in self._accounts.values():
            if account.index.replies is not None:
                self.mesh.interest.expect_replies(account)

    @property
    def port(self) -> int:
        """The port for other servers."""
        assert self._listener is not None
        return self._listener.port

    @property
    def sessions(self) -> list[RouteSession]:
        """The registered routes, oldest first."""
        links = set(self.mesh.links)
        return [session for session in self._sessions.values() if session.link in links]

    def lame_duck(self) -> None:
        """Accepts no more servers, and tells the others that clients shall go elsewhere."""
        self.is_leaving = True
        if self._listener is not None:
            self._listener.close()
        self.mesh.lame_duck()

    async def close(self) -> None:
        """Closes all routes."""
        if self._listener is not None:
            self._listener.close()
        for timer in self._timers:
            timer.cancel()
        for task in tuple(self._dials):
            task.cancel()
        self.mesh.stop()
        for session in tuple(self._sessions.values()):
            session.connection.close(CloseReason.SERVER_SHUTDOWN)
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                while self._sessions:
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            for session in tuple(self._sessions.values()):
                session.connection.cut()
        self._watch.close()

    def renew(self) -> None:
        """Applies the current options."""
        self._watch.set_bounds(bounds_of(self._context.options))
        for session in self._sessions.values():
            session.connection.renew_bound()
        self.mesh.rename(self._context.options.cluster_name)
        self.mesh.renew(settings_of(self._context.options))

    def prepared_tls(self, options: ServerOptions) -> Callable[[], object]:
        """Reads the TLS files of these options; returns what uses them for new connections. Raises
        ConfigError."""
        made = _contexts_of(options)

        def commit() -> None:
            self._contexts = made

        return commit

    def traffic(self) -> TrafficCounters:
        """Messages and bytes of all routes since the start."""
        counters = [TrafficCounters.of(session.sink) for session in self._sessions.values()]
        return TrafficCounters(*(sum(parts) for parts in zip(self.past, *counters, strict=True)))

    def leaf_urls(self) -> list[str]:
        """The addresses for leaf nodes of the other servers, each once."""
        found: dict[str, None] = {}
        for link in self.mesh.peers.values():
            if link.remote is not None:
                found.update(dict.fromkeys(link.remote.leafnode_urls or ()))
        return list(found)

    # -- ports of the mesh

    def dial(self, dial: Dial) -> None:
        task = self._loop.create_task(self._connect(dial))
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        def run() -> None:
            self._timers.discard(handle)
            faults.contain(work, lambda error, *_: faults.note("timer of a route", error))

        handle = self._loop.call_later(delay_s, run)
        self._timers.add(handle)
        return handle

    def random(self) -> float:
        return self._context.random()

    def base_info(self) -> RouteInfo:
        options = self._context.options
        cluster = options.cluster
        assert cluster is not None
        host, port, ip = cluster.host, self._listener.port if self._listener is not None else 0, ""
        if cluster.advertise:
            host, advertised = host_and_port("cluster.advertise", cluster.advertise)
            port = advertised or port
            ip = f"nats-route://{Address(host, port)}/"
        own = [] if self.is_leaving else self._own_urls("nats")
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
        )

    def rules(self) -> PermissionRules | None:
        cluster = self._context.options.cluster
        assert cluster is not None
        return None if cluster.permissions is None else cluster.permissions.rules

    def urls_changed(self) -> None:
        self._on_urls()

    def peer_changed(self, server_id: str, *, is_here: bool) -> None:
        self._on_peer(server_id, is_here)

    def log_notice(self, text: str) -> None:
        self._context.log.info(text)

    def log_error(self, text: str) -> None:
        self._context.log.error(text)

    def log_debug(self, text: str) -> None:
        self._context.log.debug(text)

    # -- connections

    def _connection(self, dial: Dial | None) -> asyncio.BufferedProtocol:
        """The protocol object of a new socket."""
        session = RouteSession(
            self._context,
            self.mesh,
            self._next_cid,
            self._tick.dirty_sinks,
            self._watch,
            dial,
            self._on_ended,
        )
        self._next_cid += 1
        self._sessions[session.cid] = session
        if self._contexts is None:
            return session.connection
        from penstock.net.tls import READ_BYTES, TlsLayer, TlsPolicy

        cluster = self._context.options.cluster
        assert cluster is not None
        assert cluster.tls is not None
        if not self._scratch:
            self._scratch = bytearray(READ_BYTES)
        accepting, connecting = self._contexts
        return TlsLayer(
            session.connection,
            accepting if dial is None else connecting,
            TlsPolicy(cluster.tls.timeout_ns / NS, float("inf")),
            self._scratch,
            lambda text: self._context.log.debug(f"{session.name} - {text}"),
            server_name=None if dial is None else self._tls_name(dial.address.host),
        )

    def _tls_name(self, host: str) -> str:
        """The name that a server's certificate must have. An address from a peer gets the first host
        name among the routes, because certificates seldom name addresses."""
        names = [one.host for one in self.mesh.settings.routes if not _is_address(one.host)]
        return names[0] if _is_address(host) and names else host

    def _on_ended(self, session: RouteSession, reason: CloseReason) -> None:
        if self._sessions.pop(session.cid, None) is None:
            return
        if not self._sessions:
            self._none_left.set()
        sink = session.sink
        self.past = TrafficCounters(
            *(sum(parts) for parts in zip(self.past, TrafficCounters.of(sink), strict=True))
        )
        self.slow_peers += reason.is_slow_consumer
        self.dropped_msgs += sink.dropped_msgs

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
    """Back pressure limits of routes: a slow peer gets new deadlines as long as it takes something."""
    cluster = options.cluster
    assert cluster is not None
    return Bounds(
        max_pending=options.max_pending,
        write_deadline_s=(cluster.write_deadline_ns or options.write_deadline_ns) / NS,
        retry=cluster.write_timeout != "close",
        stall=options.fast_producer_stall,
    )


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _new_name() -> str:
    """A generated cluster name."""
    import os

    from penstock.protocol.ids import NuidGenerator

    return NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)()
