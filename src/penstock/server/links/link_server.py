"""The sockets of all links of one kind: listener, dials, timers, connections and their counters.

`penstock.cluster` decides which links there are; the subclasses make their sessions. Each dial is a task that
ends with the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock import faults
from penstock.errors import ServerError
from penstock.net import sockets
from penstock.net.backlog import BacklogWatch, Bounds
from penstock.net.listener import Listener
from penstock.net.reasons import CloseReason
from penstock.server.config.option_checks import NS
from penstock.server.links.link_session import LinkSession
from penstock.server.monitoring.server_counters import TrafficCounters

if TYPE_CHECKING:
    import ssl

    from penstock.cluster.interests import AccountInterests
    from penstock.net.route_connection import RouteConnection
    from penstock.net.tls import TlsLayer
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick

STOP_GRACE_S = 1.0
Traced = Callable[..., int | bytes | None]
"""callable(session, index, subject, reply, header, payload, queues), see `RouteIngress.report_traces`."""
Session = TypeVar("Session", bound=LinkSession)


class Encrypted(Protocol):
    """What TLS needs of a session."""

    @property
    def connection(self) -> RouteConnection: ...
    @property
    def name(self) -> str:
        """Prefix of log lines."""


class LinkServer(Generic[Session]):
    """All links of one kind of one server.

    Args:
        context: options, log, clock, identity.
        accounts: the accounts of the server.
        interests: what they announce.
        tick: ends of ticks.
        bounds: back pressure limits of the links.
    """

    kind = ""
    """For reports of unexpected exceptions."""

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        interests: AccountInterests,
        tick: Tick,
        bounds: Bounds,
    ) -> None:
        self._context = context
        self._accounts = accounts
        self._interests = interests
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._next_cid = 1
        self._sessions: dict[int, Session] = {}
        self._none_left = asyncio.Event()
        self._dials: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._scratch = bytearray()
        self.past = TrafficCounters(0, 0, 0, 0)  # of closed links
        self.slow_peers = 0
        self.dropped_msgs = 0  # of closed links
        self._traced: Traced | None = None
        self._watch = BacklogWatch(self._loop, bounds, flush_all=tick.flush, trigger=tick.trigger)

    # -- for the server

    def report_traces(self, traced: Traced) -> None:
        """Gives messages that ask for a trace to `traced`; before the first link."""
        self._traced = traced
        self._accounts.when_configured(self._renew_traces)

    def _renew_traces(self) -> None:
        for session in self._sessions.values():
            self._watch_traces(session)

    def _watch_traces(self, session: LinkSession) -> None:
        if self._traced is not None:
            traces_parents = any(one.trace is not None for one in self._accounts.all_options())
            session.ingress.report_traces(partial(self._traced, session), traces_parents)

    @property
    def port(self) -> int:
        """The port for other servers; 0 = none."""
        return self._listener.port if self._listener is not None else 0

    async def _listen(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        """Listens; port -1 = any. Raises ServerError."""
        self._listener = Listener(make)
        try:
            await self._listener.open(host, max(0, port))
        except OSError as error:
            raise ServerError(sockets.failure(host, port, error)) from error

    def _expect_replies(self) -> None:
        for account in self._accounts.values():
            if account.index.replies is not None:
                self._interests.expect_replies(account)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _stop_links(self) -> None:
        """Closes the links, and dials nothing more."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes all links."""
        self._stop_listening()
        for timer in self._timers:
            timer.cancel()
        for task in tuple(self._dials):
            task.cancel()
        self._stop_links()
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

    def _renew_bounds(self, bounds: Bounds) -> None:
        self._watch.set_bounds(bounds)
        for session in self._sessions.values():
            session.connection.renew_bound()

    def traffic(self) -> TrafficCounters:
        """Messages and bytes of all links since the start."""
        counters = [TrafficCounters.of(session.sink) for session in self._sessions.values()]
        return TrafficCounters(*(sum(parts) for parts in zip(self.past, *counters, strict=True)))

    # -- ports of the links

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        def run() -> None:
            self._timers.discard(handle)
            faults.contain(work, lambda error, *_: faults.note(f"timer of a {self.kind}", error))

        handle = self._loop.call_later(delay_s, run)
        self._timers.add(handle)
        return handle

    def random(self) -> float:
        return self._context.random()

    def log_notice(self, text: str) -> None:
        self._context.log.info(text)

    def log_warning(self, text: str) -> None:
        self._context.log.warning(text)

    def log_error(self, text: str) -> None:
        self._context.log.error(text)

    def log_debug(self, text: str) -> None:
        self._context.log.debug(text)

    # -- connections

    def _start_dial(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._dials.add(task)
        task.add_done_callback(self._dials.discard)

    def _take_cid(self) -> int:
        cid = self._next_cid
        self._next_cid += 1
        return cid

    def _keep(self, session: Session) -> Session:
        """Knows a new session until it ends."""
        self._sessions[session.cid] = session
        self._watch_traces(session)
        return session

    def _encrypted(
        self, session: Encrypted, context: ssl.SSLContext, timeout_ns: int, server_name: str | None
    ) -> TlsLayer:
        """The TLS layer below a session's connection; server_name None = this server accepts."""
        from penstock.net.tls import READ_BYTES, TlsLayer, TlsPolicy

        if not self._scratch:
            self._scratch = bytearray(READ_BYTES)
        return TlsLayer(
            session.connection,
            context,
            TlsPolicy(timeout_ns / NS, float("inf")),
            self._scratch,
            lambda text: self._context.log.debug(f"{session.name} - {text}"),
            server_name=server_name,
        )

    def _forget(self, session: Session) -> None:
        """The session has given its connection away."""
        self._sessions.pop(session.cid, None)
        if not self._sessions:
            self._none_left.set()

    def _on_ended(self, session: Session, reason: CloseReason) -> None:
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


def bounds_for(options: ServerOptions, write_deadline_ns: int, write_timeout: str) -> Bounds:
    """Back pressure limits of links: a slow peer gets new deadlines as long as it takes something.

    Args:
        write_deadline_ns: of this kind of link; 0 = that of clients.
        write_timeout: "close" ends a link whose peer took nothing for that long.
    """
    return Bounds(
        max_pending=options.max_pending,
        write_deadline_s=(write_deadline_ns or options.write_deadline_ns) / NS,
        retry=write_timeout != "close",
        stall=options.fast_producer_stall,
    )


def is_address(host: str) -> bool:
    """Whether the host is a literal address."""
    return ":" in host or host.replace(".", "").isdigit()
