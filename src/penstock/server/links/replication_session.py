"""One connection to another server for replicated groups: its socket, and what the link of it says.

The accepting side gets it from the route listener: a CONNECT that names replication, after the authorization
of a route, hands the connection over. The dialling side reads INFO, sends that CONNECT, and then both sides
speak frames (`penstock.replication`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock import faults
from penstock.cluster.route_info import RouteInfo, parse_info
from penstock.errors import ProtocolError
from penstock.net.reasons import CloseReason
from penstock.net.route_connection import RouteConnection
from penstock.replication.replication_link import LinkEvent, LinkRefused, ReplicationLink

if TYPE_CHECKING:
    from penstock.raft.raft_host import Frame
    from penstock.server.server_context import ServerContext

INFO_BYTES_MAX = 64 * 1024
PENDING_BYTES_MAX = 64 << 20
"""Above so many bytes that the socket has not taken, frames for the peer are dropped: consensus repeats what
is still needed."""
PENDING_TIME_NS = 10_000_000_000
"""A peer that takes nothing for so long, or says nothing, is cut off and dialled again."""


class SessionOwner(Protocol):
    """Who gets what a session receives."""

    def happened(self, session: ReplicationSession, event: LinkEvent) -> None:
        """A frame, mail, or the peer's greeting."""

    def ended(self, session: ReplicationSession, reason: CloseReason) -> None:
        """The connection is closed. The last call."""


class ReplicationSession:
    """See the module; the handler of its connection.

    Args:
        context: log of the server.
        link: its state.
        owner: gets frames, mail and the end.
        connect_line: returns what the dialling side sends after the peer's INFO, or raises ProtocolError;
            None = this side accepted.
    """

    def __init__(
        self,
        context: ServerContext,
        link: ReplicationLink,
        owner: SessionOwner,
        connect_line: Callable[[RouteInfo], bytes] | None,
    ) -> None:
        self.link = link
        self._context = context
        self._owner = owner
        self._connect_line = connect_line
        self._waits_for_info = connect_line is not None
        self._line = bytearray()
        self._connection: RouteConnection | None = None
        self._taken = 0
        self._progress_at = self._heard_at = time.monotonic_ns()
        self.dropped_frames = 0

    # -- connection

    def begin(self, connection: RouteConnection) -> None:
        """Takes over the connection; an accepted one is open."""
        self._connection = connection
        connection.hand_over(self, self._read)

    def connected(self) -> None:
        """The dialled socket is open; the peer speaks first."""

    def control(self, op: int) -> None:
        """There are no control frames: the input does not go to the route's parser."""

    def fell_behind(self) -> None:
        self._context.log.info(f"{self.name} - Slow replication link: write deadline exceeded")

    def closed(self, reason: CloseReason) -> None:
        faults.contain(self._owner.ended, self._failed, self, reason)

    @property
    def connection(self) -> RouteConnection:
        assert self._connection is not None, "begin() comes first"
        return self._connection

    def flush(self) -> bool:
        """The out buffer of the route protocol is not used."""
        return False

    @property
    def name(self) -> str:
        """Prefix of log lines."""
        host, port = self._connection.peer if self._connection is not None else ("", 0)
        return f"{host}:{port} - repl:{self.link.replica_id or '?'}"

    def close(self, reason: CloseReason) -> None:
        """Closes after the pending output."""
        if self._connection is not None:
            self._connection.close(reason)

    def cut(self, reason: CloseReason) -> None:
        """Closes at once."""
        if self._connection is not None:
            self._connection.abort(reason)

    # -- input

    def greet(self) -> None:
        """Sends this side's greeting."""
        self._send(self.link.opening())

    def _read(self, data: bytes | memoryview) -> None:
        self._heard_at = time.monotonic_ns()
        faults.contain(self._take, self._failed, data)

    def _take(self, data: bytes | memoryview) -> None:
        if self._waits_for_info:
            self._line += data
            line, found, rest = bytes(self._line).partition(b"\r\n")
            if not found:
                if len(self._line) > INFO_BYTES_MAX:
                    self._refuse(f"INFO of more than {INFO_BYTES_MAX} bytes")
                return
            self._waits_for_info = False
            self._line.clear()
            try:
                self._on_info(line)
            except ProtocolError as error:
                self._refuse(str(error))
                return
            data = rest
        for event in self.link.receive(data):
            if isinstance(event, LinkRefused):
                self._send(event.close_frame)
                self._refuse(event.text if not event.by_peer else f"the peer refuses: {event.text}")
            else:
                self._owner.happened(self, event)

    def _on_info(self, line: bytes) -> None:
        assert self._connect_line is not None
        if not line.startswith(b"INFO "):
            raise ProtocolError(f"no INFO of a route: {line[:80]!r}")
        self._send(self._connect_line(parse_info(line[5:])))
        self.greet()

    def _refuse(self, text: str) -> None:
        self._context.log.error(f"{self.name} - Replication link refused: {text}")
        self.close(CloseReason.PROTOCOL_VIOLATION)

    def _failed(self, error: Exception, *_: object) -> None:
        """Contains an exception caused by this peer's input: closes this connection only."""
        faults.note(f"replication link {self.name}", error)
        self.cut(CloseReason.INTERNAL_ERROR)

    # -- output

    def send_frame(self, frame: Frame) -> None:
        """Sends a frame, or drops it when the peer is too slow."""
        if self._is_full:
            self.dropped_frames += 1
            return
        for part in self.link.frame_parts(frame):
            self._send(part)

    def send_mail(self, group: str, payload: bytes) -> None:
        """Sends mail, or drops it when the peer is too slow."""
        if not self._is_full:
            self._send(self.link.mail_bytes(group, payload))

    @property
    def _is_full(self) -> bool:
        return self._connection is None or self._connection.pending_bytes() > PENDING_BYTES_MAX

    def _send(self, data: bytes) -> None:
        if self._connection is not None and data:
            self._connection.send_bulk(data)

    def check_time(self, now: int) -> None:
        """Cuts off a peer that takes or says nothing any more."""
        connection = self._connection
        if connection is None:
            return
        taken = connection.bytes_taken()
        if taken != self._taken or not connection.pending_bytes():
            self._taken, self._progress_at = taken, now
        if now - min(self._progress_at, self._heard_at) > PENDING_TIME_NS:
            self._context.log.info(f"{self.name} - Replication link is stale")
            self.cut(CloseReason.STALE_CONNECTION)
