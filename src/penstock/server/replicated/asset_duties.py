"""What the leader of a stream's group does for the cluster: it makes the stream and its consumers what the
meta state says, and answers the requests that wanted it.

Each stream has at most one run of work at a time: a generator of steps that wait for the group. It compares
again after each step, so that a run that is interrupted is made up for by the next one, here or at another
leader.

A consumer is the assigned one when it has its time of creation: that is in its stored configuration, and a
consumer that is created again has another.

Invariant: a request is answered by a server that leads the group and has applied what the request wanted. A
server that sees another one lead forgets its tickets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock import faults
from penstock.errors import JetStreamApiError, LeadershipLostError, ServerError, StoreError
from penstock.jetstream.api.consumer_requests import info_of, pause_response
from penstock.jetstream.api.stream_requests import info_fields
from penstock.jetstream.group_commands import PARKED
from penstock.jetstream.meta.assignments import ConsumerAssignment, StreamAssignment
from penstock.jetstream.meta.desired_state import StoredConsumer, consumer_differences
from penstock.jetstream.meta.meta_commands import DeleteConsumer
from penstock.jetstream.meta.meta_effects import AssetAction, ConsumerEffect, StreamEffect
from penstock.protocol.api import (
    ApiError,
    ConsumerCreateResponse,
    StreamCancelMoveResponse,
    StreamCreateResponse,
    StreamUpdateResponse,
)
from penstock.server.replicated.request_tickets import RequestTicket, decode_ticket

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.replicated_stream import ReplicatedStream
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.server.replicated.stream_group_owner import StreamGroup
    from penstock.server.replicated.stream_groups import StreamGroups

TICKET_NS = 10_000_000_000  # no client waits longer for an answer
AGAIN_NS = 1_000_000_000
TICKETS_MAX = 10_000
FAR = 1 << 63  # ns: never

Key = tuple[str, str]
"""Account and name of a stream."""


class _Waiting(Struct):
    """A request that waits for its asset. consumer: "" for one about the stream. incarnation, version: of the
    asset."""

    ticket: RequestTicket
    action: AssetAction
    consumer: str
    incarnation: int
    version: int
    until: int


class AssetDuties:
    """See the module.

    Args:
        groups: of this server.
        meta: its meta state.
        engine_of: the engine of an account.
        answer: callable(ticket, response) -> answers a request in the account of its client.
        clock, monotonic: ns.
    """

    def __init__(
        self,
        groups: StreamGroups,
        meta: MetaReplica,
        engine_of: Callable[[str], JetStreamEngine],
        answer: Callable[[RequestTicket, Any], None],
        clock: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._meta = meta
        self._engine_of = engine_of
        self._answer = answer
        self._clock = clock
        self._monotonic = monotonic
        self._waiting: dict[Key, list[_Waiting]] = {}
        self._running: set[Key] = set()
        self._due: dict[Key, int] = {}  # what is to be looked at, and when
        self._made: dict[tuple[str, str, str], int] = {}  # incarnation of consumers that this leader has seen
        self._refused: dict[tuple[str, str, str], int] = {}  # version of consumers that cannot be made

    # --- what happened --------------------------------------------------------------------------

    def stream_changed(self, effect: StreamEffect) -> None:
        """A command changed a stream."""
        key = (effect.account, effect.stream)
        if effect.action is AssetAction.REMOVED:
            self._forget(key)
            return
        if self._groups.find(*key) is None and not self._is_host(key):
            return
        self._expect(key, effect.ticket, effect.action, "", effect.incarnation)
        self.look_at(key)

    def consumer_changed(self, effect: ConsumerEffect) -> None:
        """A command changed a consumer."""
        key = (effect.account, effect.stream)
        if not self._is_host(key):
            return
        if effect.action is not AssetAction.REMOVED:
            self._expect(key, effect.ticket, effect.action, effect.consumer, effect.incarnation)
        self.look_at(key)

    def _is_host(self, key: Key) -> bool:
        """Whether this server has the stream or is about to."""
        return key in self._meta.tables.streams_on(self._meta.own_peer)

    def _expect(self, key: Key, ticket: bytes, action: AssetAction, consumer: str, incarnation: int) -> None:
        decoded = decode_ticket(ticket)
        waiting = self._waiting.setdefault(key, [])
        if decoded is None or len(waiting) >= TICKETS_MAX:
            return
        until = self._monotonic() + TICKET_NS
        version = self._meta.tables.applied
        waiting.append(_Waiting(decoded, action, consumer, incarnation, version, until))

    def look_at(self, key: Key) -> None:
        """Something about a stream is to be compared with the meta state, at the next tick()."""
        self._due[key] = 0

    def role_changed(self, group: StreamGroup) -> None:
        """A group has another leader."""
        if group.is_serving:
            self.look_at(group.key)
            return
        for name in [name for name in self._made if name[:2] == group.key]:
            del self._made[name]
        if group.leader is not None:
            self._waiting.pop(group.key, None)

    def _forget(self, key: Key) -> None:
        self._waiting.pop(key, None)
        self._due.pop(key, None)
        for remembered in (self._made, self._refused):
            for name in [name for name in remembered if name[:2] == key]:
                del remembered[name]

    def lost_tickets(self, key: Key, incarnation: int) -> list[RequestTicket]:
        """Removes and returns the tickets of the creation of a stream that failed here."""
        waiting = self._waiting.get(key, [])
        lost = [
            one
            for one in waiting
            if one.incarnation == incarnation and one.action is AssetAction.CREATED and not one.consumer
        ]
        self._waiting[key] = [one for one in waiting if one not in lost]
        return [one.ticket for one in lost]

    @property
    def has_work(self) -> bool:
        """Whether tick() has something to do at once. What is due later waits for the server's timer."""
        return min(self._due.values(), default=FAR) <= self._monotonic()

    def tick(self) -> None:
        """Begins what is due."""
        now = self._monotonic()
        for key in [key for key, at in self._due.items() if at <= now]:
            del self._due[key]
            faults.contain(self._begin, self._failed, key)
        for key, waiting in list(self._waiting.items()):
            left = [one for one in waiting if one.until > now]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def _failed(self, error: Exception, key: Key) -> None:
        faults.note(f"stream {key[1]} of account {key[0]}", error)
        self._due[key] = self._monotonic() + AGAIN_NS

    # --- the work -------------------------------------------------------------------------------

    def _begin(self, key: Key) -> None:
        group = self._groups.find(*key)
        if group is None or not group.is_serving:
            return
        if key in self._running:
            self._due[key] = self._monotonic() + AGAIN_NS // 50
            return
        try:
            engine = self._engine_of(key[0])
        except ServerError:  # the account has no JetStream here now; it may have again
            self._due[key] = self._monotonic() + AGAIN_NS
            return
        self._running.add(key)

        def finish(_: Any) -> None:
            self._running.discard(key)

        def refuse(error: Exception) -> None:
            self._running.discard(key)
            if not isinstance(error, (LeadershipLostError, JetStreamApiError, StoreError)):
                faults.note(f"stream {key[1]} of account {key[0]}", error)
            self._due[key] = self._monotonic() + AGAIN_NS

        engine.slices.begin(("duties", key), self._work(key, group), finish, refuse)

    def _work(self, key: Key, group: StreamGroup) -> Generator[int, None, None]:
        """Makes the stream what the meta state says, then answers."""
        engine = self._engine_of(key[0])
        while True:
            assignment = self._meta.tables.find_stream(*key)
            replica = group.replica
            if assignment is None or replica is None or not group.is_serving:
                return
            if assignment.incarnation != group.assignment.incarnation:
                return
            if replica.stream.config != assignment.config:
                yield from engine.registry.follow(replica.stream, assignment.config)
                continue
            self._answer_about_stream(key, engine, replica)
            if not (yield from self._next_consumer(engine, assignment, replica)):
                return

    def _next_consumer(
        self, engine: JetStreamEngine, assignment: StreamAssignment, replica: ReplicatedStream
    ) -> Generator[int, None, bool]:
        """Makes or drops one consumer; returns whether there was one."""
        key = (assignment.account, assignment.name)
        tables = self._meta.tables
        assigned = tables.consumers(*key)
        found = consumer_differences(tables, assignment, self._stored(assignment, replica))
        for name in found.dropped:
            present = replica.stream.consumers.get(name)
            if present is not None:
                engine.consumers.delete(present, sync=False)
                yield from _committed(replica)
            return present is not None
        for one in assigned.values():
            if one not in found.set:
                self._made[*key, one.name] = one.incarnation
                self._answer_about_consumer(key, engine, replica, one)
        for one in found.set:
            place = (*key, one.name)
            if self._refused.get(place) == one.version:
                continue
            if self._made.get(place) == one.incarnation and one.name not in replica.standby.by_name:
                # It expired, or its inactive time is over: the cluster forgets it as well.
                self._meta.submit(DeleteConsumer(*place, one.incarnation))
                self._due[key] = self._monotonic() + AGAIN_NS
                continue
            yield from self._set(engine, replica, one)
            return True
        return False

    def _stored(self, assignment: StreamAssignment, replica: ReplicatedStream) -> dict[str, StoredConsumer]:
        """The consumers of the group's state, as consumer_differences() takes them. Those that mirrors and
        sources made are no assets of the cluster."""
        assigned = self._meta.tables.consumers(assignment.account, assignment.name)
        stored: dict[str, StoredConsumer] = {}
        for name, standby in replica.standby.by_name.items():
            meta = standby.meta
            if meta.config.direct or meta.config.sourcing or meta.driven:
                continue
            one = assigned.get(name)
            if one is None or one.created != meta.created:
                stored[name] = (0, 0)
            else:
                stored[name] = (one.incarnation, one.version if one.config == meta.config else -1)
        return stored

    def _set(
        self, engine: JetStreamEngine, replica: ReplicatedStream, one: ConsumerAssignment
    ) -> Generator[int, None, None]:
        place = (one.account, one.stream, one.name)
        stream = replica.stream
        present = stream.consumers.get(one.name)
        try:
            if present is None:
                yield from engine.consumers.propose(stream, one.config, one.name, one.created)
            else:
                yield from present.propose_update(one.config, self._clock())
        except JetStreamApiError as error:
            self._refused[place] = one.version
            self._refuse_consumer(one, ApiError.from_exception(error), is_new=present is None)

    def _refuse_consumer(self, one: ConsumerAssignment, error: ApiError, *, is_new: bool) -> None:
        """A consumer that cannot be made: the cluster forgets it, and its request is refused."""
        key = (one.account, one.stream)
        tickets = [waiting for waiting in self._waiting.get(key, []) if waiting.consumer == one.name]
        self._waiting[key] = [waiting for waiting in self._waiting.get(key, []) if waiting not in tickets]
        if is_new:
            ticket = tickets[0].ticket.encode() if tickets else b""
            self._meta.submit(DeleteConsumer(*key, one.name, one.incarnation, error, ticket))
            return
        for waiting in tickets:
            self._answer(waiting.ticket, error)

    # --- answers --------------------------------------------------------------------------------

    def _taken(self, key: Key, consumer: str, incarnation: int, version: int) -> list[_Waiting]:
        """Removes and returns the requests that are satisfied."""
        waiting = self._waiting.get(key)
        if not waiting:
            return []
        done = [
            one
            for one in waiting
            if one.consumer == consumer and one.incarnation == incarnation and one.version <= version
        ]
        if done:
            self._waiting[key] = [one for one in waiting if one not in done]
        return done

    def _answer_about_stream(self, key: Key, engine: JetStreamEngine, replica: ReplicatedStream) -> None:
        assignment = self._meta.tables.stream(*key)
        for one in self._taken(key, "", assignment.incarnation, self._meta.tables.applied):
            fields = info_fields(engine, replica.stream, self._clock())
            response: Any
            match one.ticket.verbs:
                case "STREAM.CREATE":
                    did_create = one.action is AssetAction.CREATED
                    response = StreamCreateResponse(**fields, did_create=did_create)
                case "STREAM.CANCEL_MOVE" | "ACCOUNT.STREAM.CANCEL_MOVE":
                    response = StreamCancelMoveResponse(**fields)
                case _:
                    response = StreamUpdateResponse(**fields)
            replica.commands.when_confirmed(_call(self._answer, one.ticket, response))

    def _answer_about_consumer(
        self, key: Key, engine: JetStreamEngine, replica: ReplicatedStream, one: ConsumerAssignment
    ) -> None:
        consumer = replica.stream.consumers.get(one.name)
        if consumer is None:
            return
        for waiting in self._taken(key, one.name, one.incarnation, self._meta.tables.applied):
            now = self._clock()
            response: Any
            if waiting.ticket.verbs == "CONSUMER.PAUSE":
                response = pause_response(consumer, now)
            else:
                info = info_of(engine, consumer, now)
                fields = {name: getattr(info, name) for name in info.__struct_fields__}
                response = ConsumerCreateResponse(**fields)
            replica.commands.when_confirmed(_call(self._answer, waiting.ticket, response))


def _committed(replica: ReplicatedStream) -> Generator[int, None, None]:
    """Waits until everything submitted so far is applied."""
    is_done: list[bool] = []
    replica.commands.when_committed(lambda: is_done.append(True))
    while not is_done:
        if not replica.is_serving:
            raise LeadershipLostError("this server leads no more; the change may be made or not")
        yield PARKED


def _call(
    answer: Callable[[RequestTicket, Any], None], ticket: RequestTicket, response: Any
) -> Callable[[], None]:
    return lambda: answer(ticket, response)
