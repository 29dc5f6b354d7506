"""Limits and reports that atomic batches of all streams share."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from penstock.jetstream.limits import EngineConfig
from penstock.kernels.ingest.batches import StagedTotal


class Inflight(Struct):
    """Open atomic batches of all accounts of a server, and the bytes they hold."""

    atomic: int = 0
    staged: StagedTotal = field(default_factory=StagedTotal)

    def opened(self, staged_bytes_max: int) -> None:
        """Counts one more batch. staged_bytes_max: of all of them, by the present configuration."""
        self.atomic += 1
        self.staged.limit(staged_bytes_max)

    def closed(self) -> None:
        """Counts one batch less."""
        self.atomic -= 1


def _ignore(stream: str, batch_id: str, reason: str) -> None:
    return


def _always(count: int) -> bool:
    return True


class BatchContext(Struct):
    """What a stream needs for its atomic and fast batches.

    config: returns the engine's current configuration. inflight: shared by all engines. abandoned: called
    with stream, batch id and reason ("timeout", "incomplete", "large", "unsupported"). may_start_fast:
    whether a stream that has so many fast batches may open one more.
    """

    config: Callable[[], EngineConfig] = EngineConfig
    inflight: Inflight = field(default_factory=Inflight)
    abandoned: Callable[[str, str, str], None] = _ignore
    may_start_fast: Callable[[int], bool] = _always
