"""Durability of one stream: what of its log a crash cannot revoke, and what may therefore leave the server.

A stream is in one of the states below; TRANSITIONS lists every event that each state allows, and any other
event raises. The gates are `may_acknowledge` for pub acks, `may_deliver` for deliveries and `is_durable` for
copies. "Durable" means as durable as the configuration asks for: with one replica, a message is durable when
it is written (it survives the process), with `sync: always` when it is synced (it survives the machine),
unless the stream's `persist_mode` is async; with several replicas, when a majority has it.

Only commit.py reports writes and syncs, and only the engine reports roll-ups that are removed in slices
(rollups.py). Everything else asks.

Rejected: flags on the stream that several modules set (an unforeseen combination let acks leave before their
record was synced).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from penstock.protocol.api import ApiError


class State(IntEnum):
    """How much of what was applied is durable. In DURABLE and CHANGED, what is durable may leave."""

    DURABLE = 0  # everything
    CHANGED = 1  # changes are not written yet
    SYNCING = 2  # everything is written; a sync that covers it is in flight
    SYNCING_CHANGED = 3  # the same, and there are changes which that sync does not cover
    FAILED = 4  # the last write or sync failed; publishes are rejected until one succeeds
    CLOSED = 5  # the stream is deleted, offline or closed: nothing of it may leave any more


class Event(IntEnum):
    """What happens to a stream."""

    CHANGE = 0  # a command was applied
    WRITTEN = 1  # everything is durable, without a sync or after one that the caller waited for
    SYNC_STARTED = 2  # everything is written
    SYNC_ENDED = 3
    FAILURE = 4  # of a write or sync
    CLOSE = 5


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.DURABLE: {
        Event.CHANGE: State.CHANGED,
        Event.WRITTEN: State.DURABLE,
        Event.SYNC_STARTED: State.SYNCING,
        Event.FAILURE: State.FAILED,
        Event.CLOSE: State.CLOSED,
    },
    State.CHANGED: {
        Event.CHANGE: State.CHANGED,
        Event.WRITTEN: State.DURABLE,
        Event.SYNC_STARTED: State.SYNCING,
        Event.FAILURE: State.FAILED,
        Event.CLOSE: State.CLOSED,
    },
    State.SYNCING: {
        Event.CHANGE: State.SYNCING_CHANGED,
        Event.SYNC_ENDED: State.DURABLE,
        Event.FAILURE: State.FAILED,
        Event.CLOSE: State.CLOSED,
    },
    State.SYNCING_CHANGED: {
        Event.CHANGE: State.SYNCING_CHANGED,
        Event.SYNC_ENDED: State.CHANGED,
        Event.FAILURE: State.FAILED,
        Event.CLOSE: State.CLOSED,
    },
    State.FAILED: {
        Event.CHANGE: State.FAILED,
        Event.WRITTEN: State.DURABLE,
        Event.SYNC_STARTED: State.SYNCING,
        Event.FAILURE: State.FAILED,
        Event.CLOSE: State.CLOSED,
    },
    # What was in flight when the stream was closed still ends.
    State.CLOSED: dict.fromkeys(Event, State.CLOSED),
}

# The same by number: each tick looks up two or three events for each stream.
_NEXT = tuple(tuple(TRANSITIONS[state].get(event) for event in Event) for state in State)
_CHANGED = tuple(TRANSITIONS[state][Event.CHANGE] for state in State)  # every state allows it
_WRITTEN = tuple(TRANSITIONS[state].get(Event.WRITTEN) for state in State)


class LogEnd(Protocol):
    """What this needs of a stream's log."""

    @property
    def last_seq(self) -> int:
        """The last sequence that was given out."""


class Durability:
    """The durability of one stream. log: its messages, all of which are durable now.

    state: see State. durable_seq: the last sequence that is durable. failure: the error for publishes while
    nothing can be written, else None.

    is_syncing: a sync is in flight. Until it ends, nothing is applied, acknowledged or delivered: what is
    applied now would not be covered. is_rolling_up: a roll-up is unfinished. Until it ends, nothing is
    applied or acknowledged: no read after an ack may return a replaced message. Deliveries continue.
    """

    __slots__ = (
        "_covered_seq", "_log", "_sync_asked",
        "durable_seq", "failure", "is_rolling_up", "is_syncing", "state",
    )  # fmt: skip

    def __init__(self, log: LogEnd) -> None:
        self._log = log
        self.state = State.DURABLE
        self.is_syncing = False
        self.durable_seq = log.last_seq
        self.failure: ApiError | None = None
        self._covered_seq = 0  # last sequence that the sync in flight covers
        self.is_rolling_up = False
        self._sync_asked = False

    # --- the gate ------------------------------------------------------------------------------

    @property
    def may_acknowledge(self) -> bool:
        """Whether pub acks and republished messages may leave: those of stored messages, and after a failure
        the errors."""
        if self.is_rolling_up:
            return False
        if self.state <= State.CHANGED:
            return self.durable_seq == self._log.last_seq
        return self.state == State.FAILED

    @property
    def may_deliver(self) -> bool:
        """Whether every message may be delivered. While the disk refuses writes, consumer_delivery.py limits
        deliveries to the durable ones: consuming is what frees it."""
        return self.state <= State.CHANGED

    @property
    def is_durable(self) -> bool:
        """Whether every message is durable and no roll-up is unfinished.

        Copies of a message wait for it: none may exist before its origin is durable, and an origin may not
        remove a message before its copy is durable. Publishes that precede a request are applied outside of a
        tick, and another stream's sync can end before they are written.
        """
        return self.may_deliver and not self.is_rolling_up and self.durable_seq == self._log.last_seq

    # --- events --------------------------------------------------------------------------------

    def changed(self) -> None:
        """A command was applied, so there is something to write."""
        self.state = _CHANGED[self.state]

    def written(self) -> bool:
        """Everything applied is durable. Returns whether it ends a failure."""
        if _WRITTEN[self.state] is State.DURABLE:
            self.state = State.DURABLE  # no sync was in flight: is_syncing stays as it is
        else:
            self._on(Event.WRITTEN)
        self.durable_seq = self._log.last_seq
        if self.failure is None:
            return False
        self.failure = None
        return True

    def sync_started(self) -> bool:
        """Everything applied is written, and a sync that covers it starts. Returns whether it ends a
        failure."""
        self._on(Event.SYNC_STARTED)
        self._covered_seq = self._log.last_seq
        had_failed, self.failure = self.failure is not None, None
        return had_failed

    def sync_ended(self) -> None:
        """What was applied before the sync started is durable."""
        self._on(Event.SYNC_ENDED)
        if self.state != State.CLOSED:
            self.durable_seq = self._covered_seq

    def failed(self, failure: ApiError) -> None:
        """A write or sync failed. failure: the error for publishes until one succeeds."""
        self._on(Event.FAILURE)
        self.failure = failure

    def close(self) -> None:
        """Nothing of the stream may leave from now on."""
        self._on(Event.CLOSE)

    def rollup_started(self) -> None:
        """A roll-up begins to remove messages in slices."""
        self.is_rolling_up = True

    def rollup_ended(self) -> None:
        """The roll-up is done."""
        self.is_rolling_up = False

    def ask_sync(self) -> None:
        """The next write must be followed by a sync before the tick's responses leave: a request changed the
        stream."""
        self._sync_asked = True

    def take_sync_asked(self) -> bool:
        """Whether ask_sync() was called since the last call."""
        asked, self._sync_asked = self._sync_asked, False
        return asked

    def _on(self, event: Event) -> None:
        following = _NEXT[self.state][event]
        if following is None:
            raise RuntimeError(f"durability: {event.name} while {self.state.name}")
        self.state = following
        self.is_syncing = following == State.SYNCING or following == State.SYNCING_CHANGED
