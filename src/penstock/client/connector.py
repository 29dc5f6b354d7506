"""Makes the connections of a session: the first one, and those that replace a lost one.

Theory of operation: each attempt opens a connection to one server of the pool and hands it to the session.
Servers are tried in turn, one round without a pause, then with pauses between rounds that double up to a
limit and are shortened at random, so that the clients of a restarted server do not return all at once.

Invariants: at most one attempt runs at a time; a server whose attempts are exhausted leaves the pool, the
last one ends the session instead.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.client.credentials import load, login
from penstock.client.info import ConnectRequest, ServerInfo
from penstock.client.servers import PoolServer, ServerCandidate, ServerPool, ServerUrl, parse_server_url
from penstock.errors import AuthorizationError, ClientError, MisuseError, NoServersError, ProtocolError

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

log = logging.getLogger("penstock.client")

AUTH_FAILURES_MAX = 2
SHORT_LIVED_S = 1.0


class Connector:
    """The pool of servers of one session, and the attempts to connect to them."""

    def __init__(self, session: ClientSession, servers: str | Iterable[str]) -> None:
        self._session = session
        self._options = session.options
        self._server: PoolServer | None = None  # of the current or latest connection
        self._info: ServerInfo | None = None  # its INFO
        self._connected_at = 0.0
        self._short_lives = 0  # consecutive connections that were lost within SHORT_LIVED_S
        self._hurry = asyncio.Event()  # ends a pause
        self.pool = ServerPool(servers, randomize=self._options.randomize)

    # --- the first connection ------------------------------------------------------------------

    async def connect(self) -> None:
        """Try each server once. Raises NoServersError, AuthorizationError.

        With `retry_on_failed_connect`, further attempts follow in the background instead of NoServersError.
        Wrong credentials are an error even so: the next attempt would be refused like this one.
        """
        errors: list[tuple[PoolServer, Exception]] = []
        for _ in range(len(self.pool)):
            server = self.pool.next()
            error = await self._try(server)
            if error is None:
                return
            errors.append((server, error))
        last = errors[-1][1]
        refused = all(isinstance(error, AuthorizationError) for _, error in errors)
        if self._options.retry_on_failed_connect and not refused:
            log.warning("no server could be reached: %s; trying on", last)
            self._session.last_error = last
            self._session.spawn(self._keep_trying(), "connect")
            return
        self._session.finish(last)
        if refused:
            raise last
        attempts = [(str(server.url), str(error)) for server, error in errors]
        raise NoServersError("no server could be reached", attempts=attempts) from last

    async def _keep_trying(self) -> None:
        await self._pause(0)
        await self._rounds(1)

    # --- further connections -------------------------------------------------------------------

    async def reconnect(self, *, forced: bool) -> None:
        """Try the servers until one accepts, or until all are exhausted. forced: the user asked for it, so
        the length of the connection's life says nothing about the server."""
        rounds = 0
        if not forced and self._session.loop.time() - self._connected_at < SHORT_LIVED_S:
            # Back off from a server that accepts connections and drops them at once.
            self._short_lives += 1
            rounds = self._short_lives
            await self._pause(rounds)
        else:
            self._short_lives = 0
        await self._rounds(rounds)

    def hurry(self) -> None:
        """End the current pause between attempts, or leave out the next one."""
        self._hurry.set()

    async def _rounds(self, rounds: int) -> None:
        """Rounds through the servers. rounds: how many pauses there were already."""
        session = self._session
        tried = 0
        while session.is_connecting:
            server, delay_s = self._choose()
            if delay_s > 0:
                await self._sleep(delay_s)
            error = await self._try(server)
            if error is None:
                return
            log.debug("connecting to %s failed: %s", server.url, error)
            if self._is_exhausted(server) and not self._drop(server, error):
                return
            tried += 1
            if tried >= len(self.pool):
                tried = 0
                await self._pause(rounds)
                rounds += 1

    def _choose(self) -> tuple[PoolServer, float]:
        """The server of the next attempt, and a pause before it in seconds."""
        choose = self._options.choose_server
        if choose is None:
            return self.pool.next(), 0.0
        candidates = tuple(
            ServerCandidate(str(server.url), server.failures, server.discovered)
            for server in self.pool.servers
        )
        try:
            url, delay_s = choose(candidates, self._info)
            if url is None:
                return self.pool.next(), delay_s
            found = self.pool.find(parse_server_url(url))
            if found is None:
                raise MisuseError(f"choose_server returned {url!r}, which is not one of its candidates")
        except Exception as error:  # noqa: BLE001 - user code; on_error reports it
            self._session.report(error)
            return self.pool.next(), 0.0
        return found, delay_s

    def _drop(self, server: PoolServer, error: Exception) -> bool:
        """Remove an exhausted server; False if it was the last one and the session is closed."""
        if len(self.pool) > 1:
            self.pool.remove(server)
            return True
        if not isinstance(error, AuthorizationError):
            error = NoServersError("reconnecting failed", attempts=[(str(server.url), str(error))])
        self._session.finish(error)
        return False

    def _is_exhausted(self, server: PoolServer) -> bool:
        limit = self._options.max_reconnects
        refused_again = server.auth_failures >= AUTH_FAILURES_MAX
        return refused_again or (limit is not None and server.failures >= limit)

    # --- pauses --------------------------------------------------------------------------------

    async def _pause(self, rounds: int) -> None:
        """The pause after a round. rounds: how many pauses came before it."""
        options = self._options
        if options.reconnect_delay is not None:
            await self._sleep(options.reconnect_delay(rounds + 1))
            return
        # The exponent is limited: a float overflows after a thousand rounds.
        wait_s = min(options.reconnect_wait * 2 ** min(rounds, 32), options.reconnect_wait_max)
        await self._sleep(wait_s * (1 - random.random() / 2))

    async def _sleep(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()
                self._hurry.clear()
        except TimeoutError:
            pass

    # --- one attempt ---------------------------------------------------------------------------

    async def _try(self, server: PoolServer) -> Exception | None:
        """One connection attempt. Returns the error, or None on success."""
        try:
            await self._open(server)
            return None
        except (OSError, ClientError, ProtocolError) as error:
            server.failures += 1
            refused = isinstance(error, AuthorizationError)
            server.auth_failures = server.auth_failures + 1 if refused else 0
            server.last_error = error
            return error

    async def _open(self, server: PoolServer) -> None:
        session, options = self._session, self._options
        credentials = await self._credentials(server.url)
        prove = await load(options)
        connection = session.connection_type(session, server.url, session.out, options)
        await connection.open(credentials, prove)
        if not session.is_connecting:  # closed meanwhile
            connection.close()
            return
        server.failures = server.auth_failures = 0
        server.last_error = None
        self._server = server
        self._info = connection.info
        self._connected_at = session.loop.time()
        self._hurry.clear()
        self.discover(connection.info)
        session.adopt(connection)

    async def _credentials(self, url: ServerUrl) -> ConnectRequest:
        options = self._options
        request = ConnectRequest(
            name=options.name,
            echo=options.echo,
            pedantic=options.pedantic,
            tls_required=url.tls or bool(options.tls),
        )
        return await login(request, options, url)

    def discover(self, info: ServerInfo) -> bool:
        """Add the servers that INFO announces to the pool; whether there are new ones."""
        self._info = info
        if self._options.ignore_discovered:
            return False
        return bool(self.pool.update_discovered(info.connect_urls, self._server))
