"""Bugs planted in the replication node and its storage, by patching them while the simulation of Raft groups
runs. Each has a seed that finds it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.raft.membership import Membership
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import Entry, RaftSnapshot
from penstock.raft.raft_replica import Role
from penstock.replication import group_storage
from penstock.replication.group_storage import (
    DiskWrite,
    GroupStorage,
    StorageStatus,
    StoredReplica,
)
from penstock.replication.replica_group import ReplicaGroup
from penstock.replication.replication_node import ReplicationNode
from penstock.wal.group_recovery import RecoveredGroup, WalCheckpoint
from penstock.wal.wal_file import WriteAheadLog
from tests.simulation.raft_bugs import Plant


def nothing_waits_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    original = ReplicationNode._next_write

    def early(self: ReplicationNode, now: int) -> DiskWrite | None:
        waiting, self._waiting = self._waiting, []
        self._finish(waiting, now)
        return original(self, now)

    patch.setattr(ReplicationNode, "_next_write", early)


def writes_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    original = GroupStorage.write

    def write(self: GroupStorage, write: DiskWrite) -> StorageStatus:
        return original(self, write._replace(sync=False))._replace(unsynced_bytes=0)

    patch.setattr(GroupStorage, "write", write)


def failed_writes_count_as_done(patch: pytest.MonkeyPatch) -> None:
    original = ReplicationNode.disk_done

    def done(self: ReplicationNode, status: StorageStatus | None, error: Exception | None) -> None:
        original(self, status or StorageStatus(), None)

    patch.setattr(ReplicationNode, "disk_done", done)


def failed_writes_are_dropped(patch: pytest.MonkeyPatch) -> None:
    original = WriteAheadLog.commit

    def commit(self: WriteAheadLog) -> None:
        try:
            original(self)
        except StoreError:
            self._unsynced.clear()
            self._staged.clear()
            raise

    patch.setattr(WriteAheadLog, "commit", commit)


def damage_is_not_told(patch: pytest.MonkeyPatch) -> None:
    original = group_storage._stored

    def stored(found: RecoveredGroup, directory: Any) -> StoredReplica:
        return original(found, directory)._replace(is_damaged=False)

    patch.setattr(group_storage, "_stored", stored)


def checkpoints_forget_the_members(patch: pytest.MonkeyPatch) -> None:
    original = group_storage._checkpoint

    def checkpoint(snapshot: RaftSnapshot, keep_from: int) -> WalCheckpoint:
        bare = RaftSnapshot(snapshot.index, snapshot.term, Membership(()), snapshot.data)
        return original(bare if snapshot.index else snapshot, keep_from)

    patch.setattr(group_storage, "_checkpoint", checkpoint)


def checkpoints_drop_what_is_not_applied(patch: pytest.MonkeyPatch) -> None:
    original = WriteAheadLog.checkpoint

    def checkpoint(self: WriteAheadLog, group: int, at: WalCheckpoint) -> None:
        original(self, group, at)
        self.install(group, at)

    patch.setattr(WriteAheadLog, "checkpoint", checkpoint)


def leaders_serve_at_once(patch: pytest.MonkeyPatch) -> None:
    original = ReplicaGroup.note_role

    def note_role(self: ReplicaGroup) -> None:
        if self.replica.leadership is not None and self._told[0] is not Role.LEADER:
            self._told = (Role.LEADER, self.term, self.leader)
            self.owner.role_changed(*self._told)
        original(self)

    patch.setattr(ReplicaGroup, "note_role", note_role)


def reads_end_without_an_answer(patch: pytest.MonkeyPatch) -> None:
    original = ReplicaGroup.note_role

    def note_role(self: ReplicaGroup) -> None:
        if self.replica.leadership is None:
            self._reads.clear()
        original(self)

    patch.setattr(ReplicaGroup, "note_role", note_role)


def what_follows_a_taken_state_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = RaftLog.restore

    def restore(self: RaftLog, snapshot: RaftSnapshot) -> None:
        original(self, snapshot)
        self.applied_index += 1
        self.commit_index += 1

    patch.setattr(RaftLog, "restore", restore)


def proposals_are_lost_with_the_leadership(patch: pytest.MonkeyPatch) -> None:
    """They may still be committed by the next leader."""
    original = ReplicaGroup.note_role

    def note_role(self: ReplicaGroup) -> None:
        if self.replica.leadership is None:
            self._give_up_proposals(self.term + 1)
        original(self)

    patch.setattr(ReplicaGroup, "note_role", note_role)


def entries_end_with_their_segment(patch: pytest.MonkeyPatch) -> None:
    """Segments go although a group needs entries in them."""

    def remove(self: WriteAheadLog) -> None:
        for number in sorted(self._entries_in)[:-1]:
            self._disk.unlink(self._path(number))
            del self._entries_in[number]

    patch.setattr(WriteAheadLog, "_remove_segments", remove)


def commands_come_twice(patch: pytest.MonkeyPatch) -> None:
    """An entry that is part of an installed state is applied again."""
    original = ReplicaGroup._apply

    def apply(self: ReplicaGroup, entry: Entry) -> None:
        if entry.index <= self.applied_index:
            self.owner.committed(entry.index, entry.term, entry.data)
        original(self, entry)

    patch.setattr(ReplicaGroup, "_apply", apply)


PLANTED: list[tuple[Plant, int]] = [
    (nothing_waits_for_the_disk, 30),
    (writes_are_not_synced, 2),
    (failed_writes_count_as_done, 230),
    (failed_writes_are_dropped, 27),
    (damage_is_not_told, 63),
    (checkpoints_forget_the_members, 1),
    (checkpoints_drop_what_is_not_applied, 1),
    (leaders_serve_at_once, 1),
    (reads_end_without_an_answer, 5),
    (what_follows_a_taken_state_is_lost, 1),
    (proposals_are_lost_with_the_leadership, 6),
    (entries_end_with_their_segment, 1),
    (commands_come_twice, 100),
]
