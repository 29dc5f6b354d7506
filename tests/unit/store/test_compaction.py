"""Compaction: removed messages leave the disk, nothing else does, whenever the process dies."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.kernels.log.stream_log import StreamLog
from penstock.store import keys
from penstock.store.file import FileStore
from penstock.store.interface import StorageType, StreamStore
from penstock.store.keys import StoreKey
from penstock.store.memory import MemoryStore

BLOCK_SIZE = 600


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests rewrite thousands of tiny blocks; what a process's death leaves doesn't depend on syncs."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
    monkeypatch.setattr(keys, "_stretch", lambda key, salt: hashlib.sha256(salt + key.encode()).digest())


def live(log: StreamLog) -> dict[int, bytes]:
    found = {}
    seq = log.next_seq(1)
    while seq:
        message = log.load(seq)
        assert message is not None
        found[seq] = message.subject + message.payload
        seq = log.next_seq(seq + 1)
    return found


def disk_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("**/msgs/*.blk"))


def update_keys(stream: StreamStore, rng: random.Random, count: int) -> None:
    """A key-value bucket: a few keys change all the time, others hardly ever."""
    for i in range(count):
        subject = b"cold.%d" % rng.randrange(200) if i % 50 == 0 else b"hot.%d" % rng.randrange(5)
        stream.log.append(subject, b"", b"v%d" % i * 5, i)
        stream.log.limit_subject(subject, 1)
        if i % 10 == 0:
            stream.write()
    stream.write()


def test_a_bucket_of_changing_keys_does_not_grow_on_disk(tmp_path: Path) -> None:
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").create_stream("KV", b"", "file")
    update_keys(stream, random.Random(1), 4_000)
    assert stream.log.rewrites > 100
    kept = live(stream.log)
    assert disk_bytes(tmp_path) < 6 * stream.log.bytes + 10 * BLOCK_SIZE
    assert len(stream.log.block_list()) < 100
    store.close()
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    log = store.account("$G").open_stream("KV").log
    assert live(log) == kept
    assert log.subjects() == dict.fromkeys(log.subjects(), 1)
    store.close()


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_no_block_is_rewritten_while_slices_still_remove_from_it(
    storage: StorageType, tmp_path: Path
) -> None:
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").create_stream("S", b"", storage)
    for seq in range(1, 401):
        stream.log.append(b"a", b"", b"payload", seq)
    stream.write()
    with stream.removing():
        for seq in range(2, 400, 2):
            stream.log.remove(seq)
            stream.write()
        assert stream.log.rewrites == 0
    for _ in range(100):
        stream.write()
    assert stream.log.rewrites > 0
    assert sorted(live(stream.log)) == [*range(1, 400, 2), 400]
    store.close()


def test_a_bucket_in_memory_gives_its_memory_back() -> None:
    stream = MemoryStore().account("$G").create_stream("KV", b"", "memory")
    for i in range(400_000):
        subject = b"cold.%d" % (i // 1000) if i % 1000 == 0 else b"hot.%d" % (i % 7)
        stream.log.append(subject, b"", b"x" * 100, i)
        stream.log.limit_subject(subject, 1)
        if i % 1000 == 0:
            stream.write()
    assert sum(block.size for block in stream.log.block_list()) < 3 * stream.log.block_size


def test_tombstones_that_no_block_needs_leave_the_disk(tmp_path: Path) -> None:
    """Removals out of order, one by one: the notes outweigh what is left."""
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").create_stream("S", b"", "file")
    stream.log.append(b"first", b"", b"stays", 0)
    rng = random.Random(2)
    for _ in range(30):
        seqs = [stream.log.append(b"work", b"", b"x" * 20, 1) for _ in range(60)]
        rng.shuffle(seqs)
        for seq in seqs:
            stream.log.remove(seq)
            stream.write()
    assert live(stream.log) == {1: b"firststays"}
    assert disk_bytes(tmp_path) < 20 * BLOCK_SIZE
    store.close()
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    log = store.account("$G").open_stream("S").log
    assert live(log) == {1: b"firststays"} and log.last_seq == 1801
    store.close()


class FailingDisk:
    """Lets so many calls that change the disk succeed; each one after fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left = calls
        for name in ("pwrite", "write", "rename", "unlink", "fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self.guarded(getattr(os, name)))

    def guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded_call(*arguments: Any, **keywords: Any) -> Any:
            if self.left == 0:
                raise OSError(5, "Input/output error")
            self.left -= 1
            return call(*arguments, **keywords)

        return guarded_call


def change(log: StreamLog, rng: random.Random, step: int) -> None:
    subject = b"s.%d" % rng.randrange(6)
    log.append(subject, b"", b"p%d" % step * rng.randrange(1, 8), step)
    what = rng.randrange(12)
    if what < 6:
        log.limit_subject(subject, 1 + rng.randrange(3))
    elif what < 9 and log.last_seq > 1:
        log.remove(rng.randrange(1, log.last_seq), secure=what == 8)
    elif what == 9 and step % 5 == 0:
        log.purge(b"s.%d" % rng.randrange(6), max(log.last_seq - 5, 1))
    elif what == 10:
        log.limit(40, 0)


def run_until_it_fails(stream: StreamStore, seed: int) -> tuple[dict[int, bytes], dict[int, bytes], int]:
    """The live messages at the last write that went well and at the one that failed, and the last sequence
    at the former."""
    rng = random.Random(seed)
    written: dict[int, bytes] = {}
    last_seq = 0
    for step in range(120):
        for _ in range(4):
            change(stream.log, rng, step)
        try:
            stream.write()
        except (StoreError, OSError):
            return written, live(stream.log), last_seq
        written = live(stream.log)
        last_seq = stream.log.last_seq
    return written, written, last_seq


KEYS = {1: None, 2: StoreKey("aes", "key"), 3: StoreKey("chacha", "key"), 4: None}


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_death_at_any_call_to_the_disk_keeps_what_was_written(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0
    for calls in range(0, 600, 29):
        root = tmp_path / f"{calls}"
        store = FileStore(root, block_size=BLOCK_SIZE, key=KEYS[seed])
        stream = store.account("$G").create_stream("S", b"", "file")
        stream.set_compression(seed > 2)
        with monkeypatch.context() as patch:
            FailingDisk(patch, calls + seed)
            before, after, written_seq = run_until_it_fails(stream, seed)
        last_seq = stream.log.last_seq
        store.abandon()
        store = FileStore(root, block_size=BLOCK_SIZE, key=KEYS[seed])
        log = store.account("$G").open_stream("S").log
        found = live(log)
        assert before.items() & after.items() <= found.items()
        # What came after the last write may be there, even if it was removed before the failing one.
        assert all(seq > written_seq for seq, _ in found.items() - before.items())
        assert written_seq <= log.last_seq <= last_seq
        assert log.messages == len(found) and sum(log.subjects().values()) == len(found)
        failed += before != after
        store.close()
    assert failed > 10


def test_a_disk_that_works_again_gets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for calls in range(10, 700, 53):
        root = tmp_path / f"{calls}"
        store = FileStore(root, block_size=BLOCK_SIZE)
        stream = store.account("$G").create_stream("S", b"", "file")
        with monkeypatch.context() as patch:
            FailingDisk(patch, calls)
            run_until_it_fails(stream, 7)
        rng = random.Random(8)
        for step in range(30):
            change(stream.log, rng, step)
            stream.write()
        kept = live(stream.log)
        store.abandon()
        store = FileStore(root, block_size=BLOCK_SIZE)
        assert live(store.account("$G").open_stream("S").log) == kept
        store.close()


def blocks_of(root: Path) -> Path:
    return root / "jetstream" / "%24G" / "streams" / "S" / "msgs"


def test_files_of_blocks_that_joined_another_are_left_out_when_a_crash_kept_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").create_stream("S", b"", "file")
    rng = random.Random(3)
    seen: dict[str, bytes] = {}
    for step in range(60):
        for i in range(8):
            subject = b"cold.%d" % step if i == 0 else b"hot.%d" % rng.randrange(3)
            stream.log.append(subject, b"", b"x" * 30, step)
            stream.log.limit_subject(subject, 1)
        stream.write()
        seen |= {
            path.name: path.read_bytes()
            for path in blocks_of(tmp_path).glob("*.blk")
            if path.name not in seen
        }
    kept = live(stream.log)
    store.abandon()
    present = {path.name for path in blocks_of(tmp_path).glob("*.blk")}
    first = min(int(name.removesuffix(".blk")) for name in present)
    brought_back = [name for name in seen if name not in present and int(name.removesuffix(".blk")) > first]
    assert len(brought_back) > 10
    for name in brought_back:
        (blocks_of(tmp_path) / name).write_bytes(seen[name])
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").open_stream("S")
    assert live(stream.log) == kept
    stream.write()
    assert {path.name for path in blocks_of(tmp_path).glob("*.blk")} == present
    store.close()


def test_a_secure_removal_in_a_block_with_an_index_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    stream = store.account("$G").create_stream("S", b"", "file")
    for i in range(60):
        stream.log.append(b"a.%d" % (i % 2), b"", b"secret %d" % i, i)
    stream.write()
    assert (blocks_of(tmp_path) / "1.idx").exists()
    stream.log.remove(5, secure=True)
    stream.write()
    kept = live(stream.log)
    store.abandon()
    assert (
        b"secret 4\x00" not in (data := (blocks_of(tmp_path) / "1.blk").read_bytes()) and b"secret 5" in data
    )
    store = FileStore(tmp_path, block_size=BLOCK_SIZE)
    log = store.account("$G").open_stream("S").log
    assert live(log) == kept and log.lost == 0 and log.subjects() == {b"a.0": 29, b"a.1": 30}
    assert not caplog.messages
    store.close()
