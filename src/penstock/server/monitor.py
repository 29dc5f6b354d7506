"""HTTP monitoring: the z-pages over HTTP, in a thread of its own.

The socket is bound when the server starts, so that an address in use is an error then; starlette and uvicorn
are imported by the thread once clients can connect. Requests that come in between wait in the backlog.
Each page is made in the server's loop (consistent, and quick) and encoded in the thread.

Rejected: serving HTTP from the server's loop. A client that downloads a page slowly, or ten thousand
connections to encode, would delay every message.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import MisuseError, ServerError
from penstock.server import zpages

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.server.server import Server

BACKLOG = 128
HEADERS = {"Access-Control-Allow-Origin": "*"}
INDEX = """<html lang="en"><head><title>penstock</title></head><body>
<h1>penstock</h1>
<p><a href=varz>General</a> <a href=connz>Connections</a> <a href=subsz>Subscriptions</a>
<a href=jsz>JetStream</a> <a href=healthz>Health</a></p>
</body></html>
"""

Page = Callable[["Server", Mapping[str, str]], dict[str, Any]]


class Monitor:
    """The monitoring endpoint of a server.

    Args:
        server: what it shows.
        host: address to listen on.
        port: port to listen on; 0 = any free port.

    Raises:
        ServerError: the address can't be bound.
    """

    def __init__(self, server: Server, host: str, port: int) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._http: uvicorn.Server | None = None
        self._stopping = False
        self._requests: dict[str, int] = {}
        try:
            self._socket = socket.create_server((host, port), backlog=BACKLOG, family=_family(host))
        except OSError as error:
            raise ServerError(f"can not listen on {host}:{port} for monitoring: {error.strerror}") from error
        self.host = host
        self.port: int = self._socket.getsockname()[1]

    def start(self) -> None:
        """Serves from now on."""
        self._thread = threading.Thread(target=self._serve, name="penstock-monitor", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stops serving; also when the thread is still importing what it needs."""
        self._stopping = True
        if self._http is not None:
            self._http.should_exit = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)
        self._socket.close()

    # -- in the thread

    def _serve(self) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        pages: dict[str, Page] = {
            "/varz": lambda server, query: zpages.varz(server, query, self._requests),
            "/connz": zpages.connz,
            "/subsz": zpages.subsz,
            "/subscriptionsz": zpages.subsz,
            "/jsz": zpages.jsz,
            "/healthz": zpages.healthz,
        }
        routes = [Route(path, self._endpoint(path, page)) for path, page in pages.items()]
        routes.append(Route("/", self._index))
        app = Starlette(routes=routes, exception_handlers={404: _not_found})
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", loop="asyncio")
        http = uvicorn.Server(config)
        self._http = http
        if self._stopping:  # asked to while this was None
            return
        with asyncio.Runner() as runner:
            runner.run(http.serve(sockets=[self._socket]))

    def _endpoint(self, path: str, page: Page) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            self._requests[path] = self._requests.get(path, 0) + 1
            try:
                made = await self._in_server(page, dict(request.query_params))
            except zpages.NotFound as error:
                return _json({"status": "unavailable", "error": str(error)}, 404)
            except MisuseError as error:
                return _text(str(error), 400)
            return _json(made)

        return answer

    async def _in_server(self, page: Page, query: Mapping[str, str]) -> dict[str, Any]:
        """Makes the page in the server's loop."""

        async def make() -> dict[str, Any]:
            return page(self._server, query)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    async def _index(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        return HTMLResponse(INDEX)


def _json(page: dict[str, Any], status: int = 200) -> Response:
    from starlette.responses import Response

    body = msgspec.json.encode(page)
    if page.keys() != {"status"}:  # the official server writes a healthy healthz in one line
        body = msgspec.json.format(body, indent=2)
    return Response(body, status, HEADERS, "application/json")


def _text(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status, HEADERS)


async def _not_found(request: Request, error: Exception) -> Response:
    return _text("404 page not found\n", 404)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
