"""The server object: creates its parts, starts and stops them.


    async with Server(port=-1, jetstream=True) as server:
        nc = await penstock.connect(server.url)

The server runs in the event loop that starts it. Starting binds the client port last, when everything behind
it works. Stopping closes connections first, then writes pending data, then closes the stores.

The parts take what they use: `ServerContext` and the registries of accounts and sessions, not the server.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import ConfigError, ServerError
from penstock.net import sockets
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.listener import Listener
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection
from penstock.server import lame_duck, ports_file
from penstock.server.accounts.account_registry import AccountRegistry
from penstock.server.auth.logins import Logins
from penstock.server.client_info import ClientInfo, host_port
from penstock.server.config.server_options import (
    JetStreamOptions,
    ServerOptions,
)
from penstock.server.links.server_links import ServerLinks
from penstock.server.logging import logs
from penstock.server.monitoring.system_service import SystemService
from penstock.server.server_context import ServerContext
from penstock.server.session import Session, SessionPorts
from penstock.server.session_registry import SessionRegistry
from penstock.server.tick import Tick

if TYPE_CHECKING:
    import socket
    from typing import Unpack

    from penstock.net.proxy_layer import ProxyLayer
    from penstock.net.tls import TlsLayer
    from penstock.server.client_tls import Encryption
    from penstock.server.config.server_settings import ServerSettings
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.links.replication_service import ReplicationSetup
    from penstock.server.monitoring.monitor import Monitor
    from penstock.server.websocket_listener import Websockets

STOP_GRACE_S = 2.0


class Server:
    """A NATS server in the running event loop.

    Args:
        options: all options; excludes the other arguments except `log`, `listening` and `clock`.
        host: address to listen on.
        port: client port; -1 = any free port (see `server.port`).
        jetstream: True, or JetStream options.
        store_dir: directory of file streams. None = in memory, lost when the server stops.
        log: log output; default: Python's logger `penstock.server`.
        listening: sockets that already listen on the client address (penstock.net.sockets).
        clock: returns ns since 1970.
        replication: groups that this server replicates with the others of its cluster; needs `cluster` with a
            name, and a server name.
        settings: any other field of `ServerOptions`.

    Raises:
        ConfigError: an invalid option.
    """

    def __init__(
        self,
        *,
        options: ServerOptions | None = None,
        host: str = "127.0.0.1",
        port: int = -1,
        jetstream: bool | JetStreamOptions = False,
        store_dir: str | os.PathLike[str] | None = None,
        log: logs.Log | None = None,
        listening: list[socket.socket] | None = None,
        clock: Callable[[], int] = time.time_ns,
        replication: ReplicationSetup | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        if options is None:
            options = ServerOptions(
                host=host, port=port, jetstream=_jetstream_options(jetstream, store_dir), **settings
            )
        log = log or logs.Log(logs.to_logging, debug=options.debug, trace=options.trace)
        self.context = ServerContext(options, log, clock=clock)
        self.sessions = SessionRegistry(options.max_closed_clients)
        self.accounts = AccountRegistry(self.context, self.sessions)
        self.logins = Logins(self.context, self.accounts)
        self.system = SystemService(self)
        self.info = ClientInfo(self)
        self._session_ports = SessionPorts(
            self.context,
            self.sessions,
            self.accounts,
            self.logins,
            self.system,
            self.info.line,
            lambda: self.jetstream,
        )
        self.started_ns = 0
        self.jetstream: JetStreamService | None = None
        self.monitor: Monitor | None = None
        self.encryption: Encryption | None = None
        self.websockets: Websockets | None = None
        self.links = ServerLinks(
            self.context,
            self.accounts,
            self.logins,
            self.system,
            lambda: self.jetstream,
            self.info,
            self._on_urls_changed,
            replication,
        )
        self.reload_from: Callable[[], Awaitable[None]] | None = None  # may raise ConfigError
        self.reloading = asyncio.Lock()
        self.failed = False  # stopped, because the stored data is unreliable
        self._next_cid = 1
        self._listener: Listener | None = None
        self._listening = listening
        self._watch: BacklogWatch | None = None
        self._tick: Tick | None = None
        self._stopped = asyncio.Event()
        self._stopping = False
        self._leaving = False
        self._failure_stop: asyncio.Task[None] | None = None

    # -- life cycle

    async def start(self) -> None:
        """Starts everything. Clients can connect when it returns.

        Raises:
            ServerError: an address cannot be bound, a file cannot be written, or the server ran before.
            StoreError: the JetStream store cannot be opened.
        """
        if self._tick is not None:
            raise ServerError("this server was started before; make a new one to start again")
        loop = asyncio.get_running_loop()
        options = self.options
        self.started_ns = self.context.clock()
        self._tick = Tick(loop, self.context.clock, self._on_engine_failure)
        self._watch = BacklogWatch(
            loop, backlog_bounds(options), flush_all=self._tick.flush, trigger=self._tick.trigger
        )
        self.accounts.open_configured()
        self.system.start()
        try:
            self.encryption = self.open_encryption()
            self._open_monitor()
            self._open_jetstream(self._tick)
            self._open_accounts()
            await self._open_websockets()
            await self._listen()
            await self.links.open(self._tick)
            ports_file.write_pid(options.pid_file)
            self.write_ports(options.ports_file_dir)
        except BaseException:
            await self.stop()
            raise
        self.context.log.info("Server is ready")
        if self.monitor is not None:
            self.monitor.start()

    async def stop(self) -> None:
        """Closes all connections, writes pending data and closes the stores. Idempotent."""
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = True
        try:
            await self._shut_down()
        finally:
            self._stopped.set()

    async def _shut_down(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self.websockets is not None:
            self.websockets.close()
        if self._tick is not None and self._listener is not None:
            self.context.log.info("Initiating Shutdown...")
        await self.links.hand_over()
        if self.jetstream is not None:
            self.jetstream.end_pulls()
        self.links.shutting_down()
        self.system.shutting_down()
        self.process_input(self.sessions.values())
        for session in tuple(self.sessions.values()):
            session.close(CloseReason.SERVER_SHUTDOWN)
        if self.sessions:
            await self._wait_for_sessions()
        await self.links.close()
        if self._tick is not None:
            self._tick.stop()
        if self.jetstream is not None:
            self.jetstream.close()
        self.system.close()
        self.logins.close()
        self.accounts.close()
        if self.monitor is not None:
            await self.monitor.stop()
        if self._watch is not None:
            self._watch.close()
        ports_file.remove(self.options.pid_file)
        ports_file.remove_ports(self.options.ports_file_dir)

    def process_input(self, sessions: Iterable[Session]) -> None:
        """Processes all input read from these clients before they are closed, so that acks of messages that
        have arrived still reach them."""
        for session in tuple(sessions):
            session.connection.finish()
        if self._tick is not None:
            self._tick.run_now()

    async def lame_duck(self) -> None:
        """Closes clients gradually, then stops: see `lame_duck`. Idempotent."""
        if self._leaving or self._stopping:
            return
        self._leaving = True
        self.context.log.info("Entering lame duck mode, stop accepting new clients")
        self.system.lame_duck()
        await self.links.hand_over()
        if self._listener is not None:
            self._listener.close()
        if self.websockets is not None:
            self.websockets.close()
        self.links.lame_duck()
        self.info.lame_duck()
        await lame_duck.leave(self.context, self.sessions, self.info.line, self.process_input)
        await self.stop()

    async def wait_stopped(self) -> None:
        """Returns when the server has stopped."""
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- properties

    @property
    def port(self) -> int:
        """The client port. Raises ServerError before the server listens."""
        if self._listener is None:
            raise ServerError("the server does not listen: start it first")
        return self._listener.port

    @property
    def host(self) -> str:
        """The address for clients on this machine."""
        return connectable(self.options.host)

    @property
    def url(self) -> str:
        """The client URL: `nats://host:port`, or `tls://host:port` where TLS is required."""
        scheme = "tls" if self.encryption is not None and self.encryption.required else "nats"
        return f"{scheme}://{host_port(self.host, self.port)}"

    @property
    def stalled_clients(self) -> int:
        """How often publishers were paused because of a congested receiver."""
        return self._watch.stalls if self._watch is not None else 0

    @property
    def options(self) -> ServerOptions:
        """The options in effect."""
        return self.context.options

    @property
    def server_id(self) -> str:
        """The server's id, as in INFO."""
        return self.context.server_id

    @property
    def server_name(self) -> str:
        """The server's name: that of the options, or the id."""
        return self.context.server_name

    # -- for a reload

    def prepared_encryption(self, options: ServerOptions) -> Callable[[], None]:
        """Returns a function that applies the TLS of these options to new handshakes, and closes clients
        that it would refuse. Reads the files now, even if their names are unchanged. Raises ConfigError."""
        encryption = self.open_encryption(options)

        def commit() -> None:
            self.encryption = encryption
            if encryption is not None:
                for session in [one for one in self.sessions.values() if encryption.refuses(one)]:
                    session.close(CloseReason.TLS_HANDSHAKE_FAILURE)
            if self.monitor is not None and options.tls is not None:
                self.monitor.renew_certificate(options.tls)

        return commit

    def renew_info(self, *, notify: bool) -> None:
        """Rebuilds INFO from the current options. `notify`: send it to clients that accept INFO at any
        time."""
        self.info.rebuild()
        if notify:
            for session in tuple(self.sessions.values()):
                if session.takes_info:
                    session.send(self.info.line(session))

    async def reload(self) -> str:
        """Reads and applies the configuration: see `reload`. Returns "" or why it was refused."""
        if self.reload_from is None:
            return "no configuration to reload: the server is embedded in a program that set its options"
        try:
            await self.reload_from()
        except ConfigError as error:
            return str(error)
        return ""

    def renew_bounds(self) -> None:
        """Applies the current limits on pending bytes and write deadlines."""
        assert self._watch is not None
        self._watch.set_bounds(backlog_bounds(self.options))
        for session in self.sessions.values():
            session.sink.bound(self.options.max_pending)

    def write_ports(self, directory: str) -> None:
        """Writes the ports file; "" = none. Raises ServerError."""
        urls = {"nats": [self.url]}
        if self.monitor is not None:
            urls["monitoring"] = [self.monitor.url]
        if self.websockets is not None:
            urls["websocket"] = [self.websockets.url]
        options, links = self.options, self.links
        if links.routes is not None and options.cluster is not None:
            host = connectable(options.cluster.host)
            urls["cluster"] = [f"nats://{host_port(host, links.routes.port)}"]
        if links.leafs is not None and links.leafs.port and options.leafnodes is not None:
            host = connectable(options.leafnodes.host)
            urls["leafnodes"] = [f"nats://{host_port(host, links.leafs.port)}"]
        if links.gateways is not None and options.gateway is not None:
            host = connectable(options.gateway.host)
            urls["gateway"] = [f"nats://{host_port(host, links.gateways.port)}"]
        ports_file.write_ports(directory, urls)

    # -- internal

    def open_encryption(self, options: ServerOptions | None = None) -> Encryption | None:
        """TLS for these options, by default the current ones. Reads the files now. Raises ConfigError."""
        options = options or self.options
        if options.tls is None:
            return None
        from penstock.server.client_tls import Encryption

        return Encryption(options.tls, plain_allowed=options.allow_non_tls)

    def _accept(self) -> ServerConnection | TlsLayer | ProxyLayer:
        session = self._new_session(awaits_proxy=self.options.proxy_protocol)
        connection = session.connection
        outer = connection if self.encryption is None else self.encryption.wrap(connection, session)
        if self.options.proxy_protocol:
            from penstock.server.proxy_connections import behind_proxy  # few servers are behind proxies

            return behind_proxy(outer, session)
        return outer

    async def connect_locally(self, peer: tuple[str, int]) -> socket.socket:
        """A connection of a client in this process, without TLS: one end of a pair of sockets.

        Its client logs in like any other. `peer`: the address it acts for, for logs and permissions.
        """

        from penstock.server.local_clients import open_pair

        def accept() -> ServerConnection:
            connection = self._new_session(is_local=True).connection
            connection.set_peer(peer)
            return connection

        return await open_pair(accept)

    def _accept_websocket(self, given: dict[str, str], forwarded_for: str) -> ServerConnection:
        """The connection of a WebSocket client after its handshake. `given`: fields of CONNECT that apply
        until the client sends them; `forwarded_for`: claimed client address, for log lines."""
        session = self._new_session(kind="websocket", forwarded_for=forwarded_for, given=given)
        return session.connection

    def _new_session(self, **about: Any) -> Session:
        assert self._tick is not None
        assert self._watch is not None
        session = Session(self._session_ports, self._next_cid, self._tick.dirty_sinks, self._watch, **about)
        self._next_cid += 1
        return session

    async def _listen(self) -> None:
        options = self.options
        self.info.rebuild(options.port)  # needed by the first client; the port follows
        listener = Listener(self._accept)
        listening = self._listening or sockets.listen_for_clients(options.host, options.port)
        await listener.open(options.host, options.port, sockets=listening)
        self._listener = listener
        self.info.rebuild(listener.port)
        self.context.log.info(f"Listening for client connections on {host_port(options.host, listener.port)}")
        if options.proxy_protocol:
            self.context.log.info("PROXY protocol enabled for client connections")
        if self.encryption is not None:
            need = "required" if self.encryption.required else "available"
            self.context.log.info(f"TLS {need} for client connections")

    def _open_jetstream(self, tick: Tick) -> None:
        options = self.options.jetstream
        if options is None:
            return
        from penstock.server.jetstream_service import JetStreamService

        cluster = None
        if self.options.cluster is not None:
            from penstock.server.replicated.cluster_jetstream import ClusterJetStream

            cluster = ClusterJetStream(self.context, self.accounts)
        self.jetstream = JetStreamService(self.context, self.accounts, options, tick, cluster)

    def _open_accounts(self) -> None:
        """Creates the accounts that must exist before the first client. Raises ConfigError."""
        if self.accounts.operators is not None:
            self.accounts.operators.start(
                self.jetstream.stored_accounts() if self.jetstream is not None else []
            )

    def _open_monitor(self) -> None:
        options = self.options
        address = options.monitoring_address()
        if address is None:
            return
        from penstock.server.monitoring.monitor import Monitor

        tls = options.tls if options.https_port else None
        self.monitor = Monitor(self, *address, tls)
        where = host_port(self.monitor.host, self.monitor.port)
        self.context.log.info(f"Starting {self.monitor.scheme} monitor on {where}")
        if options.web is not None:
            self.context.log.info(f"Serving the web page on {self.monitor.web_url}")

    async def _open_websockets(self) -> None:
        if self.options.websocket is not None:
            from penstock.server.websocket_listener import Websockets

            self.info.rebuild(self.options.port)  # must be complete before the first client
            self.websockets = Websockets(
                self.context,
                self.logins,
                self.options.websocket,
                self._accept_websocket,
                lambda: self.links.leafs.accepted_websocket() if self.links.leafs is not None else None,
            )
            await self.websockets.open()

    def _on_urls_changed(self) -> None:
        """The client URLs of other servers differ: clients that take INFO at any time get them."""
        if self._listener is not None and not self._stopping:
            self.renew_info(notify=True)

    async def _wait_for_sessions(self) -> None:
        """Waits until every socket has written its buffer; cuts off receivers that do not read."""
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self.sessions.wait_empty()
        except TimeoutError:
            for session in tuple(self.sessions.values()):
                session.connection.cut()

    def _on_engine_failure(self, error: BaseException) -> None:
        self.failed = True
        self.context.log.fatal(f"JetStream stopped: {error!r}; what was acked is kept, the server shuts down")
        self._failure_stop = asyncio.get_running_loop().create_task(self.stop())


def backlog_bounds(options: ServerOptions) -> Bounds:
    """Back pressure limits from the options."""
    return Bounds(
        max_pending=options.max_pending,
        write_deadline_s=options.write_deadline_ns / 1e9,
        retry=options.write_timeout == "retry",
        stall=options.fast_producer_stall,
    )


def connectable(host: str) -> str:
    """The address at which a client on this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _jetstream_options(
    jetstream: bool | JetStreamOptions, store_dir: str | os.PathLike[str] | None
) -> JetStreamOptions | None:
    if isinstance(jetstream, JetStreamOptions):
        return jetstream
    return (
        JetStreamOptions(store_dir=None if store_dir is None else os.fspath(store_dir)) if jetstream else None
    )
