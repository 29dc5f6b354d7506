"""The write-ahead log on the simulated disk: power failures at every operation, full disks, failed syncs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreCorruptError, StoreWriteError
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.wal import wal_file
from penstock.wal.group_recovery import RecoveredGroup, WalCheckpoint, WalEntry
from penstock.wal.wal_file import WriteAheadLog
from penstock.wal.wal_records import WalKind, WalRecord
from penstock.wal.wal_recovery import WalRecovery
from tests.support.wal_model import LogModel

DIRECTORY = Path("/wal")
SEGMENT_BYTES = 2000


@pytest.fixture(autouse=True, params=[1 << 20, 30], ids=["joined", "in parts"])
def copied_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written together, or their payloads by themselves."""
    monkeypatch.setattr(wal_file, "COPIED_BYTES_MAX", request.param)


class LoggedModel(LogModel):
    """A model whose changes a log on a disk gets too. states: what the disk may have."""

    def __init__(self, disk: SimDisk) -> None:
        self.log: WriteAheadLog | None = None
        super().__init__()
        self.disk = disk
        self.states: list[dict[int, RecoveredGroup]] = [{}]

    def open(self) -> WalRecovery:
        self.log, recovery = WriteAheadLog.open(self.disk, DIRECTORY, b"disk 1", segment_bytes=SEGMENT_BYTES)
        return recovery

    def write(self, record: WalRecord) -> None:
        if self.log is None or record.kind is WalKind.SEGMENT:
            return
        log, group = self.log, record.group
        at = WalCheckpoint(record.index, record.term, record.previous, record.payload)
        match record.kind:
            case WalKind.GROUP:
                assert log.begin_group(self.groups[group].name, self.groups[group].checkpoint) == group
            case WalKind.ENTRY:
                log.append(group, [WalEntry(record.index, record.term, record.detail, record.payload)])
            case WalKind.HARD_STATE:
                log.set_hard_state(group, record.term, record.payload.decode())
            case WalKind.CHECKPOINT:
                log.checkpoint(group, at)
            case WalKind.INSTALLED:
                log.install(group, at)
            case WalKind.REMOVED:
                log.remove_group(group)
        self.states.append(self.expected())

    def copy(self, number: int) -> None:
        log, self.log = self.log, None
        super().copy(number)
        self.log = log
        if log is not None:
            at = self.groups[number].checkpoint.index
            log.copy(number, [one for one in self.groups[number].entries if one.index > at])
        self.states.append(self.expected())

    def commit(self) -> None:
        assert self.log is not None
        self.log.commit()
        self.states = [self.expected()]


def work(model: LoggedModel, random: Random, commits: int) -> None:
    """Some work of all kinds."""
    model.open()
    for _ in range(3):
        model.begin()
    model.commit()
    for step in range(commits):
        for _ in range(random.randrange(1, 4)):
            group = random.choice(sorted(model.groups))
            action = random.choice((model.append, model.append, model.append, model.vote, model.checkpoint))
            if action == model.append:
                model.append(
                    group, random.choice((0, 0, 2)), random.randrange(1, 4), bytes(random.randrange(60))
                )
            elif action == model.vote:
                model.vote(group, random.choice((1, 1, 90)), random.choice("ab"))
            else:
                model.checkpoint(group, random.randrange(2), random.randrange(3))
        if step % 3 == 1:
            model.copy(random.choice(sorted(model.groups)))
        if step % 7 == 3:
            model.install(random.choice(sorted(model.groups)), 2)
        if step % 11 == 10:
            model.remove(random.choice(sorted(model.groups)))
            model.begin()
        model.commit()
        if step % 5 == 4:
            assert model.log is not None
            model.log.put_mark()


def new_disk(seed: int) -> SimDisk:
    return SimDisk(Random(seed))


def operations(seed: int, commits: int) -> int:
    model = LoggedModel(new_disk(seed))
    work(model, Random(seed), commits)
    return model.disk.ops


def test_what_was_committed_survives_a_power_failure_at_every_operation() -> None:
    last = operations(1, 25)
    assert last > 150
    for at in range(1, last):
        disk = new_disk(1)
        disk.kill_at = at
        model = LoggedModel(disk)
        with pytest.raises(Killed):
            work(model, Random(1), 25)
        disk.lose_power()
        recovery = model.open()
        assert recovery.groups in model.states, at
        assert (recovery.damages, recovery.may_lack_groups, recovery.is_end_lost) == ((), False, False)
        disk.lose_power(all_of_it=True)
        assert model.open().groups == recovery.groups, at


def test_what_was_committed_survives_a_full_disk() -> None:
    disk = new_disk(2)
    model = LoggedModel(disk)
    work(model, Random(2), 10)
    disk.room = 30
    model.append(sorted(model.groups)[0], 0, 1, b"x" * 100)
    with pytest.raises(StoreWriteError, match="No space"):
        model.commit()
    with pytest.raises(StoreWriteError, match="No space"):
        model.commit()
    disk.room = None
    model.append(sorted(model.groups)[0], 0, 1, b"y")
    model.commit()
    disk.lose_power(all_of_it=True)
    assert model.open().groups == model.expected()


def test_a_failed_sync_is_repeated_with_the_bytes() -> None:
    disk = new_disk(3)
    model = LoggedModel(disk)
    work(model, Random(3), 3)
    model.append(sorted(model.groups)[0], 0, 1, b"x")
    disk.fail_rate = 1.0
    with pytest.raises(StoreWriteError, match="Input/output error"):
        model.commit()
    disk.fail_rate = 0.0
    model.commit()
    disk.lose_power(all_of_it=True)
    assert model.open().groups == model.expected()


def test_errors_of_the_disk_lose_nothing() -> None:
    for seed in range(20):
        disk, random = new_disk(seed), Random(seed)
        model = LoggedModel(disk)
        work(model, random, 1)
        for _ in range(30):
            model.append(random.choice(sorted(model.groups)), 0, 1, bytes(50))
            disk.fail_rate = 0.3
            with suppress(StoreWriteError):
                model.commit()
            disk.fail_rate = 0.0
            if random.random() < 0.2:
                disk.lose_power()
                recovery = model.open()
                assert recovery.groups in model.states
                break


def test_segments_that_no_group_needs_are_removed() -> None:
    model = LoggedModel(new_disk(4))
    model.open()
    group, lagging = model.begin(), model.begin()
    model.append(lagging, 0, 1, b"needs its segment")
    for _ in range(50):
        model.append(group, 0, 1, bytes(200))
        model.checkpoint(group, 0, 0)
        model.commit()
    many = len(model.disk.names(DIRECTORY))
    assert many > 7
    model.checkpoint(lagging, 0, 0)
    model.commit()
    assert len(model.disk.names(DIRECTORY)) <= 4  # the newest ones and the mark's copies
    model.disk.restart()
    assert model.open().groups == model.expected()


def test_segments_whose_entries_were_copied_are_removed() -> None:
    model = LoggedModel(new_disk(5))
    model.open()
    idle, busy = model.begin(), model.begin()
    model.append(idle, 0, 3, b"x" * 50)
    model.commit()
    for step in range(100):
        model.append(busy, 0, 1, b"x" * 100)
        model.checkpoint(busy, 0, 0)
        if step % 20 == 10:
            model.copy(idle)
        model.commit()
    assert model.log is not None
    assert model.log.pinned()[0] < 6
    names = [name for name in model.disk.names(DIRECTORY) if name.endswith(".wal")]
    assert len(names) < 6, names
    model.disk.lose_power()
    assert model.open().groups == model.expected()


def test_entries_that_are_not_all_are_not_copied() -> None:
    model = LoggedModel(new_disk(6))
    model.open()
    group = model.begin()
    model.append(group, 0, 3)
    entries = model.groups[group].entries[:2]
    model.commit()
    assert model.log is not None
    model.log.copy(group, entries)
    model.commit()
    assert model.open().groups == model.expected()


def test_a_damaged_copy_of_the_mark_costs_nothing_and_two_stop_the_start() -> None:
    disk = new_disk(5)
    model = LoggedModel(disk)
    work(model, Random(5), 4)
    files = dict(disk.files())
    files["/wal/mark.0"].data[20] ^= 1
    disk.restart()
    assert model.open().groups == model.expected()
    disk.restart()
    for name in ("mark.0", "mark.1"):
        dict(disk.files())[f"/wal/{name}"].data[20] ^= 1
    with pytest.raises(StoreCorruptError, match="joins its groups as a new member"):
        model.open()
    for name in ("mark.0", "mark.1"):
        disk.unlink(DIRECTORY / name)
    with pytest.raises(StoreCorruptError, match="mark is missing"):
        model.open()


def test_a_damaged_group_stays_so_until_its_owner_has_everything_again() -> None:
    disk = new_disk(6)
    model = LoggedModel(disk)
    model.open()
    group = model.begin()
    model.append(group, 0, 3, b"x" * 50)
    model.commit()
    assert model.log is not None
    model.log.put_mark()
    [data] = [file.data for path, file in disk.files() if path.endswith(".wal")]
    data[data.rindex(b"3/1 x")] ^= 1
    for _ in range(2):
        disk.lose_power(all_of_it=True)
        found = model.open().groups[group]
        assert (found.is_damaged, len(found.entries), found.vote) == (True, 2, "a")
    model.log.append(group, [WalEntry(3, 1, 1, b"again")])
    model.log.set_recovered(group)
    model.log.commit()
    disk.lose_power(all_of_it=True)
    found = model.open().groups[group]
    assert (found.is_damaged, found.entries[-1]) == (False, WalEntry(3, 1, 1, b"again"))


def test_a_log_that_may_lack_groups_says_so_until_its_owner_knows_them() -> None:
    disk = new_disk(7)
    model = LoggedModel(disk)
    model.open()
    assert model.log is not None
    start = max(len(file.data) for path, file in disk.files() if path.endswith(".wal"))
    model.begin()
    model.commit()
    model.log.put_mark()
    [data] = [file.data for path, file in disk.files() if path.endswith(".wal")]
    data[start:] = bytes(len(data) - start)
    for _ in range(2):
        disk.lose_power(all_of_it=True)
        recovery = model.open()
        assert (recovery.groups, recovery.may_lack_groups) == ({}, True)
    model.log.set_groups_known()
    model.log.commit()
    disk.lose_power(all_of_it=True)
    assert not model.open().may_lack_groups


def test_a_group_that_may_have_lost_its_vote_starts_in_no_lower_term_than_it_had() -> None:
    disk = new_disk(8)
    model = LoggedModel(disk)
    model.open()
    group, other = model.begin(), model.begin()
    for more in (1, 70, 300):
        model.vote(group, more, "a")
        model.commit()
    model.vote(other, 1, "shows that the vote before was synced")
    model.commit()
    newest = [file.data for path, file in disk.files() if path.endswith(".wal")][-1]
    at = newest.rindex(b"a\xf5END")
    newest[at - 56 : at + 57] = bytes(113)
    disk.lose_power(all_of_it=True)
    found = model.open().groups[group]
    assert (found.vote, found.is_damaged) == (None, True)
    assert found.term >= model.groups[group].term


def test_what_a_start_found_survives_a_power_failure_if_it_was_not_synced_before() -> None:
    for at in range(1, operations(9, 6)):
        disk = new_disk(9)
        disk.kill_at = at
        model = LoggedModel(disk)
        with pytest.raises(Killed):
            work(model, Random(9), 6)
        disk.restart()
        recovery = model.open()
        assert recovery.groups in model.states, at
        disk.lose_power(all_of_it=True)
        assert model.open().groups == recovery.groups, at


def test_an_entry_in_place_of_some_of_several_terms_names_the_term_before_it() -> None:
    model = LoggedModel(new_disk(10))
    model.open()
    group = model.begin()
    model.append(group, 0, 3)
    model.vote(group, 1, "a")
    model.append(group, 0, 3)
    model.vote(group, 1, "b")
    model.append(group, 4, 1)
    model.commit()
    model.disk.restart()
    assert model.open().groups == model.expected()


def test_after_a_start_the_first_entry_after_the_checkpoint_can_be_replaced() -> None:
    for checkpoint in (0, 2):
        model = LoggedModel(new_disk(11))
        model.open()
        group = model.begin()
        model.append(group, 0, 2)
        if checkpoint:
            model.checkpoint(group, 0, 2)
        model.vote(group, 1, "a")
        model.append(group, 0, 2)
        model.commit()
        model.disk.restart()
        model.open()
        model.vote(group, 1, "b")
        model.append(group, 9, 1)
        model.commit()
        model.disk.restart()
        assert model.open().groups == model.expected()


def disk_without_its_log_s_end(seed: int) -> tuple[SimDisk, LoggedModel]:
    disk = new_disk(seed)
    model = LoggedModel(disk)
    model.open()
    for _ in range(3):
        model.append(model.begin(), 0, 2)
    model.commit()
    assert model.log is not None
    model.log.put_mark()
    [file] = [file for path, file in disk.files() if path.endswith(".wal")]
    del file.data[-1:]
    disk.root.sync_all()
    disk.restart()
    return disk, model


def test_a_start_that_stops_after_it_found_the_end_lost_leaves_every_group_damaged() -> None:
    disk, model = disk_without_its_log_s_end(0)
    before = disk.ops
    model.open()
    for at in range(before + 1, disk.ops):
        for seed in range(8):  # the write of the segment's beginning ends at another byte
            disk, model = disk_without_its_log_s_end(seed)
            disk.kill_at = at
            with suppress(Killed):  # a start with a short write does more
                model.open()
            disk.restart()
            recovery = model.open()
            assert len(recovery.groups) == 3
            assert all(one.is_damaged for one in recovery.groups.values()), at


def test_a_segment_of_a_start_that_stopped_is_removed_with_the_others() -> None:
    disk = new_disk(13)
    model = LoggedModel(disk)
    model.open()
    group = model.begin()
    model.append(group, 0, 1)
    model.commit()
    disk.restart()
    disk.kill_at = disk.ops + 3  # the write of the new segment's beginning
    with pytest.raises(Killed):
        model.open()
    [*_, newest] = [file for path, file in disk.files() if path.endswith(".wal")]
    del newest.data[10:]
    disk.restart()
    model.open()
    many = len(disk.names(DIRECTORY))
    model.checkpoint(group, 0, 0)
    model.commit()
    assert (many, len(disk.names(DIRECTORY))) == (5, 3)


def test_a_group_that_the_log_lost_is_damaged_in_the_highest_term_it_may_have_voted_in() -> None:
    disk = new_disk(14)
    model = LoggedModel(disk)
    model.open()
    group = model.begin()
    model.vote(group, 70, "a")
    model.commit()
    assert model.log is not None
    model.log.put_mark()
    for path, file in disk.files():
        if path.endswith(".wal"):
            file.data[100:] = bytes(len(file.data) - 100)
    disk.restart()
    recovery = model.open()
    assert (recovery.groups, recovery.may_lack_groups) == ({}, True)
    lost = model.log.begin_lost_group("g1", WalCheckpoint(data=b"members"))
    assert lost.term >= 70
    model.log.set_groups_known()
    model.log.commit()
    disk.lose_power(all_of_it=True)
    recovery = model.open()
    assert recovery.groups == {lost.number: lost}
    assert (lost.vote, lost.is_damaged, recovery.may_lack_groups) == (None, True, False)
