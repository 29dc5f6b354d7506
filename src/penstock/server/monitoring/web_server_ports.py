"""The server as the web page uses it: monitoring pages, users, and connections inside the process.

The page lives in the monitor's thread. Every method that touches the server runs in the server's loop, in
pieces where the work grows with the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.server.monitoring.pages.accounts import account_stat
from penstock.server.monitoring.pages.jsz import raftz
from penstock.server.monitoring.pages.page_options import Page, RefusedQuery, in_pieces
from penstock.server.monitoring.pages.table import PageEntry
from penstock.web.web_ports import LoginPolicy, WebPolicy

if TYPE_CHECKING:
    import socket

    from penstock.server.config.web_options import WebOptions
    from penstock.server.monitoring.monitored_server import MonitoredServer

T = TypeVar("T")
BuildPage = Callable[[PageEntry, Any], Awaitable[Page]]


class WebServerPorts:
    """Implements `WebPorts`.

    Args:
        server: the server.
        loop: its event loop.
        options: the block `web`.
        entries: pages by path.
        build: builds a page in the server's loop.
    """

    def __init__(
        self,
        server: MonitoredServer,
        loop: asyncio.AbstractEventLoop,
        options: WebOptions,
        entries: Mapping[str, PageEntry],
        build: BuildPage,
    ) -> None:
        self._server = server
        self._loop = loop
        self._entries = entries
        self._build = build
        self.policy = WebPolicy(options.allow_writes, options.allow_anonymous)

    @property
    def server_name(self) -> str:
        return self._server.context.server_name

    @property
    def version(self) -> str:
        from penstock.server.server_identity import VERSION

        return VERSION

    def login_policy(self) -> LoginPolicy:
        required = self._server.logins.default.required
        return LoginPolicy(required, required or bool(self._server.context.options.no_auth_user))

    async def page(self, name: str, query: Mapping[str, str]) -> Page:
        if name == "raftz":
            return await self._run(in_pieces(raftz(self._server)))
        entry = self._entries[f"/{name}"]
        try:
            return await self._build(entry, entry.options.from_query(query))
        except RefusedQuery as refused:
            if refused.page is None:
                raise
            return refused.page

    async def account_names(self) -> list[str]:
        return await self._run(_made(lambda: sorted(self._server.accounts)))

    async def account_stats(self, names: list[str]) -> list[Page]:
        def steps() -> Generator[None, None, list[Page]]:
            found = []
            for name in names:
                if name in self._server.accounts:
                    found.append(account_stat(self._server, name))
                yield
            return found

        async def make() -> list[Page]:
            found = await in_pieces(steps())
            assert isinstance(found, list)
            return found

        return await self._run(make())

    async def open_socket(self, peer: tuple[str, int]) -> socket.socket:
        return await self._run(self._server.connect_locally(peer))

    async def account_of(self, client_id: int) -> tuple[str, str]:
        def look() -> tuple[str, str]:
            try:
                identity = self._server.sessions[client_id].identity
            except KeyError:
                return "", ""
            return (identity.account, identity.user) if identity is not None else ("", "")

        return await self._run(_made(look))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work in the server's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _made(make: Callable[[], T]) -> T:
    return make()
