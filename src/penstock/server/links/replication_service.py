"""Replicated groups of a running server: timers, the disk thread, and a connection to each other server.

`penstock.replication` decides; this object has the event loop. Of two servers the one whose name sorts first
dials, at the address of the route between them, so that each pair has one connection. A newer connection to
the same server replaces an older one, which may be dead without knowing it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import faults
from penstock.cluster.mesh_ports import address_of
from penstock.cluster.peer_link import Address
from penstock.cluster.route_info import RouteInfo
from penstock.errors import ConfigError, ProtocolError, ServerError, StoreError
from penstock.net.reasons import CloseReason
from penstock.raft.raft_host import Frame
from penstock.replication.group_storage import DiskWrite, GroupStorage, StorageStatus
from penstock.replication.replication_link import LinkEvent, LinkOpened, ReplicationLink, greeting_of
from penstock.replication.replication_messages import GroupMail
from penstock.replication.replication_node import NodeOutput, ReplicationNode, ReplicationOptions
from penstock.server.disk_executor import LoopExecutor
from penstock.server.links.replication_session import ReplicationSession
from penstock.server.server_identity import VERSION
from penstock.store.disk import LOCAL_DISK, Disk

if TYPE_CHECKING:
    from penstock.net.route_connection import RouteConnection
    from penstock.server.links.routes import Routes
    from penstock.server.server_context import ServerContext

FRAMING = 1
"""Version of the framing, in INFO and CONNECT of routes."""
TICK_S = 0.05
DIAL_AGAIN_NS = 1_000_000_000
HAND_OVER_S = 1.0
ANSWERS_S = 0.05
BRIEF_WRITES_MAX = 4
"""In one turn of the event loop; the next write is the disk thread's."""


@dataclass(frozen=True)
class ReplicationSetup:
    """Replicated groups of a server.

    directory: of the log; its parent exists. opened: called with the service when the log is open; it opens
    or creates the groups. disk: for tests that lose what was not synced.
    """

    directory: Path
    opened: Callable[[ReplicationService], None]
    options: ReplicationOptions = field(default_factory=ReplicationOptions)
    disk: Disk = LOCAL_DISK


class ReplicationService:
    """See the module.

    Args:
        context: options, log and identity of the server.
        routes: its routes; the cluster must have a name.
        setup: directory, options, groups.

    Raises:
        ServerError: the log cannot be opened, or the cluster has no configured name.
    """

    def __init__(self, context: ServerContext, routes: Routes, setup: ReplicationSetup) -> None:
        self._context = context
        self._routes = routes
        if routes.mesh.is_dynamic or not context.options.server_name:
            raise ServerError("replicated groups need names that stay: set server_name and cluster { name }")
        try:
            self._storage, findings = GroupStorage.open(
                setup.disk,
                setup.directory,
                cluster_name=routes.mesh.cluster_name,
                server_name=context.server_name,
                new_disk_id=os.urandom(6).hex(),
            )
        except (StoreError, OSError) as error:
            raise ServerError(f"cannot open the log of replicated groups: {error}") from error
        for damage in findings.damages:
            context.log.error(f"damaged place in the log of replicated groups: {damage}")
        self.node = ReplicationNode(findings, setup.options, _random, time.monotonic_ns, self._wake)
        self._greeting = greeting_of(findings.identity, VERSION)
        self._loop = asyncio.get_running_loop()
        self._executor = LoopExecutor(self._loop)
        self._sessions: set[ReplicationSession] = set()
        self._links: dict[str, ReplicationSession] = {}  # open ones, by replica id
        self._dialling: dict[str, asyncio.Task[None]] = {}  # by server name
        self._dial_at: dict[str, int] = {}
        self._is_due = False
        self._is_closed = False
        self._was_refused = False
        self._timer: asyncio.TimerHandle | None = None
        mode = "each command" if setup.options.sync_always else "at intervals"
        context.log.info(
            f"Replicated groups: {findings.replica_id}, start {findings.identity.boot}, sync {mode}"
        )
        setup.opened(self)
        routes.serve_replication(FRAMING, self._accepted)
        self._on_timer()

    # -- for the server

    @property
    def linked(self) -> list[str]:
        """The members that there is a connection to."""
        return sorted(self._links)

    async def hand_over(self) -> None:
        """Hands over what this server leads, for a second at most; then answers to the publishes that it sent
        to the next leaders have a moment to arrive."""
        deadline = self._loop.time() + HAND_OVER_S
        waiting = self.node.leave()
        had_some = waiting > 0
        while waiting and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
            waiting = self.node.leave()
        if had_some:
            await asyncio.sleep(ANSWERS_S)

    def close(self) -> None:
        """Ends the links, waits for the disk, and closes the log."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._dialling.values()):
            task.cancel()
        for session in tuple(self._sessions):
            session.close(CloseReason.SERVER_SHUTDOWN)
        self._executor.close()
        self._storage.close()

    # -- pumping

    def _wake(self) -> None:
        if not self._is_due and not self._is_closed:
            self._is_due = True
            self._loop.call_soon(faults.contain, self._pump, self._pump_failed)

    def _pump(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        output = self.node.pump()
        self._send(output)
        for _ in range(BRIEF_WRITES_MAX):
            if output.write is None or not self._storage.is_brief(output.write):
                break
            self._written(*self._write_here(output.write))
            output = self.node.pump()
            self._send(output)
        if output.write is not None:
            self._executor.run(partial(self._storage.write, output.write), self._written, self)
        if output.has_more:
            self._wake()
        if self.node.is_refused and not self._was_refused:
            self._was_refused = True
            self._context.log.error(
                "other servers know a newer start of this one: its disk is an old copy, and takes no part in "
                "replicated groups; move the directory of the log away, and this server joins as a new member"
            )
            self._executor.run(self._storage.mark_refused, self._marked_refused, self)

    def _marked_refused(self, _: None, error: StoreError | OSError | None) -> None:
        if error is not None:
            self._context.log.error(
                f"the next start will find out again that the disk is an old copy: {error}"
            )

    def _pump_failed(self, error: Exception) -> None:
        faults.note("replicated groups", error)
        self._loop.call_later(TICK_S, self._wake)

    def _send(self, output: NodeOutput) -> None:
        for frame in output.frames:
            session = self._links.get(frame.to)
            if session is not None:
                session.send_frame(frame)
        for mail in output.mails:
            session = self._links.get(mail.to)
            if session is not None:
                session.send_mail(mail.group, mail.payload)

    def _write_here(self, write: DiskWrite) -> tuple[StorageStatus | None, StoreError | OSError | None]:
        """Hands a few bytes to the operating system at once: the way to a thread and back takes longer, and
        in it two threads wait for the interpreter's lock."""
        try:
            return self._storage.write(write), None
        except (StoreError, OSError) as error:
            return None, error

    def _written(self, status: StorageStatus | None, error: StoreError | OSError | None) -> None:
        if error is not None and self.node.disk_error is None:
            self._context.log.error(f"the log of replicated groups cannot be written: {error}")
        self.node.disk_done(status, error)

    # -- time

    def _on_timer(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(TICK_S, self._on_timer)
            faults.contain(self._tick, self._pump_failed)

    def _tick(self) -> None:
        self.node.tick()
        now = time.monotonic_ns()
        for session in tuple(self._sessions):
            session.check_time(now)
        self._dial_missing(now)

    # -- links

    def _dial_missing(self, now: int) -> None:
        have = {session.link.peer.server for session in self._links.values() if session.link.peer is not None}
        for route in self._routes.mesh.peers.values():
            peer = route.remote
            if peer is None or peer.replication < FRAMING or peer.server_name <= self._context.server_name:
                continue
            name = peer.server_name
            if name in have or name in self._dialling or now < self._dial_at.get(name, 0):
                continue
            try:
                address = route.address if route.did_solicit and route.address else address_of(peer.ip)
            except ConfigError as error:
                self._context.log.error(f"no address of server {name!r} for replication: {error}")
                continue
            self._dial_at[name] = now + DIAL_AGAIN_NS
            self._dialling[name] = self._loop.create_task(self._dial(name, address))

    async def _dial(self, name: str, address: Address) -> None:
        link = ReplicationLink(self._greeting, name)
        session = self._routes.replication_session(link, self, partial(self._connect_line, name, address))
        self._sessions.add(session)
        try:
            await self._routes.dial_replication(address, session)
        except OSError as error:  # TimeoutError is one
            self._sessions.discard(session)
            self._context.log.debug(f"replication link to {name!r} at {address}: {error or 'timeout'}")
        finally:
            self._dialling.pop(name, None)

    def _connect_line(self, name: str, address: Address, info: RouteInfo) -> bytes:
        if info.server_name != name or info.replication < FRAMING:
            raise ProtocolError(
                f"dialled server {name!r} for replication and reached {info.server_name!r} with framing "
                f"{info.replication}"
            )
        mesh = self._routes.mesh
        settings = mesh.settings
        named = address if address.user else address._replace(user=settings.user, password=settings.password)
        return mesh.connect_line(named, replication=str(FRAMING))

    def _accepted(self, connection: RouteConnection) -> None:
        """Another server dialled, and is authorized."""
        session = ReplicationSession(self._context, ReplicationLink(self._greeting), self, None)
        self._sessions.add(session)
        session.begin(connection)
        session.greet()

    def happened(self, session: ReplicationSession, event: LinkEvent) -> None:
        if self._is_closed:
            return
        if isinstance(event, Frame):
            self.node.receive(event)
        elif isinstance(event, GroupMail):
            self.node.receive_mail(session.link.replica_id, event.group, event.payload)
        elif isinstance(event, LinkOpened):
            self._opened(session, event.greeting.server)

    def _opened(self, session: ReplicationSession, server: str) -> None:
        replica_id = session.link.replica_id
        for other in tuple(self._links.values()):
            if other.link.peer is not None and other.link.peer.server == server:
                del self._links[other.link.replica_id]
                other.cut(CloseReason.DUPLICATE_ROUTE)
        self._links[replica_id] = session
        self._context.log.info(f"{session.name} - Replication link to {server!r} is open")
        self.node.peer_linked(replica_id)

    def ended(self, session: ReplicationSession, reason: CloseReason) -> None:
        self._sessions.discard(session)
        replica_id = session.link.replica_id
        if self._links.get(replica_id) is session:
            del self._links[replica_id]
            self._context.log.info(f"{session.name} - Replication link closed: {reason}")
            if not self._is_closed:
                self.node.peer_unlinked(replica_id)


def _random() -> float:
    """A random number in [0, 1) with 53 bits: elections of many groups must not coincide."""
    return (int.from_bytes(os.urandom(7), "little") >> 3) / (1 << 53)
