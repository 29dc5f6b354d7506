"""Roll-ups of one stream, and the end of its schedules: what a stored message replaces.

The message is stored first, then the older ones are removed: a crash in between loses neither. A tick removes
a limited number (`Allowance`); where more are left, the stream stops in the middle of its batch while slices
(slices.py) remove the rest. Until then it applies no more publishes and sends no acks, as during a sync: no
read after an ack returns a message that was replaced.

What is stored in that state belongs to the same batch, or to schedules that were due together. It is stored
without limits, which hold again when the roll-ups are done: messages that a roll-up is about to remove must
not push others out.

In a group, each server removes them in slices of its own before it applies the next command
(replicated_stream.py): the state after the batch is the same, however large the slices are. How many messages
may be removed before the rest takes slices is a constant there, for what is stored meanwhile has no limits.

A crash in between: recovery finishes what `StreamMeta.rollups` names. It is written before the message, and
counts only if the message was written too. Whatever rewrites this record keeps a finished roll-up in it until
its removals are on disk: a crash before that takes them back, and the roll-up of a copy or schedule is not
repeated.

Rejected: removing before storing (a crash would lose the old messages and the new one); acks of later
publishes before that of the roll-up (they promise that it is done).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.jetstream.commands import RollUp
from penstock.jetstream.stream.purge import SLICE, SLICE_WORK
from penstock.jetstream.stream.shrinking import PART_WORK

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

FINISHED_MAX = 256  # to be synced before the record of the next roll-up is written, so that it stays short
TICK_MESSAGES_MAX = 16 * 1024  # removed by the roll-ups of all streams in one tick: 2 to 6 ms


class Allowance(Struct):
    """How many messages roll-ups may remove in each tick, and what is left of it."""

    most: int
    left: int = 0

    def renew(self) -> None:
        """A tick begins."""
        self.left = self.most

    def use(self, messages: int) -> None:
        """Counts removed messages."""
        self.left -= messages


class Removal(Struct, frozen=True):
    """Messages that match `filter` (b"": all) below end_seq are replaced by the message at `seq`."""

    filter: bytes
    end_seq: int
    seq: int


class Rollups:
    """Roll-ups of `stream`. allowance: shared by the streams of an engine, which count in it what they
    remove. is_recorded: recovery finishes what a crash interrupts; else the stream is built from its commands
    again.

    unfinished: while there are some, the engine runs slices(). left: how many messages may be removed before
    the rest takes slices; None: no limit.
    """

    def __init__(
        self, stream: StreamReplica, allowance: Allowance | None, *, is_recorded: bool = True
    ) -> None:
        self._stream = stream
        self._allowance = allowance
        self._is_recorded = is_recorded
        self.unfinished: deque[Removal] = deque()
        self.left: int | None = None
        self._seq = 1  # where the first unfinished one continues; 0: it removed all
        self._limit_at = 0  # where enforcing the limits behind it continues; 0: nowhere
        self._finished: deque[tuple[int, Removal]] = deque()  # (see record()) each with its change's number
        self.is_limited = True  # False: something was stored without limits

    def replace(self, filter_subject: bytes, end_seq: int, by_seq: int) -> None:
        """Removes messages (b"": of all subjects) below end_seq for the one at by_seq; slices() removes what
        is left over."""
        if self.left is None:
            self._stream.log.purge(filter_subject, end_seq)
            return
        if not self.unfinished:
            gone, seq = self._remove(filter_subject, 0, end_seq, max(1, self.left))
            self.left -= gone
            if self._allowance is not None:
                self._allowance.use(gone)
            if not seq:
                return
        self.unfinished.append(Removal(filter_subject, end_seq, by_seq))

    def stored_unlimited(self) -> None:
        """A message was stored behind an unfinished roll-up, before limits made room for it."""
        self.is_limited = False

    def finished(self, one: Removal) -> None:
        """Everything that it replaces left the log just now."""
        if self._is_recorded:
            self._finished.append((self._stream.store.change_number, one))

    def record(self) -> list[Removal]:
        """Unfinished ones, and finished ones whose removals may not be on disk yet: a crash interrupts or
        undoes them, and recovery finishes them. Raises StoreError."""
        store, finished = self._stream.store, self._finished
        if len(finished) > FINISHED_MAX:
            store.sync()
        while finished and finished[0][0] <= store.synced_number:
            finished.popleft()
        return [*(one for _, one in finished), *self.unfinished]

    def limit(self, messages: int) -> None:
        """Sets how many messages may be removed before the rest takes slices."""
        self.left = messages

    def slices(self) -> Generator[int, None, None]:
        """Removes the rest; yields work."""
        command = RollUp(SLICE, PART_WORK)
        while self.unfinished:
            done: int = self._stream.apply(command, self._stream.now)
            if done:
                yield done

    def run_slice(self, looks: int, work: int) -> int:
        """Removes a part of what the first unfinished one replaces, then what is above the limits; at last
        ends it. Returns the work done."""
        if not self.unfinished:
            return 0
        if self._seq:
            one = self.unfinished[0]
            _, self._seq = self._remove(one.filter, self._seq, one.end_seq, looks)
            return SLICE_WORK
        if not self._limit_at and len(self.unfinished) == 1 and not self.is_limited:
            self.is_limited = True
            self._limit_at = 1
        if self._limit_at:
            done, self._limit_at = self._stream.enforce_limits(self._limit_at, work)
            return done
        self.finished(self.unfinished.popleft())
        self._seq = 1
        return 0

    @property
    def progress(self) -> tuple[int, int]:
        """Where the next slice continues: a sequence, and a place in the limits."""
        return self._seq, self._limit_at

    def _remove(self, filter_subject: bytes, seq: int, end_seq: int, looks: int) -> tuple[int, int]:
        log = self._stream.log
        log.begin_storing()  # their files stay until the message that replaces them is written
        try:
            return log.purge_part(filter_subject, seq, end_seq, looks, sys.maxsize)
        finally:
            log.end_storing()
