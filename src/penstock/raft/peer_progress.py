"""What a leader knows of one other member, and how much it may send to it.

States: PROBE, where the logs agree is unknown: one message until its reply. REPLICATE: entries follow each
other without waiting, up to a number of bytes. SNAPSHOT: the member takes the state, and gets no entries.

Invariants: match < next; `match` never falls within a leadership, but when the member lost its log (reset);
bytes in flight are those of entries after `match`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from penstock.raft.raft_messages import Entry, size_of_entries


class ProgressState(Enum):
    """See the module."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class PeerProgress:
    """match: the last entry that the member has on its disk. next: the first one to send. expected: what it
    must have received when it answers the last heartbeat. is_active: it answered since the last check of the
    quorum. round: the last heartbeat that it answered. boot: acknowledgements of earlier starts do not count.
    """

    def __init__(self, next_index: int, *, is_down: bool = False) -> None:
        self.state = ProgressState.PROBE
        self.match = 0
        self.next = next_index
        self.is_paused = False
        self.is_active = False
        self.is_quiesced = False
        self.is_down = is_down
        self.round = 0
        self.expected = 0
        self.commit_sent = 0
        self.snapshot_index = 0
        self.boot = 0
        self._in_flight: deque[tuple[int, int]] = deque()
        self.bytes_in_flight = 0

    @property
    def is_replicating(self) -> bool:
        """Whether entries follow each other without waiting."""
        return self.state is ProgressState.REPLICATE

    def reset(self, boot: int, next_index: int) -> None:
        """The member lost a part of its log: what it acknowledged before does not count."""
        assert boot > self.boot
        self.boot = boot
        self.match = 0
        self._probe(next_index)

    def _probe(self, next_index: int) -> None:
        self.state = ProgressState.PROBE
        self.next = max(next_index, self.match + 1)
        self.is_paused = False
        self._in_flight.clear()
        self.bytes_in_flight = 0
        self.commit_sent = 0

    def acknowledged(self, index: int) -> bool:
        """The member has everything up to `index` on disk. Returns whether that was new."""
        is_new = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._in_flight and self._in_flight[0][0] <= self.match:
            self.bytes_in_flight -= self._in_flight.popleft()[1]
        if self.state is ProgressState.PROBE:
            # A reply to the probe shows that the logs agree at next - 1: what follows needs no waiting.
            self.state = ProgressState.REPLICATE
            self.next = self.match + 1
            self.is_paused = False
        elif self.state is ProgressState.SNAPSHOT and self.match >= self.snapshot_index:
            self._probe(self.match + 1)
        return is_new

    def rejected(self, prev_index: int, next_index: int) -> None:
        """The member does not have the entry at `prev_index`. A late reply changes nothing."""
        if self.state is ProgressState.PROBE:
            if prev_index == self.next - 1:
                self._probe(next_index)
        elif self.state is ProgressState.REPLICATE and prev_index > self.match:
            self._probe(next_index)

    def lost(self) -> None:
        """Something that was sent did not arrive: continue from what is known."""
        self._probe(self.match + 1)

    def sent(self, entries: tuple[Entry, ...], commit: int) -> None:
        """An append left."""
        self.commit_sent = commit
        if self.state is ProgressState.PROBE:
            self.is_paused = True
        elif entries:
            size = size_of_entries(entries)
            self._in_flight.append((entries[-1].index, size))
            self.bytes_in_flight += size
            self.next = entries[-1].index + 1

    def snapshot_sent(self, index: int) -> None:
        """The state up to `index` was offered."""
        self._probe(index + 1)
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = index

    def answered(self, round_number: int) -> None:
        """The member answered a heartbeat; a probe that was lost is sent again."""
        self.is_active = True
        self.round = max(self.round, round_number)
        self.is_paused = False

    def heartbeat_sent(self) -> None:
        """Notes what the member must have received when it answers."""
        self.expected = 0 if self.state is ProgressState.PROBE else self.next - 1

    def note_active(self) -> None:
        self.is_active = True

    def take_active(self) -> bool:
        """Whether the member answered since the last call."""
        was_active, self.is_active = self.is_active, False
        return was_active

    def set_down(self, is_down: bool) -> None:
        """What the links between servers say about the member's server."""
        self.is_down = is_down
        self.is_quiesced = False

    def set_quiesced(self, is_quiesced: bool) -> None:
        self.is_quiesced = is_quiesced
