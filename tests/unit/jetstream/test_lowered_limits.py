"""Limits that an update lowers: what is above them goes in slices, between which others are served."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.jetstream import slices, stream_removals
from penstock.jetstream.stream import purge, shrinking
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.protocol import headers
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.long-requests")

MANY = 3000
SUBJECTS = 10
PART = 32  # messages that one slice removes, at most; subjects are counted too
SECOND = 1_000_000_000
LOWERED = [
    {"max_msgs": 7},
    {"max_bytes": 1000},
    {"max_msgs_per_subject": 2},
    {"max_msgs_per_subject": 2, "max_msgs": 11},
    {"max_age": SECOND},
]

Contents = list[tuple[int, bytes]]


@pytest.fixture
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(shrinking, "PART_WORK", 1)


def filled(js: EngineHarness, count: int = MANY, **settings: Any) -> EngineHarness:
    """Streams S, of messages S.0 S.1..., which are two seconds old, and T."""
    js.create("S", "S.>", **settings)
    js.create("T", "T")
    for n in range(count):
        publish(js.index, b"S.%d" % (n % SUBJECTS), b"", b"", b"x")
    js.tick()
    js.now += 2 * SECOND
    return js


def ask(js: EngineHarness, request: str, body: Any = None) -> list[Any]:
    """The answers to a request of another client, as they come."""
    inbox = b"answer%d." % js.now + request.encode()
    heard = js.listen(inbox)
    payload = json.dumps(body).encode() if body is not None else b""
    publish(js.index, b"$JS.API." + request.encode(), inbox, b"", payload, ServiceSink(lambda *message: None))
    return heard


def update(js: EngineHarness, **settings: Any) -> list[Any]:
    return ask(js, "STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"], **settings})


def contents(js: EngineHarness) -> Contents:
    log = js.engine.streams["S"].log
    found: Contents = []
    seq = log.next_seq(0)
    while seq:
        message = log.load(seq)
        assert message is not None
        found.append((seq, message.subject))
        seq = log.next_seq(seq + 1)
    return found


def left_over(**limits: Any) -> Contents:
    """What an update leaves that is done at once."""
    js = filled(EngineHarness())
    assert "error" not in js.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"], **limits})
    return contents(js)


@pytest.mark.parametrize("limits", LOWERED, ids=str)
@pytest.mark.usefixtures("_small_slices")
def test_what_is_above_lowered_limits_goes_in_slices_between_which_others_are_served(
    limits: dict[str, Any],
) -> None:
    js = filled(EngineHarness())
    log = js.engine.streams["S"].log
    expected = left_over(**limits)
    acks = js.listen(b"ack")
    answers, ticks = update(js, **limits), 0
    while not answers:
        before = log.removals
        publish(js.index, b"T", b"ack", b"", b"x")
        info = ask(js, "STREAM.INFO.T")
        js.tick()
        assert len(acks) == ticks + 1
        assert json.loads(info[0][2])["state"]["messages"] == ticks + 1
        assert log.removals - before <= 4 * PART
        ticks += 1
    answer = json.loads(answers[0][2])
    assert ticks >= MANY // PART // 8
    assert answer["state"]["messages"] == len(expected)
    assert contents(js) == expected
    assert not js.engine.slices and len(answers) == 1


@pytest.mark.parametrize("limits", LOWERED[:4], ids=str)
@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.usefixtures("_small_slices")
def test_publishes_meanwhile_make_the_stream_no_larger_and_keep_its_limits(
    limits: dict[str, Any], size: int
) -> None:
    js = filled(EngineHarness())
    log = js.engine.streams["S"].log
    answers, n = update(js, **limits), 0
    while not answers:
        for _ in range(5):
            messages, used = log.messages, log.bytes
            publish(js.index, b"S.%d" % (n % SUBJECTS), b"", b"", b"y" * size)
            n += 1
            js.engine.tick.apply(js.now)
            assert log.messages <= messages or log.messages <= 50
            assert "max_bytes" not in limits or log.bytes <= used or log.bytes <= 1000
        js.tick()
    assert log.messages <= limits.get("max_msgs", MANY)
    assert log.bytes <= limits.get("max_bytes", 1 << 30)
    assert max(log.subjects().values()) <= limits.get("max_msgs_per_subject", MANY)
    assert log.last_seq == MANY + n and log.load(log.last_seq) is not None


def test_one_message_removes_no_more_than_it_has_to_while_a_stream_shrinks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(shrinking, "PART_WORK", 1)
    js = filled(EngineHarness())
    log = js.engine.streams["S"].log
    update(js, max_msgs=1, max_bytes=100_000, max_msgs_per_subject=1)
    before = log.removals
    js.engine.streams["S"].apply_pending(js.now)
    publish(js.index, b"S.0", b"", b"", b"x")
    js.engine.streams["S"].apply_pending(js.now)
    assert log.removals - before <= 4
    before, cost = log.removals, log.bytes // log.messages
    publish(js.index, b"S.0", b"", b"", b"x" * 100 * cost)
    js.engine.streams["S"].apply_pending(js.now)
    assert 100 <= log.removals - before <= 110


@pytest.mark.parametrize("limits", LOWERED, ids=str)
@pytest.mark.usefixtures("_small_slices")
def test_lowered_limits_hold_after_a_stop_in_between(limits: dict[str, Any], tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = filled(EngineHarness(store.account("$G")))
    expected = left_over(**limits)
    answers = update(js, **limits)
    for _ in range(5):
        js.tick()
    assert not answers and len(expected) < js.engine.streams["S"].log.messages < MANY
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"), now=js.now)
    assert contents(js) == expected
    store.close()


@pytest.mark.usefixtures("_small_slices")
def test_another_update_meanwhile_says_what_is_enforced() -> None:
    js = filled(EngineHarness())
    log = js.engine.streams["S"].log
    first = update(js, max_msgs=10)
    for _ in range(20):
        js.tick()
    left = log.messages
    assert 10 < left < MANY
    js.now += 1
    second = update(js, max_msgs=MANY)
    while js.engine.slices:
        js.tick()
    assert log.messages == left
    for answers in (first, second):
        assert json.loads(answers[0][2])["config"]["max_msgs"] == MANY


@pytest.mark.usefixtures("_small_slices")
def test_a_stream_may_be_deleted_or_purged_while_it_shrinks() -> None:
    js = filled(EngineHarness())
    answers = update(js, max_msgs=10)
    js.tick()
    purged = ask(js, "STREAM.PURGE.S")
    js.tick()
    assert json.loads(purged[0][2])["success"] and json.loads(answers[0][2])["state"]["messages"] == 0
    js = filled(EngineHarness())
    answers = update(js, max_msgs=10)
    js.tick()
    ask(js, "STREAM.DELETE.S")
    while js.engine.slices:
        js.tick()
    assert json.loads(answers[0][2])["error"]["err_code"] == 10059
    js.create("S", "S.>", max_msgs=5)


@pytest.mark.usefixtures("_small_slices")
def test_a_wildcard_purge_ends_when_another_client_empties_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purge, "MESSAGES_PER_MATCH_MIN", 0)  # subject by subject
    js = filled(EngineHarness())
    answers = ask(js, "STREAM.PURGE.S", {"filter": "S.*", "seq": MANY})
    assert not answers
    js.now += 1
    assert json.loads(ask(js, "STREAM.PURGE.S")[0][2])["success"]
    for _ in range(100):
        js.tick()
    assert len(answers) == 1 and not js.engine.slices


@pytest.mark.usefixtures("_small_slices")
def test_the_update_of_a_stream_that_refuses_new_messages_removes_none_of_its_old_ones() -> None:
    js = filled(EngineHarness(), discard="new")
    answers = update(js, max_msgs=10, discard="new")
    assert json.loads(answers[0][2])["state"]["messages"] == MANY
    assert js.request("S.0", b"x")["error"]["err_code"] == 10077


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        ("STREAM.PURGE.S", {"keep": 100}),
        ("STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"], "max_msgs_per_subject": 100}),
    ],
)
def test_notes_of_what_slices_remove_are_written_while_they_go_on(
    request_: str, body: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a million messages, written with the last slice, took a sixth of a second."""
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(shrinking, "PART_WORK", 1)
    monkeypatch.setattr(stream_removals, "REMOVALS_PER_WRITE", 64)
    store = FileStore(tmp_path)
    js = filled(EngineHarness(store.account("$G")))
    log = js.engine.streams["S"].log
    written = [0]

    def write() -> None:
        written.append(log.removals)
        StreamReplica.write(js.engine.streams["S"])

    monkeypatch.setattr(js.engine.streams["S"], "write", write)
    answers = ask(js, request_, body)
    while not answers:
        js.tick()
    js.tick()
    assert written[-1] == log.removals > 64 * 3
    steps = [after - before for before, after in itertools.pairwise(written)]
    assert max(steps) <= 64 + 2 * purge.SLICE
    store.close()


def test_the_clock_of_a_shrinking_stream_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes too old between two slices goes with the update too."""
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(shrinking, "PART_WORK", 1)
    js = filled(EngineHarness(now=START_NS))
    publish(js.index, b"S.new", b"", b"", b"x")
    answers = update(js, max_age=SECOND)
    for _ in range(10):
        js.tick()
    js.now += 2 * SECOND
    while not answers:
        js.tick()
    assert contents(js) == []


EXPIRES = headers.build([(headers.TTL, "1")])


@pytest.mark.parametrize("lowered", [{"max_msgs_per_subject": 1}, {"max_msgs": 1}, {"max_bytes": 60}])
def test_an_expired_message_that_power_loss_brings_back_makes_no_other_go(lowered: dict[str, int]) -> None:
    disk = SimDisk(Random(1))
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"))
    js.create("T", "t.>", allow_msg_ttl=True)
    js.request("t.a", b"kept")
    js.request("t.a", b"expires", EXPIRES)
    js.engine.streams["T"].store.sync()
    js.wait_until(START_NS + 2 * SECOND)
    update = {"name": "T", "subjects": ["t.>"], "allow_msg_ttl": True, **lowered}
    assert js.api("STREAM.UPDATE.T", update)["state"]["messages"] == 1
    disk.lose_power(all_of_it=True)
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"), now=js.now)
    message = js.engine.streams["T"].log.load_last(b"t.a")
    assert message is not None and message.payload == b"kept"


def test_a_message_stays_replaced_by_one_that_expired_while_the_server_was_down() -> None:
    disk = SimDisk(Random(1))
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"))
    js.create("T", "t.>", allow_msg_ttl=True, max_msgs_per_subject=1)
    log = js.engine.streams["T"].log
    log.append(b"t.a", b"", b"replaced", START_NS)
    log.append(b"t.a", EXPIRES, b"expires", START_NS)
    js.engine.streams["T"].store.write()  # and is killed before the tombstone of the first is written
    disk.restart()
    js = EngineHarness(FileStore("/store", disk=disk).account("$G"), now=START_NS + 2 * SECOND)
    assert js.state("T")["messages"] == 0
