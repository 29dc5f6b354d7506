"""Limits on publishes that wait to be stored: `max_buffered_msgs`, `max_buffered_size`.

Publishes wait in the stream's sink until the end of the tick, or with `sync: always` until the sync in flight
is done. Configured limits always apply. Without them, the official server's defaults (100,000 messages, 128
MiB) apply during a sync, however long the disk takes; a tick's input is bounded by what its reads return, and
is applied as a whole.

A publish above a limit is not stored. As on the official server it gets status 429 and error 10167 in the
same tick, with or without no_ack.

Rejected: pausing the publishers' connections. The official server's clients handle 429, and a paused
connection could not unsubscribe or ack either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.limits import SECOND_NS
from penstock.kernels.wire.dispatch import publish
from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol import error_codes as codes
from penstock.protocol.status import TOO_MANY_REQUESTS

if TYPE_CHECKING:
    from penstock.jetstream.limits import EngineConfig
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.kernels.routing.subscription_index import SubscriptionIndex

log = logging.getLogger("penstock.jetstream")

MSGS_MAX = 100_000
BYTES_MAX = 128 * 1024 * 1024
NO_LIMIT = 1 << 62
WARN_EVERY_NS = SECOND_NS


class Overflow:
    """The overflow of one engine's streams. wake: called when the end of the tick has responses to send."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.full = DirtyList(wake)  # streams that rejected publishes
        self._warned_ns = 0

    def bound(self, stream: StreamReplica, config: EngineConfig) -> None:
        """Sets the limits of a stream. Call when a sync or a roll-up starts or ends."""
        durability = stream.durability
        # Nothing is applied until they end. A finished roll-up blocks the stream until the next tick, which
        # applies everything that waits, so the limits end here.
        is_blocked = durability.is_syncing or (durability.is_rolling_up and bool(stream.rollups.unfinished))
        msgs, size = config.buffered_msgs_max, config.buffered_bytes_max
        msgs_max = (NO_LIMIT if msgs < 0 else msgs or MSGS_MAX) if is_blocked or msgs or size else 0
        stream.sink.limit(msgs_max, NO_LIMIT if size < 0 else size or BYTES_MAX)

    def answer(self, index: SubscriptionIndex, now: int) -> None:
        """Sends errors to the publishers whose messages were rejected in this tick."""
        for stream in self.full.take():
            replies = stream.sink.take_rejected()
            self._warn(stream.name, len(replies), now)
            text = stream.refusal(codes.STREAM_TOO_MANY_REQUESTS)
            header = TOO_MANY_REQUESTS.block()
            for reply in replies:
                if reply:
                    publish(index, reply, b"", header, text)

    def _warn(self, name: str, count: int, now: int) -> None:
        if now - self._warned_ns >= WARN_EVERY_NS:
            self._warned_ns = now
            log.warning("stream %s: publishes arrive faster than they are stored, rejected %d", name, count)
