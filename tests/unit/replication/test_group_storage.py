"""Which writes of the log are so brief that the event loop may carry them out."""

from __future__ import annotations

from random import Random

import pytest

from penstock.errors import StoreError
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import Entry, EntryKind, HardState, RaftSnapshot
from penstock.replication.group_storage import (
    BRIEF_BYTES_MAX,
    BeginGroup,
    DiskWrite,
    GroupStorage,
    SaveEntries,
    SaveHardState,
)
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.replication_nodes import DIRECTORY

pytestmark = pytest.mark.feature("cluster.raft")

SEGMENT_BYTES = 1 << 20


def opened(disk: SimDisk) -> GroupStorage:
    """A log with the group g in term 1."""
    storage, _ = GroupStorage.open(
        disk, DIRECTORY, cluster_name="c", server_name="a", new_disk_id="d", segment_bytes=SEGMENT_BYTES
    )
    begin = BeginGroup("g", RaftSnapshot(0, 0, Membership(("a.d",))))
    storage.write(DiskWrite((begin, SaveHardState("g", HardState(1, "a.d"))), sync=True))
    return storage


def appended(first: int, *sizes: int, sync: bool = False) -> DiskWrite:
    """Entries from `first` on with so many bytes each."""
    entries = [Entry(first + i, 1, EntryKind.COMMANDS, b"x" * size) for i, size in enumerate(sizes)]
    return DiskWrite((SaveEntries("g", tuple(entries)),), sync)


def test_a_write_without_a_sync_and_with_few_bytes_is_brief() -> None:
    storage = opened(SimDisk(Random(1)))
    assert storage.is_brief(appended(1, 100, 100))
    assert storage.is_brief(appended(1, BRIEF_BYTES_MAX))
    assert storage.is_brief(DiskWrite((), sync=False))


@pytest.mark.parametrize(
    "write",
    [
        appended(1, 100, sync=True),
        appended(1, BRIEF_BYTES_MAX // 2, BRIEF_BYTES_MAX // 2 + 1),
        DiskWrite((), sync=True),
        DiskWrite((), sync=True, is_mark=True),
    ],
)
def test_a_write_with_a_sync_or_with_many_bytes_is_not_brief(write: DiskWrite) -> None:
    assert not opened(SimDisk(Random(1))).is_brief(write)


def test_a_write_that_begins_a_segment_is_not_brief() -> None:
    disk = SimDisk(Random(1))
    storage = opened(disk)
    storage.write(appended(1, SEGMENT_BYTES, sync=True))
    assert not storage.is_brief(appended(2, 10)), "the next segment's beginning is synced first"
    storage.write(appended(2, 10))
    assert storage.is_brief(appended(3, 10))


def test_a_log_that_takes_nothing_more_says_so_from_the_disk_thread() -> None:
    storage = opened(SimDisk(Random(1)))
    with pytest.raises(AssertionError):
        storage.write(appended(7, 10))  # leaves a gap
    assert not storage.is_brief(appended(1, 10))
    with pytest.raises(StoreError):
        storage.write(appended(1, 10))
