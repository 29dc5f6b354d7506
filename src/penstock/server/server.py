"""A server: its parts wired together, started and stopped.

    async with Server(port=-1, jetstream=True) as server:
        nc = await penstock.connect(server.url)

It lives in the event loop that starts it. Starting binds the client port last, when everything behind it
works; stopping closes connections first, then writes what is left, then closes the stores.

Invariants: every session in `sessions` has an open socket; accounts are made on first use and stay.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import structs

from penstock.errors import ConfigError, ServerError
from penstock.kernels.wire.dispatch import ClientSink, Ingress
from penstock.kernels.wire.frames import FrameParser
from penstock.net import sockets
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.listener import Listener
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection
from penstock.routing.account import Account
from penstock.server import lame_duck, ports_file
from penstock.server.accounts import account_setup
from penstock.server.accounts.account_sessions import AccountSessions
from penstock.server.auth.authenticator import GLOBAL_ACCOUNT, Authenticator, ConfiguredUsers
from penstock.server.auth.passwords import Passwords
from penstock.server.config.option_checks import host_and_port
from penstock.server.config.server_options import (
    AccountJetStream,
    AccountOptions,
    JetStreamOptions,
    ServerOptions,
)
from penstock.server.logging import logs
from penstock.server.monitoring.server_counters import ClosedSession, ServerCounters
from penstock.server.monitoring.system_service import SystemService
from penstock.server.server_identity import (
    API_LEVEL,
    PROTOCOL,
    RUNTIME,
    VERSION,
    new_curve_key,
    new_server_id,
    new_server_key,
)
from penstock.server.session import Session
from penstock.server.tick import Tick

if TYPE_CHECKING:
    import socket

    from penstock.net.proxy_layer import ProxyLayer
    from penstock.net.tls import TlsLayer
    from penstock.server.accounts.service_requests import ServiceRequests
    from penstock.server.auth.auth_callout import AuthCallout
    from penstock.server.auth.operators import Operators
    from penstock.server.client_tls import Encryption
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.monitoring.monitor import Monitor
    from penstock.server.websocket_listener import Websockets

CLOSED_SESSIONS_MAX = 10_000
STOP_GRACE_S = 2.0


class Server:
    """A NATS server in the running event loop.

    Args:
        options: everything at once; excludes the other arguments but `log`.
        host: address to listen on.
        port: port for clients; -1 = any free port (`server.port` then says which).
        jetstream: True for JetStream, or its options.
        store_dir: where JetStream keeps file streams. None: in memory, gone with the server.
        log: where log lines go; default: Python's logger `penstock.server`.
        listening: sockets for clients that listen on the options' address already (penstock.net.sockets).
        settings: any other field of `ServerOptions`.

    Raises:
        ConfigError: an option out of its bounds.
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
        **settings: Any,
    ) -> None:
        if options is None:
            options = ServerOptions(
                host=host, port=port, jetstream=_jetstream_options(jetstream, store_dir), **settings
            )
        self.options = options
        self.log = log or logs.Log(logs.to_logging, debug=options.debug, trace=options.trace)
        self.clock: Callable[[], int] = time.time_ns
        self.random: Callable[[], float] = _random
        asks = options.auth_callout is not None or options.trusts_operators
        self.key = new_server_key() if asks else None
        self.curve_key = new_curve_key() if asks else None
        self.server_id = new_server_id() if self.key is None else self.key.public
        self.server_name = options.server_name or self.server_id
        self.operators = self._open_operators()
        self.passwords = Passwords()
        self.authenticator = self.new_authenticator()
        self.callout = self.new_callout()
        self.accounts: dict[str, Account] = {}
        self.system = SystemService(self)
        self.sessions: dict[int, Session] = {}
        self.account_sessions = AccountSessions()
        self.closed_sessions: deque[ClosedSession] = deque(
            maxlen=options.max_closed_clients or CLOSED_SESSIONS_MAX
        )
        self.totals = ServerCounters()
        self.started_ns = 0
        self.jetstream: JetStreamService | None = None
        self.monitor: Monitor | None = None
        self.encryption: Encryption | None = None
        self.websockets: Websockets | None = None
        self.reload_from: Callable[[], Awaitable[None]] | None = None  # reads, applies; may raise ConfigError
        self.reloading = asyncio.Lock()
        self.service_requests: ServiceRequests | None = None
        self.failed = False  # it stopped because what is stored can't be relied on
        self._next_cid = 1
        self._listener: Listener | None = None
        self._listening = listening
        self._watch: BacklogWatch | None = None
        self._tick: Tick | None = None
        self._info: dict[str, Any] = {}
        self._no_sessions = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopping = False
        self._leaving = False
        self._failure_stop: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Starts everything; clients can connect when it returns.

        Raises:
            ServerError: an address can't be bound, a file can't be written, or the server ran before.
            StoreError: the JetStream store can't be opened.
        """
        if self._tick is not None:
            raise ServerError("this server was started before; make a new one to start again")
        loop = asyncio.get_running_loop()
        options = self.options
        self.started_ns = self.clock()
        self._tick = Tick(loop, self.clock, self._on_engine_failure)
        self._watch = BacklogWatch(
            loop, backlog_bounds(options), flush_all=self._tick.flush, trigger=self._tick.trigger
        )
        self.account(GLOBAL_ACCOUNT)
        if options.has_system_account:
            self.account(options.system_account)
        for account in options.accounts:
            self.account(account.name)
        account_setup.share(self)
        self.system.start()
        try:
            self.encryption = self.open_encryption()
            self._open_monitor()
            self._open_jetstream(self._tick)
            self._open_accounts()
            await self._open_websockets()
            await self._listen()
            ports_file.write_pid(options.pid_file)
            self.write_ports(options.ports_file_dir)
        except BaseException:
            await self.stop()
            raise
        self.log.info("Server is ready")
        if self.monitor is not None:
            self.monitor.start()

    async def stop(self) -> None:
        """Closes every connection, writes what is left, closes the stores. Calling it again does nothing."""
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
            self.log.info("Initiating Shutdown...")
        if self.jetstream is not None:
            self.jetstream.end_pulls()
        self.system.shutting_down()
        self.settle(self.sessions.values())
        for session in tuple(self.sessions.values()):
            session.close(CloseReason.SERVER_SHUTDOWN)
        if self.sessions:
            await self._wait_for_sessions()
        if self._tick is not None:
            self._tick.stop()
        if self.jetstream is not None:
            self.jetstream.close()
        self.system.close()
        self.passwords.close()
        if self.operators is not None:
            self.operators.close()
        if self.service_requests is not None:
            self.service_requests.close()
        if self.monitor is not None:
            await self.monitor.stop()
        if self._watch is not None:
            self._watch.close()
        ports_file.remove(self.options.pid_file)
        ports_file.remove_ports(self.options.ports_file_dir)

    def settle(self, sessions: Iterable[Session]) -> None:
        """Works through all that was read from these clients and answers it: they are about to be closed, and
        acks of what has arrived still reach them."""
        for session in tuple(sessions):
            session.connection.finish()
        if self._tick is not None:
            self._tick.settle()

    async def lame_duck(self) -> None:
        """Lets clients go at their own time, then stops: see `lameduck`. Calling it again does nothing."""
        if self._leaving or self._stopping:
            return
        self._leaving = True
        self.log.info("Entering lame duck mode, stop accepting new clients")
        self.system.lame_duck()
        if self._listener is not None:
            self._listener.close()
        if self.websockets is not None:
            self.websockets.close()
        self._info["ldm"] = True
        await lame_duck.leave(self)
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

    # -- what it is

    @property
    def port(self) -> int:
        """The port clients connect to. Raises ServerError before the server listens."""
        if self._listener is None:
            raise ServerError("the server does not listen: start it first")
        return self._listener.port

    @property
    def host(self) -> str:
        """The address clients on this machine connect to."""
        return connectable(self.options.host)

    @property
    def url(self) -> str:
        """What to pass to a client: `nats://host:port`, `tls://host:port` where TLS is required."""
        scheme = "tls" if self.encryption is not None and self.encryption.required else "nats"
        return f"{scheme}://{_host_port(self.host, self.port)}"

    @property
    def stalled_clients(self) -> int:
        """How often a publisher was slowed down because of a congested receiver."""
        return self._watch.stalls if self._watch is not None else 0

    # -- for sessions

    def account(self, name: str) -> Account:
        """The account of that name, made when it is new."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = Account(name)
            account_setup.furnish(self, account)
            self.system.serve(account)
        return account

    def account_options(self, name: str) -> AccountOptions | None:
        """What an account is configured as, by the options or by its token; None for `$G` and the like."""
        return self.options.account(name) if self.operators is None else self.operators.options_of(name)

    def all_account_options(self) -> list[AccountOptions]:
        """What all accounts are configured as that the options or tokens tell of."""
        if self.operators is None:
            return list(self.options.accounts)
        return [known.options for known in self.operators.known.values()]

    def jetstream_accounts(self) -> dict[str, AccountJetStream]:
        """Which accounts have JetStream, and their limits."""
        return (self.operators or self.options).jetstream_accounts()

    def account_name(self, name: str) -> str:
        """What people call an account."""
        return name if self.operators is None else self.operators.name_of(name)

    def new_authenticator(self) -> Authenticator:
        """Who may connect, as the options say now."""
        return self.operators or ConfiguredUsers(self.options, passwords=self.passwords)

    def new_callout(self) -> AuthCallout | None:
        """Services that decide who may connect, as the options say now; None = there are none."""
        if self.options.auth_callout is None and self.operators is None:
            return None
        from penstock.server.auth.auth_callout import AuthCallout
        from penstock.server.auth.callout_policies import ConfiguredPolicy, OperatorPolicy

        if self.operators is not None:
            return AuthCallout(self, OperatorPolicy(self.operators))
        assert self.options.auth_callout is not None
        names = {account.name for account in self.options.accounts}
        system = {GLOBAL_ACCOUNT, self.options.system_account}
        return AuthCallout(self, ConfiguredPolicy(self.options.auth_callout, frozenset(names | system)))

    def admit(self, session: Session) -> bool:
        """Counts a new session; False when there are as many as there may be."""
        limit = self.options.max_connections
        if 0 < limit <= len(self.sessions):
            self.log.error("maximum connections exceeded")
            return False
        self.sessions[session.cid] = session
        self.totals.connections += 1
        return True

    def has_room(self, account: str, new_session: Session) -> bool:
        """May the account have one more connection?"""
        own = self.account_options(account)
        if own is None or own.max_connections < 0:
            return True
        return not self.account_sessions.is_full(account, own.max_connections, new_session)

    def session_closed(self, session: Session, reason: CloseReason) -> None:
        """The socket of a session is gone."""
        if self.sessions.pop(session.cid, None) is None:
            return
        self.account_sessions.leave(session)
        self.totals.add_session(session, reason)
        self.system.disconnected(session, reason)
        if reason.is_slow_consumer:
            self.log.info(f"{session.name} - {reason}")
        self.closed_sessions.append(ClosedSession.of(session, reason, self.clock()))
        if not self.sessions:
            self._no_sessions.set()

    def count_stale(self) -> None:
        """A session is closed because it doesn't answer pings."""
        self.totals.stale_connections += 1

    def info_line(self, session: Session, *, connect_info: bool = False, leaving: bool = False) -> bytes:
        """INFO for one client; with `connect_info`, the one that tells it its account; with `leaving`, the
        one that tells it to go."""
        host, _ = session.connection.peer
        info = self._info
        if self.websockets is not None and session.connection.kind == "websocket":
            info = self.websockets.info(info)
        info = {**info, "client_id": session.cid}
        if session.is_peer_known:
            info["client_ip"] = host
        if leaving:
            info["ldm"] = True
        if session.nonce and session.identity is None:
            info["nonce"] = session.nonce
        if connect_info and session.identity is not None:
            account = session.identity.account
            info |= {"connect_info": True, "remote_account": account}
            info["max_payload"] = session.max_payload
            if account == self.options.system_account:
                info["acc_is_sys"] = True
        return b"INFO " + msgspec.json.encode(info) + b" \r\n"

    # -- for a reload

    def renew_info(self, *, tell: bool) -> None:
        """Makes INFO from the options as they are now; `tell`: clients that listen for it get it at once."""
        assert self._listener is not None
        leaving = self._info.get("ldm", False)
        self._info = self._static_info(self._listener.port)
        if leaving:
            self._info["ldm"] = True
        if tell:
            for session in tuple(self.sessions.values()):
                if session.options.protocol >= 1:
                    session.send(self.info_line(session))

    async def reload(self) -> str:
        """Reads the configuration anew and takes it over: see `reload`. Returns "" or why it is refused."""
        if self.reload_from is None:
            return (
                "no configuration to read anew: the server is embedded in a program that gave it its options"
            )
        try:
            await self.reload_from()
        except ConfigError as error:
            return str(error)
        return ""

    def renew_bounds(self) -> None:
        """How much may wait for a client and how long it may take nothing, from now on."""
        assert self._watch is not None
        self._watch.set_bounds(backlog_bounds(self.options))
        for session in self.sessions.values():
            session.sink.pending_max = self.options.max_pending

    def write_ports(self, directory: str) -> None:
        """Writes the file that says where the server listens, "" = nowhere. Raises ServerError."""
        urls = {"nats": [self.url]}
        if self.monitor is not None:
            urls["monitoring"] = [self.monitor.url]
        if self.websockets is not None:
            urls["websocket"] = [self.websockets.url]
        ports_file.write_ports(directory, urls)

    # -- own

    def open_encryption(self, options: ServerOptions | None = None) -> Encryption | None:
        """TLS as these options want it, by default its own; the files are read now. Raises ConfigError."""
        options = options or self.options
        if options.tls is None:
            return None
        from penstock.server.client_tls import Encryption

        return Encryption(options.tls, plain_allowed=options.allow_non_tls)

    def _accept(self) -> ServerConnection | TlsLayer | ProxyLayer:
        connection, session = self._new_session()
        outer = connection if self.encryption is None else self.encryption.wrap(connection, session)
        if self.options.proxy_protocol:
            from penstock.server.proxy_connections import behind_proxy  # few servers are behind proxies

            return behind_proxy(outer, connection, session)
        return outer

    def accept_websocket(self, given: dict[str, str], forwarded_for: str) -> ServerConnection:
        """The connection of a WebSocket client whose handshake is done; `given`: fields of CONNECT that hold
        until it sends them itself; `forwarded_for`: the address it claims, for log lines."""
        connection, session = self._new_session("websocket", forwarded_for)
        session.options = structs.replace(session.options, **given)
        return connection

    def auth_timeout_ns_of(self, kind: str) -> int:
        """How long such clients have for their CONNECT."""
        if kind == "websocket" and self.websockets is not None:
            return self.websockets.auth_timeout_ns
        return self.options.auth_timeout_ns

    def ping_interval_ns_of(self, kind: str) -> int:
        """How long such clients may be silent."""
        websocket = self.options.websocket
        own = websocket.ping_interval_ns if kind == "websocket" and websocket is not None else 0
        return own or self.options.ping_interval_ns

    def authenticator_of(self, kind: str) -> Authenticator:
        """Who checks the credentials of clients that come in by "nats" or "websocket"."""
        own = self.websockets.authenticator if kind == "websocket" and self.websockets is not None else None
        return own or self.authenticator

    def _new_session(self, kind: str = "nats", forwarded_for: str = "") -> tuple[ServerConnection, Session]:
        assert self._tick is not None
        assert self._watch is not None
        options = self.options
        sink = ClientSink(self._tick.dirty_sinks)
        ingress = Ingress(sink, parser=FrameParser(options.max_control_line, options.max_payload))
        connection = ServerConnection(ingress, self._watch, kind=kind, forwarded_for=forwarded_for)
        session = Session(self, self._next_cid, connection, ingress)
        self._next_cid += 1
        sink.owner = session
        connection.attach(session)
        return connection, session

    async def _listen(self) -> None:
        options = self.options
        self._info = self._static_info(options.port)  # complete before the first client; the port follows
        listener = Listener(self._accept)
        listening = self._listening or sockets.listen_for_clients(options.host, options.port)
        await listener.open(options.host, options.port, sockets=listening)
        self._listener = listener
        self._info = self._static_info(listener.port)
        self.log.info(f"Listening for client connections on {_host_port(options.host, listener.port)}")
        if options.proxy_protocol:
            self.log.info("PROXY protocol enabled for client connections")
        if self.encryption is not None:
            need = "required" if self.encryption.required else "available"
            self.log.info(f"TLS {need} for client connections")

    def _static_info(self, port: int) -> dict[str, Any]:
        options = self.options
        info: dict[str, Any] = {
            "server_id": self.server_id,
            "server_name": self.server_name,
            "version": VERSION,
            "proto": PROTOCOL,
            "go": RUNTIME,
            "host": options.host,
            "port": port,
            "headers": options.header_support,
            "max_payload": options.max_payload,
            "api_lvl": API_LEVEL,
        }
        if self.curve_key is not None:
            info["xkey"] = self.curve_key.public
        if self.authenticator.required:
            info["auth_required"] = True
        if self.encryption is not None:
            info |= self.encryption.info()
        if self.jetstream is not None:
            info["jetstream"] = True
            if options.jetstream is not None and options.jetstream.domain:
                info["domain"] = options.jetstream.domain
        if options.client_advertise:
            host, told = host_and_port("client_advertise", options.client_advertise)
            info |= {"host": host, "port": told or port}
            info["connect_urls"] = [_host_port(host, told or port)]
        return info

    def _open_jetstream(self, tick: Tick) -> None:
        options = self.options.jetstream
        if options is None:
            return
        from penstock.server.jetstream_service import JetStreamService

        self.jetstream = JetStreamService(self, options, tick)

    def _open_operators(self) -> Operators | None:
        """Those who are trusted to say who may connect. Raises ConfigError."""
        if not self.options.trusts_operators:
            return None
        from penstock.server.auth.operators import Operators

        return Operators(self)

    def _open_accounts(self) -> None:
        """Accounts that must be known before the first client. Raises ConfigError."""
        if self.operators is not None:
            self.operators.start(self.jetstream.stored_accounts() if self.jetstream is not None else [])

    def _open_monitor(self) -> None:
        options = self.options
        port = options.http_port or options.https_port
        if port == 0:
            return
        from penstock.server.monitoring.monitor import Monitor

        tls = options.tls if options.https_port else None
        self.monitor = Monitor(self, options.http_host or options.host, max(0, port), tls)
        where = _host_port(self.monitor.host, self.monitor.port)
        self.log.info(f"Starting {self.monitor.scheme} monitor on {where}")

    async def _open_websockets(self) -> None:
        if self.options.websocket is not None:
            from penstock.server.websocket_listener import Websockets

            self._info = self._static_info(self.options.port)  # complete before the first client
            self.websockets = Websockets(self, self.options.websocket)
            await self.websockets.open()

    async def _wait_for_sessions(self) -> None:
        """Until every socket has written what was in its buffer; a receiver that doesn't read is cut off."""
        self._no_sessions.clear()
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._no_sessions.wait()
        except TimeoutError:
            for session in tuple(self.sessions.values()):
                session.connection.cut()

    def _on_engine_failure(self, error: BaseException) -> None:
        self.failed = True
        self.log.fatal(f"JetStream stopped: {error!r}; what was acked is kept, the server shuts down")
        self._failure_stop = asyncio.get_running_loop().create_task(self.stop())


def backlog_bounds(options: ServerOptions) -> Bounds:
    """What the options allow a receiver that is behind."""
    return Bounds(
        max_pending=options.max_pending,
        write_deadline_s=options.write_deadline_ns / 1e9,
        retry=options.write_timeout == "retry",
        stall=options.fast_producer_stall,
    )


def connectable(host: str) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _random() -> float:
    """In [0, 1), coarse; spreads timers. (`random` costs start-up time.)"""
    return os.urandom(1)[0] / 256


def _jetstream_options(
    jetstream: bool | JetStreamOptions, store_dir: str | os.PathLike[str] | None
) -> JetStreamOptions | None:
    if isinstance(jetstream, JetStreamOptions):
        return jetstream
    return (
        JetStreamOptions(store_dir=None if store_dir is None else os.fspath(store_dir)) if jetstream else None
    )
