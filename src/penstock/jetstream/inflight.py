"""What atomic batches of a server's streams share: how many are open, how much they hold, and whom to tell of
abandoned ones."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from penstock.jetstream.limits import EngineConfig
from penstock.kernels.ingest.staging import StagedTotal


class Inflight(Struct):
    """Open atomic batches of all streams of all accounts of a server, and the bytes they hold."""

    atomic: int = 0
    staged: StagedTotal = field(default_factory=StagedTotal)


def _ignore(stream: str, batch_id: str, reason: str) -> None:
    return


class BatchContext(Struct):
    """What a stream is given for its atomic batches.

    config: the engine's configuration, as it is when it is called. inflight: shared by all engines.
    abandoned: told stream, batch id and reason ("timeout", "incomplete", "large", "unsupported").
    """

    config: Callable[[], EngineConfig] = EngineConfig
    inflight: Inflight = field(default_factory=Inflight)
    abandoned: Callable[[str, str, str], None] = _ignore
