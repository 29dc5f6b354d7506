"""A mirror that becomes a stream of its own: it reads the message ids of its dedupe window in slices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream import slices
from penstock.jetstream.stream import dedupe, header_scan
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.protocol import headers
from penstock.store.file import FileStore
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("sourcing.mirror", "stream.long-requests")

MANY = 600
PART = 16
PROMOTION = {"name": "M", "subjects": ["m"]}


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK", 1)
    monkeypatch.setattr(header_scan, "SLICE", PART)


def with_id(n: int) -> bytes:
    return headers.build([(headers.MSG_ID, f"id{n}")])


def mirrored(js: EngineHarness, count: int = MANY) -> EngineHarness:
    """A stream O with ids, its mirror M, and a stream T."""
    js.create("O", "o", duplicate_window=100_000_000_000)
    js.create("T", "t")
    js.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    for n in range(count):
        publish(js.index, b"o", b"", with_id(n), b"x")
    caught_up(js, count)
    return js


def caught_up(js: EngineHarness, count: int) -> None:
    for _ in range(count):
        js.tick()
        if js.engine.streams["M"].log.last_seq == count:
            return
    raise AssertionError("the mirror does not catch up")


def ask(js: EngineHarness, request: str, body: Any = b"") -> list[Any]:
    """The answers to a request of another client, as they come."""
    inbox = b"answer%d." % js.now + request.encode()
    js.now += 1
    heard = js.listen(inbox)
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    publish(js.index, b"$JS.API." + request.encode(), inbox, b"", payload, ServiceSink(lambda *message: None))
    return heard


def found(js: EngineHarness, n: int) -> int:
    """The sequence that an id is a duplicate of; 0: it is stored."""
    answer = js.request("m", b"x", with_id(n))
    assert "error" not in answer, answer
    return answer["seq"] if answer.get("duplicate") else 0


def test_a_promoted_mirror_reads_its_ids_in_slices_between_which_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    js = mirrored(EngineHarness())
    looks = []
    recover_ids = dedupe.ingest.recover_ids

    def counted(log: Any, ids: Any, from_seq: int, most: int) -> int:
        seq = recover_ids(log, ids, from_seq, most)
        looks.append((seq or log.last_seq + 1) - from_seq)
        return seq

    monkeypatch.setattr(dedupe.ingest, "recover_ids", counted)
    acks = js.listen(b"ack")
    answers, ticks = ask(js, "STREAM.UPDATE.M", PROMOTION), 0
    while not answers:
        assert js.engine.streams["M"].config.mirror is not None
        publish(js.index, b"t", b"ack", b"", b"x")
        js.tick()
        ticks += 1
        assert len(acks) == ticks
    assert "mirror" not in json.loads(answers[0][2])["config"] and not js.engine.slices
    assert max(looks) <= PART and ticks >= MANY // PART
    assert [found(js, n) for n in range(0, MANY, 7)] == list(range(1, MANY + 1, 7))
    assert found(js, MANY) == 0 and js.state("M")["last_seq"] == MANY + 1


def test_what_the_mirror_copies_meanwhile_counts_for_duplicates() -> None:
    js = mirrored(EngineHarness())
    answers, n = ask(js, "STREAM.UPDATE.M", PROMOTION), MANY
    while not answers:
        publish(js.index, b"o", b"", with_id(n), b"x")
        n += 1
        js.tick()
    last = js.state("M")["last_seq"]
    assert MANY + 10 < last <= n
    for one in (0, MANY - 1, MANY, last - 1):
        assert found(js, one) == one + 1
    assert found(js, last) == 0


def test_another_stream_with_the_name_of_a_deleted_mirror_is_not_promoted(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = mirrored(EngineHarness(store.account("$G")))
    answers = ask(js, "STREAM.UPDATE.M", PROMOTION)
    js.tick()
    ask(js, "STREAM.DELETE.M")
    ask(js, "STREAM.CREATE.M", {"name": "M", "subjects": ["other"]})
    while js.engine.slices:
        js.tick()
    assert json.loads(answers[0][2])["error"]["err_code"] == 10059
    js.engine.close()
    js = EngineHarness(store.account("$G"))
    assert js.engine.streams["M"].config.subjects == ["other"]
    store.close()


def test_ids_of_publishes_after_another_clients_promotion_count() -> None:
    js = mirrored(EngineHarness())
    first = ask(js, "STREAM.UPDATE.M", PROMOTION)
    js.tick()
    second = ask(js, "STREAM.UPDATE.M", {**PROMOTION, "description": "second"})
    while not first:
        js.tick()
    assert not second
    publish(js.index, b"m", b"", with_id(MANY), b"x")  # its id counts, though its message is removed
    js.engine.tick.apply(js.now)
    assert js.engine.streams["M"].log.remove(MANY + 1)
    while not second:
        js.tick()
    assert json.loads(second[0][2])["config"]["description"] == "second"
    assert found(js, MANY) == MANY + 1 and found(js, 3) == 4


def test_a_promotion_is_checked_against_the_account_at_its_end() -> None:
    js = mirrored(EngineHarness())
    answers = ask(js, "STREAM.UPDATE.M", PROMOTION)
    js.tick()
    taken = ask(js, "STREAM.CREATE.X", {"name": "X", "subjects": ["m"]})
    while js.engine.slices:
        js.tick()
    assert "error" not in json.loads(taken[0][2])
    assert json.loads(answers[0][2])["error"]["err_code"] == 10065
    assert js.engine.streams["M"].config.mirror is not None


def test_a_crash_in_a_promotion_leaves_the_mirror_or_a_stream_that_finds_duplicates(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a")
    js = mirrored(EngineHarness(store.account("$G")), count=100)
    answers, killed = ask(js, "STREAM.UPDATE.M", PROMOTION), 0
    outcomes = set()
    while True:
        is_answered = bool(answers)
        killed += 1
        shutil.copytree(tmp_path / "a", tmp_path / str(killed))
        left = FileStore(tmp_path / str(killed))
        other = EngineHarness(left.account("$G"), now=START_NS + 1_000_000_000)
        is_mirror = other.engine.streams["M"].config.mirror is not None
        assert not (is_mirror and is_answered)
        outcomes.add(is_mirror)
        if is_mirror:
            assert "error" not in other.api("STREAM.UPDATE.M", PROMOTION)
        assert [found(other, n) for n in (0, 50, 99, 100)] == [1, 51, 100, 0]
        left.close()
        if is_answered:
            break
        js.tick()
    assert outcomes == {True, False} and killed >= 100 // PART
    store.close()
