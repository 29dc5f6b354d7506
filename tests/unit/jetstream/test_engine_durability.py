"""`sync: always` with group commit, and disks that are full or fail, as an engine sees them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.jetstream.commit import LocalCommit
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.durability import Durability
from penstock.jetstream.engine import SharedState
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.store.disk import LocalDisk
from penstock.store.executor import InlineExecutor
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness
from tests.support.simdisks import FailingDisk

pytestmark = pytest.mark.feature("stream.sync-interval")

SECOND = 1_000_000_000


class Later:
    """Background work that waits until the test does it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, Any], None], object]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any, Any], None], owner: object) -> None:
        self.waiting.append((work, done, owner))

    def complete_one(self, owner: object) -> bool:
        own = [one for one in self.waiting if one[2] is owner]
        for one in own[:1]:
            self.waiting.remove(one)
            InlineExecutor().run(*one)
        return bool(own)

    def drain(self) -> None:
        while self.waiting:
            InlineExecutor().run(*self.waiting.pop(0))


def syncing_engine(
    tmp_path: Path, *, shared: SharedState | None = None
) -> tuple[Later, FileStore, EngineHarness]:
    later = Later()
    store = FileStore(tmp_path, executor=later)
    return later, store, EngineHarness(store.account("$G"), shared=shared, sync_always=True)


def acks(heard: list[Any]) -> list[Any]:
    return [json.loads(payload) for _, _, payload in heard]


def test_acks_wait_for_a_sync_which_covers_all_that_arrived_meanwhile(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    js.create("B", "b")
    later.drain()
    heard = js.listen(b"ack.*")
    publish(js.index, b"a", b"ack.1", b"", b"one")
    js.tick()
    assert len(later.waiting) == 1 and heard == []
    for n in (2, 3, 4):
        publish(js.index, b"a", b"ack.%d" % n, b"", b"more")
        js.tick()
    publish(js.index, b"b", b"ack.b", b"", b"another stream goes on")
    js.tick()
    assert len(later.waiting) == 2 and heard == []
    InlineExecutor().run(*later.waiting.pop())
    assert acks(heard) == [{"stream": "B", "seq": 1}]
    later.drain()
    assert [subject for subject, _, _ in heard[1:]] == [b"ack.1"]
    js.tick()
    assert len(heard) == 2 and len(later.waiting) == 1
    later.drain()
    assert [answer["seq"] for answer in acks(heard)[1:]] == [1, 2, 3, 4]
    js.engine.close()
    store.close()


def test_consumers_get_nothing_that_is_not_on_the_disk(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    config = {"deliver_subject": "out", "ack_policy": "none", "name": "c"}
    heard = js.listen(b"out")
    answer = js.api("CONSUMER.CREATE.A.c", {"stream_name": "A", "config": config})
    assert "error" not in answer
    later.drain()
    publish(js.index, b"a", b"", b"", b"one")
    for _ in range(3):
        js.tick()
    assert heard == []
    later.drain()
    assert [payload for _, _, payload in heard] == [b"one"]
    js.engine.close()
    store.close()


def test_a_consumer_whose_wait_for_a_sync_raises_holds_up_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    later, store, js = syncing_engine(tmp_path)
    heard = js.listen(b"out.*")
    for name in ("A", "B"):
        js.create(name, name.lower())
        later.drain()
        config = {"deliver_subject": f"out.{name}", "name": "c", "mem_storage": True}
        config |= {"ack_policy": "explicit", "ack_wait": SECOND}
        answer = js.api(f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": config})
        assert "error" not in answer
        publish(js.index, name.lower().encode(), b"", b"", b"one")
        js.tick()
        later.drain()
        js.tick()
    assert [subject for subject, _, _ in heard] == [b"out.A", b"out.B"]
    wait = Deferrals.defer_consumer

    def broken(deferrals: Deferrals, consumer: ConsumerReplica) -> None:
        if consumer.stream.name == "A":
            raise RuntimeError("injected")
        wait(deferrals, consumer)

    monkeypatch.setattr(Deferrals, "defer_consumer", broken)
    publish(js.index, b"a", b"", b"", b"two")
    js.tick()
    assert js.engine.streams["A"].durability.is_syncing
    heard.clear()
    js.wait_until(js.now + 2 * SECOND)  # both are to deliver again
    assert heard and {subject for subject, _, _ in heard} == {b"out.B"}
    assert list(js.engine.streams["A"].consumers) == [], "it is set aside"
    assert {str(one) for one in noted_faults} == {"injected"}
    noted_faults.clear()
    later.drain()
    js.engine.close()
    store.close()


def test_requests_wait_for_the_sync_and_see_what_was_published_before(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    publish(js.index, b"a", b"", b"", b"one")
    js.tick()
    publish(js.index, b"a", b"", b"", b"two")
    heard = js.messages("$JS.API.STREAM.INFO.A")
    assert heard == []
    while later.waiting:
        later.drain()
        js.tick()
    assert json.loads(heard[0][2])["state"]["messages"] == 2
    assert js.api("STREAM.MSG.DELETE.A", {"seq": 1})["success"]  # synced before it is answered
    assert later.waiting == []
    js.engine.close()
    store.close()


@pytest.mark.parametrize(
    "part", [(LocalCommit, "_committed"), (Durability, "sync_ended"), (Durability, "_on")],
    ids=lambda part: part[1],
)  # fmt: skip
def test_a_fault_at_the_end_of_a_sync_does_not_block_requests_for_other_streams(
    part: tuple[type, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noted_faults: list[BaseException],
) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    js.create("B", "b")
    later.drain()
    publish(js.index, b"a", b"", b"", b"one")
    js.tick()
    heard = js.listen(b"info")
    publish(js.index, b"$JS.API.STREAM.INFO.B", b"info", b"", b"")
    js.tick()
    assert heard == []

    owner, name = part
    whole = getattr(owner, name)

    def finish(*args: object) -> None:
        monkeypatch.setattr(owner, name, whole)
        raise RuntimeError("injected")

    monkeypatch.setattr(owner, name, finish)
    wakes = js.wakes
    later.drain()
    assert str(noted_faults.pop()) == "injected"
    assert js.wakes > wakes
    js.tick()
    assert not js.engine.commit.in_flight and list(js.engine.offline) == ["A"]
    assert json.loads(heard[0][2])["config"]["name"] == "B"
    publish(js.index, b"b", b"", b"", b"one")
    js.tick()
    assert js.engine.commit.in_flight
    js.engine.close()
    store.close()


def test_a_failed_sync_refuses_what_waited_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    heard = js.listen(b"ack")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    publish(js.index, b"a", b"ack", b"", b"one")
    js.tick()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        later.drain()
    assert acks(heard)[0]["error"]["err_code"] == 10077
    assert "Input/output error" in acks(heard)[0]["error"]["description"]
    publish(js.index, b"a", b"ack", b"", b"refused meanwhile")
    js.tick()
    later.drain()
    assert acks(heard)[1]["error"]["err_code"] == 10077
    js.wait_until(js.now + 2 * SECOND)
    later.drain()
    publish(js.index, b"a", b"ack", b"", b"two")
    js.tick()
    later.drain()
    assert acks(heard)[2] == {"stream": "A", "seq": 2}
    js.engine.close()
    store.close()


class FullDisk:
    """os.pwrite with so many bytes of room; removed files give none back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.error = OSError(28, "No space left on device")
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.room is None:
            return self._pwrite(fd, data, offset)
        if self.room == 0 and len(data):
            raise self.error
        count = min(self.room, len(data))
        self.room -= count
        return self._pwrite(fd, bytes(data[:count]), offset)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "Input/output error")])
def test_a_disk_that_refuses_writes_costs_no_acked_message_and_is_got_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("A", "a.>")
    js.create("B", "b", storage="memory")
    config = {"durable_name": "c", "ack_policy": "explicit"}
    js.api("CONSUMER.DURABLE.CREATE.A.c", {"stream_name": "A", "config": config})
    kept = {js.request("a.x", b"%d" % n)["seq"]: b"%d" % n for n in range(50)}
    full = FullDisk(monkeypatch)
    full.error, full.room = error, 20  # less than a record
    refused = js.request("a.x", b"refused")
    assert (refused["error"]["code"], refused["error"]["err_code"]) == (503, 10077)
    assert error.strerror in refused["error"]["description"]
    assert js.request("a.x", b"refused again")["error"]["err_code"] == 10077
    assert js.request("b", b"memory needs no disk")["seq"] == 1
    assert js.api("STREAM.MSG.DELETE.A", {"seq": 3})["error"]["err_code"] == 10057
    assert js.api("STREAM.PURGE.A", {"seq": 10})["error"]["err_code"] == 10110
    assert "error" in js.api("STREAM.CREATE.C", {"name": "C", "subjects": ["c"]})
    pulled = js.listen(b"pulled")
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.A.c", b"pulled", b"", b'{"batch":3,"no_wait":true}')
    js.tick()
    assert len(pulled) == 3 and js.state("A")["messages"] >= 40
    full.room = None
    js.wait_until(js.now + 2 * SECOND)
    after = js.request("a.x", b"after")
    assert "error" not in after
    kept = {seq: payload for seq, payload in kept.items() if seq >= 10} | {after["seq"]: b"after"}
    store.abandon()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    log = js.engine.streams["A"].log
    assert {seq: message.payload for seq in kept if (message := log.load(seq)) is not None} == kept
    assert log.load(3) is None and "error" not in js.api("CONSUMER.INFO.A.c")
    store.close()


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "a.*"}])
def test_what_a_full_disk_did_not_take_is_delivered_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: dict[str, str]
) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("A", "a.>")
    config = {"durable_name": "c", "ack_policy": "explicit", **filters}
    js.api("CONSUMER.DURABLE.CREATE.A.c", {"stream_name": "A", "config": config})
    for n in range(2):
        js.request("a.x", b"%d" % n)
    full = FullDisk(monkeypatch)
    full.room = 0
    assert "error" in js.request("a.x", b"2")
    pulled = js.listen(b"pulled")
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.A.c", b"pulled", b"", b'{"batch":3}')
    for _ in range(3):
        js.tick()
    assert [payload for _, _, payload in pulled] == [b"0", b"1"]
    full.room = None
    js.wait_until(js.now + 2 * SECOND)
    assert [payload for _, _, payload in pulled] == [b"0", b"1", b"2"]
    js.engine.close()
    store.close()


@pytest.mark.parametrize("header", [b"", b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"])
def test_refused_messages_replace_none_that_were_acked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bytes
) -> None:
    """However many blocks of acked messages a limit, or a roll-up, drops for what the disk refuses."""
    store = FileStore(tmp_path, block_size=500)
    js = EngineHarness(store.account("$G"))
    js.create("A", "a", max_msgs=30, allow_rollup_hdrs=True)
    for n in range(30):
        js.request("a", b"%d" % n * 20)
    full = FullDisk(monkeypatch)
    full.room = 0
    heard = js.listen(b"ack")
    for _ in range(40):
        publish(js.index, b"a", b"ack", header, b"refused")
    js.tick()
    assert [ack["error"]["err_code"] for ack in acks(heard)] == [10077] * 40
    for _ in range(3):  # tries again, without more luck
        js.wait_until(js.now + 2 * SECOND)
    store.abandon()
    full.room = None
    store = FileStore(tmp_path, block_size=500)
    log = EngineHarness(store.account("$G")).engine.streams["A"].log
    assert [log.load(seq) is not None for seq in range(1, 31)] == [True] * 30
    assert log.last_seq == 30
    store.close()


def test_a_full_disk_keeps_schedules_until_what_they_make_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves the stream with the message that it makes; its block makes no room for that."""
    store = FileStore(tmp_path, block_size=300)
    js = EngineHarness(store.account("$G"))
    js.create("A", "a.>", allow_msg_schedules=True)
    at = f"@at {format_time(js.now + 10 * SECOND)}"
    for n in range(8):
        block = headers.build([("Nats-Schedule", at), ("Nats-Schedule-Target", f"a.made.{n}")])
        assert "error" not in js.request(f"a.{n}", b"." * 200, block)
    full = FullDisk(monkeypatch)
    full.room = 0
    for _ in range(3):  # tries again, without more luck
        js.wait_until(js.now + 11 * SECOND)
    store.abandon()
    full.room = None
    store = FileStore(tmp_path, block_size=300)
    js = EngineHarness(store.account("$G"), now=js.now)
    js.wait_until(js.now + SECOND)
    made = js.engine.streams["A"].log.subjects()
    assert made == {b"a.made.%d" % n: 1 for n in range(8)}
    store.close()


def test_a_purge_makes_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path, block_size=2000)
    js = EngineHarness(store.account("$G"))
    js.create("A", "a")
    for n in range(200):
        js.request("a", b"%d" % n * 20)
    before = len(list(tmp_path.glob("**/*.blk")))
    full = FullDisk(monkeypatch)
    full.room = 0
    assert js.request("a", b"refused")["error"]["err_code"] == 10077
    assert "error" in js.api("STREAM.PURGE.A")
    assert len(list(tmp_path.glob("**/*.blk"))) <= 2 < before
    full.room = None
    js.wait_until(js.now + 2 * SECOND)
    last = js.request("a", b"after")["seq"]
    store.abandon()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    state = js.state("A")
    assert (state["messages"], state["last_seq"]) == (1, last)
    store.close()


def test_what_a_schedule_makes_while_its_stream_is_synced_waits_for_a_sync_of_its_own(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a.*", allow_msg_schedules=True, republish={"src": "a.made", "dest": "out"})
    at = format_time(js.now + SECOND)
    header = headers.build([(headers.SCHEDULE, f"@at {at}"), (headers.SCHEDULE_TARGET, "a.made")])
    publish(js.index, b"a.s", b"", header, b"x")
    js.tick()
    later.drain()
    publish(js.index, b"a.other", b"", b"", b"y")
    js.tick()
    heard = js.listen(b"out")
    js.now += 2 * SECOND
    js.engine.tick.on_time(js.now)
    later.drain()
    assert heard == []
    js.tick()
    later.drain()
    assert [payload for _, _, payload in heard] == [b"x"]
    js.engine.close()
    store.close()


def test_a_stream_does_not_change_while_its_messages_are_sent(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    raised: list[str] = []

    def re_enter(*_: object) -> None:
        for enter in (lambda: js.engine.tick.apply(js.now), js.engine.tick.write):
            with pytest.raises(RuntimeError, match="while their messages are sent") as error:
                enter()
            raised.append(str(error.value))

    js.index.insert(SinkSubscription(ServiceSink(re_enter), b"ack"))
    publish(js.index, b"a", b"ack", b"", b"one")
    js.tick()
    later.drain()
    assert len(raised) == 2
    js.tick()
    assert js.state("A")["messages"] == 1
    js.engine.close()
    store.close()


def test_a_sync_that_ends_while_messages_are_sent_is_followed_by_its_acks_in_the_next_tick(
    tmp_path: Path,
) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    heard = js.listen(b"ack")
    publish(js.index, b"a", b"ack", b"", b"one")
    js.tick()
    with js.engine.tick.routing:
        later.drain()
        assert heard == []
    js.tick()
    assert [json.loads(payload)["seq"] for _, _, payload in heard] == [1]
    js.engine.close()
    store.close()


def test_a_fault_at_the_start_of_a_sync_does_not_block_requests_for_other_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    js.create("B", "b")
    later.drain()

    def fail(*args: object, **more: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(js.engine.overflow, "bound", fail)
        publish(js.index, b"a", b"", b"", b"one")
        js.tick()
    assert str(noted_faults.pop()) == "injected"
    assert list(js.engine.offline) == ["A"] and not js.engine.commit.in_flight
    assert js.api("STREAM.INFO.B")["config"]["name"] == "B"
    js.engine.close()
    store.close()


def test_what_a_failed_periodic_sync_covered_is_on_the_disk_after_the_next_one() -> None:
    disk = FailingDisk(Random(1))
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"), sync_interval_ns=20 * SECOND)
    js.create("A", "a")
    js.request("a", b"x")
    disk.fails_at = "sync"
    for _ in range(2):
        js.wait_until(js.now + 21 * SECOND)
    assert not disk.fails_at
    disk.lose_power(all_of_it=True)
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"), now=js.now)
    assert js.state("A")["messages"] == 1


def test_what_a_failed_write_kept_is_republished_when_a_failed_periodic_sync_wrote_it() -> None:
    disk = FailingDisk(Random(1))
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"), sync_interval_ns=20 * SECOND)
    js.create("A", "a", republish={"src": ">", "dest": "rp.>"})
    again = js.listen(b"rp.a")
    js.request("a", b"1")
    js.now = js.engine.commit.sync_due or 0
    disk.fails_at = "write"
    assert "error" in js.request("a", b"2")
    disk.fails_at = "sync"
    js.engine.tick.on_time(js.now)
    js.tick()
    assert [payload for _, _, payload in again] == [b"1", b"2"]


# -- the end


@pytest.mark.feature("stream.storage")
def test_an_engine_syncs_the_directories_of_its_consumers_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("S", "S.>")
    for n in range(20):
        config = {"durable_name": f"c{n}", "ack_policy": "explicit"}
        js.api(f"CONSUMER.DURABLE.CREATE.S.c{n}", {"stream_name": "S", "config": config})
    synced: Counter[str] = Counter()
    sync_directory = LocalDisk.sync_directory

    def note(self: LocalDisk, path: Path) -> None:
        synced[path.name] += 1
        sync_directory(self, path)

    monkeypatch.setattr(LocalDisk, "sync_directory", note)
    js.engine.close()
    assert synced["consumers"] == 1 and {synced[f"c{n}"] for n in range(20)} == {1}
    store.close()
