"""A cluster of real servers for tests without asyncio: the methods of `ProcessCluster`, blocking."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import ServerError
from penstock.testing.clusters.background_loop import BackgroundLoop
from penstock.testing.clusters.process_cluster import READY_TIMEOUT_S, ProcessCluster, ServerRef
from penstock.testing.clusters.process_cluster import cluster as async_cluster
from penstock.testing.clusters.server_process import PENSTOCK, ServerProcess


class SyncProcessCluster:
    """Servers of one cluster, made by `penstock.testing.sync_cluster`.

    The methods are those of `ProcessCluster`.

    It runs in a thread of its own, so that a test may block. In an event loop, use
    `penstock.testing.cluster`, or call these methods by `asyncio.to_thread`.
    """

    def __init__(self, made: ProcessCluster) -> None:
        self._cluster = made
        self._thread: BackgroundLoop | None = None

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """The processes, with their URLs, ports, logs and store directories."""
        return self._cluster.servers

    @property
    def directory(self) -> Path:
        """Configuration, logs and stores."""
        return self._cluster.directory

    @property
    def urls(self) -> list[str]:
        """Client URLs of all servers, for `connect`."""
        return self._cluster.urls

    def index(self, server: ServerRef) -> int:
        """The index of a server. Raises MisuseError."""
        return self._cluster.index(server)

    def server(self, server: ServerRef) -> ServerProcess:
        """The process of a server. Raises MisuseError."""
        return self._cluster.server(server)

    def start(self) -> Self:
        """Starts all servers and waits until they are ready. Raises ServerError."""
        self._thread = BackgroundLoop("penstock-cluster")
        try:
            self._thread.run(self._cluster.__aenter__())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Kills the servers. error: why the test ends; a temporary directory then stays, and a note on the
        error names it."""
        if self._thread is not None:
            self._thread.run(self._cluster.__aexit__(type(error) if error else None, error, None))
            self._thread.stop()
            self._thread = None

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)

    def start_server(self, server: ServerRef) -> None:
        """Starts a server that was stopped or killed. Raises ServerError, MisuseError."""
        self._running.run(self._cluster.start_server(server))

    def kill(self, server: ServerRef) -> None:
        """Kills a server (SIGKILL)."""
        self._running.run(self._cluster.kill(server))

    def stop(self, server: ServerRef) -> None:
        """Stops a server (SIGTERM). Raises ServerError."""
        self._running.run(self._cluster.stop(server))

    def restart(self, server: ServerRef) -> None:
        """Stops a server if it runs, and starts it. Raises ServerError."""
        self._running.run(self._cluster.restart(server))

    def pause(self, server: ServerRef) -> None:
        """Freezes a server (SIGSTOP). Raises ServerError."""
        self._cluster.pause(server)

    def resume(self, server: ServerRef) -> None:
        """Ends a pause (SIGCONT). Raises ServerError."""
        self._cluster.resume(server)

    def wipe(self, server: ServerRef) -> None:
        """Kills a server if it runs, and removes its store directory."""
        self._running.run(self._cluster.wipe(server))

    def partition(self, groups: Iterable[Iterable[ServerRef]], *, one_way: bool = False) -> None:
        """Nothing passes between servers of different groups until `heal`. Raises MisuseError."""
        self._cluster.partition(groups, one_way=one_way)

    def heal(self) -> None:
        """Ends all partitions."""
        self._cluster.heal()

    def leader_of(self, stream: str) -> int:
        """The index of the server that leads a stream. Raises ServerError."""
        return self._running.run(self._cluster.leader_of(stream))

    def meta_leader(self) -> int | None:
        """The index of the leader of the meta group, or None."""
        return self._running.run(self._cluster.meta_leader())

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until all running servers are connected and healthy. Raises ServerError."""
        self._running.run(self._cluster.wait_ready(timeout_s))

    def page(self, server: ServerRef, name: str) -> dict[str, Any]:
        """A page of a server's monitoring port. Raises ServerError."""
        return self._running.run(self._cluster.page(server, name))

    @property
    def _running(self) -> BackgroundLoop:
        if self._thread is None:
            raise ServerError("the cluster does not run: use it in `with`, or call start()")
        return self._thread


def sync_cluster(
    size: int = 3,
    *,
    jetstream: bool | str = True,
    config: str | Callable[[int], str] = "",
    name: str = "test",
    names: Sequence[str] = (),
    directory: str | os.PathLike[str] | None = None,
    command: Sequence[str] = PENSTOCK,
) -> SyncProcessCluster:
    """A cluster of server processes for a `with` block, or from `start()` to `close()`.

    Arguments and errors are those of `cluster`.
    """
    return SyncProcessCluster(
        async_cluster(
            size,
            jetstream=jetstream,
            config=config,
            name=name,
            names=names,
            directory=directory,
            command=command,
        )
    )
