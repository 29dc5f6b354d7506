"""Publishes that a stream has no room for while others wait to be stored: `max_buffered_msgs`,
`max_buffered_size`.

What reaches a stream waits in its sink until the end of the tick, or with `sync: always` until the sync that
is under way is done. Limits of the configuration hold at all times. Without, the official server's (100,000
messages, 128 MiB) hold while a sync is under way, however long the disk takes; what a tick brings is bounded
by what its reads bring, and is applied as a whole.

A publish above a limit is not stored. It is answered with status 429 and error 10167, as the official server
does, no_ack or not, in the tick in which it came.

Rejected: reading no more from the publishers. The official server's clients know 429, and a connection that
is not read from can't unsubscribe or acknowledge either.
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
    """Of one engine. wake: called when there is somebody to answer at the end of the tick."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.full = DirtyList(wake)  # streams that turned publishes away
        self._warned_ns = 0

    def bound(self, stream: StreamReplica, config: EngineConfig, *, is_held: bool) -> None:
        """Sets the limits of a stream; is_held: it is on its way to the disk, and nothing is applied."""
        msgs, size = config.buffered_msgs_max, config.buffered_bytes_max
        sink = stream.sink
        sink.bytes_max = NO_LIMIT if size < 0 else size or BYTES_MAX
        sink.msgs_max = (NO_LIMIT if msgs < 0 else msgs or MSGS_MAX) if is_held or msgs or size else 0

    def answer(self, index: SubscriptionIndex, now: int) -> None:
        """Tells the publishers of this tick whose messages were turned away."""
        for stream in self.full.take():
            replies, stream.sink.rejected = stream.sink.rejected, []
            self._warn(stream.name, len(replies), now)
            text = stream.refusal(codes.STREAM_TOO_MANY_REQUESTS)
            header = TOO_MANY_REQUESTS.block()
            for reply in replies:
                if reply:
                    publish(index, reply, b"", header, text)

    def _warn(self, name: str, count: int, now: int) -> None:
        if now - self._warned_ns >= WARN_EVERY_NS:
            self._warned_ns = now
            log.warning("stream %s: publishes come faster than they are stored, %d are refused", name, count)
