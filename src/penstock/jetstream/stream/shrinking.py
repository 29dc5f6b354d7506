"""Removes what is above the limits that an update lowered, a slice at a time (slices.py).

A stream with a million messages may have to lose nearly all of them. The new configuration is saved first
and applies from then on. Until the last slice the stream holds too much: what is stored meanwhile removes the
oldest messages too, a few each time (kernels/ingest/storing.pyx), so the stream only gets smaller. A crash in
between is harmless, because every start enforces the limits of the saved configuration.

Invariant: changes of the stream from before its limits are on disk before the limits. What a crash leaves is
therefore a state that the stream had under these limits, and a start removes what they removed then.

Rejected: enforcing the limits at a start only after expired messages have left. A message that an expired one
had replaced would come back, if its removal was not on disk yet.

Rejected: limits that go down with each slice. Messages per subject would need a limit for each subject.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from penstock.jetstream.commands import EnforceLimits
from penstock.protocol.api import ApiStreamConfig, DiscardPolicy

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

PART_WORK = 64 * 1024  # in the units of slices.py


def enforced(config: ApiStreamConfig) -> tuple[int, int, int, DiscardPolicy]:
    """What enforce() depends on."""
    return config.max_msgs, config.max_bytes, config.max_msgs_per_subject, config.discard


def slices(stream: StreamReplica, clock: Callable[[], int]) -> Generator[int, None, None]:
    """Enforces the limits that the stream has in each slice: another update may change them meanwhile.

    Yields work. clock: called before each slice, ns; messages that become too old meanwhile go as well.
    """

    if stream.group is not None:
        at = 1
        while at:
            _, at = yield from stream.change(EnforceLimits(at, PART_WORK), stream.now)
        return  # the stream's timers do the rest

    def part(at: int, work: int) -> tuple[int, int]:
        done: tuple[int, int] = stream.apply(EnforceLimits(at, work), stream.now)
        return done

    yield from enforce(part)
    while True:
        yield stream.expire(clock(), PART_WORK)
        if not stream.timers.is_behind:
            return


def enforce(part: Callable[[int, int], tuple[int, int]]) -> Generator[int, None, None]:
    """The same of limits that do not depend on time. part(at, work): enforces a part of them."""
    at = 1
    while at:
        done, at = part(at, PART_WORK)
        yield done
