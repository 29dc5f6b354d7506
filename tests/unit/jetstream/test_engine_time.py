"""The engine and time, ticks, failures of the store, advisories, recovery."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.jetstream.deadlines import Deadlines
from penstock.kernels.wire.dispatch import publish
from penstock.store.file import FileStore
from penstock.store.memory import MemoryStreamStore
from tests.support.engine import START_NS, EngineHarness

SECOND = 1_000_000_000
MSG_ID = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"


def test_messages_expire_without_traffic() -> None:
    js = EngineHarness()
    js.create("A", "a", max_age=10 * SECOND)
    for _ in range(3):
        js.request("a", b"x")
        js.now += 4 * SECOND
    counts = []
    for second in (12, 15, 19):
        js.wait_until(START_NS + second * SECOND)
        counts.append(js.state("A")["messages"])
    assert counts == [2, 1, 0]
    assert js.state("A")["first_seq"] == 4


def test_a_stream_that_gets_a_shorter_age_expires_at_once() -> None:
    js = EngineHarness()
    js.create("A", "a")
    js.request("a", b"x")
    js.now += 20 * SECOND
    answer = js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["a"], "max_age": 10 * SECOND})
    assert answer["state"]["messages"] == 0


def test_an_idle_engine_has_no_deadline() -> None:
    js = EngineHarness(sync_interval_ns=SECOND)
    js.create("A", "a", storage="memory")
    assert js.engine.tick.next_deadline() is None
    js.request("a", b"x", MSG_ID % b"1")
    # A sixteenth of the dedupe window later than its end.
    assert js.engine.tick.next_deadline() == START_NS + 127_500_000_000
    js.wait_until(START_NS + 128 * SECOND)
    assert (js.engine.tick.next_deadline(), len(js.engine.streams["A"].ids)) == (None, 0)


class CountingStore(MemoryStreamStore):
    """Counts syncs; fails to write while `full`."""

    syncs = 0
    full = False

    def sync(self) -> None:
        self.syncs += 1

    def start_sync(self, done: Callable[[StoreWriteError | None], object]) -> None:
        self.syncs += 1
        done(None)

    def write(self) -> None:
        if self.full:
            raise StoreWriteError("no space left on device", path="1.blk")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.memory.MemoryStreamStore", CountingStore)


def store_of(js: EngineHarness, name: str) -> CountingStore:
    store = js.engine.streams[name].store
    assert isinstance(store, CountingStore)
    return store


@pytest.mark.usefixtures("counting")
def test_unsynced_writes_are_synced_after_the_interval() -> None:
    js = EngineHarness(sync_interval_ns=60 * SECOND)
    js.create("A", "a")
    js.wait_until(START_NS + 61 * SECOND)
    assert store_of(js, "A").syncs == 1
    js.wait_until(START_NS + 300 * SECOND)
    assert store_of(js, "A").syncs == 1
    js.request("a", b"x")
    js.wait_until(START_NS + 359 * SECOND)
    assert store_of(js, "A").syncs == 1
    js.wait_until(START_NS + 360 * SECOND)
    assert store_of(js, "A").syncs == 2


@pytest.mark.usefixtures("counting")
def test_sync_always_syncs_before_the_ack() -> None:
    js = EngineHarness(sync_always=True)
    js.create("A", "a")
    before = store_of(js, "A").syncs
    js.request("a", b"x")
    assert store_of(js, "A").syncs == before + 1


@pytest.mark.feature("stream.persist-mode")
@pytest.mark.usefixtures("counting")
def test_a_stream_that_persists_asynchronously_acks_before_the_disk_has_it() -> None:
    js = EngineHarness(sync_always=True, sync_interval_ns=60 * SECOND)
    js.create("A", "a", persist_mode="async")
    before = store_of(js, "A").syncs
    assert js.request("a", b"x")["seq"] == 1
    assert store_of(js, "A").syncs == before
    js.wait_until(START_NS + 61 * SECOND)
    assert store_of(js, "A").syncs == before + 1


@pytest.mark.usefixtures("counting")
def test_a_full_disk_refuses_publishes_until_writing_works_again() -> None:
    js = EngineHarness()
    js.create("A", "a")
    js.create("B", "b")
    store_of(js, "A").full = True
    answers = [js.request("a", b"1"), js.request("a", b"2")]
    assert [a["error"]["err_code"] for a in answers] == [10077, 10077]
    assert "no space left" in answers[0]["error"]["description"]
    assert answers[0]["stream"] == "A"
    assert js.request("b", b"x")["seq"] == 1  # the server goes on
    store_of(js, "A").full = False
    js.wait_until(js.now + 2 * SECOND)
    assert js.request("a", b"3") == {"stream": "A", "seq": 2}  # 1 was written late, 2 was never taken


def test_a_consumers_ack_is_confirmed_only_when_its_state_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    js = EngineHarness()
    js.create("A", "a")
    js.request("a", b"x")
    delivered = js.listen(b"deliver")
    config = {"deliver_subject": "deliver", "ack_policy": "explicit", "durable_name": "C"}
    assert "error" not in js.api("CONSUMER.CREATE.A.C", {"stream_name": "A", "config": config})
    assert len(delivered) == 1
    consumer = js.engine.streams["A"].consumers["C"]
    write, full = consumer.write, True

    def write_unless_full() -> None:
        if full:
            raise StoreWriteError("no space left on device")
        write()

    monkeypatch.setattr(consumer, "write", write_unless_full)
    confirmed = js.listen(b"confirmed")
    ack = f"$JS.ACK.A.C.1.1.1.{START_NS}.0".encode()
    publish(js.index, ack, b"confirmed", b"", b"+ACK")
    js.tick()
    assert confirmed == []
    full = False
    js.wait_until(js.now + 2 * SECOND)
    assert len(confirmed) == 1


def test_an_ack_leaves_only_after_the_write() -> None:
    js = EngineHarness()
    js.create("A", "a")
    acks = js.listen(b"ack")
    publish(js.index, b"a", b"ack", b"", b"x")
    js.engine.tick.apply(js.now)
    js.engine.tick.write()
    assert acks == []
    js.engine.tick.acknowledge()
    assert len(acks) == 1


def test_a_tick_is_asked_for_once_and_not_by_the_tick_itself() -> None:
    js = EngineHarness()
    js.create("A", "a")
    wakes = js.wakes
    for _ in range(3):
        publish(js.index, b"a", b"", b"", b"x")
    assert js.wakes == wakes + 1
    js.tick()
    assert js.wakes == wakes + 1


def test_assets_are_announced_to_those_who_listen() -> None:
    js = EngineHarness()
    js.create("QUIET")
    heard = js.listen(b"$JS.EVENT.ADVISORY.STREAM.>")
    audits = js.listen(b"$JS.EVENT.ADVISORY.API")
    js.create("A", "a")
    js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["a"], "description": "d"})
    js.api("STREAM.INFO.A")
    js.api("STREAM.DELETE.A")
    js.api("STREAM.INFO.A")
    events = [(subject.decode(), json.loads(payload)) for subject, _, payload in heard]
    assert [(subject.rpartition("STREAM.")[2], e["action"], e["stream"]) for subject, e in events] == [
        ("CREATED.A", "create", "A"),
        ("UPDATED.A", "modify", "A"),
        ("DELETED.A", "delete", "A"),
    ]
    assert events[0][1]["type"] == "io.nats.jetstream.advisory.v1.stream_action"
    assert {"id", "timestamp"} <= events[0][1].keys()
    bodies = [json.loads(payload) for _, _, payload in audits]
    assert [body["subject"] for body in bodies] == [
        "$JS.API.STREAM.CREATE.A",
        "$JS.API.STREAM.UPDATE.A",
        "$JS.API.STREAM.INFO.A",  # reading is audited too, as with the official server
        "$JS.API.STREAM.DELETE.A",
        "$JS.API.STREAM.INFO.A",
    ]
    assert "error" not in json.loads(bodies[2]["response"])
    assert json.loads(bodies[4]["response"])["error"]["err_code"] == 10059
    assert json.loads(bodies[0]["request"])["name"] == "A"
    assert (bodies[0]["server"], bodies[0]["type"]) == ("srv", "io.nats.jetstream.advisory.v1.api_audit")


# --- recovery ----------------------------------------------------------------------------------


def open_on(tmp_path: Path, now: int = START_NS, **settings: Any) -> tuple[FileStore, EngineHarness]:
    store = FileStore(tmp_path)
    return store, EngineHarness(store.account("$G"), now=now, **settings)


@pytest.mark.parametrize("orderly", [True, False])
def test_streams_come_back_with_messages_and_configuration(tmp_path: Path, orderly: bool) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a.>", max_msgs=3, metadata={"k": "v"}, first_seq=100)
    js.create("M", "m", storage="memory")
    for n in range(5):
        js.now += 1
        js.request(f"a.{n}", b"m%d" % n)
    js.api("STREAM.MSG.DELETE.A", {"seq": 103})
    info = js.api("STREAM.INFO.A", {"deleted_details": True})
    if orderly:
        js.engine.close()
    store.close()  # without the engine's close: as after a kill, only what the ticks wrote
    store, js = open_on(tmp_path, js.now + 7)
    again = js.api("STREAM.INFO.A", {"deleted_details": True})
    assert {k: again[k] for k in ("config", "created", "state")} == {
        k: info[k] for k in ("config", "created", "state")
    }
    assert js.api("STREAM.NAMES")["streams"] == ["A"]
    assert js.request("a.x", b"x") == {"stream": "A", "seq": 105}
    store.close()


def test_message_ids_of_the_window_are_known_after_a_restart(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a", duplicate_window=100 * SECOND)
    for n in range(4):
        js.request("a", b"x", MSG_ID % b"%d" % n)
        js.now += 50 * SECOND
    store.close()
    store, js = open_on(tmp_path, START_NS + 190 * SECOND)
    assert js.request("a", b"x", MSG_ID % b"3") == {"stream": "A", "seq": 4, "duplicate": True}
    assert js.request("a", b"x", MSG_ID % b"2") == {"stream": "A", "seq": 3, "duplicate": True}
    assert js.request("a", b"x", MSG_ID % b"1") == {"stream": "A", "seq": 5}
    expect = b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: 1\r\n\r\n"
    store.close()
    store, js = open_on(tmp_path, START_NS + 191 * SECOND)
    assert js.request("a", b"x", expect) == {"stream": "A", "seq": 6}
    store.close()


def test_what_expired_while_no_server_ran_is_gone(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a", max_age=10 * SECOND)
    js.request("a", b"x")
    store.close()
    store, js = open_on(tmp_path, START_NS + 11 * SECOND)
    assert (js.state("A")["messages"], js.state("A")["first_seq"]) == (0, 2)
    store.close()


def test_a_deleted_stream_stays_deleted(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a")
    js.request("a", b"x")
    js.api("STREAM.DELETE.A")
    store.close()
    store, js = open_on(tmp_path)
    assert js.api("STREAM.NAMES")["streams"] == []
    js.create("A", "a")
    assert js.request("a", b"x")["seq"] == 1
    store.close()


def test_updates_survive_a_restart(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a")
    js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["b"], "max_msgs": 7})
    store.close()
    store, js = open_on(tmp_path)
    assert js.api("STREAM.INFO.A")["config"]["max_msgs"] == 7
    assert js.request("b", b"x")["seq"] == 1
    store.close()


def test_a_stream_that_can_not_be_read_is_offline_and_the_others_work(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a")
    js.create("B", "b")
    js.create("C", "c")
    js.engine.streams["A"].store.save_meta(b'{"from": "the future"}')
    c_store = js.engine.streams["C"].store
    c_store.save_meta(c_store.meta.replace(b'"_nats.req.level":"0"', b'"_nats.req.level":"99"'))
    store.close()
    store, js = open_on(tmp_path)
    assert js.request("b", b"x")["seq"] == 1
    error = js.api("STREAM.INFO.A")["error"]
    assert (error["code"], error["err_code"]) == (500, 10194)
    assert error["description"].startswith("stream is offline: ")
    assert js.api("STREAM.CREATE.A", {"name": "A"})["error"]["err_code"] == 10194
    listed = js.api("STREAM.LIST")
    assert ([s["config"]["name"] for s in listed["streams"]], list(listed["offline"])) == (["B"], ["A", "C"])
    assert listed["offline"]["C"] == "unsupported - required API level: 99, current API level: 5"
    store.close()


def test_consumers_come_back_with_their_stream(tmp_path: Path) -> None:
    store, js = open_on(tmp_path)
    js.create("A", "a")
    config = {"durable_name": "C", "ack_policy": "explicit"}
    assert "error" not in js.api("CONSUMER.CREATE.A.C", {"stream_name": "A", "config": config})
    assert js.state("A")["consumer_count"] == 1
    store.close()
    store, js = open_on(tmp_path)
    assert js.api("CONSUMER.NAMES.A")["consumers"] == ["C"]
    assert js.api("INFO")["consumers"] == 1
    js.api("STREAM.DELETE.A")
    assert js.api("INFO")["consumers"] == 0
    store.close()


# --- deadlines ---------------------------------------------------------------------------------


def test_deadlines_come_in_order_and_can_be_moved() -> None:
    deadlines: Deadlines[str] = Deadlines()
    a, b, c = "a", "b", "c"
    deadlines.set(a, 30)
    deadlines.set(b, 10)
    deadlines.set(c, 20)
    deadlines.set(a, 5)
    deadlines.set(c, None)
    assert deadlines.earliest() == 5
    assert deadlines.take_due(9) == [a]
    assert (deadlines.earliest(), len(deadlines)) == (10, 1)
    assert deadlines.take_due(100) == [b]
    assert deadlines.earliest() is None


def test_deadlines_that_move_often_do_not_pile_up() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in range(10_000):
        deadlines.set("only", at)
    assert len(deadlines._heap) < 200
    assert deadlines.take_due(10_000) == ["only"]
