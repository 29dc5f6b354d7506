"""A hash over what every entry of a replicated stream's group did, so that replicas which differ are noticed.

After each entry, the hash takes in the stream's counters, the consumers that the entry moved, and what it
refused: about four microseconds. It covers all entries since the stream was created, for checkpoints contain
it. So replicas that differed once have different hashes from then on. The leader puts its hash into the log
(CheckState) every CHECK_ENTRIES entries at least; each replica compares it with its own at the same index.

Bytes of messages are no part of it: records and chunks of checkpoints have checksums of their own.
Rejected: hashing the whole state (a second for a million messages); stopping a replica that differs (the
leader may be the one that is wrong, and then all others would stop).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.stream.stream_replica import StreamReplica

HASH_SIZE = 16
CHECK_ENTRIES = 256
REMEMBERED_EVERY = 16  # entries; others are not compared
REMEMBERED_MAX = 64  # hashes that a replica remembers

_COUNTERS = struct.Struct("<10q")
_CONSUMER = struct.Struct("<4q")


class StateHash:
    """See the module. value: after the last entry."""

    def __init__(self, value: bytes = b"") -> None:
        self.value = value
        self._remembered: dict[int, bytes] = {}
        self._checked = 0

    def applied(
        self,
        index: int,
        stream: StreamReplica,
        standby: StandbyConsumers,
        consumers: Iterable[str],
        refusals: Iterable[int],
    ) -> None:
        """Takes in entry `index`. consumers: names of those that it moved. refusals: the error codes of its
        refused commands."""
        log = stream.log
        digest = blake2b(self.value, digest_size=HASH_SIZE)
        digest.update(
            _COUNTERS.pack(
                index, stream.now, log.first_seq, log.last_seq, log.last_ts, log.messages, log.bytes,
                log.num_subjects, len(stream.ids), stream.atomic.staged.count,
            )
        )  # fmt: skip
        for name in consumers:
            one = standby.by_name.get(name)
            if one is not None:
                state = one.state
                floor, pending = state.ack_floor_stream, state.num_pending
                counters = state.delivered_stream, state.delivered_consumer, floor, pending
                digest.update(name.encode("utf-8", "surrogateescape") + _CONSUMER.pack(*counters))
        for code in refusals:
            digest.update(b"!%d" % code)
        self.value = digest.digest()
        if index % REMEMBERED_EVERY == 0:
            self._remembered[index] = self.value
            if len(self._remembered) > REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]

    def is_due(self, index: int) -> bool:
        """Whether the leader proposes the hash after entry `index`. It counts as proposed then."""
        if index not in self._remembered or index - self._checked < CHECK_ENTRIES:
            return False
        self._checked = index
        return True

    def differs(self, index: int, value: bytes) -> bool:
        """Whether this replica had another hash than `value` after entry `index`; False when it does not
        know."""
        self._checked = max(self._checked, index)
        return self._remembered.get(index, value) != value
