"""Bringing a stream's replica into the state of a checkpoint: its own at a start, or one of the leader.

What is missing or damaged on this server's disk is fetched from other members, kept in files, and then read
like the rest. So a catch-up that is interrupted continues with what it has, also after a restart, and a
damaged file of a checkpoint is repaired.

All of it is one job of work_turns: the disk's thread reads and verifies files ahead of the loop, and few of
them are in memory at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from penstock.errors import StoreError
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.replica_state import ReplicaState, decode_state
from penstock.server.replicated.state_files import Failure
from penstock.server.replicated.stream_catch_up import (
    CatchUpBudget,
    CatchUpProgress,
    FetchFiles,
    FileFetch,
    FilePieces,
    FilesGone,
)
from penstock.server.replicated.stream_checkpoints import (
    WAITING_BYTES_MAX,
    CheckpointRecord,
    StreamCheckpoints,
)
from penstock.server.replicated.work_turns import PARK, parked_while_empty

READ_BYTES = 2 << 20
"""What one job of the disk's thread reads."""

Restoring = Generator[int, None, ReplicatedStream]
Restore = Callable[[ReplicaState, Callable[[bytes], bytes], int, int], Restoring]
"""Restores a replica in slices: state, chunks by name, index, term."""


@dataclass(frozen=True, slots=True)
class LoadingPorts:
    """What loading uses of its group. restore: begins to replace the replica. members: to ask for files, the
    best first. send: sends a request to one. wake: continues the job."""

    restore: Restore
    members: Callable[[], list[str]]
    send: Callable[[str, FetchFiles], None]
    wake: Callable[[], None]
    clock: Callable[[], int]


class StateLoading:
    """See the module. One state.

    Args:
        record: the checkpoint.
        checkpoints: of the group.
        ports: of the group.
        budget: of the server.
    """

    def __init__(
        self,
        record: CheckpointRecord,
        checkpoints: StreamCheckpoints,
        ports: LoadingPorts,
        budget: CatchUpBudget,
    ) -> None:
        self.record = record
        self._checkpoints = checkpoints
        self._files = checkpoints.files
        self._ports = ports
        self._budget = budget
        self._fetch: FileFetch | None = None
        self._fetched_bytes = 0
        self._of_files = 0

    @property
    def progress(self) -> CatchUpProgress:
        """How far it is."""
        fetch = self._fetch
        missing = fetch.missing if fetch is not None else 0
        fetched = self._fetched_bytes + (fetch.fetched_bytes if fetch is not None else 0)
        return CatchUpProgress(max(self._of_files - missing, 0), self._of_files, fetched)

    # --- the job ---------------------------------------------------------------------------------

    def steps(self) -> Restoring:
        """The job: returns the replica in the state, whose files are all durable. Raises StoreError, OSError
        and MalformedCommandError."""
        wake = self._ports.wake
        yield from self._checkpoints.retain(wake)
        try:
            state = yield from self._manifest()
            names = state.files
            self._of_files = 1 + len(names)
            missing = [name for name in dict.fromkeys(names) if not self._files.may_have(name)]
            yield max(len(names), 1)
            if missing:
                yield from self._fetched(missing)
            replica = yield from self._restored(state, names)
            yield from self._checkpoints.flush(wake)
            self._checkpoints.note(self.record.manifest, names)
        finally:
            self._end_fetch()
            self._checkpoints.release()
        return replica

    def _manifest(self) -> Generator[int, None, ReplicaState]:
        name = self.record.manifest
        while True:
            if not self._files.may_have(name):
                yield from self._fetched([name])
            found = yield from self._contents([name])
            if found is not None:
                return decode_state(found[0])

    def _contents(self, names: list[bytes]) -> Generator[int, None, list[bytes] | None]:
        """The contents of the first of these files; None when one is missing or damaged: which ones is known
        then."""
        ended: list[tuple[list[bytes] | None, Failure | None]] = []

        def done(found: list[bytes] | None, error: Failure | None) -> None:
            ended.append((found, error))
            self._ports.wake()

        self._files.read(names, READ_BYTES, done)
        yield from parked_while_empty(ended)
        if ended[0][0] is None:
            ended.clear()
            self._files.verify(names, done)
            yield from parked_while_empty(ended)
            return None
        return ended[0][0]

    def _restored(self, state: ReplicaState, names: list[bytes]) -> Restoring:
        """Restores the replica, with the files read ahead."""
        read: deque[bytes] = deque()
        restoring: Restoring | None = None
        at = 0
        try:
            while True:
                if not read and at < len(names):
                    found = yield from self._contents(names[at : at + 256])
                    if found is None:
                        damaged = [one for one in names[at : at + 256] if not self._files.has(one)]
                        if damaged:
                            yield from self._fetched(list(dict.fromkeys(damaged)))
                        continue
                    read.extend(found)
                    at += len(found)
                if restoring is None:
                    restoring = self._ports.restore(
                        state, lambda _: read.popleft(), self.record.index, self.record.term
                    )
                try:
                    work = next(restoring)
                except StopIteration as end:
                    replica: ReplicatedStream = end.value
                    return replica
                yield max(work, 1)
        finally:
            if restoring is not None:
                restoring.close()

    # --- fetching --------------------------------------------------------------------------------

    def _fetched(self, names: list[bytes]) -> Generator[int, None, None]:
        """Waits until these files came from other members. Raises StoreError when none has them."""
        fetch = self._fetch = FileFetch(
            self.record.manifest, self._ports.members(), self._budget, self._ports.clock
        )
        fetch.want(names)
        self._budget.due[self] = self.check
        self.check()
        while not fetch.is_done:
            if fetch.is_lost:
                raise StoreError(
                    f"{fetch.missing} of {len(names)} files of the state after entry {self.record.index} are "
                    "not here, and no other member of the group has them now"
                )
            yield PARK
        self._end_fetch()
        yield from self._checkpoints.flush(self._ports.wake)

    def _end_fetch(self) -> None:
        self._budget.due.pop(self, None)
        if self._fetch is not None:
            self._fetched_bytes += self._fetch.fetched_bytes
            self._fetch.close()
            self._fetch = None

    def check(self) -> None:
        """Sends what is to be requested now. Call it at each tick."""
        if self._fetch is None:
            return
        if self._files.waiting_bytes <= WAITING_BYTES_MAX:
            for member, request in self._fetch.requests():
                self._ports.send(member, request)
        if self._fetch.is_lost:
            self._ports.wake()

    def received(self, sender: str, answer: FilePieces | FilesGone) -> None:
        """Takes an answer of another member."""
        if self._fetch is None:
            return
        for name, parts in self._fetch.received(sender, answer):
            self._files.keep(name, parts)
        if self._fetch.is_done or self._fetch.is_lost:
            self._ports.wake()
        else:
            self.check()
