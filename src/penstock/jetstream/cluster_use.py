"""What the streams of an account use in a cluster, so that its limits hold for all servers together.

The leader of a stream counts it, and tells the other servers about its streams (reports). A report comes up
to a second after what it tells of, so the limits are exact for what a server leads itself, and soft for the
rest, as on the official server. A new leader counts a stream only when the last report of the leader before
is over (`HAND_OVER_NS`): counted twice, the stream could make an account look full that is not.

Bytes are those of one replica. Without tiers an account pays for each replica, in a tier once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.jetstream.limits import SECOND_NS
from penstock.protocol.api import StorageType

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

HAND_OVER_NS = 2 * SECOND_NS

Kind = tuple[StorageType, int]
"""Streams of a storage with so many replicas."""
Row = tuple[int, int, int]
"""A line of a report: replicas, and bytes in memory and on disk of the streams that have so many."""


def kind_of(stream: StreamReplica) -> Kind:
    """The kind that a stream is counted under."""
    return stream.config.storage, max(1, stream.config.num_replicas)


class ClusterUse:
    """The use of one account. Times are ns since the epoch, bytes those of one replica of each stream."""

    def __init__(self) -> None:
        self._led: Counter[Kind] = Counter()
        self._parts: dict[StreamReplica, tuple[Kind, int]] = {}  # each stream's part of it
        # Streams that are counted from a time on, and what reports may have of them until then.
        self._taken_over: dict[StreamReplica, tuple[int, int]] = {}
        self._elsewhere: Counter[Kind] = Counter()

    def begin_leading(self, stream: StreamReplica, now: int) -> None:
        """This server leads a stream from now on."""
        self._taken_over[stream] = (now + HAND_OVER_NS, stream.log.bytes)

    def end_leading(self, stream: StreamReplica) -> None:
        """This server leads a stream no more, or it is gone."""
        self._taken_over.pop(stream, None)
        self._count(stream, None)

    def note(self, stream: StreamReplica, size: int) -> None:
        """A stream has another size now."""
        if stream in self._parts:
            self._count(stream, (kind_of(stream), size))

    def report(self, now: int) -> list[Row]:
        """What the streams use that this server leads. Call it every second or so."""
        for stream in [one for one, (at, _) in self._taken_over.items() if at <= now]:
            del self._taken_over[stream]
            self._count(stream, (kind_of(stream), stream.log.bytes))
        used = {kind: size for kind, size in self._led.items() if size}
        return [
            (replicas, used.get((StorageType.MEMORY, replicas), 0), used.get((StorageType.FILE, replicas), 0))
            for replicas in sorted({replicas for _, replicas in used})
        ]

    def reported(self, rows: Iterable[Row]) -> None:
        """What the other servers report."""
        self._elsewhere = Counter()
        for replicas, memory, storage in rows:
            self._elsewhere[StorageType.MEMORY, replicas] += memory
            self._elsewhere[StorageType.FILE, replicas] += storage

    def part_of(self, stream: StreamReplica) -> int:
        """What of_kind() and total() have, or may have, of a stream that this server leads."""
        if stream in self._parts:
            return self._parts[stream][1]
        return self._taken_over.get(stream, (0, 0))[1]

    def of_kind(self, kind: Kind) -> int:
        """Bytes of the streams of a kind."""
        return self._led[kind] + self._elsewhere[kind]

    def total(self, storage: StorageType) -> int:
        """Bytes of all replicas of all streams of a storage."""
        kinds = (*self._led.items(), *self._elsewhere.items())
        return sum(kind[1] * size for kind, size in kinds if kind[0] is storage)

    def _count(self, stream: StreamReplica, part: tuple[Kind, int] | None) -> None:
        before = self._parts.pop(stream, None)
        if before is not None:
            self._led[before[0]] -= before[1]
        if part is not None:
            self._parts[stream] = part
            self._led[part[0]] += part[1]
