"""Publishes of a stream that wait on this server for a leader: those its replica holds, and late ones.

They go to the leader as soon as there is one: this server's own replica, or by mail (`Publishes`) another
server's. They wait HOLD_NS at most; then those are refused of which it is certain that no leader has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.raft.raft_messages import ReplicaId
from penstock.replication.group_port import MAIL_BYTES_MAX
from penstock.server.replicated.deferred_requests import HOLD_NS
from penstock.server.replicated.late_publishes import LatePublishes, with_message_ids
from penstock.server.replicated.stream_catch_up import Publishes, encode_mail
from penstock.server.replicated.work_turns import CallLater

log = logging.getLogger("penstock.jetstream")


@dataclass(frozen=True, slots=True)
class WaitingPorts:
    """What the waiting publishes of a stream use.

    stream: its name, for the log. index: of the account. clock: monotonic ns. call_later: calls after so many
    ns. member: this server. replica: of the stream; None while there is none. leader: the member that leads,
    as far as this server knows. send: sends mail to a member, unless the group has failed.
    """

    stream: str
    index: SubscriptionIndex
    clock: Callable[[], int]
    call_later: CallLater
    member: ReplicaId
    replica: Callable[[], ReplicatedStream | None]
    leader: Callable[[], ReplicaId | None]
    send: Callable[[ReplicaId, bytes], object]


class WaitingPublishes:
    """See the module."""

    def __init__(self, ports: WaitingPorts) -> None:
        self._ports = ports
        self._late = LatePublishes(ports.index, self._on_late)
        self._kept: list[tuple[IngestBatch, bool]] = []  # as LatePublishes.take() gives them
        self._led_term = 0
        self._until = 0  # when the first of them has waited too long; 0: none waits

    def begin(self, stream: StreamReplica, *, takes_remote: bool) -> None:
        """Takes what comes late; see LatePublishes.begin()."""
        self._late.begin(stream, takes_remote=takes_remote)

    def end(self) -> None:
        """Nothing comes late any more. What came waits on."""
        self._late.end()

    def stop(self) -> None:
        """Forgets what waits."""
        self._late.end()
        self._kept.clear()

    def led(self, term: int) -> None:
        """This server leads in a term, and serves."""
        self._late.end()
        self._led_term = term

    def pass_on(self, replica: ReplicatedStream) -> None:
        """Sends what waits to the leader that there is now."""
        self._kept += self._late.take()
        if replica.is_serving:
            for batch, _ in self._kept:
                replica.take_over(batch)
            self._kept.clear()
        if not replica.has_held and not self._kept:
            self._until = 0
            return
        now = self._ports.clock()
        if not self._until:
            self._until = now + HOLD_NS
            self._ports.call_later(HOLD_NS, self._end_waiting)
        leader = self._ports.leader()
        if leader is None or leader == self._ports.member:
            return
        left_ns = max(self._until - now, 0)
        for batch, is_certain in [*((one, False) for one in replica.take_held()), *self._kept]:
            mail = encode_mail(Publishes(left_ns, batch.encode(), is_certain, self._led_term))
            if len(mail) <= MAIL_BYTES_MAX:
                self._ports.send(leader, mail)
            else:
                replica.refuse(batch)
        self._kept.clear()
        self._until = 0

    def _on_late(self) -> None:
        self._ports.call_later(0, self._pass_late)

    def _pass_late(self) -> None:
        replica = self._ports.replica()
        if replica is not None:
            self.pass_on(replica)

    def _end_waiting(self) -> None:
        """No leader took them in time."""
        replica = self._ports.replica()
        if replica is None or not self._until:
            return
        left = self._until - self._ports.clock()
        if left > 0:  # of later ones
            self._ports.call_later(left, self._end_waiting)
            return
        self._until = 0
        for batch in replica.take_held():
            replica.refuse(batch)
        for batch, is_certain in self._kept:
            if is_certain:  # else a leader may have it whom this server does not know
                replica.refuse(batch)
        self._kept.clear()

    def take_over(self, mail: Publishes, term: int) -> None:
        """Takes what waited on another server. term: the present one."""
        replica = self._ports.replica()
        try:
            batch = IngestBatch.decode(mail.batch)
        except ValueError as error:
            log.error("stream %s: publishes of another server: %s", self._ports.stream, error)
            return
        if replica is None or mail.left_ns <= 0:
            return
        leader = self._ports.leader()
        if leader is not None and leader != self._ports.member:
            replica.refuse(batch)  # sent to a leader that was
            return
        is_only_here = mail.is_certain or (not replica.is_serving and term == mail.led_term + 1)
        replica.take_over(batch if is_only_here else with_message_ids(batch))
        if replica.has_held and not self._until:
            left = min(mail.left_ns, HOLD_NS)
            self._until = self._ports.clock() + left
            self._ports.call_later(left, self._end_waiting)
