"""Atomic batches on disk: wherever the file of a block ends, a batch is there as a whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from penstock.kernels.log.records import RecordReader
from penstock.store import disk, keys
from penstock.store.file import FileStore
from penstock.store.keys import StoreKey
from tests.support.engine import EngineHarness
from tests.unit.jetstream.test_atomic_batches import block

BATCH = 3
KEYS = [pytest.param(None, id="plain"), pytest.param(StoreKey("aes", "correct horse"), id="encrypted")]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process's death leaves doesn't depend on syncs; guessing a key may be quick here."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(disk.os, name, lambda fd: None)
    monkeypatch.setattr(keys, "_stretch", lambda key, salt: hashlib.sha256(salt + key.encode()).digest())


def opened(root: Path, key: StoreKey | None, *, block_size: int = 4000) -> tuple[FileStore, EngineHarness]:
    store = FileStore(root, block_size=block_size, key=key)
    return store, EngineHarness(store.account("$G"))


def put_batch(js: EngineHarness, batch_id: str, size: int = BATCH, commit: str = "1") -> None:
    for seq in range(1, size + 1):
        js.messages("s.a", b"%s%d" % (batch_id.encode(), seq), block(batch_id, seq, commit * (seq == size)))


def payloads(js: EngineHarness) -> list[bytes]:
    log = js.engine.streams["S"].log
    found = [log.load(seq) for seq in range(1, log.last_seq + 1)]
    return [message.payload for message in found if message is not None]


def the_block(root: Path, number: int = 1) -> Path:
    (path,) = root.glob(f"**/{number}.blk")
    return path


def torn(root: Path, copy: Path, end: int, key: StoreKey | None) -> list[bytes]:
    """What is recovered from a copy of the store whose block ends at a byte; now and then, twice."""
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".lock", "*.idx"))
    path = the_block(copy)
    path.write_bytes(path.read_bytes()[:end])
    found = []
    for _ in range(1 if end % 16 else 2):
        store = FileStore(copy, block_size=4000, key=key)
        log = store.account("$G").open_stream("S").log
        found.append([message.payload for seq in range(1, log.last_seq + 1) if (message := log.load(seq))])
        store.close()
    assert found[0] == found[-1]
    shutil.rmtree(copy)
    return found[0]


@pytest.mark.feature("atomic.crash")
@pytest.mark.parametrize("key", KEYS)
def test_a_crash_at_any_byte_of_a_batch_leaves_all_of_it_or_nothing(
    tmp_path: Path, key: StoreKey | None
) -> None:
    root = tmp_path / "store"
    _, js = opened(root, key)
    js.create("S", "s.>", allow_atomic=True)
    js.request("s.a", b"before")
    start = the_block(root).stat().st_size
    put_batch(js, "b")
    end = the_block(root).stat().st_size
    js.request("s.a", b"after")
    whole = [b"b%d" % seq for seq in range(1, BATCH + 1)]
    for cut in range(start, end):
        assert torn(root, tmp_path / "copy", cut, key) == [b"before"]
    assert torn(root, tmp_path / "copy", end, key) == [b"before", *whole]
    assert torn(root, tmp_path / "copy", end + 1, key) == [b"before", *whole]


@pytest.mark.feature("atomic.crash")
def test_a_batch_whose_end_did_not_reach_the_disk_is_not_there(tmp_path: Path) -> None:
    """A machine that dies may leave zeros where the last pages should be, or in between."""
    root = tmp_path / "store"
    _, js = opened(root, None)
    js.create("S", "s.>", allow_atomic=True)
    js.request("s.a", b"before")
    start = the_block(root).stat().st_size
    put_batch(js, "b")
    path = the_block(root)
    whole = path.read_bytes()
    for at in range(start, len(whole) - 16, 7):
        copy = tmp_path / "copy"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".lock"))
        the_block(copy).write_bytes(whole[:at] + bytes(16) + whole[at + 16 :])
        store, after = opened(copy, None)
        assert payloads(after) in ([b"before"], [b"before", *(b"b%d" % n for n in range(1, BATCH + 1))])
        store.close()
        shutil.rmtree(copy)


@pytest.mark.feature("atomic.crash")
def test_a_batch_lies_in_one_block_whatever_its_size(tmp_path: Path) -> None:
    store, js = opened(tmp_path, None, block_size=500)
    js.create("S", "s.>", allow_atomic=True)
    for n in range(4):
        js.request("s.a", b"x" * 100)
        put_batch(js, f"b{n}", 10)
    held = {}
    for path in tmp_path.glob("**/*.blk"):
        reader = RecordReader(path.read_bytes())
        records = []
        while (record := reader.next()) is not None:
            assert isinstance(record, tuple)
            records.append(record)
        for at, (kind, first, last, _, _, payload) in enumerate(records):
            if kind == 4:
                inside = records[at + 1 : at + 11]
                assert [record[1] for record in inside] == list(range(first, last + 1))
                held[first] = int.from_bytes(payload, "little")
    assert sorted(held) == [2, 13, 24, 35]
    before = payloads(js)
    store.close()
    _, again = opened(tmp_path, None, block_size=500)
    assert payloads(again) == before
    put_batch(again, "last")
    assert payloads(again) == [*before, *(b"last%d" % n for n in range(1, BATCH + 1))]


@pytest.mark.feature("atomic.crash")
def test_blocks_with_batches_are_rewritten_and_recovered(tmp_path: Path) -> None:
    """What a batch stored may be removed message by message."""
    store, js = opened(tmp_path, None, block_size=600)
    js.create("S", "s.>", allow_atomic=True)
    for n in range(6):
        put_batch(js, f"b{n}")
    for seq in range(1, 19):
        if seq % 3:
            assert js.api("STREAM.MSG.DELETE.S", {"seq": seq, "no_erase": seq % 2 == 0})["success"]
    js.tick()
    kept = [b"b%d3" % n for n in range(6)]
    assert payloads(js) == kept
    store.close()
    store, js = opened(tmp_path, None, block_size=600)
    assert payloads(js) == kept
    store.close()
    for path in tmp_path.glob("**/*.idx"):
        path.unlink()
    assert payloads(opened(tmp_path, None, block_size=600)[1]) == kept


def test_a_batch_that_rolls_up_its_stream_survives_a_restart(tmp_path: Path) -> None:
    store, js = opened(tmp_path, None)
    js.create("S", "s.>", allow_atomic=True, allow_rollup_hdrs=True, max_msgs=3)
    for n in range(3):
        js.request("s.a", b"old%d" % n)
    js.messages("s.a", b"1", block("b", 1, Nats_Rollup="all"))
    js.messages("s.a", b"2", block("b", 2))
    assert js.request("s.a", b"3", block("b", 3, "1"))["seq"] == 6
    assert payloads(js) == [b"1", b"2", b"3"]
    store.close()
    assert payloads(opened(tmp_path, None)[1]) == [b"1", b"2", b"3"]


def test_one_damaged_message_of_a_batch_stored_long_ago_is_lost_alone(tmp_path: Path) -> None:
    """In a block that was closed, even at its end: no write of it was in progress."""
    store, js = opened(tmp_path, None, block_size=600)
    js.create("S", "s.>", allow_atomic=True)
    put_batch(js, "b")
    damaged = the_block(tmp_path)
    put_batch(js, "later", 9)
    store.close()
    for path in tmp_path.glob("**/*.idx"):
        path.unlink()
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-20] + b"~" + whole[-19:])
    found = payloads(opened(tmp_path, None, block_size=600)[1])
    assert found[: BATCH - 1] == [b"b%d" % n for n in range(1, BATCH)]
    assert found[BATCH - 1 :] == [b"later%d" % n for n in range(1, 10)]
