"""Roll-ups of one stream, and the end of its schedules: what a stored message replaces.

The message is stored first, then the older ones are removed: a crash in between loses neither. A tick removes
a limited number (`Allowance`); where more are left, the stream stops in the middle of its batch while slices
(slices.py) remove the rest. Until then it applies no more publishes and sends no acks, as during a sync: no
read after an ack returns a message that was replaced.

What is stored in that state belongs to the same batch, or to schedules that were due together. It is stored
without limits, which hold again when the roll-ups are done: messages that a roll-up is about to remove must
not push others out.

A crash in between: recovery finishes what `StreamMeta.rollups` names. It is written before the message, and
counts only if the message was written too.

Rejected: removing before storing (a crash would lose the old messages and the new one); acks of later
publishes before that of the roll-up (they promise that it is done).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.jetstream.stream.purge import SLICE, SLICE_WORK
from penstock.jetstream.stream.shrinking import enforce

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

TURN_MESSAGES = 16 * 1024  # removed by the roll-ups of all streams in one tick: 2 to 6 ms


class Allowance(Struct):
    """How many messages roll-ups may remove in each tick, and what is left of it."""

    most: int
    left: int = 0

    def renew(self) -> None:
        """Begins the next turn."""
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
    """Roll-ups of `stream`. allowance: shared by the streams of an engine; None: no limit.

    unfinished: while there are some, the engine runs slices().
    """

    def __init__(self, stream: StreamReplica, allowance: Allowance | None) -> None:
        self._stream = stream
        self._allowance = allowance
        self.unfinished: deque[Removal] = deque()
        self.is_limited = True  # False: something was stored without limits

    def replace(self, filter_subject: bytes, end_seq: int, by_seq: int) -> None:
        """Removes messages (b"": of all subjects) below end_seq for the one at by_seq; slices() removes what
        is left over."""
        if self._allowance is None:
            self._stream.log.purge(filter_subject, end_seq)
            return
        if not self.unfinished:
            gone, seq = self._remove(filter_subject, 0, end_seq, max(1, self._allowance.left))
            self._allowance.use(gone)
            if not seq:
                return
        self.unfinished.append(Removal(filter_subject, end_seq, by_seq))

    def stored_unlimited(self) -> None:
        """A message was stored behind an unfinished roll-up, before limits made room for it."""
        self.is_limited = False

    def slices(self) -> Generator[int, None, None]:
        """Removes the rest; yields work."""
        while self.unfinished:
            one, seq = self.unfinished[0], 1
            while seq:
                _, seq = self._remove(one.filter, seq, one.end_seq, SLICE)
                yield SLICE_WORK
            while len(self.unfinished) == 1 and not self.is_limited:
                self.is_limited = True
                yield from enforce(self._stream)
            self.unfinished.popleft()

    def _remove(self, filter_subject: bytes, seq: int, end_seq: int, looks: int) -> tuple[int, int]:
        log = self._stream.log
        log.begin_storing()  # their files stay until the message that replaces them is written
        try:
            return log.purge_part(filter_subject, seq, end_seq, looks, sys.maxsize)
        finally:
            log.end_storing()
