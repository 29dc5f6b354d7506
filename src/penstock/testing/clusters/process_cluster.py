"""A cluster of real servers for tests: child processes, and faults on purpose.

    async with penstock.testing.cluster(3) as cluster:
        js = (await cluster.connect()).jetstream()
        await js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
        await cluster.kill(await cluster.leader_of("ORDERS"))
        ...

Rejected: servers as threads of the test. They can not be killed or stopped, share one interpreter, and an
exception in one hides what the others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

from penstock.errors import JetStreamApiError, MisuseError, PenstockError, ServerError
from penstock.protocol.error_codes import CLUSTER_NO_PEERS
from penstock.testing.clusters.fault_proxies import ClusterNetwork, FaultProxies
from penstock.testing.clusters.server_process import PENSTOCK, ServerProcess

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.options import ConnectOptions

ServerRef: TypeAlias = int | str
"""A server of a cluster: its index from 0, or its name."""

START_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 60.0
POLL_S = 0.02
SERVERS_MAX = 9
REPLICAS_MAX = 5
PROBE_STREAM = "penstock-wait-ready"


class ProcessCluster:
    """Servers of one cluster, made by `penstock.testing.cluster`.

    Servers are named by index or name. Attributes:
        servers: the processes, with their URLs, ports, logs and store directories.
        directory: configuration, logs and stores.
    """

    def __init__(
        self,
        size: int,
        *,
        command: Sequence[str],
        jetstream: bool | str,
        config: str | Callable[[int], str],
        name: str,
        names: Sequence[str],
        directory: str | os.PathLike[str] | None,
    ) -> None:
        if not 1 <= size <= SERVERS_MAX:
            raise MisuseError(f"a cluster of {size} servers; possible are 1 to {SERVERS_MAX}")
        names = names or [f"{name}-{index + 1}" for index in range(size)]
        if len(set(names)) != size:
            raise MisuseError(f"{size} servers need as many different names, not {', '.join(names)}")
        self._name = name
        self._command = tuple(command)
        self._jetstream = jetstream
        self._config = config
        self._is_temporary = directory is None
        self.directory = Path(
            tempfile.mkdtemp(prefix="penstock-cluster-") if directory is None else directory
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.servers = tuple(self._make_server(index, one) for index, one in enumerate(names))
        self._network: ClusterNetwork | None = None
        self._clients: list[Client] = []

    def _make_server(self, index: int, name: str) -> ServerProcess:
        return ServerProcess(name, self.directory, self._command)

    def _make_network(self) -> ClusterNetwork:
        return FaultProxies([one.cluster_port for one in self.servers])

    # -- what the servers are

    @property
    def urls(self) -> list[str]:
        """Client URLs of all servers, for `connect`."""
        return [one.url for one in self.servers]

    def index(self, server: ServerRef) -> int:
        """The index of a server. Raises MisuseError if there is none with this index or name."""
        names = [one.name for one in self.servers]
        if isinstance(server, str) and server in names:
            return names.index(server)
        if isinstance(server, int) and 0 <= server < len(names):
            return server
        raise MisuseError(f"no server {server!r}; there are {', '.join(names)}, or 0 to {len(names) - 1}")

    def server(self, server: ServerRef) -> ServerProcess:
        """The process of a server. Raises MisuseError."""
        return self.servers[self.index(server)]

    async def page(self, server: ServerRef, name: str) -> dict[str, Any]:
        """A page of a server's monitoring port: `page(0, "varz")`. Raises ServerError."""
        return await self.server(server).page(name)

    async def connect(self, server: ServerRef | None = None, **options: Unpack[ConnectOptions]) -> Client:
        """A client of this server only, or of all (None). It closes with the cluster. Raises as `connect`."""
        from penstock.client import connect

        client = await connect(self.urls if server is None else [self.server(server).url], **options)
        self._clients.append(client)
        return client

    # -- start and end

    async def start(self) -> Self:
        """Starts all servers and waits until they are ready. Raises ServerError."""
        self._network = await asyncio.to_thread(self._make_network)
        for index in range(len(self.servers)):
            self._configure(index)
        await asyncio.gather(*(self.start_server(index) for index in range(len(self.servers))))
        await self.wait_ready()
        return self

    async def close(self, *, keep: bool = False) -> None:
        """Closes clients and kills the servers. keep: a temporary directory stays."""
        for client in self._clients:
            with contextlib.suppress(PenstockError, OSError):
                await client.close()
        await asyncio.gather(*(one.kill() for one in self.servers))
        if self._network is not None:
            await asyncio.to_thread(self._network.close)
            self._network = None
        if self._is_temporary and not keep:
            await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException as error:
            await self._failed(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self._failed(error)

    async def _failed(self, error: BaseException) -> None:
        error.add_note(f"configuration, logs and stores of the cluster: {self.directory}")
        await self.close(keep=True)

    def _configure(self, index: int) -> None:
        network, server = self._running_network, self.servers[index]
        others = [other for other in range(len(self.servers)) if other != index]
        routes = ", ".join(f'"nats://{network.route(index, other)}"' for other in others)
        streams = f'jetstream {{ store_dir: "{server.store_dir}"'
        streams += f"\n{self._jetstream} }}" if isinstance(self._jetstream, str) else " }"
        server.configure(f"""
listen: "{server.host}:{server.port}"
http: "{server.host}:{server.http_port}"
server_name: "{server.name}"
{streams if self._jetstream is not False else ""}
cluster {{
    name: "{self._name}"
    listen: "{server.host}:{server.cluster_port}"
    cluster_advertise: "{network.advertised(index)}"
    routes: [{routes}]
}}
{self._config if isinstance(self._config, str) else self._config(index)}
""")

    # -- faults of servers

    async def start_server(self, server: ServerRef) -> None:
        """Starts a server that was stopped or killed; clients can connect when it returns.

        Raises:
            ServerError: it ended or does not listen; with the end of its log.
            MisuseError: it runs.
        """
        index = self.index(server)
        process = self.servers[index]
        process.launch()
        server_id = await process.wait_listening(START_TIMEOUT_S)
        await asyncio.to_thread(self._running_network.learn, server_id, index)

    async def kill(self, server: ServerRef) -> None:
        """Kills a server (SIGKILL): it loses what only its memory has."""
        await self.server(server).kill()

    async def stop(self, server: ServerRef) -> None:
        """Stops a server (SIGTERM), which hands over what it leads. Raises ServerError if it does not end."""
        await self.server(server).stop()

    async def restart(self, server: ServerRef) -> None:
        """Stops a server if it runs, and starts it; clients can connect afterwards. Raises ServerError."""
        await self.stop(server)
        await self.start_server(server)

    def pause(self, server: ServerRef) -> None:
        """Freezes a server (SIGSTOP); its connections stay open. Raises ServerError if it does not run."""
        self.server(server).pause()

    def resume(self, server: ServerRef) -> None:
        """Ends a pause (SIGCONT). Raises ServerError if the server does not run."""
        self.server(server).resume()

    async def wipe(self, server: ServerRef) -> None:
        """Kills a server if it runs, and removes its store directory, as if it had a new disk."""
        await self.kill(server)
        await asyncio.to_thread(self.server(server).wipe)

    # -- faults of the network between servers

    def partition(self, groups: Iterable[Iterable[ServerRef]], *, one_way: bool = False) -> None:
        """Nothing passes between servers of different groups until `heal`.

        Connections stay open and silent; what is sent arrives after `heal`. Partitions add up. Clients are
        not concerned: they reach all servers.

        Args:
            groups: `[[0], [1, 2]]`; servers in no group form one more.
            one_way: only what later groups send to earlier ones is held up: with `[[0], [1, 2]]` server 0
                hears nothing, and the others hear it.

        Raises:
            MisuseError: an unknown server, or one in two groups.
        """
        members = [{self.index(one) for one in group} for group in groups]
        placed = [one for group in members for one in group]
        if len(set(placed)) < len(placed):
            raise MisuseError(f"a server is in two groups of the partition: {members}")
        members.append(set(range(len(self.servers))) - set(placed))
        links = [
            link
            for number, first in enumerate(members)
            for second in members[number + 1 :]
            for a in first
            for b in second
            for link in ([(b, a)] if one_way else [(a, b), (b, a)])
        ]
        self._running_network.block(links)

    def heal(self) -> None:
        """Ends all partitions."""
        self._running_network.unblock()

    @property
    def _running_network(self) -> ClusterNetwork:
        if self._network is None:
            raise ServerError("the cluster does not run: use it in `async with`, or call start()")
        return self._network

    # -- leaders and readiness

    async def leader_of(self, stream: str, **options: Unpack[ConnectOptions]) -> int:
        """The index of the server that leads a stream, as the first server says that knows one.

        options: of the connections, for a stream of another account.

        Raises:
            ServerError: no server that runs knows a leader now.
        """
        from penstock.client import connect

        settings: ConnectOptions = {"reconnect": False, "connect_timeout": 1.0, **options}
        answers = {}
        for one in self._responsive():
            try:
                client = await connect(one.url, **settings)
                try:
                    info = await (await client.jetstream().stream(stream)).info()
                finally:
                    await client.close()
            except (PenstockError, OSError) as error:
                answers[one.name] = str(error)
                continue
            leader = info.cluster.leader if info.cluster is not None else ""
            if leader:
                return self.index(leader)
            answers[one.name] = "no leader"
        raise ServerError(f"no server knows a leader of stream {stream}: {answers}")

    async def meta_leader(self) -> int | None:
        """The index of the server that all running servers agree on as leader of the meta group, or None."""
        found = set()
        for one in self._responsive():
            try:
                page = await one.page("jsz")
            except ServerError:
                return None
            found.add((page.get("meta_cluster") or {}).get("leader"))
        leader = found.pop() if len(found) == 1 else None
        return self.index(leader) if leader else None

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until all running servers have routes to each other and, with JetStream, agree on a meta
        leader, say that they are healthy and can hold replicas. Paused servers do not count.

        Raises:
            ServerError: they are not ready in time; it says what was missing.
        """
        missing = "nothing was asked yet"
        try:
            async with asyncio.timeout(timeout_s):
                while missing := await self._missing():  # noqa: ASYNC110 (no event of another process)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            logs = "\n".join(f"--- {one.name}\n{one.log_tail()}" for one in self.servers)
            raise ServerError(f"not ready after {timeout_s:g} s: {missing}\n{logs}") from None

    def _responsive(self) -> list[ServerProcess]:
        return [one for one in self.servers if one.is_running and not one.is_paused]

    async def _missing(self) -> str:
        """What the cluster still lacks to be ready; "" = nothing."""
        running = self._responsive()
        names = {one.name for one in running}
        try:
            for one in running:
                linked = {route["remote_name"] for route in (await one.page("routez"))["routes"] or ()}
                if not names - {one.name} <= linked:
                    return f"{one.name} has no route to {', '.join(sorted(names - linked - {one.name}))}"
            if self._jetstream is False:
                return ""
            named = [(await one.page("jsz")).get("meta_cluster") for one in running]
            leaders = {(found or {}).get("leader") for found in named}
            if any(named) and (len(leaders) > 1 or not leaders.pop()):
                return "no meta leader that all servers agree on"
            for one in running:
                health = await one.page("healthz")
                if health.get("status") != "ok":
                    return f"{one.name} is not healthy: {health}"
                await self._ask_api(one)
            if any(named) and self._command != PENSTOCK:
                await self._place_replicas(running)
        except (PenstockError, OSError) as error:
            return str(error)
        return ""

    async def _ask_api(self, server: ServerProcess) -> None:
        """Raises PenstockError or OSError unless JetStream answers through this server."""
        from penstock.client import connect

        client = await connect(server.url, reconnect=False, connect_timeout=1.0, request_timeout=1.0)
        try:
            await client.jetstream().account_info()
        finally:
            await client.close()

    async def _place_replicas(self, running: Sequence[ServerProcess]) -> None:
        """Raises PenstockError or OSError while the meta leader does not know all of these servers.

        The meta leader of official servers places replicas only on servers whose first statistics it has got.
        No page and no answer shows whether it has, so this makes a stream and deletes it. The configuration
        may refuse a stream on all servers for good, by tags or limits: then no server may be called offline.
        """
        from penstock.client import connect

        client = await connect(running[0].url, reconnect=False, connect_timeout=1.0, request_timeout=5.0)
        try:
            js = client.jetstream()
            replicas = min(len(running), REPLICAS_MAX)
            await js.create_stream(
                PROBE_STREAM, subjects=[PROBE_STREAM], num_replicas=replicas, storage="memory"
            )
            await js.delete_stream(PROBE_STREAM)
        except JetStreamApiError as error:
            if error.err_code != CLUSTER_NO_PEERS.err_code or "offline" in error.description:
                raise
        finally:
            await client.close()


def cluster(
    size: int = 3,
    *,
    jetstream: bool | str = True,
    config: str | Callable[[int], str] = "",
    name: str = "test",
    names: Sequence[str] = (),
    directory: str | os.PathLike[str] | None = None,
    command: Sequence[str] = PENSTOCK,
) -> ProcessCluster:
    """A cluster of server processes for an `async with` block, or from `start()` to `close()`.

    Servers are called `test-1`, `test-2`, ... and listen on free ports of 127.0.0.1. All connections between
    them pass proxies of this process, which `partition` uses. When the block ends with an exception, a note
    on it says where configuration, logs and stores are.

    Args:
        size: number of servers, 1 to 9.
        jetstream: with JetStream in files; a text is put in its block (`max_file_store: 1GB`).
        config: more of the configuration file, the same for all servers or by index.
        name: of the cluster, and start of the names of servers.
        names: of the servers, instead.
        directory: of configuration, logs and stores, which stay; None = a temporary one.
        command: what starts a server, without `-c FILE`: `("nats-server",)` for the official one.

    Raises:
        MisuseError: an impossible size, or names that are not as many and different.
    """
    return ProcessCluster(
        size,
        command=command,
        jetstream=jetstream,
        config=config,
        name=name,
        names=names,
        directory=directory,
    )
