"""The store of a replicated stream: blocks in memory up to a budget, then in files that no start needs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.log.stream_log import StreamLog
from penstock.store import block_memory
from penstock.store.executor import DiskExecutor
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
from penstock.store.memory import MemoryStreamStore
from penstock.store.replica_store import ReplicaStreamStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.examples import examples
from tests.support.file_stores import Hanging

pytestmark = pytest.mark.feature("cluster.catch-up", "operations.fault-containment")

BLOCK = 400
STREAM = Path("/store/jetstream/%24G/streams/S")
SPILLED = STREAM / "spilled"


class Stored:
    """A replica S on a simulated disk. budget: bytes of closed blocks that stay in memory."""

    def __init__(
        self,
        *,
        budget: int = 1000,
        background: DiskExecutor | None = None,
        key: str = "",
        disk: SimDisk | None = None,
    ) -> None:
        self.disk = disk or SimDisk(Random(1))
        self.key = StoreKey(key=key)
        self.store = FileStore(
            "/store", disk=self.disk, block_size=BLOCK, executor=background, key=self.key, block_memory=budget
        )
        self.account = self.store.account("$G")
        self.stream = self.create("S")

    def create(self, name: str) -> StreamStore:
        return self.account.create_replica(name, b"meta", "file")

    def fill(self, count: int, stream: StreamStore | None = None, write_each: int = 1) -> None:
        at = stream or self.stream
        for number in range(1, count + 1):
            at.log.append(b"s.%d" % (number % 3), b"", b"%4d" % number * 10, number)
            if number % write_each == 0:
                at.write()

    def files(self, name: str = "S") -> list[str]:
        return sorted(self.disk.names(STREAM.with_name(name) / "spilled"))

    def bytes_of_files(self) -> bytes:
        return b"".join(self.disk.read(SPILLED / name) for name in self.files())

    def in_memory(self, stream: StreamStore | None = None) -> int:
        """Bytes of closed blocks in memory."""
        blocks = (stream or self.stream).log.block_list()
        return sum(block.size for block in blocks if block.closed and block.resident)


def contents(log: StreamLog) -> list[tuple[int, bytes, bytes, int]]:
    found, seq = [], log.next_seq(1)
    while seq:
        message = log.load(seq)
        assert message is not None, seq
        found.append((message.seq, message.subject, message.payload, message.ts))
        seq = log.next_seq(seq + 1)
    return found


# --- what stays in memory ----------------------------------------------------------------------------


def test_a_stream_within_the_budget_has_no_file() -> None:
    stored = Stored(budget=10_000)
    stored.fill(60)
    assert stored.files() == [] and len(stored.stream.log.block_list()) > 5
    assert len(contents(stored.stream.log)) == 60


def test_the_oldest_blocks_are_written_when_the_budget_is_used_up() -> None:
    stored = Stored()
    stored.fill(100)
    numbers = [block.number for block in stored.stream.log.block_list()]
    written = [int(name.removesuffix(".blk")) for name in stored.files()]
    assert sorted(written) == numbers[: len(written)] and written
    stored.stream.trim_cache()  # what can be loaded again
    assert 1000 - BLOCK < stored.in_memory() <= 1000
    assert [seq for seq, *_ in contents(stored.stream.log)] == list(range(1, 101))


def test_the_budget_is_one_for_all_streams() -> None:
    stored = Stored()
    other = stored.create("T")
    stored.fill(20)
    stored.fill(40, other)
    assert stored.files() and stored.files("T")
    stored.stream.trim_cache()
    other.trim_cache()
    assert stored.in_memory() == 0 and stored.in_memory(other) <= 1000
    assert len(contents(stored.stream.log)) == 20 and len(contents(other.log)) == 40


def test_a_block_stays_in_memory_until_its_whole_file_is_there() -> None:
    background = Hanging()
    stored = Stored(budget=0, background=background)
    stored.fill(40)
    assert background.waiting and stored.files() == []
    stored.stream.trim_cache()
    assert all(block.resident for block in stored.stream.log.block_list())
    background.finish()
    stored.stream.trim_cache()
    assert not any(block.resident for block in stored.stream.log.block_list() if block.closed)
    assert len(contents(stored.stream.log)) == 40


def test_a_writer_waits_when_too_much_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Hanging):
        def complete_one(self, owner: object) -> bool:
            waited.append(len(self.waiting))
            work, done = self.waiting.pop(0)
            done(work(), None)
            return True

    waited: list[int] = []
    monkeypatch.setattr(block_memory, "WRITING_MAX", 3 * BLOCK)
    stored = Stored(budget=0, background=Slow())
    stored.fill(60)
    assert waited
    assert stored.in_memory() <= 5 * BLOCK


# --- what leaves ---------------------------------------------------------------------------------------


def test_files_of_blocks_that_left_the_log_are_removed() -> None:
    stored = Stored(budget=0)
    stored.fill(100)
    assert len(stored.files()) > 10
    stored.stream.log.limit(10, 0)
    stored.stream.write()
    assert len(stored.files()) < 4
    stored.stream.log.purge()
    stored.stream.write()
    assert stored.files() == []
    stored.fill(30)
    assert len(contents(stored.stream.log)) == 30


def test_a_block_that_left_the_log_while_it_was_written_leaves_no_file() -> None:
    background = Hanging()
    stored = Stored(budget=0, background=background)
    stored.fill(40)
    stored.stream.log.purge()
    stored.stream.write()
    background.finish()
    assert stored.files() == []


def test_a_purged_stream_gives_its_budget_back() -> None:
    stored = Stored()
    other = stored.create("T")
    stored.fill(14)
    stored.stream.log.purge()
    stored.stream.write()
    stored.fill(14, other)
    assert stored.files() == stored.files("T") == []


def test_a_rewritten_block_gives_its_budget_back() -> None:
    stored = Stored(budget=2400)
    log = stored.stream.log
    for _ in range(10):
        first = log.last_seq + 1
        stored.fill(20)
        for seq in range(first, log.last_seq):
            log.remove(seq)
        for _ in range(5):
            stored.stream.write()
    assert stored.in_memory() < 1200, "nothing was rewritten"
    assert stored.files() == []
    assert len(contents(log)) == 10


def test_a_deleted_stream_gives_its_budget_back_and_leaves_nothing() -> None:
    background = Hanging()
    stored = Stored(budget=900, background=background)
    other = stored.create("T")
    stored.fill(40)
    stored.stream.delete()
    background.finish()
    assert stored.account.stream_names() == ["T"]
    assert not [path for path, _ in stored.disk.files() if path.endswith(".blk")]
    stored.fill(15, other)
    assert stored.files("T") == [] and not background.waiting
    again = stored.create("S")
    assert again.log.last_seq == 0


def test_a_start_finds_a_replica_without_messages() -> None:
    stored = Stored(budget=0)
    stored.fill(40)
    stored.store.close()
    store = FileStore("/store", disk=stored.disk, block_size=BLOCK)
    stream = store.account("$G").open_stream("S")
    assert (stream.meta, stream.log.messages) == (b"meta", 0)
    stream.abandon()
    store.account("$G").delete_stream("S")
    assert not [path for path, _ in stored.disk.files() if path.endswith(".blk")]


def test_memory_storage_has_no_files() -> None:
    stored = Stored()
    stream = stored.account.create_replica("M", b"", "memory")
    assert isinstance(stream, MemoryStreamStore) and not isinstance(stream, ReplicaStreamStore)


# --- disks that fail -----------------------------------------------------------------------------------


class Failing(SimDisk):
    """Takes no block while `is_full`. tried: how often it was asked."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.is_full = False
        self.tried = 0

    def open(self, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        if path.parent.name == "spilled" and truncate:
            self.tried += 1
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, truncate=truncate, create=create)


def test_blocks_that_a_full_disk_does_not_take_stay_in_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_memory, "RETRY_BYTES", 4 * BLOCK)
    disk = Failing()
    stored = Stored(budget=0, disk=disk)
    disk.is_full = True
    stored.fill(80)
    assert stored.files() == [] and len(contents(stored.stream.log)) == 80
    assert 1 < disk.tried < 8, "it does not try each time"
    assert "No space left" in caplog.text
    disk.is_full = False
    stored.fill(30)
    stored.stream.trim_cache()
    assert stored.in_memory() == 0
    assert len(contents(stored.stream.log)) == 110


def test_a_failed_write_of_a_block_that_left_the_log_is_nothing(caplog: pytest.LogCaptureFixture) -> None:
    background = Hanging()
    disk = Failing()
    stored = Stored(budget=900, background=background, disk=disk)
    other = stored.create("T")
    stored.fill(40)
    stored.stream.log.purge()
    stored.stream.write()
    disk.is_full = True
    background.finish()
    assert disk.tried and caplog.text == ""
    stored.fill(14, other)
    assert not background.waiting, "its bytes count no more"


def test_a_damaged_file_costs_its_messages_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    stored = Stored(budget=0)
    stored.fill(40)
    stored.stream.trim_cache()
    path = SPILLED / "2.blk"
    data = bytearray(stored.disk.read(path))
    data[30] ^= 0x40
    fd = stored.disk.open(path)
    stored.disk.write(fd, data, 0)
    stored.disk.close(fd)
    log = stored.stream.log
    seqs = [seq for seq in range(1, 41) if log.load(seq) is not None]
    assert 30 < len(seqs) < 40 and log.messages == len(seqs)
    assert "2.blk" in caplog.text and "lost here" in caplog.text


# --- secure removals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "secret"])
@pytest.mark.parametrize("compress", [False, True])
def test_what_is_erased_is_in_no_file(key: str, compress: bool) -> None:
    stored = Stored(budget=0, key=key)
    stored.stream.set_compression(compress)
    stored.fill(40)
    stored.stream.trim_cache()
    assert stored.files()
    before = stored.bytes_of_files()
    assert (b"   5" * 10 in before) is not (bool(key) or compress)
    assert stored.stream.log.remove(5, secure=True)
    stored.stream.write()
    after = stored.bytes_of_files()
    assert after != before and b"   5" * 10 not in after
    assert [seq for seq, *_ in contents(stored.stream.log)] == [1, 2, 3, 4, *range(6, 41)]


def test_what_is_erased_while_its_block_is_written_is_in_no_file() -> None:
    background = Hanging()
    stored = Stored(budget=0, background=background)
    stored.fill(40)
    (work, done) = background.waiting.pop(0)
    result = work()  # the file is there, and the store does not know it yet
    assert b"   5" * 10 in stored.bytes_of_files()
    assert stored.stream.log.remove(5, secure=True)
    stored.stream.write()
    done(result, None)
    background.finish()
    assert b"   5" * 10 not in stored.bytes_of_files()


# --- any history ---------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 120)),
    st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 120)),
    st.tuples(st.just("remove"), st.integers(1, 80), st.booleans()),
    st.tuples(st.just("purge"), st.integers(0, 5), st.integers(0, 80)),
    st.tuples(st.just("limit"), st.integers(1, 40), st.just(0)),
    st.tuples(st.just("trim"), st.just(0), st.just(0)),
    st.tuples(st.just("work"), st.integers(1, 3), st.just(0)),
)


def change(log: StreamLog, step: tuple[str, int, int | bool]) -> object:
    what, one, two = step
    if what == "append":
        return log.append(b"s.%d" % one, b"", b"%d" % one * int(two), log.last_seq + 1)
    if what == "remove":
        return log.remove(one, secure=bool(two))
    if what == "purge":
        return log.purge(b"s.%d" % one if one < 5 else None, int(two))
    return log.limit(one, 0) if what == "limit" else None


@settings(max_examples=examples(200))
@given(st.lists(STEPS, max_size=120), st.integers(0, 1500), st.booleans(), st.booleans(), st.data())
def test_it_has_what_a_stream_in_memory_has(
    steps: list[tuple[str, int, int | bool]],
    budget: int,
    encrypted: bool,
    compress: bool,
    data: st.DataObject,
) -> None:
    background = Hanging()
    stored = Stored(budget=budget, background=background, key="secret" if encrypted else "")
    stored.stream.set_compression(compress)
    model = MemoryStreamStore({}, "S", b"", storage="file", block_size=BLOCK)
    log = stored.stream.log
    for step in steps:
        assert change(log, step) == change(model.log, step)
        if step[0] == "trim":
            stored.stream.trim_cache()
        if step[0] == "work":
            for work, done in background.waiting[: int(step[1])]:
                background.waiting.remove((work, done))
                done(work(), None)
        if data.draw(st.booleans()):
            stored.stream.write()
            model.write()
        assert (log.messages, log.bytes, log.first_seq, log.last_seq) == (
            model.log.messages, model.log.bytes, model.log.first_seq, model.log.last_seq
        )  # fmt: skip
    assert contents(log) == contents(model.log)
    stored.stream.write()
    background.finish()
    stored.stream.trim_cache()
    assert contents(log) == contents(model.log)
    closed = {f"{block.number}.blk" for block in log.block_list() if block.closed}
    assert set(stored.files()) <= closed and stored.in_memory() <= budget + BLOCK * 4
