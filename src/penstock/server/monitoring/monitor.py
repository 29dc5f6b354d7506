"""HTTP monitoring: serves the pages from a separate thread.

The socket is bound at the server's start, so that an address in use is an error then. The thread imports
starlette and uvicorn after clients can connect; earlier requests wait in the listen backlog. The server's
loop builds each page in pieces; the thread encodes and sends it. So a slow scraper delays nothing, and a
large page delays no message. `monitor_http` limits number and duration of connections.

Rejected: serving HTTP from the server's loop. A slow download, or encoding ten thousand connections, would
    delay every message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import structs

from penstock import faults
from penstock.errors import MisuseError, ServerError
from penstock.net.sockets import listen
from penstock.server.monitoring.pages.jsz import RaftzOptions, raftz_of_account
from penstock.server.monitoring.pages.page_options import Page, PageOptions, RefusedQuery, in_pieces
from penstock.server.monitoring.pages.table import PAGES, PageEntry
from penstock.server.monitoring.pages.varz import VarzOptions
from penstock.server.monitoring.pages.varz import varz as make_varz

if TYPE_CHECKING:
    import ssl

    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from penstock.server.config.server_options import TlsOptions
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.web.web_app import WebApp

BACKLOG = 128
WEB_PATH = "/ui"
WEB_CLOSE_S = 3.0
HEADERS = {"Access-Control-Allow-Origin": "*"}
LINKS = {
    "varz": "General",
    "jsz": "JetStream",
    "connz": "Connections",
    "accountz": "Accounts",
    "accstatz": "Account Stats",
    "subsz": "Subscriptions",
    "routez": "Routes",
    "leafz": "LeafNodes",
    "gatewayz": "Gateways",
    "healthz": "Health Probe",
    "metrics": "Metrics",
}


class Monitor:
    """The monitoring endpoint of a server.

    Args:
        server: the server to show.
        host: address to listen on.
        port: port to listen on; 0 = any free port.
        tls: None for HTTP, or the TLS options for HTTPS.

    Raises:
        ServerError: the address cannot be bound.
        ConfigError: the TLS files are unusable.
    """

    def __init__(self, server: MonitoredServer, host: str, port: int, tls: TlsOptions | None = None) -> None:
        self._server = server
        self._context: ssl.SSLContext | None = None
        if tls is not None:
            from penstock.server.client_tls import context_of

            # HTTP clients need no certificate.
            self._context = context_of(structs.replace(tls, verify=False))
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._http: uvicorn.Server | None = None
        self._stopping = False
        self._web: WebApp | None = None
        self._thread_loop: asyncio.AbstractEventLoop | None = None
        self._base_path = _base_path(server.context.options.http_base_path)
        self.requests: dict[str, int] = {}  # number of requests per page
        try:
            self._sockets = listen(host, port, BACKLOG)
        except OSError as error:
            raise ServerError(f"can not listen on {host}:{port} for monitoring: {error.strerror}") from error
        self.host = host
        self.port: int = self._sockets[0].getsockname()[1]

    @property
    def scheme(self) -> str:
        return "http" if self._context is None else "https"

    @property
    def url(self) -> str:
        """URL for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return (
            f"{self.scheme}://[{host}]:{self.port}" if ":" in host else f"{self.scheme}://{host}:{self.port}"
        )

    @property
    def web_url(self) -> str:
        """URL of the web page, where it is on."""
        return f"{self.url}{self._base_path}{WEB_PATH}/"

    def renew_certificate(self, tls: TlsOptions) -> None:
        """Uses this certificate, which was validated before, for new connections."""
        if self._context is not None:
            self._context.load_cert_chain(tls.cert_file, tls.key_file)

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._serve, name="penstock-monitor", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stops serving, even while the thread is still importing."""
        self._stopping = True
        web, loop = self._web, self._thread_loop
        if web is not None and loop is not None:
            try:
                closing = asyncio.run_coroutine_threadsafe(web.close(), loop)
                await asyncio.wait_for(asyncio.wrap_future(closing), WEB_CLOSE_S)
            except (RuntimeError, TimeoutError, asyncio.CancelledError):
                pass  # the thread has ended already, or ends with what is open
        if self._http is not None:
            self._http.should_exit = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)
        for sock in self._sockets:
            sock.close()

    # -- in the thread

    def _serve(self) -> None:
        from starlette.routing import Route

        base = self._base_path
        routes = [Route(base + path, self._endpoint(path, entry)) for path, entry in self._entries().items()]
        routes.append(Route(f"{base}/metrics", self._metrics))
        routes += [Route(base or "/", self._index), *([Route(base + "/", self._index)] if base else [])]
        with asyncio.Runner() as runner:
            self._thread_loop = runner.get_loop()
            runner.run(self._serve_routes(routes))

    async def _serve_routes(self, routes: list[Route]) -> None:
        import uvicorn
        from starlette.applications import Starlette

        from penstock.server.monitoring.monitor_http import MonitorConnection

        self._web = self._make_web()
        if self._web is not None:
            routes += self._web.routes()
        app = Starlette(routes=routes, exception_handlers={404: _not_found})
        # Without `ws`, uvicorn would accept WebSocket upgrades, which have no deadlines.
        config = uvicorn.Config(
            app,
            http=cast(Any, partial(MonitorConnection, {})),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="asyncio",
        )
        if self._context is not None:
            config.load()
            config.ssl = self._context
        http = uvicorn.Server(config)
        self._http = http
        if self._stopping:  # stop() came before the server existed
            return
        await http.serve(sockets=self._sockets)

    def _make_web(self) -> WebApp | None:
        options = self._server.context.options.web
        if options is None:
            return None
        from penstock.server.monitoring.web_server_ports import WebServerPorts  # few servers have the page
        from penstock.web.web_app import WebApp

        ports = WebServerPorts(self._server, self._loop, options, self._entries(), self._in_server)
        return WebApp(ports, f"{self._base_path}{WEB_PATH}")

    def _entries(self) -> dict[str, PageEntry]:
        """Pages by path."""
        varz = PageEntry(VarzOptions, lambda server, options: make_varz(server, options, self.requests))
        return {
            "/varz": varz,
            **{f"/{name}": entry for name, entry in PAGES.items()},
            "/subscriptionsz": PAGES["subsz"],
            "/raftz": PageEntry(RaftzOptions, raftz_of_account),
        }

    def _endpoint(self, path: str, entry: PageEntry) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            self.requests[path] = self.requests.get(path, 0) + 1
            try:
                page = await self._in_server(entry, entry.options.from_query(request.query_params))
            except RefusedQuery as refused:
                if refused.page is not None:
                    return _json(refused.page, refused.status)
                return _text(str(refused), refused.status)
            except MisuseError as error:
                return _text(str(error), 400)
            except Exception as error:  # noqa: BLE001 -- like faults.contain(), for a coroutine
                return _fault(path, error)
            return _json(page)

        return answer

    async def _in_server(self, entry: PageEntry, options: PageOptions) -> Page:
        """Builds the page in the server's loop, in pieces."""

        async def make() -> Page:
            return await in_pieces(entry.make(self._server, options))

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        from penstock.server.monitoring import metrics
        from penstock.server.monitoring.metric_families import Families

        self.requests["/metrics"] = self.requests.get("/metrics", 0) + 1

        async def gather() -> Families:
            families = await in_pieces(metrics.collect(self._server))
            assert isinstance(families, Families)
            return families

        try:
            families = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gather(), self._loop))
        except Exception as error:  # noqa: BLE001 -- like faults.contain(), for a coroutine
            return _fault("/metrics", error)
        service = self._server.jetstream
        kind = metrics.format_of(", ".join(request.headers.getlist("accept")))
        text = metrics.encode(families, kind, service.store_dir if service is not None else "")
        return Response(text, headers={"Content-Type": kind, "Vary": "Accept"})

    async def _index(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        self.requests["/"] = self.requests.get("/", 0) + 1
        links = "\n".join(f"<a href={self._base_path}/{path}>{name}</a><br/>" for path, name in LINKS.items())
        head = '<html lang="en"><head><title>penstock</title></head>'
        return HTMLResponse(f"{head}<body><h1>penstock</h1>\n{links}\n</body></html>\n")


def _json(page: Page, status: int = 200) -> Response:
    from starlette.responses import Response

    body = msgspec.json.encode(page)
    if "status" not in page:  # the official server writes healthz in one line
        body = msgspec.json.format(body, indent=2)
    return Response(body, status, HEADERS, "application/json")


def _text(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)


def _fault(path: str, error: Exception) -> Response:
    return _text(faults.describe(faults.note(f"page {path}", error)), 500)


async def _not_found(request: Request, error: Exception) -> Response:
    return _text("404 page not found\n", 404)


def _base_path(path: str) -> str:
    """Absolute path without a trailing slash; "" for none."""
    stripped = path.strip("/")
    return f"/{stripped}" if stripped else ""
