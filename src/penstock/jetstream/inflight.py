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

    def opened(self) -> None:
        """Counts one more batch."""
        self.atomic += 1

    def closed(self) -> None:
        """Counts one batch less."""
        self.atomic -= 1


def _ignore(stream: str, batch_id: str, reason: str) -> None:
    return


class BatchContext(Struct):
    """What a stream uses for its atomic and fast batches besides its state. Nothing here decides what a
    command does: the limits of batches are a command (commands.LimitBatches).

    config: returns the engine's current configuration, for the texts of responses. inflight: counts the
    batches of all engines. abandoned: called with stream, batch id and reason ("timeout", "incomplete",
    "large", "unsupported").
    """

    config: Callable[[], EngineConfig] = EngineConfig
    inflight: Inflight = field(default_factory=Inflight)
    abandoned: Callable[[str, str, str], None] = _ignore
