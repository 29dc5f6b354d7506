"""A commit by a majority of imagined replicas, as consensus will bring: an answer that comes later.

What the local disk takes is written, and synced with `sync: always`. Then the stream waits for the majority.
The seed decides in which order among the streams the answers come, after how many ticks, and, while the disk
fails, which of them are failures. The commits of one stream keep their order: one is in flight at a time.

`committed` is what the majority answered, and knows nothing of the stream's own gate (durability.py): the
simulation checks every ack, of batches too, and every delivery against it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.errors import StoreWriteError
from penstock.jetstream.commit import CommitPorts, SyncEnd
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol.api import PersistMode
from penstock.testing.sim.observed_commit import ObservedCommit
from penstock.testing.sim.sim_executor import SimExecutor


class QuorumCommit(ObservedCommit):
    """See jetstream.commit.Commit and ObservedCommit. executor: delivers the answers. fails: whether the next
    one is a failure.

    committed: the last sequence of each stream that a majority has.
    """

    def __init__(
        self,
        config: EngineConfig,
        ports: CommitPorts,
        *,
        sync_failed: Callable[[str], object],
        executor: SimExecutor,
        fails: Callable[[], bool],
    ) -> None:
        super().__init__(config, ports, sync_failed=sync_failed)
        self._executor = executor
        self._fails = fails
        self._is_request = False
        self.committed: dict[StreamReplica, int] = {}

    def note(self, stream: StreamReplica) -> None:
        if stream not in self.committed:  # it is new, or was recovered: replicas have what it has
            self.committed[stream] = stream.durability.durable_seq
        super().note(stream)

    def write_now(self, stream: StreamReplica) -> None:
        # A request's response follows at once: it waits for the majority.
        self._is_request = True
        try:
            super().write_now(stream)
        finally:
            self._is_request = False

    def _write(self, stream: StreamReplica) -> None:
        try:
            stream.write()
            if self._config.sync_always and stream.config.persist_mode is not PersistMode.ASYNC:
                stream.store.sync()
            elif not stream.is_memory:
                self._unsynced[stream.name] = stream
            if not self._is_request and not stream.durability.take_sync_asked():
                self._start(stream, partial(self._ask, stream))
                return
        except StoreWriteError as error:
            self._failed(stream, error)
        else:
            self.committed[stream] = stream.log.last_seq
            if stream.durability.written():
                self._recovered(stream)

    def _ask(self, stream: StreamReplica, done: SyncEnd) -> None:
        last_seq = stream.log.last_seq

        def vote() -> None:
            if self._fails():
                raise StoreWriteError("no majority")

        def answered(_: object, error: Exception | None) -> None:
            if error is None:
                self.committed[stream] = last_seq
            done(error if isinstance(error, StoreWriteError) else None)

        self._executor.run(vote, answered, stream)
