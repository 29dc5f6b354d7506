"""The snapshots and restores in progress of one engine.

Each is processed in slices at the end of ticks, so that memory and other clients' latency do not depend on a
stream's size. Waiting for the other side (acks, chunks) has a deadline.

Restores share a tick's slice in turn: eight together take no longer per tick than one. The memory of all
restores of a server is limited too; above it, the largest one fails.

Invariant: a restore reserves the stream's name and subjects from its request on.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock import faults
from penstock.errors import StoreError
from penstock.jetstream.transfer_ports import TransferPorts
from penstock.protocol.api import StorageType

if TYPE_CHECKING:
    from penstock.jetstream.restore import Restore
    from penstock.jetstream.snapshot import Snapshot

log = logging.getLogger("penstock.jetstream")

WORK = 256 * 1024  # of all restores in one tick, in the units of restore.py: half a millisecond
HELD_MAX = 128 * 1024 * 1024  # bytes
ROOM = 1024 * 1024  # free bytes required to start another restore


class RestoreMemory(Struct):
    """Memory of a server's restores in bytes: chunks, incomplete entries, consumers."""

    held: int = 0

    def add(self, size: int) -> None:
        """Counts `size` more bytes; negative: fewer."""
        self.held += size


class Transfers:
    """The snapshots and restores of one engine. memory: of the restores of the whole server.

    snapshots: by id. restores: by stream, least recently served first.
    """

    def __init__(self, ports: TransferPorts, memory: RestoreMemory) -> None:
        self.ports = ports
        self._memory = memory
        self.snapshots: dict[str, Snapshot] = {}
        self.restores: dict[str, Restore] = {}
        self._held = 0  # this engine's share of `memory`

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Starts a snapshot."""
        self.snapshots[snapshot.id] = snapshot
        self.ports.wake()

    def has_room(self) -> bool:
        """Whether memory allows another restore."""
        self._count_held()
        return self._memory.held + ROOM <= HELD_MAX

    def add_restore(self, restore: Restore) -> None:
        """Starts a restore."""
        self.restores[restore.name] = restore
        self.ports.table.claims.claim(restore.name, restore.config.subjects)

    def is_restoring(self, name: str) -> bool:
        """Whether a stream of that name is being restored."""
        return name in self.restores

    def used(self, storage: StorageType) -> int:
        """Bytes of incomplete streams of this storage."""
        return sum(one.stored_bytes for one in self.restores.values() if one.config.storage is storage)

    def advance(self, now: int) -> None:
        """Processes a slice of each. Called after the engine's write, so that everything sent is written."""
        for snapshot in list(self.snapshots.values()):
            faults.contain(self._advance_snapshot, self._snapshot_failed, snapshot, now)
        if self.restores:
            self._advance_restores(now)

    def _advance_snapshot(self, snapshot: Snapshot, now: int) -> None:
        if snapshot.advance(now):
            self.ports.wake()
        if snapshot.is_done:
            del self.snapshots[snapshot.id]

    def _advance_restores(self, now: int) -> None:
        self._count_held()
        while self._memory.held > HELD_MAX and self.restores:
            largest = max(self.restores.values(), key=lambda restore: restore.held_bytes)
            largest.fail(f"restores hold more than {HELD_MAX} bytes of data that is not stored yet")
            self._drop_done(largest)
            self._count_held()
        left = WORK
        for restore in list(self.restores.values()):
            done = faults.contain(self._advance_restore, self._restore_failed, restore, now, left)
            left = 0 if done is None else done  # one that raised may have done any amount of work
            if left <= 0:
                self.ports.wake()
                break
        self._count_held()

    def resume(self, restore: Restore, now: int) -> None:
        """Continues a restore that waited for the disk; the end of ticks does the rest."""
        faults.contain(self._advance_restore, self._restore_failed, restore, now, WORK)
        self.ports.wake()

    def _advance_restore(self, restore: Restore, now: int, work: int) -> int:
        left = restore.advance(now, work)
        self.restores[restore.name] = self.restores.pop(restore.name)  # to the end of the queue
        self._drop_done(restore)
        return left

    def _count_held(self) -> None:
        held = sum(restore.held_bytes for restore in self.restores.values())
        self._memory.add(held - self._held)
        self._held = held

    def _snapshot_failed(self, error: Exception, snapshot: Snapshot, *_: object) -> None:
        """Stops a snapshot that raised; its client times out."""
        faults.note(f"snapshot {snapshot.id}", error)
        self.snapshots.pop(snapshot.id, None)
        faults.contain(snapshot.stop, self.ports.failed)

    def _restore_failed(self, error: Exception, restore: Restore, *_: object) -> None:
        """Ends a restore that raised: reports the error and removes the partial stream."""
        why = faults.describe(faults.note(f"restore of stream {restore.name}", error))
        if self.restores.get(restore.name) is restore:
            del self.restores[restore.name]
            if restore.name not in self.ports.table.open:
                self.ports.table.claims.release(restore.name)
        faults.contain(restore.fail, self.ports.failed, why)

    def _drop_done(self, restore: Restore) -> None:
        if restore.is_done and self.restores.get(restore.name) is restore:
            del self.restores[restore.name]
            if restore.name not in self.ports.table.open:
                self.ports.table.claims.release(restore.name)
            self._count_held()

    def next_deadline(self) -> int | None:
        """When (ns) the next wait times out, or None."""
        if not (self.snapshots or self.restores):
            return None  # the usual case, several times per tick
        waiting: tuple[Snapshot | Restore, ...] = (*self.snapshots.values(), *self.restores.values())
        return min((one.deadline for one in waiting), default=None)

    def on_time(self, now: int) -> None:
        """Handles timeouts. The caller runs `advance` next."""
        for snapshot in list(self.snapshots.values()):
            faults.contain(snapshot.on_time, partial(self._late_snapshot_failed, snapshot), now)
        for restore in list(self.restores.values()):
            faults.contain(self._restore_on_time, self._restore_failed, restore, now)

    def _late_snapshot_failed(self, snapshot: Snapshot, error: Exception, now: int) -> None:
        self._snapshot_failed(error, snapshot)

    def _restore_on_time(self, restore: Restore, now: int) -> None:
        restore.on_time(now)
        self._drop_done(restore)

    def stop(self) -> None:
        """Stops all, and removes partial streams."""
        for snapshot in self.snapshots.values():
            faults.contain(snapshot.stop, self.ports.failed)
        for restore in self.restores.values():
            try:
                restore.abandon()
            except StoreError as error:
                log.error("stream %s: its partial restore cannot be removed: %s", restore.name, error)
        self.snapshots.clear()
        self.restores.clear()
        self._count_held()
