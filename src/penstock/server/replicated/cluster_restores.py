"""Restores of streams in a cluster: `STREAM.RESTORE` at the meta leader.

The server that led the meta group at the request takes the chunks into a stream that no client sees yet, as a
server without a cluster does. The stream is then adopted like one from before the cluster
(standalone_adoption.py): its group begins here with what the archive had. Last it gets the replicas and the
servers that its configuration asks for, and the sender its answer; the replicas catch up after that.

Invariant: a restore that is not adopted leaves nothing behind. A crash removes the incomplete stream at the
next start, unless its group is on disk: then it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import faults
from penstock.errors import JetStreamApiError
from penstock.jetstream.meta import meta_requests
from penstock.jetstream.meta.meta_commands import MetaCommand, MoveStream, UpdateStream
from penstock.jetstream.meta.meta_requests import MetaRequest
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.stream_assigning import create_stream
from penstock.jetstream.standalone import StandaloneStream, described
from penstock.protocol import error_codes as codes
from penstock.server.replicated.standalone_adoption import obstacle

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.protocol.api import StreamConfigRequest
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.store.interface import StreamStore

AGAIN_NS = 2_000_000_000
TAKEN_NS = 60_000_000_000
"""So long a complete archive may wait until its stream works."""
OFFLINE_TEXT = "the stream is being restored"

TakenIn = Callable[["StreamReplica | str"], None]
"""Called with the stream, or with why there is none."""


@dataclass(frozen=True, slots=True)
class CompleteArchive:
    """A complete archive. moves_on: its servers may not be this one."""

    engine: JetStreamEngine
    origin: MetaRequest
    stored: StandaloneStream
    moves_on: bool
    done: TakenIn
    until: int


class ClusterRestores:
    """See the module. monotonic: ns."""

    def __init__(self, meta: MetaReplica, monotonic: Callable[[], int]) -> None:
        self._meta = meta
        self._monotonic = monotonic
        self._pending: dict[tuple[str, str], CompleteArchive] = {}
        self._again: dict[tuple[str, str], int] = {}  # when the next command may be proposed

    # --- the beginning ---------------------------------------------------------------------------

    def begin(
        self, engine: JetStreamEngine, origin: MetaRequest, request: StreamConfigRequest
    ) -> Callable[[StreamStore, TakenIn], None]:
        """Checks whether the cluster would have the stream. Returns what takes the store of a complete
        archive. Raises JetStreamApiError like CreateStream."""
        moves_on = not self._may_be_here(origin, request)

        def take_in(store: StreamStore, done: TakenIn) -> None:
            stored = described(store)
            engine.replicated.keep_restored(store)
            engine.table.offline[store.name] = OFFLINE_TEXT
            engine.table.standalone[store.name] = stored
            until = self._monotonic() + TAKEN_NS
            pending = CompleteArchive(engine, origin, stored, moves_on, done, until)
            self._pending[origin.account, store.name] = pending

        return take_in

    def _may_be_here(self, origin: MetaRequest, request: StreamConfigRequest) -> bool:
        """Whether this server may have the stream. Raises JetStreamApiError when none may."""
        tables, own = self._meta.tables, self._meta.own_peer
        try:
            create_stream(tables, meta_requests.restore_stream(origin, request, own))
        except JetStreamApiError as error:
            if error.err_code != codes.CLUSTER_NO_PEERS.err_code:
                raise
            create_stream(tables, meta_requests.restore_stream(origin, request, ""))
            return False
        return True

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Takes the next step of each."""
        for key, pending in list(self._pending.items()):
            faults.contain(self._step, self._step_failed, key, pending)

    def _step_failed(self, error: Exception, key: tuple[str, str], pending: CompleteArchive) -> None:
        where = f"restore of stream {key[1]} of account {key[0]}"
        self._end(key, pending, faults.describe(faults.note(where, error)))

    def _step(self, key: tuple[str, str], pending: CompleteArchive) -> None:
        tables, now = self._meta.tables, self._monotonic()
        why = obstacle(tables, key[0], pending.stored, self._meta.own_peer)
        if now >= pending.until:
            why = f"no stream after {TAKEN_NS // 1_000_000_000} s: is there a majority of its servers?"
        if why:
            self._end(key, pending, why)
            return
        replica = pending.engine.replicated.find(key[1])
        if why is None or replica is None or not replica.is_serving:
            return  # StandaloneAdoption and StreamSupervisor are at it
        command = self._next_command(key, pending, tables)
        if command is None:
            if replica.stream.config == tables.stream(*key).config:  # as the answer shows it
                self._end(key, pending, replica.stream)
        elif now >= self._again.get(key, 0):
            self._again[key] = now + AGAIN_NS
            self._meta.submit(command)

    def _next_command(
        self, key: tuple[str, str], pending: CompleteArchive, tables: MetaTables
    ) -> MetaCommand | None:
        """What the assignment lacks."""
        assignment, origin = tables.stream(*key), pending.origin
        wanted = pending.stored.config
        if assignment.config.num_replicas != wanted.num_replicas:
            return UpdateStream(key[0], wanted, origin.rules, origin.placement)
        if pending.moves_on and assignment.desired is None:
            return MoveStream(key[0], key[1], origin.placement, self._meta.own_peer)
        return None

    def _end(self, key: tuple[str, str], pending: CompleteArchive, result: StreamReplica | str) -> None:
        self._pending.pop(key, None)
        self._again.pop(key, None)
        if isinstance(result, str):
            engine, name = pending.engine, key[1]
            engine.replicated.drop_restored(name)
            if engine.table.standalone.pop(name, None) is not None:
                engine.table.offline.pop(name, None)
        pending.done(result)
