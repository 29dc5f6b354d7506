"""What the simulation found about mirrors and sources, each told as briefly as it can be."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.jetstream import source_consumer
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.sourcing_ports import SourcingPorts
from penstock.jetstream.stream.source_positions import PositionRecord
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.store.executor import InlineExecutor
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.engine import EngineHarness
from tests.support.simdisks import FailingDisk
from tests.unit.jetstream.test_engine_durability import syncing_engine
from tests.unit.jetstream.test_mirrors import make, payloads, settle

pytestmark = pytest.mark.feature("sourcing.catch-up")


def consumers_of(js: EngineHarness, name: str) -> list[str]:
    found: list[str] = js.api(f"CONSUMER.NAMES.{name}")["consumers"] or []
    return found


def test_num_pending_counts_no_sequence_that_a_mirror_passes_over() -> None:
    js = EngineHarness()
    js.create("O", "o.*")
    make(js, "M", mirror={"name": "O", "filter_subject": "o.1"})
    js.request("o.1", b"x")
    settle(js)
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit"}
    js.api("CONSUMER.CREATE.M.c", {"stream_name": "M", "config": config})
    assert js.api("CONSUMER.INFO.M.c")["num_pending"] == 1
    for n in (0, 1, 0):
        js.request(f"o.{n}", b"x")
    settle(js)
    assert js.api("CONSUMER.INFO.M.c")["num_pending"] == 2


def test_a_work_queue_keeps_what_a_source_never_takes() -> None:
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    for n in range(3):
        js.request("o", b"%d" % n)
    js.create("S", "s", sources=[{"name": "O", "opt_start_seq": 3}])
    settle(js)
    assert payloads(js, "S") == [b"2"] and payloads(js, "O") == [b"0", b"1"]
    [name] = consumers_of(js, "O")
    assert js.api(f"CONSUMER.DELETE.O.{name}")["success"]
    js.request("o", b"3")
    settle(js)
    assert payloads(js, "S") == [b"2", b"3"] and payloads(js, "O") == [b"0", b"1"]


def test_a_work_queue_that_lost_its_end_keeps_what_a_source_never_takes() -> None:
    disk = SimDisk(Random(1))
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"))
    js.create("O", "o", retention="workqueue")
    js.create("S", "s", sources=[{"name": "O", "opt_start_seq": 2}])
    for n in range(2):
        js.request("o", b"%d" % n)
    settle(js)
    disk.root.sync_all()
    fd = disk.open(Path("/store/jetstream/%24G/streams/O/msgs/1.blk"), truncate=True)
    disk.sync(fd)  # a power failure cut the block before its first message
    disk.restart()
    again = EngineHarness(FileStore("/store", disk=disk).account("$G"))
    assert again.state("O")["last_seq"] == 0 and payloads(again, "S") == [b"1"]
    again.request("o", b"2")
    settle(again)
    assert payloads(again, "O") == [b"2"]


def test_nothing_waits_for_a_stream_that_a_restart_forgot(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("O", "o", retention="interest")
    js.create("S", "s", storage="memory", sources=[{"name": "O"}])
    settle(js)
    assert len(consumers_of(js, "O")) == 1
    js.engine.close()
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert consumers_of(js, "O") == []
    js.request("o", b"nobody wants it")
    assert payloads(js, "O") == []


def test_another_source_of_the_same_origin_leaves_the_first_its_consumer() -> None:
    js = EngineHarness()
    js.create("O", "o.*", retention="interest")
    sources = [{"name": "O", "filter_subject": "o.1"}, {"name": "O", "filter_subject": "o.2"}]
    js.create("S", "s", sources=sources[:1])
    settle(js)
    [first] = consumers_of(js, "O")
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": sources})
    settle(js)
    js = js.restart()
    settle(js)
    assert len(consumers_of(js, "O")) == 2 and first in consumers_of(js, "O")
    for n in (1, 2):
        js.request(f"o.{n}", b"%d" % n)
    settle(js)
    assert sorted(payloads(js, "S")) == [b"1", b"2"] and payloads(js, "O") == []


def test_a_sync_that_ends_while_the_consumer_of_an_origin_is_made_does_not_disturb_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_consumer = source_consumer.make

    def make_slowly(ports: SourcingPorts, *about: Any) -> ConsumerReplica:
        js.engine.tick.committed(js.engine.streams["X"])  # making one waits for what the disk has to do
        return make_consumer(ports, *about)

    monkeypatch.setattr(source_consumer, "make", make_slowly)
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    js.create("X", "x")
    js.create("OF_X", "ox", sources=[{"name": "X"}])
    settle(js)
    publish(js.index, b"x", b"", b"", b"x")
    js.create("OF_O", "oo", sources=[{"name": "O"}])
    settle(js)
    assert payloads(js, "OF_X") == [b"x"]


def test_a_sync_that_ends_before_publishes_are_written_lets_no_mirror_copy_them(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("O", "o")
    js.create("S", "s", sources=[{"name": "O"}])
    js.tick()
    later.drain()
    publish(js.index, b"s", b"", b"", b"own")
    js.tick()
    publish(js.index, b"o", b"", b"", b"original")
    publish(js.index, b"$JS.API.INFO", b"_INBOX", b"", b"")  # what came before a request is applied for it
    later.drain()
    js.engine.tick.apply(js.now)
    assert payloads(js, "O") == [b"original"] and payloads(js, "S") == [b"own"]
    for _ in range(3):
        js.tick()
        later.drain()
    assert payloads(js, "S") == [b"own", b"original"]
    js.engine.close()
    store.close()


def test_a_sync_that_ends_before_copies_are_written_leaves_their_originals(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("O", "o", retention="workqueue")
    js.create("S", "s", sources=[{"name": "O"}])
    js.tick()
    later.drain()
    for subject, synced in ((b"s", None), (b"o", 1), (b"o", 0)):
        publish(js.index, subject, b"", b"", b"x")
        js.tick()
        if synced is not None:
            InlineExecutor().run(*later.waiting.pop(synced))
    publish(js.index, b"$JS.API.INFO", b"_INBOX", b"", b"")
    assert len(payloads(js, "S")) == 2  # its own and a copy, which is not written
    later.drain()
    js.tick()
    assert js.engine.streams["S"].durability.is_syncing and len(payloads(js, "O")) == 2
    for _ in range(4):
        js.tick()
        later.drain()
    assert len(payloads(js, "S")) == 3 and payloads(js, "O") == []
    js.engine.close()
    store.close()


def test_a_note_that_power_loss_made_void_does_not_come_back_with_the_next_power_loss() -> None:
    disk = SimDisk(Random(1))

    def started() -> StreamReplica:
        js = EngineHarness(FileStore("/store", disk=disk).account("$G"))
        if "S" not in js.engine.streams:
            js.create("S", "s", sources=[{"name": "O"}])
        return js.engine.streams["S"]

    notes = started().store.open_positions()
    notes.append(msgspec.json.encode(PositionRecord(2, {"O > >": (2, "id")})))
    notes.write()
    notes.sync()
    disk.lose_power(all_of_it=True)  # the two messages that it speaks of are not there
    stream = started()
    for seq in (3, 4):
        header = headers.build([(headers.STREAM_SOURCE, f"O {seq} > > o id")])
        stream.log.append(b"o", header, b"", seq)
    stream.store.write()
    msgs = Path("/store/jetstream/%24G/streams/S/msgs")
    for name in disk.names(msgs):
        disk.sync(disk.open(msgs / name))
    disk.sync_directory(msgs)
    disk.lose_power(all_of_it=True)
    assert started().sources.states[0].seq == 4


def test_a_source_that_is_removed_and_added_again_goes_on_where_it_stopped() -> None:
    js = EngineHarness()
    js.create("O", "o")
    js.create("P", "p")
    js.create("S", "s", sources=[{"name": "O"}])
    for n in (1, 2):
        js.request("o", b"%d" % n)
        settle(js)
    publish(js.index, b"o", b"", b"", b"3")
    js.tick()  # reads it; its copy is stored right before the update, and not written
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": [{"name": "P"}]})
    js.request("p", b"other")
    settle(js)
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": [{"name": "O"}]})
    settle(js)
    assert payloads(js, "S") == [b"1", b"2", b"3", b"other"]


def test_a_source_whose_note_power_loss_made_void_goes_on_where_it_stopped() -> None:
    """It was removed before the power loss, and other sources are noted after it."""
    js = EngineHarness()
    for name in "OPQ":
        js.create(name, name.lower())
    js.create("S", "s", sources=[{"name": "P"}])
    header = headers.build([(headers.STREAM_SOURCE, f"O 1 > > o {js.engine.streams['O'].identity}")])
    js.request("o", b"1")
    stream = js.engine.streams["S"]
    stream.log.append(b"o", header, b"1", js.now)  # of a source that it no longer has
    stream.store.write()
    js = js.restart()
    settle(js)
    js.request("p", b"other")
    settle(js)
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": [{"name": "Q"}]})
    js.request("q", b"third")
    settle(js)
    js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": [{"name": "O"}]})
    settle(js)
    assert payloads(js, "S") == [b"1", b"other", b"third"]


def test_a_work_queue_lets_go_what_one_source_took_when_the_other_one_is_gone() -> None:
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    js.create("M", subjects=[], mirror={"name": "O"})
    settle(js)
    js.create("S", "s", sources=[{"name": "O"}], max_msgs=1, discard="new")
    js.request("s", b"full")
    settle(js)
    js.request("o", b"taken by the mirror")
    settle(js)
    assert payloads(js, "O") == [b"taken by the mirror"]
    js.api("STREAM.DELETE.S")
    settle(js)
    assert payloads(js, "O") == []


def test_an_update_that_the_disk_refused_leaves_the_stream_its_sources() -> None:
    """The positions of sources have a file of their own, which is opened first for the new source."""
    operation, answer = 0, {"error": {}}
    while "error" in answer:
        operation += 1
        disk = FailingDisk(Random(1))
        js = EngineHarness(FileStore("/store", disk=disk).account("$G"))
        for name in ("O", "P"):
            js.create(name)
        js.create("T", sources=[{"name": "O"}])
        disk.fails_in = operation
        answer = js.api("STREAM.UPDATE.T", {"name": "T", "sources": [{"name": "P"}]})
        disk.fails_in = 0
        known = "O" if "error" in answer else "P"
        assert [one["name"] for one in js.api("STREAM.INFO.T")["config"]["sources"]] == [known]
        js.request(known, b"x")
        for _ in range(5):
            js.tick()
        assert js.state("T")["messages"] == 1, operation
    assert operation > 5
