"""The removal of a stream with many consumers: it is gone at once. Its consumers end in slices, and its files
go in the background, one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import slices
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commit import LocalCommit
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.store.disk import LocalDisk
from penstock.store.file import FileStore
from penstock.testing.sim.sim_executor import SimExecutor
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests")

MANY = 60
NOT_FOUND = 10059


def furnished(store: FileStore, name: str = "S", count: int = MANY) -> EngineHarness:
    js = EngineHarness(store.account("$G"))
    furnish(js, name, count)
    return js


def furnish(js: EngineHarness, name: str, count: int = MANY) -> None:
    js.create(name, f"{name}.>", retention="interest")
    for n in range(count):
        config = {"durable_name": f"c{n}", "ack_policy": "explicit"}
        answer = js.api(f"CONSUMER.DURABLE.CREATE.{name}.c{n}", {"stream_name": name, "config": config})
        assert "error" not in answer
    for n in range(10):
        js.request(f"{name}.{n}", b"x")


def ask(js: EngineHarness, request: str, body: bytes = b"") -> list[Any]:
    """The answers to a request of another client, as they come."""
    inbox = b"answer.%d" % id(request)
    heard = js.listen(inbox)
    by: Sink = ServiceSink(lambda *message: None)
    publish(js.index, b"$JS.API." + request.encode(), inbox, b"", body, by)
    return heard


class CountingDisk(LocalDisk):
    """Counts the files and trees that were removed."""

    removed = 0

    def unlink(self, path: Path) -> None:
        self.removed += 1
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self.removed += 1
        super().remove_tree(path)


def remove_files(executor: SimExecutor, disk: CountingDisk) -> None:
    """Completes a removal, and checks that it removes a file at a time."""
    disk.removed = 0
    while not executor.is_idle:
        before = disk.removed
        executor.finish()
        assert disk.removed - before <= 2  # the empty directories go with the last file
    assert disk.removed >= MANY


def test_a_removal_is_done_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    disk, executor = CountingDisk(), SimExecutor()
    store = FileStore(tmp_path, disk=disk, executor=executor)
    js = furnished(store)
    executor.drain()
    ended = js.listen(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.>")
    disk.removed = 0
    heard = ask(js, "STREAM.DELETE.S")
    ticks, reported = 0, len(ended)
    assert reported <= 1
    assert json.loads(heard[0][2])["success"]
    while js.engine.slices:
        js.tick()
        assert len(ended) - reported <= 1
        reported = len(ended)
        ticks += 1
    assert ticks >= MANY - 1 and len(ended) == MANY and disk.removed <= 3
    remove_files(executor, disk)
    assert not list((tmp_path / "$G").rglob("*c1*")) and not list(tmp_path.rglob(".deleted*"))
    store.close()


def test_a_stream_is_gone_with_the_first_slice_and_its_name_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    store = FileStore(tmp_path)
    js = furnished(store)
    requests = js.listen(b"pulled")
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.S.c59", b"pulled", b"", b'{"batch":20}')
    js.tick()
    got = len(requests)
    publish(js.index, b"S.late", b"", b"", b"x")
    first = ask(js, "STREAM.DELETE.S")
    js.now += 40 * 1_000_000_000  # what is not acked would be due again
    js.engine.tick.on_time(js.now)
    js.tick()
    assert json.loads(first[0][2])["success"] and js.engine.slices
    assert len(requests) == got  # neither a message nor the end yet
    info = ask(js, "STREAM.INFO.S")
    assert json.loads(info[0][2])["error"]["err_code"] == NOT_FOUND
    monkeypatch.setattr(slices, "WORK", 100_000)
    made = ask(js, "STREAM.CREATE.S", b'{"name":"S","subjects":["S.>"]}')
    js.tick()
    assert "error" not in json.loads(made[0][2]) and js.engine.slices
    second = ask(js, "STREAM.DELETE.S")
    made = ask(js, "STREAM.CREATE.S", b'{"name":"S","subjects":["S.>"]}')
    while js.engine.slices:
        js.tick()
    assert json.loads(second[0][2])["success"] and "error" not in json.loads(made[0][2])
    assert len(requests) == got + 1 and b"409" in requests[-1][1]
    assert js.request("S.new", b"x")["seq"] == 1
    assert js.state("S")["consumer_count"] == 0
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert js.state("S")["messages"] == 1 and not js.engine.offline
    store.close()


def test_files_that_a_stop_leaves_go_with_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    executor = SimExecutor()
    store = FileStore(tmp_path, executor=executor)
    js = furnished(store)
    executor.drain()
    ask(js, "STREAM.DELETE.S")
    for _ in range(5):
        js.tick()
        executor.finish()
    assert js.engine.slices and list(tmp_path.rglob(".deleted*"))
    js.engine.close()
    store.close()
    executor.drain()
    assert list(tmp_path.rglob("c59"))  # no step begins in a closed store
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert not js.engine.streams and not js.engine.offline
    assert not list(tmp_path.rglob(".deleted*")) and not list(tmp_path.rglob("c1"))
    store.close()


def test_an_ack_to_a_removed_stream_is_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not written."""
    monkeypatch.setattr(slices, "WORK", 1)
    store = FileStore(tmp_path)
    js = furnished(store, count=3)
    got: list[bytes] = []

    def hear(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        got.append(reply)

    js.index.insert(SinkSubscription(ServiceSink(hear), b"pulled"))
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.S.c2", b"pulled", b"", b'{"batch":1}')
    js.tick()
    confirmed = js.listen(b"confirmed")
    publish(js.index, got[0], b"confirmed", b"", b"+ACK")
    ask(js, "STREAM.DELETE.S")
    js.tick()
    assert js.engine.slices
    assert not confirmed
    store.close()


def offline(store: FileStore, tmp_path: Path, *, by_damage: bool) -> EngineHarness:
    """An account with an offline stream S."""
    js = furnished(store)
    if not by_damage:
        js.engine.containment.set_aside(js.engine.streams["S"], "it failed")
        return js
    js.engine.close()
    meta = next(tmp_path.rglob("streams/S/meta"))
    meta.write_bytes(meta.read_bytes() + b"!")
    return EngineHarness(store.account("$G"))


@pytest.mark.parametrize("by_damage", [False, True])
def test_the_files_of_an_offline_stream_are_removed_one_by_one(by_damage: bool, tmp_path: Path) -> None:
    disk, executor = CountingDisk(), SimExecutor()
    store = FileStore(tmp_path, disk=disk, executor=executor)
    js = offline(store, tmp_path, by_damage=by_damage)
    executor.drain()
    assert "S" in js.engine.offline
    disk.removed = 0
    heard = ask(js, "STREAM.DELETE.S")
    assert json.loads(heard[0][2])["success"] and disk.removed <= 2 and not js.engine.offline
    made = ask(js, "STREAM.CREATE.S", b'{"name":"S","subjects":["S.>"]}')
    remove_files(executor, disk)
    assert not list(tmp_path.rglob(".deleted*"))
    assert "error" not in json.loads(made[0][2]) and js.request("S.new", b"x")["seq"] == 1
    store.close()


@pytest.mark.parametrize("by_damage", [False, True])
def test_an_offline_stream_stays_removed_after_a_stop_in_between(by_damage: bool, tmp_path: Path) -> None:
    executor = SimExecutor()
    store = FileStore(tmp_path, executor=executor)
    js = offline(store, tmp_path, by_damage=by_damage)
    executor.drain()
    heard = ask(js, "STREAM.DELETE.S")
    for _ in range(MANY // 2):
        executor.finish()
    assert json.loads(heard[0][2])["success"] and list(tmp_path.rglob(".deleted*"))
    store.abandon()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert not js.engine.streams and not js.engine.offline and not list(tmp_path.rglob(".deleted*"))
    store.close()


class FailingDisk(LocalDisk):
    """Fails to sync directories while `fails` is set."""

    fails = False

    def sync_directory(self, path: Path) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        super().sync_directory(path)


def test_an_offline_stream_whose_removal_failed_is_removed_by_the_next_request(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = FileStore(tmp_path, disk=disk)
    js = offline(store, tmp_path, by_damage=False)
    disk.fails = True
    assert js.api("STREAM.DELETE.S")["error"]["err_code"] == 10050 and "S" in js.engine.offline
    disk.fails = False
    assert js.api("STREAM.DELETE.S")["success"] and not js.engine.offline
    assert not list(tmp_path.rglob(".deleted*"))
    store.close()


class ReadingDisk(LocalDisk):
    """Records which files are read."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def read(self, path: Path) -> bytes:
        self.paths.append(path)
        return super().read(path)


def test_the_removal_of_an_offline_stream_reads_no_other_stream(tmp_path: Path) -> None:
    """It read the metas of all streams to find its directory."""
    disk = ReadingDisk()
    store = FileStore(tmp_path, disk=disk)
    js = offline(store, tmp_path, by_damage=True)
    for n in range(5):
        js.create(f"T{n}")
    disk.paths.clear()
    assert js.api("STREAM.DELETE.S")["success"]
    assert not [path for path in disk.paths if "T" in str(path.relative_to(tmp_path))]
    store.close()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (StreamTable, "has"),
        (PendingWork, "forget_stream"),
        (Capacity, "forget"),
        (Deferrals, "drop"),
        (LocalCommit, "drop"),
    ],
)
def test_a_stream_whose_removal_raises_each_time_is_off_the_table(
    owner: type,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noted_faults: list[BaseException],
) -> None:
    js = EngineHarness(FileStore(tmp_path).account("$G"))
    js.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "OTHER"}})
    js.create("OTHER", "OTHER.>")

    def raising(*_: Any) -> Any:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising)
        js.api("STREAM.DELETE.M")
        listed = js.api("STREAM.LIST")
    noted_faults.clear()
    assert [one["config"]["name"] for one in listed["streams"]] == ["OTHER"]
    js.request("$JS.API.STREAM.DELETE.M")
    assert js.api("STREAM.INFO.M")["error"]["err_code"] == NOT_FOUND
    assert js.create("M", "M.>")["did_create"]
    assert js.request("M.x", b"1")["seq"] == 1
    assert js.api("INFO")["storage"] == js.state("M")["bytes"]
