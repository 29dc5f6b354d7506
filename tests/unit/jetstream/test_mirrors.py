"""Mirrors and sources in an engine of the test's own: what they hold, when they read, and what a crash
leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream import sourcing
from penstock.jetstream.stream.source_positions import PositionRecord
from penstock.kernels.log.stream_log import StoredRecord
from penstock.kernels.wire.dispatch import publish
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness
from tests.support.examples import examples
from tests.unit.jetstream.test_engine_durability import syncing_engine

pytestmark = pytest.mark.feature("sourcing.mirror", "sourcing.sources")

SECOND = 1_000_000_000


def make(js: EngineHarness, name: str, **settings: Any) -> Any:
    """STREAM.CREATE of a stream without subjects of its own."""
    answer = js.api(f"STREAM.CREATE.{name}", {"name": name, **settings})
    assert "error" not in answer, answer
    return answer


def content(js: EngineHarness, name: str) -> dict[int, StoredRecord]:
    log = js.engine.streams[name].log
    found = [log.load(seq) for seq in range(1, log.last_seq + 1)]
    return {message.seq: message for message in found if message is not None}


def payloads(js: EngineHarness, name: str) -> list[bytes]:
    return [message.payload for message in content(js, name).values()]


def settle(js: EngineHarness) -> None:
    """Ticks until no part asks for another one."""
    for _ in range(1000):
        before = js.wakes
        js.tick()
        if js.wakes == before:
            return
    raise AssertionError("it never comes to rest")


def origin_info(js: EngineHarness, name: str) -> Any:
    info = js.api(f"STREAM.INFO.{name}")
    return info["mirror"] if "mirror" in info else info["sources"]


# --- what a mirror holds -------------------------------------------------------------------------

actions = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(["a", "b", "c.d"]), st.binary(max_size=6)),
    st.tuples(st.just("rollup"), st.sampled_from(["a", "b"]), st.sampled_from(["sub", "all"])),
    st.tuples(st.just("delete"), st.integers(1, 30), st.none()),
    st.tuples(st.just("purge"), st.sampled_from(["a", ""]), st.integers(0, 30)),
    st.tuples(st.just("tick"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


def act(js: EngineHarness, action: tuple[str, Any, Any]) -> EngineHarness:
    kind, one, other = action
    js.now += 1000
    if kind == "publish":
        publish(js.index, b"o." + one.encode(), b"", b"", other)
    elif kind == "rollup":
        header = b"NATS/1.0\r\nNats-Rollup: %s\r\n\r\n" % other.encode()
        publish(js.index, b"o." + one.encode(), b"", header, b"rolled")
    elif kind == "delete":
        js.api("STREAM.MSG.DELETE.O", {"seq": one})
    elif kind == "purge":
        js.api("STREAM.PURGE.O", {"filter": f"o.{one}", "seq": other} if one else {"seq": other})
    elif kind == "restart":
        js.tick()
        return js.restart()
    js.tick()
    return js


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(actions, max_size=40))
def test_a_mirror_ends_with_what_its_origin_held_by_sequence_and_bytes(
    script: list[tuple[str, Any, Any]],
) -> None:
    js = EngineHarness()
    js.create("O", "o.>", allow_rollup_hdrs=True)
    make(js, "M", mirror={"name": "O"})
    make(js, "SAME", mirror={"name": "O"}, allow_rollup_hdrs=True)
    held: dict[int, StoredRecord] = {}
    for action in script:
        js = act(js, action)
        held |= content(js, "O")
    settle(js)
    original = content(js, "O")
    make(js, "LATE", mirror={"name": "O"})
    settle(js)
    assert content(js, "LATE") == original
    if original:
        assert js.engine.streams["LATE"].log.bytes == js.engine.streams["O"].log.bytes
        assert js.engine.streams["LATE"].log.first_seq == js.engine.streams["O"].log.first_seq
    for name in ("M", "SAME"):
        mirrored = content(js, name)
        # What the origin lost after it was read stays; nothing was ever there that the origin did not have.
        assert mirrored.items() <= held.items()
        if name == "M":
            assert original.items() <= mirrored.items()
        if original:
            assert js.engine.streams[name].log.last_seq >= max(original)
    # The origin's removals by rollup reach a mirror that allows them.
    rolled = [seq for seq, one in content(js, "SAME").items() if b"Rollup: all" in one.header]
    assert not rolled or min(content(js, "SAME")) == max(rolled)


def test_a_mirror_of_a_changed_subject_keeps_the_sequence() -> None:
    js = EngineHarness()
    js.create("O", "o.*")
    transforms = [{"src": "o.*", "dest": "t.{{wildcard(1)}}"}]
    make(
        js,
        "M",
        mirror={"name": "O", "subject_transforms": transforms},
        subject_transform={"src": "t.b", "dest": "own.b"},
    )
    for subject in ("o.a", "o.b"):
        js.request(subject, b"x")
    settle(js)
    assert {seq: one.subject for seq, one in content(js, "M").items()} == {1: b"t.a", 2: b"own.b"}


def test_two_starts_contradict_each_other() -> None:
    js = EngineHarness()
    mirror = {"name": "O", "opt_start_seq": 1, "opt_start_time": "2024-01-01T00:00:00Z"}
    refused = js.api("STREAM.CREATE.M", {"name": "M", "mirror": mirror})
    assert refused["error"]["err_code"] == 10032


# --- when it reads -------------------------------------------------------------------------------


def test_a_mirror_that_catches_up_takes_a_bounded_slice_of_each_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sourcing, "SLICE_BYTES", 10_000)
    js = EngineHarness()
    js.create("O", "o")
    for _ in range(300):
        publish(js.index, b"o", b"", b"", b"x" * 1000)
    js.tick()
    for name in ("M1", "M2"):
        make(js, name, mirror={"name": "O"})
    js.create("BUSY", "busy")

    def held() -> list[int]:
        return [js.engine.streams[name].log.last_seq for name in ("M1", "M2")]

    ticks, before = 0, held()
    while held() != [300, 300]:
        assert js.request("busy", b"x")["stream"] == "BUSY"  # served in the very tick
        ticks += 1
        assert sum(held()) - sum(before) <= 24  # of two ticks
        assert abs(held()[0] - held()[1]) <= 24  # round robin
        before = held()
        js.engine.tick.apply(js.now)
        assert origin_info(js, "M1")["lag"] <= 300 - before[0]
    assert ticks > 20
    settle(js)
    assert origin_info(js, "M1")["lag"] == 0


def test_an_idle_origin_counts_as_heard_from_every_second() -> None:
    js = EngineHarness()
    make(js, "M", mirror={"name": "O"})
    settle(js)
    assert origin_info(js, "M")["active"] == -1
    assert origin_info(js, "M")["error"]["err_code"] == 10059
    js.create("O", "o")
    js.request("o", b"x")
    settle(js)
    js.now += 3 * SECOND + 5
    assert origin_info(js, "M") == {"name": "O", "lag": 0, "active": 5}
    js.api("STREAM.DELETE.O")
    info = origin_info(js, "M")
    assert (info["active"], info["error"]["err_code"]) == (3 * SECOND + 5, 10059)
    assert payloads(js, "M") == [b"x"]


def test_an_origin_made_again_is_mirrored_from_where_the_mirror_stands() -> None:
    js = EngineHarness()
    js.create("O", "o")
    make(js, "M", mirror={"name": "O"})
    for n in range(3):
        js.request("o", b"%d" % n)
    settle(js)
    js.api("STREAM.DELETE.O")
    js.create("O", "o")
    for n in range(5):
        js.request("o", b"new%d" % n)
    settle(js)
    assert payloads(js, "M") == [b"0", b"1", b"2", b"new3", b"new4"]


def test_what_a_stream_has_no_room_for_is_tried_again() -> None:
    js = EngineHarness()
    js.create("O", "o")
    make(js, "M", mirror={"name": "O"}, discard="new", max_msgs=2)
    for n in range(4):
        js.request("o", b"%d" % n)
    settle(js)
    assert payloads(js, "M") == [b"0", b"1"]
    assert origin_info(js, "M")["lag"] == 2
    assert origin_info(js, "M")["error"]["err_code"] == 10077
    js.api("STREAM.PURGE.M")
    settle(js)
    assert payloads(js, "M") == []
    js.wait_until(js.now + 3 * SECOND)
    settle(js)
    assert payloads(js, "M") == [b"2", b"3"]
    assert "error" not in origin_info(js, "M")


def test_a_rejection_that_repeats_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    js = EngineHarness()
    js.create("O", "o")
    make(js, "M", mirror={"name": "O"}, discard="new", max_msgs=1)
    for _ in range(3):
        js.request("o", b"x")
    js.wait_until(js.now + 60 * SECOND)
    settle(js)
    logged = [one for one in caplog.records if "messages from O are rejected" in one.getMessage()]
    assert len(logged) == 1


def test_a_mirror_keeps_times_and_its_own_max_age() -> None:
    js = EngineHarness()
    js.create("O", "o")
    make(js, "M", mirror={"name": "O"}, max_age=10 * SECOND)
    js.request("o", b"old")
    js.wait_until(js.now + 4 * SECOND)
    make(js, "LATE", mirror={"name": "O"}, max_age=10 * SECOND)
    settle(js)
    assert content(js, "LATE") == content(js, "O")
    js.wait_until(js.now + 7 * SECOND)
    assert payloads(js, "M") == payloads(js, "LATE") == []
    assert payloads(js, "O") == [b"old"]


def test_a_mirror_of_an_interest_stream_keeps_the_sequences_that_no_consumer_wants() -> None:
    js = EngineHarness()
    js.create("O", "o.*")
    make(js, "M", mirror={"name": "O"}, retention="interest")
    config = {"name": "c", "durable_name": "c", "filter_subject": "o.1", "ack_policy": "explicit"}
    js.api("CONSUMER.CREATE.M.c.o.1", {"stream_name": "M", "config": config})
    for n in range(4):
        js.request(f"o.{n % 2}", b"%d" % n)
    settle(js)
    assert {seq: one.payload for seq, one in content(js, "M").items()} == {2: b"1", 4: b"3"}
    assert js.engine.streams["M"].log.last_seq == 4


def test_a_mirror_that_is_far_behind_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcing, "SLICE_BYTES", 1)
    js = EngineHarness()
    js.create("O", "o", allow_direct=True)
    make(js, "M", mirror={"name": "O"})
    for _ in range(20):
        publish(js.index, b"o", b"", b"", b"x")
    js.tick()
    js.api("STREAM.UPDATE.O", {"name": "O", "subjects": ["o"]})
    [(_, header, _)] = js.messages("$JS.API.DIRECT.GET.O.o")
    assert b"503" in header
    settle(js)
    [(_, header, payload)] = js.messages("$JS.API.DIRECT.GET.O.o")
    assert b"Nats-Stream: M" in header and payload == b"x"


# --- sources -------------------------------------------------------------------------------------


def test_sources_keep_their_order_and_go_on_after_a_restart() -> None:
    js = EngineHarness()
    for name in ("A", "B"):
        js.create(name, name.lower())
    js.create("S", "s", sources=[{"name": "A"}, {"name": "B"}])
    for n in range(6):
        js.request("ab"[n % 2], b"%d" % n)
        if n == 3:
            js = js.restart()
    settle(js)
    got = payloads(js, "S")
    assert sorted(got) == [b"%d" % n for n in range(6)]
    assert [one for one in got if int(one) % 2 == 0] == [b"0", b"2", b"4"]
    assert [one["seq"] for one in origin_info(js, "S")] == [3, 3]


def test_a_work_queue_that_was_emptied_sources_nothing_twice() -> None:
    js = EngineHarness()
    js.create("O", "o")
    make(js, "Q", sources=[{"name": "O"}], retention="workqueue")
    for n in range(3):
        js.request("o", b"%d" % n)
    settle(js)
    js.api("STREAM.PURGE.Q")
    js = js.restart()
    js.request("o", b"3")
    settle(js)
    assert payloads(js, "Q") == [b"3"]


def test_a_broken_counter_holds_its_source_up_and_no_other() -> None:
    js = EngineHarness()
    js.create("BAD", "bad.*")
    js.create("GOOD", "good.*", allow_msg_counter=True)
    transforms = [{"src": "good.*", "dest": "s.{{wildcard(1)}}"}]
    sources = [{"name": "BAD"}, {"name": "GOOD", "subject_transforms": transforms}]
    js.create("S", "s.*", sources=sources, allow_msg_counter=True)
    js.request("bad.x", b"no counter")
    js.request("good.x", b"", b"NATS/1.0\r\nNats-Incr: 7\r\n\r\n")
    settle(js)
    assert payloads(js, "S") == [b'{"val":"7"}']
    errors = {one["name"]: one.get("error", {}).get("err_code") for one in origin_info(js, "S")}
    assert errors == {"BAD": 10169, "GOOD": None}


def test_ttls_and_markers_pass_through() -> None:
    js = EngineHarness()
    js.create("O", "o", allow_msg_ttl=True, subject_delete_marker_ttl=5 * SECOND)
    js.create("S", "s", sources=[{"name": "O"}], allow_msg_ttl=True)
    js.create("PLAIN", "plain", sources=[{"name": "O"}])
    js.request("o", b"x", b"NATS/1.0\r\nNats-TTL: 6s\r\n\r\n")
    settle(js)
    assert payloads(js, "S") == [b"x"]
    js.wait_until(js.now + 7 * SECOND)
    settle(js)
    # Its own copy expired, and the origin's marker came.
    (marker,) = content(js, "S").values()
    assert b"Nats-Marker-Reason: MaxAge" in marker.header and marker.payload == b""
    js.wait_until(js.now + 6 * SECOND)
    assert payloads(js, "S") == [] and len(payloads(js, "PLAIN")) == 2


def test_sources_get_nothing_that_is_not_on_the_disk(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("O", "o")
    js.create("S", "s", sources=[{"name": "O"}])
    later.drain()
    publish(js.index, b"o", b"", b"", b"x")
    for _ in range(5):
        js.tick()
    assert js.engine.streams["O"].durability.is_syncing and payloads(js, "S") == []
    for _ in range(5):
        later.drain()
        js.tick()
    assert payloads(js, "S") == [b"x"]
    later.drain()
    js.engine.close()
    store.close()


def test_a_work_queue_keeps_what_is_not_on_the_targets_disk_yet(tmp_path: Path) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("O", "o", retention="workqueue", storage="memory")
    js.create("S", "s", sources=[{"name": "O"}])
    later.drain()
    for _ in range(3):
        js.tick()
        later.drain()
    publish(js.index, b"o", b"", b"", b"x")
    for _ in range(5):
        js.tick()
    assert js.engine.streams["S"].durability.is_syncing and payloads(js, "O") == [b"x"]
    for _ in range(5):
        later.drain()
        js.tick()
    assert payloads(js, "S") == [b"x"] and payloads(js, "O") == []
    later.drain()
    js.engine.close()
    store.close()


def test_interest_of_a_mirror_counts_and_others_are_waited_for() -> None:
    js = EngineHarness()
    js.create("O", "o.*", retention="interest")
    make(js, "M", mirror={"name": "O", "filter_subject": "o.1"})
    settle(js)
    config = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "filter_subject": "o.1"}
    js.api("CONSUMER.CREATE.O.c.o.1", {"stream_name": "O", "config": config})
    for n in range(3):
        js.request(f"o.{n}", b"%d" % n)
    settle(js)
    assert (
        payloads(js, "M") == payloads(js, "O") == [b"1"]
    )  # c has not acked it, no filter matches the others
    js.api("CONSUMER.DELETE.O.c")
    settle(js)
    assert payloads(js, "O") == []
    js.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
    assert js.api("CONSUMER.NAMES.O")["consumers"] == []
    js.request("o.1", b"unwanted")
    assert payloads(js, "O") == []


def test_a_deleted_consumer_of_an_origin_is_made_again() -> None:
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    make(js, "S", sources=[{"name": "O"}])
    settle(js)
    js.request("o", b"0")
    settle(js)
    (name,) = js.api("CONSUMER.NAMES.O")["consumers"]
    assert js.api(f"CONSUMER.DELETE.O.{name}")["success"]
    js.request("o", b"1")
    settle(js)
    assert js.api("CONSUMER.NAMES.O")["consumers"] == [name]
    assert payloads(js, "S") == [b"0", b"1"] and payloads(js, "O") == []
    config = {"name": name, "durable_name": name, "ack_policy": "flow_control", "deliver_subject": "d"}
    refused = js.api(f"CONSUMER.CREATE.O.{name}", {"stream_name": "O", "config": config})
    assert "error" in refused


def test_a_consumer_of_an_origin_that_an_earlier_version_kept_still_delivers_nothing_itself() -> None:
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    make(js, "S", sources=[{"name": "O"}])
    settle(js)
    (consumer,) = js.engine.streams["O"].consumers.values()
    assert b',"driven":true' in consumer.store.meta
    consumer.store.save_meta(consumer.store.meta.replace(b',"driven":true', b""))
    js = js.restart()
    settle(js)
    (consumer,) = js.engine.streams["O"].consumers.values()
    assert consumer.is_driven
    js.request("o", b"0")
    settle(js)
    assert payloads(js, "S") == [b"0"] and payloads(js, "O") == []


def test_a_note_about_messages_that_power_loss_took_counts_for_nothing() -> None:
    js = EngineHarness()
    js.create("O", "o")
    js.create("S", "s", sources=[{"name": "O"}])
    for n in range(2):
        js.request("o", b"%d" % n)
    settle(js)
    journal = js.engine.streams["S"].store.open_positions()
    ident = js.engine.streams["O"].identity
    journal.append(msgspec.json.encode(PositionRecord(50, {"O > >": (4, ident)})))
    js = js.restart()
    settle(js)
    for _ in range(60):
        js.request("s", b"own")
    js = js.restart()
    assert [one["seq"] for one in origin_info(js, "S")] == [2]
    for n in range(2, 6):
        js.request("o", b"%d" % n)
    settle(js)
    assert [one for one in payloads(js, "S") if one != b"own"] == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("copy", [{"sources": [{"name": "O"}]}, {"mirror": {"name": "O"}}])
def test_an_origin_retains_what_its_copy_lost_in_a_power_failure(
    copy: dict[str, Any], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost are the last copies, but neither their acks in the origin nor the messages there, which another
    consumer needs."""
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("O", "o", retention="interest")
    config = {"durable_name": "c", "ack_policy": "all"}
    js.api("CONSUMER.CREATE.O.c", {"stream_name": "O", "config": config})
    make(js, "S", **copy)
    for n in range(kept):
        js.request("o", b"%d" % n)
    settle(js)
    block = tmp_path / "jetstream" / "%24G" / "streams" / "S" / "msgs" / "1.blk"
    before = block.read_bytes() if kept else None
    for n in range(kept, 5):
        js.request("o", b"%d" % n)
    settle(js)
    assert len(payloads(js, "S")) == 5
    store.close()
    if before is None:
        block.unlink()
    else:
        block.write_bytes(before)
    with monkeypatch.context() as patch:
        patch.setattr(sourcing.LocalReader, "read", lambda reader, now, enough: 0)  # as if the copy were full
        js = EngineHarness(FileStore(tmp_path).account("$G"), now=js.now)
        inbox = js.listen(b"_INBOX.c")
        js.send("$JS.API.CONSUMER.MSG.NEXT.O.c", b"_INBOX.c", payload=b"5")
        settle(js)
        assert len(inbox) == 5
        js.send(f"$JS.ACK.O.c.1.5.5.{js.now}.0")
        settle(js)
    js.request("o", b"5")
    settle(js)
    assert payloads(js, "S") == [b"%d" % n for n in range(6)]
    assert payloads(js, "O") == [b"5"]
