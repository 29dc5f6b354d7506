"""A server in its own thread, for synchronous code and tests.

Rejected: a subprocess. A thread starts in milliseconds, its exceptions arrive in the test, and a debugger
sees both sides.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock.errors import ServerError
from penstock.server.config.server_options import JetStreamOptions, ServerOptions
from penstock.server.server import Server
from penstock.testing.clusters.background_loop import loop_factory

if TYPE_CHECKING:
    from penstock.server.config.server_settings import ServerSettings

T = TypeVar("T")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class EmbeddedServer:
    """A server with its thread and event loop, created by `server()`.

    Attributes:
        url: client URL, "" before the start.
        host, port: its parts.
        store_dir: store directory, None if streams are not persisted.
    """

    def __init__(self, make: Callable[[], Server], store_dir: str | None) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._server: Server | None = None
        self.store_dir = store_dir
        self.url = ""
        self.host = ""
        self.port = 0

    def start(self) -> Self:
        """Start thread and server; clients can connect when it returns.

        Raises what `Server.start` raises, and ServerError after START_TIMEOUT_S.
        """
        if self._thread is not None:
            raise ServerError("this server was started before; call penstock.testing.server() again")
        self._thread = threading.Thread(target=self._main, name="penstock-server", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise ServerError(f"the server did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop server and thread; all data is written when it returns. Idempotent. Raises ServerError."""
        thread, loop, server = self._thread, self._loop, self._server
        if thread is None or loop is None or server is None or not thread.is_alive():
            return
        self.run(server.stop())
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise ServerError(f"the server did not stop within {STOP_TIMEOUT_S:.0f} s")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop and return its result. Call from other threads only."""
        if self._loop is None:
            raise ServerError("the server is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_TIMEOUT_S)

    @property
    def server(self) -> Server:
        """The server object. It belongs to its thread: access it through `run`. Raises ServerError."""
        if self._server is None:
            raise ServerError("the server is not running")
        return self._server

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._serve())
            except BaseException as error:
                self._failure = error
                if self._started.is_set():
                    raise
            finally:
                self._started.set()

    async def _serve(self) -> None:
        server = self._make()
        await server.start()
        self._server = server
        self.url, self.host, self.port = server.url, server.host, server.port
        self._started.set()
        await server.wait_stopped()


def server(
    *,
    options: ServerOptions | None = None,
    host: str = "127.0.0.1",
    port: int = -1,
    jetstream: bool | JetStreamOptions = False,
    store_dir: str | os.PathLike[str] | None = None,
    **settings: Unpack[ServerSettings],
) -> EmbeddedServer:
    """Create a server that runs in its own thread during a `with` block, or from `start()` to `stop()`.

    Takes the arguments of `penstock.Server`. Starting raises ConfigError for an invalid option.
    """

    def make() -> Server:
        return Server(
            options=options, host=host, port=port, jetstream=jetstream, store_dir=store_dir, **settings
        )

    return EmbeddedServer(make, None if store_dir is None else os.fspath(store_dir))
