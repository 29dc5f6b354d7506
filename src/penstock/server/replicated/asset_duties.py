"""What the leader of a stream's group does for the cluster: it makes the stream and its consumers what the
meta state says, and answers the requests that wanted it.

Each stream has at most one run of work at a time: a generator of steps that wait for the group. It compares
the stream, and the consumers that something happened to: a command of the meta group, or that the leader
dropped one. A new leader compares all of them, and so does a run after one that failed.

A consumer is the assigned one when it has its time of creation: that is in its stored configuration, and a
consumer that is created again has another.

Invariants: a request is answered by a server that leads the group and has applied what the request wanted. A
server that sees another one lead forgets its tickets. What one consumer costs does not grow with the number
of the others: a stream may have many thousands, each created and dropped within seconds.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import faults
from penstock.errors import JetStreamApiError, LeadershipLostError, ServerError, StoreError
from penstock.jetstream.api.consumer_requests import info_of, pause_response
from penstock.jetstream.api.stream_requests import info_fields
from penstock.jetstream.group_commands import PARKED
from penstock.jetstream.meta.assignments import ConsumerAssignment
from penstock.jetstream.meta.desired_state import ConsumerDifference, consumer_difference
from penstock.jetstream.meta.meta_commands import DeleteConsumer
from penstock.jetstream.meta.meta_effects import AssetAction, ConsumerEffect, StreamEffect
from penstock.jetstream.slices import side_by_side
from penstock.protocol.api import (
    ApiError,
    ConsumerCreateResponse,
    StreamCancelMoveResponse,
    StreamCreateResponse,
    StreamUpdateResponse,
)
from penstock.server.replicated.request_tickets import RequestTicket, decode_ticket, success_of
from penstock.server.replicated.waiting_tickets import TICKET_NS, WaitingTicket, WaitingTickets

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.replicated_stream import ReplicatedStream
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.server.replicated.stream_group_owner import StreamGroup
    from penstock.server.replicated.stream_groups import StreamGroups

AGAIN_NS = 1_000_000_000
AT_ONCE = 64  # consumers of a stream whose commands wait for the group at the same time

Key = tuple[str, str]
"""Account and name of a stream."""


class _Again(NamedTuple):
    """What is to be compared again. at: monotonic ns. consumer: None for everything about the stream."""

    at: int
    key: Key
    consumer: str | None


class _Duties:
    """Those about one stream.

    made: the incarnations of the consumers that this leader has seen. refused: the versions of consumers that
    cannot be made.
    """

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self._is_due = self._is_running = False
        self._names: dict[str, None] = {}
        self._has_all = False

    def add(self, consumer: str) -> None:
        """A consumer is to be compared."""
        self._names[consumer] = None

    def add_all(self) -> None:
        """Every consumer is."""
        self._has_all = True

    def note_due(self) -> bool:
        """The stream is to be compared. Returns whether a run must begin: one that goes on does it, too."""
        self._is_due = True
        return not self._is_running

    @property
    def is_due(self) -> bool:
        """Whether something is to be compared."""
        return self._is_due

    def begin(self) -> None:
        """A run begins."""
        self._is_running = True

    def end(self) -> None:
        """It has ended."""
        self._is_running = False

    def take(self, assigned: Iterable[str], stored: Iterable[str]) -> list[str]:
        """Nothing is due any more. Removes and returns the consumers to compare. assigned, stored: all that
        there are."""
        self._is_due = False
        names, self._names = list(self._names), {}
        if self._has_all:
            self._has_all = False
            names = sorted({*assigned, *stored})
        return names

    def follow(self) -> None:
        """This server does not lead: another one compares."""
        self._is_due = self._has_all = False
        for kept in (self._names, self.made, self.refused):
            kept.clear()


class _Place(NamedTuple):
    """A stream that this server leads."""

    key: Key
    engine: JetStreamEngine
    replica: ReplicatedStream
    duties: _Duties


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
        self._streams: dict[Key, _Duties] = {}
        self._tickets: dict[Key, WaitingTickets] = {}  # the requests that wait for a stream or its consumers
        self._ready: dict[Key, None] = {}  # streams whose work is to begin
        self._again: deque[_Again] = deque()

    # --- what happened --------------------------------------------------------------------------

    def stream_changed(self, effect: StreamEffect) -> None:
        """A command changed a stream."""
        key = (effect.account, effect.stream)
        is_here = self._groups.find(*key) is not None or self._is_host(key)
        if effect.action is AssetAction.REMOVED or not is_here:
            self._forget(key)
            return
        self._expect(key, effect.ticket, effect.action, "", effect.incarnation)
        self._due(key)

    def consumer_changed(self, effect: ConsumerEffect) -> None:
        """A command changed a consumer."""
        key = (effect.account, effect.stream)
        if not self._is_host(key):
            return
        self._expect(key, effect.ticket, effect.action, effect.consumer, effect.incarnation)
        self._look_at_consumer(key, effect.consumer)

    def consumer_dropped(self, key: Key, consumer: str) -> None:
        """The group dropped a consumer: this server wanted it, or the consumer expired."""
        self._look_at_consumer(key, consumer)

    def look_at(self, key: Key) -> None:
        """Everything about a stream is to be compared with the meta state, at the next tick()."""
        self._of(key).add_all()
        self._due(key)

    def role_changed(self, group: StreamGroup) -> None:
        """A group has another leader."""
        if group.is_serving:
            self.look_at(group.key)
            return
        self._of(group.key).follow()
        if group.leader is not None:
            self._tickets.pop(group.key, None)

    def lost_tickets(self, key: Key, incarnation: int) -> list[RequestTicket]:
        """Removes and returns the tickets of the creation of a stream that failed here."""
        return [one.ticket for one in self._taken(key, "", incarnation, AssetAction.CREATED)]

    def _is_host(self, key: Key) -> bool:
        """Whether this server has the stream or is about to."""
        return key in self._meta.tables.streams_on(self._meta.own_peer)

    def _of(self, key: Key) -> _Duties:
        duties = self._streams.get(key)
        if duties is None:
            duties = self._streams[key] = _Duties()
        return duties

    def _expect(self, key: Key, ticket: bytes, action: AssetAction, consumer: str, incarnation: int) -> None:
        decoded = decode_ticket(ticket)
        if decoded is not None:
            until = self._monotonic() + TICKET_NS
            waiting = self._tickets.setdefault(key, WaitingTickets())
            waiting.add(WaitingTicket(decoded, action, consumer, incarnation, until))

    def _look_at_consumer(self, key: Key, consumer: str) -> None:
        self._of(key).add(consumer)
        self._due(key)

    def _due(self, key: Key) -> None:
        """A stream is to be compared with the meta state, at the next tick()."""
        if self._of(key).note_due():
            self._ready[key] = None

    def _look_again(self, key: Key, consumer: str | None = None) -> None:
        self._again.append(_Again(self._monotonic() + AGAIN_NS, key, consumer))

    def _forget(self, key: Key) -> None:
        self._streams.pop(key, None)
        self._tickets.pop(key, None)
        self._ready.pop(key, None)

    @property
    def has_work(self) -> bool:
        """Whether tick() has something to do at once. What is due later waits for the server's timer."""
        return bool(self._ready) or (bool(self._again) and self._again[0].at <= self._monotonic())

    def tick(self) -> None:
        """Begins what is due."""
        now = self._monotonic()
        while self._again and self._again[0].at <= now:
            _, key, consumer = self._again.popleft()
            if key not in self._streams:
                continue
            if consumer is None:
                self.look_at(key)
            else:
                self._look_at_consumer(key, consumer)
        ready, self._ready = self._ready, {}
        for key in ready:
            faults.contain(self._begin, self._failed, key)
        for key, tickets in list(self._tickets.items()):
            tickets.expire(now)
            if not tickets:
                del self._tickets[key]

    def _failed(self, error: Exception, key: Key) -> None:
        faults.note(f"stream {key[1]} of account {key[0]}", error)
        self._look_again(key)

    # --- the work -------------------------------------------------------------------------------

    def _begin(self, key: Key) -> None:
        duties = self._of(key)
        group = self._groups.find(*key)
        if group is None or not group.is_serving:
            duties.follow()
            return
        try:
            engine = self._engine_of(key[0])
        except ServerError:  # the account has no JetStream here now; it may have again
            self._look_again(key)
            return

        def refuse(error: Exception) -> None:
            if not isinstance(error, (LeadershipLostError, JetStreamApiError, StoreError)):
                faults.note(f"stream {key[1]} of account {key[0]}", error)
            self._look_again(key)

        engine.slices.begin(("duties", key), self._run(key, group, duties), _done, refuse)

    def _run(self, key: Key, group: StreamGroup, duties: _Duties) -> Generator[int, None, None]:
        """A run of work. It ends with its engine, too: then the account has no JetStream here any more."""
        duties.begin()
        try:
            yield from self._work(key, group, duties)
        finally:
            duties.end()

    def _work(self, key: Key, group: StreamGroup, duties: _Duties) -> Generator[int, None, None]:
        """Makes the stream what the meta state says, then its consumers, and answers."""
        engine = self._engine_of(key[0])
        while duties.is_due:
            assignment = self._meta.tables.find_stream(*key)
            replica = group.replica
            if assignment is None or replica is None or not group.is_serving:
                return
            if assignment.incarnation != group.assignment.incarnation:
                return
            if replica.stream.config != assignment.config:
                yield from engine.registry.follow(replica.stream, assignment.config)
                continue
            assigned: Iterable[str] = self._meta.tables.consumers(*key)
            tickets = self._tickets.get(key)
            if tickets is not None:  # those that wait for a removal, too
                assigned = itertools.chain(assigned, tickets.consumers)
            names = duties.take(assigned, replica.standby.by_name)
            self._answer_about_stream(key, engine, replica)
            place = _Place(key, engine, replica, duties)
            yield from side_by_side((self._see_to(place, name) for name in names), AT_ONCE)

    def _see_to(self, place: _Place, name: str) -> Generator[int, None, None]:
        """Makes one consumer what the meta state says, and answers."""
        key, engine, replica, duties = place
        while True:
            assigned = self._meta.tables.consumers(*key).get(name)
            standby = replica.standby.by_name.get(name)
            if standby is None:
                self._answer_about_removed(key, name, replica)
            match consumer_difference(assigned, standby.meta if standby is not None else None):
                case ConsumerDifference.TO_DROP:
                    present = replica.stream.consumers.get(name)
                    if present is not None:
                        engine.consumers.delete(present, sync=False)
                    elif name in replica.stream.offline:
                        engine.consumers.delete_offline(replica.stream, name, sync=False)
                    else:
                        return
                    yield from _committed(replica)
                case ConsumerDifference.NONE:
                    if assigned is None:
                        duties.made.pop(name, None)
                        duties.refused.pop(name, None)
                    else:
                        duties.made[name] = assigned.incarnation
                        self._answer_about_consumer(place, assigned)
                    return
                case ConsumerDifference.TO_SET:
                    assert assigned is not None
                    if duties.refused.get(name) == assigned.version:
                        return
                    if duties.made.get(name) == assigned.incarnation and standby is None:
                        # The stream's leader deleted it after its inactive threshold.
                        self._meta.submit(DeleteConsumer(*key, name, assigned.incarnation))
                        self._look_again(key, name)  # the command may be lost
                        return
                    yield from self._set(place, assigned)

    def _set(self, place: _Place, one: ConsumerAssignment) -> Generator[int, None, None]:
        _, engine, replica, duties = place
        present = replica.stream.consumers.get(one.name)
        try:
            if present is None:
                yield from engine.consumers.propose(replica.stream, one.config, one.name, one.created)
            else:
                yield from present.propose_update(one.config, self._clock())
        except JetStreamApiError as error:
            duties.refused[one.name] = one.version
            self._refuse_consumer(one, ApiError.from_exception(error), is_new=present is None)

    def _refuse_consumer(self, one: ConsumerAssignment, error: ApiError, *, is_new: bool) -> None:
        """A consumer that cannot be made: the cluster forgets it, and its request is refused."""
        tickets = self._taken((one.account, one.stream), one.name, one.incarnation)
        if is_new:
            place = (one.account, one.stream, one.name)
            ticket = tickets[0].ticket.encode() if tickets else b""
            self._meta.submit(DeleteConsumer(*place, one.incarnation, error, ticket))
            return
        for waiting in tickets:
            self._answer(waiting.ticket, error)

    # --- answers --------------------------------------------------------------------------------

    def _taken(
        self, key: Key, consumer: str, incarnation: int | None, action: AssetAction | None = None
    ) -> list[WaitingTicket]:
        """Removes and returns the requests that wait for an asset; see WaitingTickets.take()."""
        tickets = self._tickets.get(key)
        return tickets.take(consumer, incarnation, action) if tickets is not None else []

    def _answer_about_stream(self, key: Key, engine: JetStreamEngine, replica: ReplicatedStream) -> None:
        for one in self._taken(key, "", self._meta.tables.stream(*key).incarnation):
            fields = info_fields(engine, replica.stream, self._clock())
            response: Any
            match one.ticket.verbs:
                case "STREAM.CREATE":
                    did_create = one.action is AssetAction.CREATED
                    if did_create:
                        engine.advisories.stream_action(replica.stream.name, "create")
                    response = StreamCreateResponse(**fields, did_create=did_create)
                case "STREAM.CANCEL_MOVE" | "ACCOUNT.STREAM.CANCEL_MOVE":
                    response = StreamCancelMoveResponse(**fields)
                case _:
                    response = StreamUpdateResponse(**fields)
            replica.commands.when_confirmed(_call(self._answer, one.ticket, response))

    def _answer_about_removed(self, key: Key, name: str, replica: ReplicatedStream) -> None:
        """The group has no consumer of this name: those that were removed are gone."""
        for waiting in self._taken(key, name, None, AssetAction.REMOVED):
            replica.commands.when_confirmed(_call(self._answer, waiting.ticket, success_of(waiting.ticket)))

    def _answer_about_consumer(self, place: _Place, one: ConsumerAssignment) -> None:
        key, engine, replica, _ = place
        consumer, begun = replica.stream.consumers.get(one.name), replica.take_begun(one.name)
        if consumer is None:
            return
        for waiting in self._taken(key, one.name, one.incarnation):
            now = self._clock()
            response: Any
            if waiting.ticket.verbs == "CONSUMER.PAUSE":
                response = pause_response(consumer, now)
            else:
                # It may have delivered meanwhile, and clients take the positions in this response for those
                # at which it begins, and num_pending for the number of messages that will come.
                first = begun if waiting.action is AssetAction.CREATED else None
                info = info_of(engine, consumer, now, first)
                fields = {name: getattr(info, name) for name in info.__struct_fields__}
                response = ConsumerCreateResponse(**fields)
            replica.commands.when_confirmed(_call(self._answer, waiting.ticket, response))


def _done(_: object) -> None:
    """A run of work has no result."""


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
