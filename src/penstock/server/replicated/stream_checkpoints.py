"""Checkpoints of one stream: taking them, and which of their files are in use.

A checkpoint in the group's log is a CheckpointRecord: the name of a manifest, whose file names the files of
the chunks (jetstream/stream/replica_state.py). They are written and synced before the log gets the record,
and those of an earlier checkpoint are removed after the record is on disk: at every moment, the files of the
checkpoint with which a start would begin are there.

Files that a lagging member fetches stay for SERVED_NS after its last request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import chain
from typing import Protocol

import msgspec
from msgspec import Struct

from penstock.errors import MalformedCommandError
from penstock.jetstream.stream.replica_state import CHUNK_SEQS, HASH_SIZE, Keep, TakenState, manifest_name
from penstock.server.replicated.state_files import Failure, StateFiles
from penstock.server.replicated.work_turns import PARK, parked_while_empty

WAITING_BYTES_MAX = 16 << 20
"""Bytes of chunks that wait to be written; a checkpoint is not read further meanwhile."""
SERVED_NS = 60_000_000_000
RECORD_VERSION = 1


class CheckpointRecord(Struct, frozen=True, array_like=True):
    """What the log has of a checkpoint: the state after entry `index` of `term`. manifest: its name."""

    version: int
    index: int
    term: int
    manifest: bytes

    def encode(self) -> bytes:
        """The data of the checkpoint in the log."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> CheckpointRecord:
        """Raises MalformedCommandError."""
        try:
            record = _RECORDS.decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise MalformedCommandError(f"a checkpoint that cannot be read: {error}") from error
        if record.version != RECORD_VERSION or len(record.manifest) != HASH_SIZE:
            raise MalformedCommandError(
                f"a checkpoint of version {record.version}: unknown here, a newer server may know it"
            )
        return record


_RECORDS = msgspec.msgpack.Decoder(CheckpointRecord)


class StateSource(Protocol):
    """What a state is taken of: a replica, or a stream that was stored without a cluster."""

    def state_slices(
        self, has: Callable[[bytes], bool], keep: Keep, chunk_seqs: int = CHUNK_SEQS
    ) -> Generator[int, None, TakenState]:
        """See ReplicatedStream."""


class StreamCheckpoints:
    """See the module.

    Args:
        files: of the group.
        clock: monotonic ns.
        chunk_seqs: sequences to a chunk, the same on all servers.
    """

    def __init__(self, files: StateFiles, clock: Callable[[], int], chunk_seqs: int = CHUNK_SEQS) -> None:
        self.files = files
        self._clock = clock
        self._chunk_seqs = chunk_seqs
        self._names: dict[bytes, list[bytes]] = {}  # the chunks of a manifest
        self._asked: dict[bytes, int] = {}  # when a member asked for files of a manifest
        self._durable = b""  # the manifest with which a start begins
        self._newest = b""
        self._users = 0
        self._is_removal_due = self._is_removing = False
        self._waiting: list[Callable[[], None]] = []
        self.written_bytes = 0
        """Bytes of chunks that checkpoints have written since the start."""

    # --- taking ----------------------------------------------------------------------------------

    def take(self, replica: StateSource, wake: Callable[[], None]) -> Generator[int, None, CheckpointRecord]:
        """Takes the state of a replica, while it applies entries, and makes it durable: a job of work_turns.
        wake: continues the job. Raises StoreError."""
        yield from self.retain(wake)
        try:
            taken = yield from self._take_slices(replica, wake)
            name = manifest_name(taken.manifest)
            self.files.keep(name, [taken.manifest])
            yield from self.flush(wake)
            self.note(name, taken.files)
        finally:
            self.release()
        return CheckpointRecord(RECORD_VERSION, taken.index, taken.term, name)

    def _take_slices(
        self, replica: StateSource, wake: Callable[[], None]
    ) -> Generator[int, None, TakenState]:
        slices = replica.state_slices(self.files.has, self._keep, self._chunk_seqs)
        try:
            while True:
                try:
                    work = next(slices)
                except StopIteration as end:
                    taken: TakenState = end.value
                    return taken
                yield max(work, 1)
                while self.files.waiting_bytes > WAITING_BYTES_MAX:
                    self.files.when_written(wake)
                    yield PARK
        finally:
            slices.close()

    def _keep(self, name: bytes, parts: list[bytes]) -> None:
        self.written_bytes += sum(len(one) for one in parts)
        self.files.keep(name, parts)

    def flush(self, wake: Callable[[], None]) -> Generator[int, None, None]:
        """Waits until everything that was kept is durable. Raises StoreError, OSError."""
        ended: list[Failure | None] = []

        def flushed(error: Failure | None) -> None:
            ended.append(error)
            wake()

        self.files.flush(flushed)
        yield from parked_while_empty(ended)
        if ended[0] is not None:
            raise ended[0]

    def durable(self, record: CheckpointRecord) -> None:
        """The log has this checkpoint: files of earlier ones are not needed any more."""
        self._durable = record.manifest
        self._remove_unused()

    # --- what is in use --------------------------------------------------------------------------

    def retain(self, wake: Callable[[], None]) -> Generator[int, None, None]:
        """Waits until no files are being removed; none are removed from then on until release()."""
        while self._is_removing:
            self._waiting.append(wake)
            yield PARK
        self._users += 1

    def release(self) -> None:
        """Ends retain()."""
        self._users -= 1
        if self._is_removal_due:
            self._remove_unused()

    def note(self, manifest: bytes, chunks: list[bytes]) -> None:
        """A state that was read or fetched is the newest. The first one is that with which the server
        started."""
        self._names[manifest] = chunks
        self._newest = manifest
        self._durable = self._durable or manifest

    def asked(self, manifest: bytes) -> bool:
        """A member fetches files of this manifest. Returns whether it is known here: its files stay then."""
        if manifest not in self._names:
            return False
        self._asked[manifest] = self._clock()
        return True

    def _remove_unused(self) -> None:
        if self._users or self._is_removing:
            self._is_removal_due = True
            return
        self._is_removal_due, self._is_removing = False, True
        now = self._clock()
        self._asked = {one: at for one, at in self._asked.items() if now - at < SERVED_NS}
        used = {self._durable, self._newest, *self._asked}
        self._names = {one: names for one, names in self._names.items() if one in used}
        manifests = dict(self._names)
        self.files.remove_except(
            lambda: {*manifests, *chain.from_iterable(manifests.values())}, self._removed
        )

    def _removed(self) -> None:
        self._is_removing = False
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()
