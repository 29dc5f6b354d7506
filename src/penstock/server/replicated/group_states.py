"""The states of one replica: checkpoints that it takes, a state that it loads, and files for other members.

All of it is long work in turns (work_turns.py), at most one state is taken or loaded at a time, and a state
that is loaded gives way to a newer one.

Invariant: entries that are committed while a state is loaded wait here in their order, and are applied to
what was loaded before anybody gets it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from penstock import faults
from penstock.errors import MalformedCommandError, ServerError, StoreError
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.replica_state import ReplicaState
from penstock.raft.raft_messages import ReplicaId
from penstock.replication.group_port import InstallDone, SnapshotDone
from penstock.server.replicated.state_loading import LoadingPorts, Restoring, StateLoading
from penstock.server.replicated.stream_catch_up import (
    CatchUpBudget,
    CatchUpProgress,
    FetchFiles,
    FilePieces,
    FilesGone,
    encode_mail,
    read_pieces_of,
)
from penstock.server.replicated.stream_checkpoints import CheckpointRecord, StreamCheckpoints
from penstock.server.replicated.work_turns import PARK, SHORT_PAUSE_NS, WorkJob, WorkTurns

log = logging.getLogger("penstock.jetstream")

SERVING_MAX = 64
"""Requests of other members for files that are answered at a time; more are dropped, and come again."""

Loaded = Callable[[ReplicatedStream], None]


@dataclass(frozen=True, slots=True)
class StatePorts:
    """What the states of a replica use.

    stream: its name, for the log. checkpoints: of the group. turns: for long work. budget: of all groups that
    catch up. clock: monotonic ns. restore: replaces the replica by a state, in steps. apply: applies an
    entry to a replica, in steps. members: the other members, the leader first. send: sends mail to a member,
    unless the group has failed.
    """

    stream: str
    checkpoints: StreamCheckpoints
    turns: WorkTurns
    budget: CatchUpBudget
    clock: Callable[[], int]
    restore: Callable[
        [ReplicaState, Callable[[bytes], bytes], int, int], Generator[int, None, ReplicatedStream]
    ]
    apply: Callable[[ReplicatedStream, int, int, bytes], Generator[int, None, None]]
    members: Callable[[], list[ReplicaId]]
    send: Callable[[ReplicaId, bytes], object]


class GroupStates:
    """See the module. is_on_disk: whether the group is; else nothing is loaded before founded()."""

    def __init__(self, ports: StatePorts, *, is_on_disk: bool) -> None:
        self._ports = ports
        self._is_on_disk = is_on_disk
        self._taking: WorkJob | None = None
        self._loading: StateLoading | None = None
        self._loading_job: WorkJob | None = None
        self._backlog: deque[tuple[int, int, bytes]] = deque()
        self._own: tuple[CheckpointRecord, Loaded, Callable[[Exception], None]] | None = None
        self._serving = 0

    @property
    def is_loading(self) -> bool:
        """Whether a state is loaded: the replica lacks what was committed meanwhile."""
        return self._loading is not None

    @property
    def progress(self) -> CatchUpProgress | None:
        """How far the loading is; None when none goes on."""
        return None if self._loading is None else self._loading.progress

    def founded(self) -> None:
        """The group is on disk."""
        self._is_on_disk = True
        self._wake_loading()

    def keep(self, index: int, term: int, payload: bytes) -> None:
        """Keeps a committed entry until the state is loaded."""
        self._backlog.append((index, term, payload))

    def stop(self) -> None:
        """Ends the work. Entries that were kept are forgotten."""
        self._backlog.clear()
        self._own = None
        self._stop_loading()
        self._stop_taking()

    # --- taking ----------------------------------------------------------------------------------

    def take(self, replica: ReplicatedStream, done: SnapshotDone) -> None:
        """Takes a checkpoint of the replica. done: with None when there is none now."""
        if self._loading is not None or self._taking is not None:
            done(None)
            return

        def taken(record: CheckpointRecord) -> None:
            self._taking = None
            done(record.encode(), partial(self._ports.checkpoints.durable, record))

        def failed(error: Exception) -> None:
            self._taking = None
            log.error("no checkpoint of stream %s now: %s", self._ports.stream, text_of(error))
            done(None)

        steps = self._ports.checkpoints.take(replica, self._wake_taking)
        self._taking = self._ports.turns.start(steps, taken, failed)

    def _wake_taking(self) -> None:
        if self._taking is not None:
            self._taking.wake()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    # --- loading ---------------------------------------------------------------------------------

    def install(self, record: CheckpointRecord, loaded: Loaded, done: InstallDone) -> None:
        """Loads the leader's state, of which other members have the files."""
        self._stop_taking()

        def is_loaded(replica: ReplicatedStream) -> None:
            loaded(replica)
            done(True, partial(self._ports.checkpoints.durable, record))

        def failed(error: Exception) -> None:
            log.error("stream %s does not catch up now: %s", self._ports.stream, text_of(error))
            done(False)
            if self._own is not None and self._loading is None:
                self.load(*self._own)  # what is committed meanwhile waits for a state, whichever it is

        self.load(record, is_loaded, failed)

    def load_own(self, record: CheckpointRecord, loaded: Loaded, failed: Callable[[Exception], None]) -> None:
        """Loads the replica's own checkpoint at a start. The leader's state may take its place, and fail;
        then it is loaded again."""
        self._own = (record, loaded, failed)
        self.load(*self._own)

    def load(self, record: CheckpointRecord, loaded: Loaded, failed: Callable[[Exception], None]) -> None:
        """Loads a state, in place of one that is being loaded; then calls one of the two."""
        self._stop_loading()
        ports = self._ports
        loading_ports = LoadingPorts(
            ports.restore, ports.members, self._send_request, self._wake_loading, ports.clock
        )

        def ended(replica: ReplicatedStream) -> None:
            self._loading = self._loading_job = self._own = None
            loaded(replica)

        def not_loaded(error: Exception) -> None:
            self._loading = self._loading_job = None
            failed(error)

        self._loading = StateLoading(record, ports.checkpoints, loading_ports, ports.budget)
        self._loading_job = ports.turns.start(
            self._steps(self._loading), ended, not_loaded, pause_ns=SHORT_PAUSE_NS
        )

    def _steps(self, loading: StateLoading) -> Restoring:
        """Loads the state, and applies what was committed meanwhile."""
        while not self._is_on_disk:
            yield PARK
        replica = yield from loading.steps()
        while self._backlog:
            index, term, payload = self._backlog.popleft()
            yield from self._ports.apply(replica, index, term, payload)
            yield 4 * len(payload) + 2000
        return replica

    def _stop_loading(self) -> None:
        if self._loading_job is not None:
            self._loading_job.cancel()
        self._loading = self._loading_job = None

    def _wake_loading(self) -> None:
        if self._loading_job is not None:
            self._loading_job.wake()

    # --- files -----------------------------------------------------------------------------------

    def _send_request(self, to: ReplicaId, request: FetchFiles) -> None:
        self._ports.send(to, encode_mail(request))

    def received(self, sender: ReplicaId, answer: FilePieces | FilesGone) -> None:
        """Another member's answer to a request for files."""
        if self._loading is not None:
            self._loading.received(sender, answer)

    def serve(self, sender: ReplicaId, request: FetchFiles) -> None:
        """Answers a request for files."""
        if self._serving >= SERVING_MAX:
            return
        self._serving += 1
        files = self._ports.checkpoints.files
        self._ports.checkpoints.asked(request.manifest)

        def done(answer: FilePieces | FilesGone | None, error: Exception | None) -> None:
            self._serving -= 1
            self._ports.send(sender, encode_mail(answer or FilesGone(request.number)))

        files.run(lambda: read_pieces_of(request, files.read_part, files.has), done)


def text_of(error: Exception) -> str:
    """The text of an error that was foreseen; of another one, where the log has it."""
    if isinstance(error, (ServerError, StoreError, MalformedCommandError, OSError)):
        return str(error)
    return faults.describe(faults.note("state of a replicated stream", error))
