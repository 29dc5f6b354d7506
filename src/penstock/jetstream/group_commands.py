"""What the leader of a replicated stream wants to change: commands that the stream's group has yet to commit.

`submit` and `change` take commands, `flush` proposes those of a tick as one entry of the group's log. Several
entries may be in flight. `take_committed` matches an entry of the own term that was committed with what waits
for it: the leader of a term is the only one that proposes in it, so its entries come back in their order.

Entry: version (8 bits), then each command with its length before it (32 bits, little-endian).

Invariants: `now` never falls within the group, whatever the clock of this leader or of the one before says.
What waits for an entry learns one thing: that it is committed, or, when this server leads no more, that its
outcome is unknown.

Rejected: numbers in the entries to recognize own ones (term and order already say it).
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

from penstock.errors import JetStreamApiError, LeadershipLostError, MalformedCommandError
from penstock.jetstream import commands
from penstock.jetstream.commands import Command
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.protocol import error_codes as codes

log = logging.getLogger("penstock.jetstream")

ENTRY_VERSION = 1
PARKED = 1 << 62
"""The work of a step that waits for the group: slices.py runs the next one when something was committed."""
BACKLOG_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of commands that wait to be proposed; above, publishes and copies stay in the stream's sink, and
consumers deliver nothing. What is in flight is bounded by the group, which takes no more then."""

ENTRIES_AHEAD = 4
FULL_ENTRY_BYTES = 256 * 1024
"""With so many entries in flight, the next one is proposed when one of them is committed, or when so much is
in it."""

COMMAND_BYTES_MAX = (64 << 20) - 64
"""Bytes of an encoded command: what a group takes as one entry, without what an entry has besides."""
PART_BYTES = 16 << 20
"""Publishes of one tick with more bytes become several commands."""

_LENGTH = struct.Struct("<I")
_VERSION = bytes([ENTRY_VERSION])

Outcome = Any | JetStreamApiError
"""The result of a command, or why it was refused."""


class StreamGroupPort(Protocol):
    """The group of one stream, as its replica here uses it. Implemented by what runs consensus."""

    def propose(self, data: bytes) -> int:
        """Proposes an entry. Returns 0 when this server does not lead, too much is not committed, or the
        entry is too large: the caller keeps it, and may propose a part of it. Entries of one term are
        committed in the order of their proposals."""

    def read_index(self, done: Callable[[], object]) -> bool:
        """Calls `done` when a majority has confirmed that this server led after the call, and everything that
        was committed before it is applied. Returns False when this server does not lead. What is not
        confirmed when the leadership ends is never called."""

    def consumer_dropped(self, name: str) -> None:
        """A consumer is no more, at the replica that serves: on request, or since it expired."""


class _Ticket:
    """The outcome of one command."""

    __slots__ = ("is_known", "is_lost", "outcome")

    def __init__(self) -> None:
        self.is_known = self.is_lost = False
        self.outcome: Outcome = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome, self.is_known = outcome, True

    def lose(self) -> None:
        self.is_lost = True

    def value(self) -> Any:
        if isinstance(self.outcome, JetStreamApiError):
            raise self.outcome
        return self.outcome


class Flight(NamedTuple):
    """An entry in flight. tickets: by the number of their command in it. calls: for when it is committed.
    late: those of them that are made also when this server leads no more. since: when the first of its
    publishes arrived, monotonic ns; 0 = it has none."""

    tickets: dict[int, _Ticket]
    calls: list[Callable[[], object]]
    late: list[Callable[[], object]]
    since: int

    def settle(self, number: int, outcome: Outcome) -> None:
        """Tells the outcome of a command."""
        ticket = self.tickets.get(number)
        if ticket is not None:
            ticket.settle(outcome)


class GroupCommands:
    """The commands of one stream's leader. port: the group. clock: ns since the epoch. wake: requests the end
    of a tick.

    now: ns, of the last command. is_leading: this server takes commands. may_expire: no Expire is in flight.
    """

    def __init__(self, port: StreamGroupPort, clock: Callable[[], int], wake: Callable[[], None]) -> None:
        self._port = port
        self._clock = clock
        self._wake = wake
        self.now = 0
        self.is_leading = False
        self._is_expiring = False
        self._encoded: list[bytes] = []
        self._bytes = 0
        self._count = 0
        self._tickets: dict[int, _Ticket] = {}
        self._calls: list[Callable[[], object]] = []
        self._late: list[Callable[[], object]] = []
        self._since = 0  # when the first publish of what is submitted arrived, monotonic ns
        self._in_flight: deque[Flight] = deque()
        self._unresolved: deque[list[Callable[[], object]]] = deque()  # of entries whose outcome is unknown
        self._last: dict[type[Command], Command] = {}

    # --- the leader's side ---------------------------------------------------------------------

    def submit(self, command: Command, now: int) -> int:
        """Proposes a command with the next flush(). Its result is dropped; returns 0, the work that is
        done already."""
        self._add(command, now, None)
        return 0

    def change(self, command: Command, now: int) -> Generator[int, None, Any]:
        """The same for a command whose result is needed: yields until it is applied, and returns it. Raises
        its JetStreamApiError, and LeadershipLostError when the outcome is unknown."""
        ticket = _Ticket()
        self._add(command, now, ticket)
        while not ticket.is_known:
            if ticket.is_lost or not self.is_leading:
                raise LeadershipLostError("this server leads no more; the change may be made or not")
            yield PARKED
        return ticket.value()

    def submit_changed(self, command: Command) -> None:
        """Submits a command that sets something, unless the last one of its kind set the same."""
        if self._last.get(type(command)) != command:
            self._last[type(command)] = command
            self.submit(command, self.now)

    def submit_expire(self, command: Command, now: int) -> int:
        """Submits an Expire, unless one is in flight."""
        if not self._is_expiring and self.is_leading:
            self._is_expiring = True
            self.submit(command, now)
            self.when_committed(self._expired)
        return 0

    @property
    def may_expire(self) -> bool:
        """Whether the stream's timers are this server's task now."""
        return self.is_leading and not self._is_expiring

    @property
    def is_full(self) -> bool:
        """Whether further publishes and deliveries have to wait where they are."""
        return self._bytes > BACKLOG_BYTES_MAX

    @property
    def may_wait(self) -> bool:
        """Whether what was submitted had better wait until an entry is committed: several are in flight, and
        one that has more in it costs as much as one with little."""
        return len(self._in_flight) >= ENTRIES_AHEAD and self._bytes < FULL_ENTRY_BYTES

    @property
    def has_uncommitted(self) -> bool:
        """Whether something that was submitted is not applied yet."""
        return bool(self._encoded or self._in_flight)

    def when_committed(self, call: Callable[[], object], *, is_late: bool = False) -> None:
        """Calls when everything submitted until now is applied; never when the leadership ends before.
        is_late: also after that, when what was proposed is committed all the same."""
        if self._encoded:
            calls, late = self._calls, self._late
        elif self._in_flight:
            calls, late = self._in_flight[-1].calls, self._in_flight[-1].late
        else:
            call()
            return
        calls.append(call)
        if is_late:
            late.append(call)

    def when_confirmed(self, call: Callable[[], object]) -> None:
        """The same, and after a majority confirmed that this server leads: what was read before may be
        answered then. Also without anything in flight, for another server may lead since."""
        self.when_committed(lambda: self._port.read_index(call))

    def consumer_dropped(self, name: str) -> None:
        """Tells the owner of the group; see StreamGroupPort."""
        self._port.consumer_dropped(name)

    def flush(self) -> bool:
        """Proposes what was submitted as one entry. Returns False when the group does not take it now: it
        waits for the next flush."""
        count = self._count
        while self._count:
            if self._propose(count):
                count = self._count
            elif self._in_flight or count == 1:
                return False
            else:
                count //= 2  # too large for the group at once
        return True

    def _propose(self, count: int) -> bool:
        """Proposes the first commands. What waits for all of them goes with the last."""
        if not self._port.propose(b"".join([_VERSION, *self._encoded[: 2 * count]])):
            return False
        tickets = {number: one for number, one in self._tickets.items() if number < count}
        self._tickets = {number - count: one for number, one in self._tickets.items() if number >= count}
        self._bytes -= sum(len(one) for one in self._encoded[1 : 2 * count : 2])
        del self._encoded[: 2 * count]
        self._count -= count
        calls: list[Callable[[], object]] = []
        late: list[Callable[[], object]] = []
        if not self._count:
            calls, self._calls = self._calls, []
            late, self._late = self._late, []
        self._in_flight.append(Flight(tickets, calls, late, self._since))
        if not self._count:
            self._since = 0
        return True

    def _add(self, command: Command, now: int, ticket: _Ticket | None) -> None:
        if not self.is_leading:
            if ticket is not None:
                ticket.lose()
            return  # only a leader decides; what a follower's server finds is settled by the next leader
        self.now = max(self.now, now, self._clock())
        data = commands.encode(command, self.now)
        if len(data) > COMMAND_BYTES_MAX:
            name = type(command).__name__
            what = f"{name} has {len(data)} bytes, a replicated stream takes {COMMAND_BYTES_MAX}"
            log.error("a command is refused: %s", what)
            if ticket is not None:
                ticket.settle(codes.STREAM_GENERAL.exception(err=what))
            return
        if ticket is not None:
            self._tickets[self._count] = ticket
        if not self._since and isinstance(command, IngestBatch):
            self._since = command.since
        self._encoded += (_LENGTH.pack(len(data)), data)
        self._bytes += len(data)
        self._count += 1
        self._wake()

    def _expired(self) -> None:
        self._is_expiring = False

    # --- the replica's side --------------------------------------------------------------------

    def lead(self, present: list[Command]) -> None:
        """This server leads, and has applied everything from before. present: what commands set before."""
        assert not self.has_uncommitted
        self._unresolved.clear()
        self.is_leading = True
        self._last = {type(one): one for one in present}

    def follow(self) -> list[IngestBatch]:
        """This server leads no more: what is in flight may be committed or not. Returns the publishes that
        were submitted and not proposed."""
        self.is_leading = self._is_expiring = False
        for tickets in (self._tickets, *(flight.tickets for flight in self._in_flight)):
            for ticket in tickets.values():
                ticket.lose()
        self._unresolved = deque(flight.late for flight in self._in_flight)
        self._in_flight.clear()
        left = [commands.decode(one)[0] for one in self._encoded[1::2]]
        self._drop_buffered()
        self._wake()
        return [one for one in left if isinstance(one, IngestBatch)]

    def _drop_buffered(self) -> None:
        self._encoded, self._tickets, self._calls, self._late = [], {}, [], []
        self._bytes = self._count = self._since = 0

    def take_committed(self) -> Flight:
        """Removes and returns what waits for the own entry that was committed just now."""
        return self._in_flight.popleft()

    def resolve(self, *, is_own: bool) -> list[Callable[[], object]]:
        """An entry was committed while this server leads no more. is_own: of the term in which it led last.
        Returns the late calls that wait for it."""
        if is_own and self._unresolved:
            return self._unresolved.popleft()
        self._unresolved.clear()  # an entry of a later leader: what is not committed now never will be
        return []

    def applied(self, now: int) -> None:
        """A command of time `now` was applied: later ones are not earlier."""
        self.now = max(self.now, now)


def parts_of(
    batch: IngestBatch, refuse: Callable[[bytes], object], part_bytes: int = PART_BYTES
) -> Iterator[IngestBatch]:
    """The publishes of a large batch as smaller ones. refuse: called with the reply subject of a publish that
    no entry can have."""
    part = IngestBatch(batch.since)
    while (publish := batch.take_one()) is not None:
        if sum(len(one) for one in publish) > COMMAND_BYTES_MAX - 64:
            refuse(publish[1])
            continue
        part.append(*publish)
        if part.size >= part_bytes:
            yield part
            part = IngestBatch(batch.since)
    if part.size:
        yield part


def split(entry: bytes) -> Iterator[tuple[int, int]]:
    """Where each encoded command of an entry starts and ends; an entry can have megabytes, and is not copied.
    Raises MalformedCommandError."""
    if entry[:1] != _VERSION:
        raise MalformedCommandError(
            f"an entry of version {entry[:1].hex()}: unknown here, a newer server may know it"
        )
    at = 1
    while at < len(entry):
        if at + _LENGTH.size > len(entry):
            raise MalformedCommandError(f"an entry of {len(entry)} bytes ends in the length of a command")
        size = _LENGTH.unpack_from(entry, at)[0]
        at += _LENGTH.size
        if at + size > len(entry):
            raise MalformedCommandError(f"an entry of {len(entry)} bytes ends in a command of {size} bytes")
        yield at, at + size
        at += size
