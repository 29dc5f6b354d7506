"""The last step of a restore opens the stream in slices: ids, TTLs, schedules, positions, limits, acks."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import opening, slices, transfers
from penstock.jetstream.stream import header_scan, shrinking
from penstock.kernels.ingest import ingest
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.protocol.api import ApiConsumerConfig, StreamState, encode
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.protocol.snapshot_archive import (
    CONSUMER_PREFIX,
    END,
    MARK,
    STATE_NAME,
    ArchivedConsumer,
    ArchivedState,
    ArchiveEntry,
    SequencePair,
    pack_entry,
)
from penstock.store.disk import LocalDisk
from penstock.store.file import FileStore
from penstock.store.streamfiles import FileStreamStore
from penstock.testing.sim.sim_executor import SimExecutor
from tests.reference import archive_entries as model
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.backup-restore", "stream.long-requests")

MANY = 800
PART = 16
SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def archived(*blocks: bytes, consumers: bytes = b"", age: int = 0, end: bytes = END) -> bytes:
    """An archive of MANY messages with these header blocks in turn, on ten subjects."""
    head = MARK + pack_entry(
        ArchiveEntry(
            STATE_NAME,
            0,
            encode(
                StreamState(messages=MANY, first_seq=1, last_seq=MANY, consumer_count=int(bool(consumers)))
            ),
        )
    )
    messages = [
        (1 + n, START_NS - age, b"S.%d" % (n % 10), block, b"x")
        for n, block in zip(range(MANY), itertools.cycle(blocks))
    ]
    return IDENTIFIER + encode_chunks(head + consumers + model.pack(messages) + end)


def sent(js: EngineHarness, data: bytes, **settings: Any) -> list[Any]:
    """Sends an archive; returns where the answer will be."""
    body = {"config": {"name": "S", "subjects": ["S.>"], **settings}, "state": {}}
    answer = js.api("STREAM.RESTORE.S", body)
    assert "error" not in answer, answer
    subject = answer["deliver_subject"].encode()
    chunk, end = js.listen(b"chunk"), js.listen(b"end")
    publish(js.index, subject, b"chunk", b"", data)
    while not chunk:
        js.tick()
    assert not chunk[0][2]
    publish(js.index, subject, b"end", b"", b"")
    return end


def contents(js: EngineHarness) -> list[int]:
    log = js.engine.streams["S"].log
    return [seq for seq in range(1, log.last_seq + 1) if log.next_seq(seq) == seq]


def block(**fields: str) -> bytes:
    return headers.build([(name.replace("_", "-"), value) for name, value in fields.items()])


def acked() -> bytes:
    """A consumer that acked all but the last ten messages."""
    pair = SequencePair(MANY - 10, MANY - 10)
    config = ApiConsumerConfig(durable_name="C", ack_policy="explicit")
    entry = ArchivedConsumer(config=config, state=ArchivedState(delivered=pair, ack_floor=pair))
    return pack_entry(ArchiveEntry(CONSUMER_PREFIX + "C", 0, encode(entry)))


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "ids": (archived(*(block(Nats_Msg_Id=f"id{n}") for n in range(MANY))), {"duplicate_window": HOUR}),
    "ttls": (archived(block(Nats_TTL="never"), block(Nats_TTL="100")), {"allow_msg_ttl": True}),
    "schedules": (archived(b"", block(X="y")), {"allow_msg_schedules": True}),
    "sources": (archived(b""), {"sources": [{"name": "O"}]}),
    "limits": (archived(b""), {"max_msgs": 7}),
    "subject limits": (archived(b""), {"max_msgs_per_subject": 2}),
    "expired": (archived(b"", age=2 * HOUR), {"max_age": HOUR}),
    "expired ttls": (archived(block(Nats_TTL="5"), age=HOUR), {"allow_msg_ttl": True}),
    "acks": (archived(b"", consumers=acked()), {"retention": "interest"}),
}


def restored_at_once(case: str) -> EngineHarness:
    js = EngineHarness()
    data, settings = CASES[case]
    end = sent(js, data, **settings)
    while not end:
        js.tick()
    assert "error" not in json.loads(end[0][2]), end
    return js


def lower_slices(patch: pytest.MonkeyPatch) -> None:
    for module in (opening, shrinking):
        patch.setattr(module, "PART_WORK", 2048)
    patch.setattr(header_scan, "SLICE", PART)
    patch.setattr(transfers, "WORK", 1)


@pytest.mark.parametrize("case", CASES)
def test_a_restored_stream_is_opened_in_slices_between_which_others_are_served(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = restored_at_once(case)
    js = EngineHarness()
    js.create("T", "t")
    data, settings = CASES[case]
    end, acks, looks = sent(js, data, **settings), js.listen(b"ack"), [0]
    scan, recover = ingest.scan_headers, ingest.recover_ids

    def scanned(log: Any, name: bytes, from_seq: int, most: int) -> Any:
        looks[-1] += min(most, MANY)
        return scan(log, name, from_seq, most)

    def recovered(log: Any, ids: Any, from_seq: int, most: int) -> int:
        looks[-1] += min(most, MANY)
        return recover(log, ids, from_seq, most)

    monkeypatch.setattr(ingest, "scan_headers", scanned)
    monkeypatch.setattr(ingest, "recover_ids", recovered)
    lower_slices(monkeypatch)
    restores = js.engine.transfers.restores
    while not restores["S"]._adopting:
        js.tick()
    ticks, log = 0, restores["S"]._store.log  # type: ignore[union-attr]
    while not end:
        held = log.messages
        looks.append(0)
        publish(js.index, b"t", b"ack", b"", b"x")
        js.tick()
        ticks += 1
        assert len(acks) == ticks
        assert looks[-1] <= 2 * PART and held - log.messages <= 128, (looks[-1], held - log.messages)
        assert end or "S" not in js.engine.streams
    assert ticks > 10
    assert contents(js) == contents(expected)
    mine, other = js.engine.streams["S"], expected.engine.streams["S"]
    assert len(mine.ids) == len(other.ids) and mine.ids.last_id == other.ids.last_id
    assert mine.timers.next_deadline() == other.timers.next_deadline()
    assert mine.expiry.ttls._never == other.expiry.ttls._never
    assert json.loads(end[0][2])["state"] == expected.state("S")


@pytest.mark.parametrize("case", ["limits", "subject limits", "expired", "acks"])
def test_tombstones_of_what_opening_removes_are_written_while_it_goes_on(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_slices(monkeypatch)
    monkeypatch.setattr(opening, "REMOVALS_PER_WRITE", 64)
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    data, settings = CASES[case]
    end = sent(js, data, **settings)
    written = [MANY]
    write = FileStreamStore.write

    def noted(self: FileStreamStore) -> None:
        written.append(self.log.messages)
        write(self)

    monkeypatch.setattr(FileStreamStore, "write", noted)
    while not end:
        js.tick()
    js.tick()
    steps = [before - after for before, after in itertools.pairwise(written)]
    assert written[-1] < MANY // 2 and max(steps) <= 64 + 128
    store.close()


@pytest.mark.parametrize("case", ["ids", "limits", "expired ttls", "acks"])
def test_a_crash_while_a_restored_stream_is_opened_leaves_the_whole_stream(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(restored_at_once(case))
    lower_slices(monkeypatch)
    store = FileStore(tmp_path / "a")
    js = EngineHarness(store.account("$G"))
    data, settings = CASES[case]
    end, kills = sent(js, data, **settings), 0
    while not js.engine.transfers.restores["S"]._adopting:
        js.tick()
    while not end:
        for _ in range(7):
            js.tick()
        kills += 1
        shutil.copytree(tmp_path / "a", tmp_path / str(kills))
        left = FileStore(tmp_path / str(kills))
        assert contents(EngineHarness(left.account("$G"))) == expected
        left.close()
    assert kills > 2
    store.close()


class CountingDisk(LocalDisk):
    """Counts the files that are removed."""

    removed = 0

    def unlink(self, path: Path) -> None:
        self.removed += 1
        super().unlink(path)


def test_the_files_of_a_failed_restore_are_removed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    disk, executor = CountingDisk(), SimExecutor()
    store = FileStore(tmp_path, disk=disk, block_size=400, executor=executor)
    js = EngineHarness(store.account("$G"))
    end = sent(js, archived(b"", end=b""))
    files = len(list(tmp_path.rglob("*.blk")))
    executor.drain()
    disk.removed = 0
    while not end:
        js.tick()
    assert json.loads(end[0][2])["error"]["err_code"] == 10062
    assert "S" not in js.store.stream_names() and files > 50 and disk.removed <= 3
    again = js.api("STREAM.RESTORE.S", {"config": {"name": "S", "subjects": ["S.>"]}, "state": {}})
    assert "error" not in again
    before = disk.removed
    while not executor.is_idle:
        executor.finish()
        assert disk.removed - before <= 2
        before = disk.removed
    assert disk.removed >= files and not list(tmp_path.rglob("*.blk"))
    js.engine.close()
    store.close()
