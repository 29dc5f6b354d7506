"""Reports periodic syncs that failed.

A sync can fail without an operation on the disk that fails: the store refuses one of a file whose earlier
sync failed, until it wrote the file again. What such a sync covers may be lost in a power failure.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import StoreWriteError
from penstock.jetstream.commit import CommitPorts, LocalCommit
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica


class ObservedCommit(LocalCommit):
    """See jetstream.commit.LocalCommit. sync_failed: called with the name of a stream whose periodic sync
    failed."""

    def __init__(
        self, config: EngineConfig, ports: CommitPorts, *, sync_failed: Callable[[str], object]
    ) -> None:
        super().__init__(config, ports)
        self._sync_failed = sync_failed

    def _periodic_sync_ended(self, stream: StreamReplica, error: StoreWriteError | None) -> None:
        if error is not None:
            self._sync_failed(stream.name)
        super()._periodic_sync_ended(stream, error)
