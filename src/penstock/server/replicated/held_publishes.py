"""Publishes to a stream that come while it has no leader.

They wait in the engine, at most HOLD_NS. The server stores them if it becomes the leader itself, and sends
them to the next leader otherwise; what no leader took in time is refused. A publish that was sent to a server
that leads no more is refused as well: passed on again, it could be stored twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.raft.raft_messages import ReplicaId
from penstock.replication.group_port import MAIL_BYTES_MAX
from penstock.server.replicated.deferred_requests import HOLD_NS
from penstock.server.replicated.stream_catch_up import Publishes, encode_mail
from penstock.server.replicated.work_turns import CallLater

log = logging.getLogger("penstock.jetstream")


@dataclass(frozen=True, slots=True)
class HoldingPorts:
    """What held publishes use of their group.

    replica: of the stream; None while its state is loaded. other_leader: the member that leads, when it is
    another one. send: mail to a member. clock: monotonic ns.
    """

    replica: Callable[[], ReplicatedStream | None]
    other_leader: Callable[[], ReplicaId | None]
    send: Callable[[ReplicaId, bytes], object]
    clock: Callable[[], int]
    call_later: CallLater


class HeldPublishes:
    """See the module. stream: its name, for the log."""

    def __init__(self, stream: str, ports: HoldingPorts) -> None:
        self._stream = stream
        self._ports = ports
        self._until = 0  # monotonic ns; 0: none wait

    def pass_on(self, replica: ReplicatedStream) -> None:
        """Sends those that wait to the leader that there is now, if it is another member."""
        if not replica.has_held:
            self._until = 0
            return
        now = self._ports.clock()
        if not self._until:
            self._hold(HOLD_NS)
        leader = self._ports.other_leader()
        if leader is None:
            return
        for batch in replica.take_held():
            mail = encode_mail(Publishes(max(self._until - now, 0), batch.encode()))
            if len(mail) <= MAIL_BYTES_MAX:
                self._ports.send(leader, mail)
            else:
                replica.refuse(batch)
        self._until = 0

    def take_over(self, mail: Publishes) -> None:
        """Stores those of another server, or keeps them until this one serves."""
        try:
            batch = IngestBatch.decode(mail.batch)
        except ValueError as error:
            log.error("stream %s: publishes of another server: %s", self._stream, error)
            return
        replica = self._ports.replica()
        if replica is None or mail.left_ns <= 0:
            return
        if self._ports.other_leader() is not None:
            replica.refuse(batch)  # sent to a leader that was
            return
        replica.take_over(batch)
        if replica.has_held and not self._until:
            self._hold(min(mail.left_ns, HOLD_NS))

    def _hold(self, left_ns: int) -> None:
        self._until = self._ports.clock() + left_ns
        self._ports.call_later(left_ns, self._end)

    def _end(self) -> None:
        """No leader took them in time."""
        replica = self._ports.replica()
        if replica is None or not self._until:
            return
        left = self._until - self._ports.clock()
        if left > 0:  # of later ones
            self._ports.call_later(left, self._end)
            return
        self._until = 0
        for batch in replica.take_held():
            replica.refuse(batch)
