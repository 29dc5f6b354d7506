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


def _ignore(stream: str, batch_id: str, reason: str) -> None:
    return


class BatchContext(Struct):
    """What a stream needs for its atomic batches.

    config: returns the engine's current configuration. inflight: shared by all engines. abandoned: called
    with stream, batch id and reason ("timeout", "incomplete", "large", "unsupported").
    """

    config: Callable[[], EngineConfig] = EngineConfig
    inflight: Inflight = field(default_factory=Inflight)
    abandoned: Callable[[str, str, str], None] = _ignore
