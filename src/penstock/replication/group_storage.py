"""The write-ahead log as the disk of all groups: consensus values to records, and back at a start.

Writes are values (`StorageWrite`). The node collects them, and a disk thread carries them out in one call:
one write and at most one sync for all groups. Only that call touches the log after the start, one at a time,
so nothing is locked. A write that is brief, without a sync, may be carried out in the event loop instead.

Invariant: what is staged stays staged after an error, so a failed write is repeated by writing nothing more.

Rejected: staging in the event loop while the disk thread syncs (the log would need a lock, and its encoding
would delay the loop).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from penstock.errors import StoreCorruptError, StoreError
from penstock.raft.disk_identity import DiskIdentity, IdentityProblem, start_with
from penstock.raft.membership import Membership
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import (
    UNKNOWN_VOTE,
    Entry,
    EntryKind,
    HardState,
    RaftSnapshot,
    ReplicaId,
)
from penstock.store.disk import Disk, Lock
from penstock.store.files import make_directory, write_atomically
from penstock.wal.group_recovery import RecoveredGroup, WalCheckpoint, WalEntry
from penstock.wal.wal_file import SEGMENT_BYTES, WriteAheadLog
from penstock.wal.wal_mark import read_mark
from penstock.wal.wal_recovery import WalDamage, WalRecovery

REFUSED = "refused"
"""The file that says that the disk is an old copy."""
BRIEF_BYTES_MAX = 64 << 10
"""Of entries that may be written in the event loop: the copy takes less than the way to a thread and back."""


class BeginGroup(NamedTuple):
    """A group is new here. is_lost: the log may have had it, so that it may have voted and acknowledged."""

    group: str
    snapshot: RaftSnapshot
    is_lost: bool = False


class SaveHardState(NamedTuple):
    group: str
    state: HardState


class SaveEntries(NamedTuple):
    """Entries, which replace what follows the first of them."""

    group: str
    entries: tuple[Entry, ...]


class CopyEntries(NamedTuple):
    """The entries of a group without an owner behind its checkpoint, once more: it takes no checkpoints, and
    would keep all later segments of the log."""

    group: str
    entries: tuple[Entry, ...]


class SaveCheckpoint(NamedTuple):
    """The owner has this state. Entries before keep_from may go."""

    group: str
    snapshot: RaftSnapshot
    keep_from: int


class SaveInstalled(NamedTuple):
    """The owner has this state, in place of all entries."""

    group: str
    snapshot: RaftSnapshot


class MarkRecovered(NamedTuple):
    """The group has again what it acknowledged."""

    group: str


class RemoveGroup(NamedTuple):
    group: str


class GroupsKnown(NamedTuple):
    """No group of this server is missing in the log any more."""


StorageWrite: TypeAlias = (
    BeginGroup | SaveHardState | SaveEntries | CopyEntries | SaveCheckpoint | SaveInstalled | MarkRecovered
    | RemoveGroup | GroupsKnown
)  # fmt: skip


class DiskWrite(NamedTuple):
    """One call of the disk thread. sync: the writes are durable when it returns; otherwise they survive the
    end of the process only. is_mark: instead, note how far the log is synced, at a time without other work.
    """

    writes: tuple[StorageWrite, ...]
    sync: bool
    is_mark: bool = False


class StorageStatus(NamedTuple):
    """After a write. unsynced_bytes: wait for the next sync. segments: files of the log. keepers: the groups
    that keep the oldest of them."""

    unsynced_bytes: int = 0
    segments: int = 1
    keepers: tuple[str, ...] = ()


class StoredReplica(NamedTuple):
    """A group as a start found it."""

    name: str
    hard_state: HardState
    snapshot: RaftSnapshot
    entries: tuple[Entry, ...]
    is_damaged: bool

    def log(self) -> RaftLog:
        """The log of its replica. Entries before the checkpoint, kept for members that lagged, are not used:
        such a member gets the checkpoint."""
        return RaftLog(self.snapshot, self.entries)


class StorageFindings(NamedTuple):
    """What a start found. replica_id: this server with this disk, as a member. lost_state: of a group that
    the log may have lost. damages: for the server's log."""

    identity: DiskIdentity
    groups: dict[str, StoredReplica]
    may_lack_groups: bool
    lost_state: HardState
    damages: tuple[WalDamage, ...]
    is_end_lost: bool

    @property
    def replica_id(self) -> ReplicaId:
        return self.identity.replica_id


class _CheckpointData(msgspec.Struct, array_like=True, frozen=True):
    """The payload of a checkpoint record."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]
    data: bytes


_CHECKPOINTS = msgspec.msgpack.Decoder(_CheckpointData)


class GroupStorage:
    """See the module. Opened once per start; `write` belongs to the disk thread from then on."""

    def __init__(
        self, disk: Disk, directory: Path, log: WriteAheadLog, numbers: dict[str, int], lock: Lock
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._log = log
        self._numbers = numbers
        self._lock = lock
        self._broken = ""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        cluster_name: str,
        server_name: str,
        new_disk_id: str,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> tuple[GroupStorage, StorageFindings]:
        """Opens or creates the log of a server, and counts this start. new_disk_id: random; used when the
        directory is empty. Raises StoreError: the disk is an old copy, of another server or cluster, locked,
        damaged in both copies of its mark, or of a newer version."""
        make_directory(disk, directory)
        if disk.exists(directory / REFUSED):
            raise StoreError(
                "other servers of the cluster know a newer start with this disk: it is an old copy, such as "
                "a restored backup, and lacks what was acknowledged since; move the directory away, and this "
                "server joins as a new member",
                path=str(directory),
            )
        lock = disk.lock(directory)
        try:
            identity = _identity(disk, directory, cluster_name, server_name, new_disk_id)
            log, recovery = WriteAheadLog.open(
                disk, directory, identity.encode(), segment_bytes=segment_bytes
            )
            try:
                findings = _findings(identity, recovery, directory)
            except BaseException:
                log.close()
                raise
        except BaseException:
            lock.release()
            raise
        numbers = {found.name: number for number, found in recovery.groups.items()}
        return cls(disk, directory, log, numbers, lock), findings

    def is_brief(self, write: DiskWrite) -> bool:
        """Whether `write` takes microseconds: without a sync, and with few bytes. Call it, and then `write`,
        in another thread than the disk's only while that one does nothing here."""
        if write.sync or write.is_mark or self._log.must_sync or self._broken:
            return False
        size = sum(len(entry.data) for one in write.writes for entry in _entries_of(one))
        return size <= BRIEF_BYTES_MAX

    def write(self, write: DiskWrite) -> StorageStatus:
        """Writes what is new, and what an earlier call failed to. Raises StoreError; call again with what is
        new since."""
        self._stage(write.writes)
        unsynced = 0
        if write.is_mark:
            self._log.put_mark()
        if write.sync:
            self._log.commit()
        else:
            unsynced = self._log.write()
        segments, keepers = self._log.pinned()
        names = {number: name for name, number in self._numbers.items()} if keepers else {}
        return StorageStatus(unsynced, segments, tuple(sorted(names[one] for one in keepers)))

    def _stage(self, writes: Iterable[StorageWrite]) -> None:
        if self._broken:
            raise StoreError(f"the log takes nothing more since an internal error: {self._broken}")
        try:
            for one in writes:
                _STAGE[type(one)](self, one)
        except Exception as error:
            self._broken = repr(error)  # a part is staged: what follows would be written with a gap before it
            raise

    def mark_refused(self) -> None:
        """Other servers refuse this disk as an old copy: no later start may use it. Without this, some more
        starts would bring its number of starts past the one that they know. Any thread. Raises StoreError."""
        write_atomically(self._disk, self._directory / REFUSED, b"")

    def close(self) -> None:
        """Closes the files. What was not written is dropped."""
        self._log.close()
        self._lock.release()

    # --- staging

    def _begin(self, write: BeginGroup) -> None:
        at = _checkpoint(write.snapshot, write.snapshot.index + 1)
        if write.is_lost:
            self._numbers[write.group] = self._log.begin_lost_group(write.group, at).number
        else:
            self._numbers[write.group] = self._log.begin_group(write.group, at)

    def _hard_state(self, write: SaveHardState) -> None:
        self._log.set_hard_state(self._numbers[write.group], write.state.term, write.state.vote)

    def _entries(self, write: SaveEntries) -> None:
        self._log.append(self._numbers[write.group], _wal_entries(write.entries))

    def _copies(self, write: CopyEntries) -> None:
        self._log.copy(self._numbers[write.group], _wal_entries(write.entries))

    def _save_checkpoint(self, write: SaveCheckpoint) -> None:
        self._log.checkpoint(self._numbers[write.group], _checkpoint(write.snapshot, write.keep_from))

    def _installed(self, write: SaveInstalled) -> None:
        at = _checkpoint(write.snapshot, write.snapshot.index + 1)
        self._log.install(self._numbers[write.group], at)

    def _recovered(self, write: MarkRecovered) -> None:
        self._log.set_recovered(self._numbers[write.group])

    def _remove(self, write: RemoveGroup) -> None:
        self._log.remove_group(self._numbers.pop(write.group))

    def _known(self, write: GroupsKnown) -> None:
        self._log.set_groups_known()


def _entries_of(write: StorageWrite) -> tuple[Entry, ...]:
    return write.entries if isinstance(write, SaveEntries) else ()


def _wal_entries(entries: tuple[Entry, ...]) -> list[WalEntry]:
    return [WalEntry(one.index, one.term, int(one.kind), one.data) for one in entries]


_Stage: TypeAlias = Callable[[GroupStorage, StorageWrite], None]
_STAGE: dict[type[StorageWrite], _Stage] = {  # mypy cannot relate each key to its method's argument
    BeginGroup: GroupStorage._begin,  # type: ignore[dict-item]
    SaveHardState: GroupStorage._hard_state,  # type: ignore[dict-item]
    SaveEntries: GroupStorage._entries,  # type: ignore[dict-item]
    CopyEntries: GroupStorage._copies,  # type: ignore[dict-item]
    SaveCheckpoint: GroupStorage._save_checkpoint,  # type: ignore[dict-item]
    SaveInstalled: GroupStorage._installed,  # type: ignore[dict-item]
    MarkRecovered: GroupStorage._recovered,  # type: ignore[dict-item]
    RemoveGroup: GroupStorage._remove,  # type: ignore[dict-item]
    GroupsKnown: GroupStorage._known,  # type: ignore[dict-item]
}


def _identity(
    disk: Disk, directory: Path, cluster_name: str, server_name: str, new_disk_id: str
) -> DiskIdentity:
    mark = read_mark(disk, directory)
    try:
        stored = DiskIdentity.decode(mark.identity) if mark is not None else None
    except ValueError as error:
        raise StoreCorruptError(str(error), path=str(directory)) from error
    identity = start_with(stored, cluster_name, server_name, new_disk_id)
    if isinstance(identity, IdentityProblem):
        assert stored is not None
        raise StoreError(
            f"{identity.value}: it is of server {stored.server_name!r} of cluster {stored.cluster_name!r}, "
            f"and this is {server_name!r} of {cluster_name!r}; give each server its own store directory, or "
            "use the names that it was created with",
            path=str(directory),
        )
    return identity


def _findings(identity: DiskIdentity, recovery: WalRecovery, directory: Path) -> StorageFindings:
    groups = {found.name: _stored(found, directory) for found in recovery.groups.values()}
    return StorageFindings(
        identity,
        groups,
        recovery.may_lack_groups,
        HardState(recovery.term_limit, UNKNOWN_VOTE),
        recovery.damages,
        recovery.is_end_lost,
    )


def _stored(found: RecoveredGroup, directory: Path) -> StoredReplica:
    at = found.checkpoint
    try:
        held = _CHECKPOINTS.decode(at.data)
        kept = [one for one in found.entries if one.index > at.index]
        entries = tuple(Entry(one.index, one.term, EntryKind(one.kind), one.data) for one in kept)
        for one in entries:
            if one.kind is EntryKind.MEMBERSHIP:
                Membership.decode(one.data)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreCorruptError(
            f"group {found.name!r} has intact records that this version cannot read: {error}; start the "
            "version that wrote them",
            path=str(directory),
        ) from error
    snapshot = RaftSnapshot(at.index, at.term, Membership(held.voters, held.learners), held.data)
    vote = UNKNOWN_VOTE if found.vote is None else found.vote
    return StoredReplica(found.name, HardState(found.term, vote), snapshot, entries, found.is_damaged)


def _checkpoint(snapshot: RaftSnapshot, keep_from: int) -> WalCheckpoint:
    held = _CheckpointData(snapshot.membership.voters, snapshot.membership.learners, snapshot.data)
    return WalCheckpoint(snapshot.index, snapshot.term, keep_from, msgspec.msgpack.encode(held))
