"""Removes what is above the limits that an update lowered, a slice at a time (slices.py).

A stream with a million messages may have to lose nearly all of them. The new configuration is saved first
and applies from then on. Until the last slice the stream holds too much: what is stored meanwhile removes the
oldest messages too, a few each time (kernels/ingest/storing.pyx), so the stream only gets smaller. A crash in
between is harmless, because every start enforces the limits of the saved configuration.

Rejected: limits that go down with each slice. Messages per subject would need a limit for each subject.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from penstock.kernels.ingest.storing import enforce_part

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

PART_WORK = 64 * 1024  # in the units of slices.py


def slices(stream: StreamReplica, clock: Callable[[], int]) -> Generator[int, None, None]:
    """Enforces the limits that the stream has in each slice: another update may change them meanwhile.

    Yields work. clock: ns; messages that become too old meanwhile go as well.
    """
    yield from enforce(stream)
    while True:
        yield stream.expire(clock(), PART_WORK)
        if not stream.is_behind:
            return


def enforce(stream: StreamReplica) -> Generator[int, None, None]:
    """The same of limits that do not depend on time."""
    at = 1
    while at:
        done, at = enforce_part(stream.log, stream.limits, at, PART_WORK)
        yield done
