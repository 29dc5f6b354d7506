"""Recovery of a stream's state from its log, after its store was opened.

It is no command: each server recovers from its own files.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from penstock.jetstream.stream import shrinking
from penstock.jetstream.stream.dedupe import recover_ids
from penstock.jetstream.stream.rollups import Removal

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


def recover(
    stream: StreamReplica, now: int, rollups: list[Removal] | None = None
) -> Generator[int, None, None]:
    """Rebuilds message ids, TTLs and schedules from the log after the store was opened. Yields work in
    the units of slices.py; the stream must not be used before it ends."""
    stream.number_from_first()
    if rollups:
        _finish_rollups(stream, rollups)
    if not stream.config.sealed:
        # A crash between a message and the tombstone of the one it replaced leaves both.
        yield from shrinking.enforce(stream.enforce_limits)
    yield from recover_ids(stream.ids, stream.log, now)
    yield from stream.sources.resume()
    if stream.config.allow_msg_ttl:
        yield from stream.expiry.ttls.recover(stream.log)
    if stream.config.allow_msg_schedules:
        yield from stream.schedules.recover()


def _finish_rollups(stream: StreamReplica, rollups: list[Removal]) -> None:
    """Finishes roll-ups that a crash interrupted. A message that was lost replaces nothing, and the next
    one gets its sequence."""
    stored = [one for one in rollups if one.seq <= stream.log.last_seq]
    for one in stored:
        stream.log.purge(one.filter, one.end_seq)
        stream.rollups.finished(one)  # a crash may undo these removals until they are synced
    if len(stored) < len(rollups):
        stream.save_meta(stream.config)
