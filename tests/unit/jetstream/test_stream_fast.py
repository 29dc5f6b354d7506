"""Fast ingest on the server (ADR-50): what a batch is answered, message by message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.engine import JetStreamEngine, SharedState
from penstock.jetstream.limits import FAST_INFLIGHT_PER_STREAM, FAST_INFLIGHT_TOTAL
from penstock.jetstream.stream import fast_batches as fast
from penstock.jetstream.stream.fast_batches import BACKLOG_BYTES, FLOW_SHARED, flow_limit
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from tests.support.engine import EngineHarness
from tests.support.fast_batches import APPEND, COMMIT, EOB, PING, START, FastPublisher, final, flow, gap

SECOND = 10**9


def header(**fields: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


WRONG = header(Nats_Expected_Last_Sequence="77")


@pytest.fixture
def harness() -> EngineHarness:
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, storage="memory")
    return harness


def payloads(harness: EngineHarness) -> list[bytes]:
    log = harness.engine.streams["S"].log
    found, seq = [], 1
    while (message := log.load_next(b"", seq)) is not None:
        found.append(message.payload)
        seq = message.seq + 1
    return found


def code(answers: list[dict[str, Any]]) -> int:
    assert len(answers) == 1
    return int(answers[0]["error"]["err_code"])


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.reply-subject", "fast-ingest.operations")
@pytest.mark.parametrize(
    "reply",
    ["x.id.10.ok.1.7.$FI", "x.id.10.maybe.1.0.$FI", "x.id.10.ok.0.1.$FI", "x.id.10.ok.1.3.$FI", "x.$FI"],
)
def test_a_reply_subject_of_another_form_is_an_invalid_pattern(harness: EngineHarness, reply: str) -> None:
    heard = harness.listen(b"x.>")
    publish(harness.index, b"s.a", reply.encode(), b"", b"x")
    harness.tick()
    answer = json.loads(heard[0][2])
    assert answer["error"] == {
        "code": 400,
        "err_code": 10204,
        "description": "batch publish pattern is invalid",
    }
    assert (answer["stream"], len(heard), payloads(harness)) == ("S", 1, [])


@pytest.mark.feature("fast-ingest.allow-batched")
def test_a_stream_without_fast_batches_says_so_whatever_the_subject(harness: EngineHarness) -> None:
    harness.create("PLAIN", "plain.>")
    for operation in (START, 9):
        assert code(FastPublisher(harness, f"b{operation}", subject="plain.a").ask(1, operation)) == 10203
    assert harness.state("PLAIN")["messages"] == 0


@pytest.mark.feature("fast-ingest.id-length")
def test_ids_have_at_most_64_characters(harness: EngineHarness) -> None:
    assert code(FastPublisher(harness, "i" * 65).ask(1, START)) == 10205
    assert FastPublisher(harness, "i" * 64).ask(1, START) == [flow(0, 10)]


@pytest.mark.feature("fast-ingest.unknown-batch")
@pytest.mark.parametrize(("seq", "operation"), [(2, APPEND), (2, COMMIT), (2, EOB), (1, PING), (9, PING)])
def test_only_the_first_message_makes_a_batch_known(harness: EngineHarness, seq: int, operation: int) -> None:
    assert code(FastPublisher(harness).ask(seq, operation)) == 10206
    assert payloads(harness) == []


@pytest.mark.feature("fast-ingest.unknown-batch")
def test_a_batch_is_known_by_its_inbox_too(harness: EngineHarness) -> None:
    """A batch id alone gives no access to another client's batch."""
    one, other = FastPublisher(harness), FastPublisher(harness, prefix="_INBOX.q")
    one.ask(1, START)
    assert code(other.ask(2, APPEND)) == 10206
    assert other.ask(1, START) == [flow(0, 1), flow(1, 2)]
    assert one.ask(2, COMMIT) == [final(3, 2)]


# --- the way of a batch ----------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.flow-ack", "fast-ingest.operations", "fast-ingest.final-ack")
@pytest.mark.parametrize("mode", ["fail", "ok"])
def test_a_batch_from_its_start_to_its_commit(harness: EngineHarness, mode: str) -> None:
    """The commit's message counts."""
    publisher = FastPublisher(harness, gap=mode)
    assert publisher.ask(1, START, b"1") == [flow(0, 10)]
    publisher.append(2, 9)
    assert publisher.heard() == []
    publisher.append(10, 10)
    assert publisher.heard() == [flow(10, 10)]
    publisher.append(11, 35)
    assert publisher.heard() == [flow(30, 10)]  # one ack a tick, for the latest multiple
    assert publisher.ask(36, COMMIT, b"36") == [final(36, 36)]
    assert payloads(harness) == [b"%d" % n for n in range(1, 37)]


@pytest.mark.feature("fast-ingest.final-ack")
def test_the_end_without_a_message_counts_none_and_stores_none(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness)
    publisher.send(1, START)
    publisher.append(2, 3)
    assert publisher.ask(4, EOB, b"not stored") == [flow(0, 10), final(3, 3)]
    assert len(payloads(harness)) == 3


@pytest.mark.feature("fast-ingest.single-message")
def test_a_batch_of_one_message_gets_a_plain_pub_ack(harness: EngineHarness) -> None:
    assert FastPublisher(harness).ask(1, COMMIT) == [final(1, 1)]
    assert code(FastPublisher(harness, "b").ask(1, COMMIT, header=WRONG)) == 10071
    dedupe = header(Nats_Msg_Id="m")
    assert FastPublisher(harness, "c").ask(1, COMMIT, header=dedupe) == [final(2, 1, "c")]
    assert FastPublisher(harness, "d").ask(1, COMMIT, header=dedupe) == [final(2, 1, "d", duplicate=True)]
    assert harness.engine.capacity.fast_batches() == 0


@pytest.mark.feature("fast-ingest.message-errors")
def test_headers_work_as_in_any_publish(harness: EngineHarness) -> None:
    """Expectations that hold, message ids; a duplicate is skipped without a word."""
    publisher = FastPublisher(harness, flow=3)
    assert publisher.ask(1, START, b"1", header(Nats_Msg_Id="a")) == [flow(0, 3)]
    assert publisher.ask(2, APPEND, b"2", header(Nats_Msg_Id="a")) == []
    assert publisher.ask(3, APPEND, b"3", header(Nats_Expected_Last_Sequence="1", X="y")) == [flow(3, 3)]
    assert publisher.ask(4, APPEND, b"4", header(Nats_Msg_Id="a", Nats_Required_Api_Level="1")) == []
    assert publisher.ask(5, COMMIT, b"5", header(Nats_Msg_Id="a")) == [final(2, 5)]
    assert payloads(harness) == [b"1", b"3"]


def test_a_batch_of_duplicates_tells_where_the_first_is(harness: EngineHarness) -> None:
    harness.request("s.a", b"before")
    harness.request("s.a", b"x", header(Nats_Msg_Id="a"))
    publisher = FastPublisher(harness)
    assert publisher.ask(1, START, header=header(Nats_Msg_Id="a")) == [flow(0, 10)]
    publisher.send(2, APPEND, header=header(Nats_Msg_Id="a"))
    assert publisher.ask(3, EOB) == [final(2, 2)]


@pytest.mark.feature("fast-ingest.gap-fail")
def test_other_publishes_and_batches_come_in_between(harness: EngineHarness) -> None:
    """A batch is in order, not alone."""
    one, two = FastPublisher(harness, "one"), FastPublisher(harness, "two", gap="ok")
    one.send(1, START, b"one 1")
    two.send(1, START, b"two 1")
    for seq in range(2, 30):
        for publisher, name in ((one, b"one"), (two, b"two")):
            publisher.send(seq, APPEND, b"%b %d" % (name, seq))
        assert harness.request("s.b", b"plain")["stream"] == "S"
    assert one.ask(30, EOB)[-1] == final(84, 29, "one")
    assert two.ask(30, EOB)[-1] == final(85, 29, "two")
    stored = payloads(harness)
    for name in (b"one", b"two"):
        assert [p for p in stored if p.startswith(name)] == [b"%b %d" % (name, n) for n in range(1, 30)]


# --- flow control ----------------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.flow-ack", "fast-ingest.flow")
def test_the_only_batch_starts_with_500_and_goes_up_to_all_there_is(harness: EngineHarness) -> None:
    first = FastPublisher(harness, "a", flow=65535)
    assert first.ask(1, START) == [flow(0, 500)]
    at, paces = 1, [500]
    for _ in range(5):
        first.append(at + 1, at + paces[-1])
        at += paces[-1]
        paces.append(first.heard()[-1]["msgs"])
    assert paces == [500, 1000, 2000, 4000, FLOW_SHARED, FLOW_SHARED]
    assert FastPublisher(harness, "b", flow=65535).ask(1, START) == [flow(0, 1), flow(1, 2)]


@pytest.mark.feature("fast-ingest.flow")
def test_a_second_batch_starts_slowly_and_both_meet_at_their_share(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doubling and halving, here 500 messages shared; never above what a client allows."""
    monkeypatch.setattr(fast, "FLOW_SHARED", 500)
    first, second = FastPublisher(harness, "a", flow=1000), FastPublisher(harness, "b", flow=200)
    first.ask(1, START)
    assert second.ask(1, START)[0] == flow(0, 1)
    seq, paces = 1, []
    for _ in range(10):
        pace = paces[-1] if paces else 2
        second.append(seq + 1, seq + pace)
        seq += pace
        answers = second.heard()
        paces.extend(answer["msgs"] for answer in answers)
    assert paces == [4, 8, 16, 32, 64, 128, 200, 200, 200, 200]
    first.append(2, 500)
    assert first.heard() == [flow(500, 250)]
    second.ask(seq + 1, EOB)
    first.append(501, 750)
    assert first.heard() == [flow(750, 500)]


@pytest.mark.feature("fast-ingest.ack-window")
def test_a_halved_pace_leaves_no_ack_behind(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came beyond the last multiple is acked under the smaller number, else both would wait."""
    monkeypatch.setattr(fast, "FLOW_SHARED", 500)
    first = FastPublisher(harness, "a", flow=500)
    first.ask(1, START)
    others = [FastPublisher(harness, f"b{n}") for n in range(4)]
    for other in others:
        other.ask(1, START)
    first.append(2, 999)
    assert first.heard() == [flow(750, 250)]
    first.append(1000, 1000)
    assert first.heard() == [flow(1000, 125)]


@pytest.mark.feature("fast-ingest.operations")
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_what_headers_say_of_an_atomic_batch_means_nothing_in_a_fast_one(atomic: bool, first: int) -> None:
    """The messages are stored with the headers, as the official server does."""
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, allow_atomic=atomic, storage="memory")
    publisher = FastPublisher(harness)
    for seq in range(1, 4):
        header = headers.build([("Nats-Batch-Id", "x"), ("Nats-Batch-Sequence", str(seq + 1 - first))])
        publisher.send(seq, START if seq == 1 else APPEND, b"%d" % seq, header if seq >= first else b"")
    publisher.send(4, COMMIT, b"4", headers.build([("Nats-Batch-Id", "x"), ("Nats-Batch-Commit", "1")]))
    assert publisher.heard()[-1] == final(4, 4)
    assert payloads(harness) == [b"1", b"2", b"3", b"4"]
    stored = harness.engine.streams["S"].log.load(3)
    assert stored is not None and headers.value_of(stored.header, headers.BATCH_ID) == b"x"
    assert harness.engine.batches.inflight.atomic == 0


@pytest.mark.feature("fast-ingest.flow")
def test_the_more_waits_the_smaller_the_share() -> None:
    assert [flow_limit(n, 0) for n in (0, 1, 2, 8, 1000, 5000)] == [4096, 4096, 2048, 512, 4, 1]
    assert flow_limit(1, BACKLOG_BYTES) == 4096
    assert flow_limit(1, BACKLOG_BYTES + 1) == 2048
    assert flow_limit(1, 5 * BACKLOG_BYTES) == 512
    assert flow_limit(1000, 2**60) == 1


# --- gaps ------------------------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.gap-ok")
def test_with_ok_a_gap_is_reported_and_the_batch_goes_on(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness, gap="ok")
    publisher.ask(1, START, b"1")
    assert publisher.ask(5, APPEND, b"5") == [gap(1, 5)]
    assert publisher.ask(6, APPEND, b"6") == []
    assert publisher.ask(20, APPEND, b"20") == [gap(6, 20), flow(20, 10)]
    assert publisher.ask(30, EOB) == [gap(20, 30), final(4, 29)]
    assert payloads(harness) == [b"1", b"5", b"6", b"20"]


@pytest.mark.feature("fast-ingest.gap-fail")
def test_with_fail_a_gap_ends_the_batch(harness: EngineHarness) -> None:
    """First the gap, then the final ack for what is stored; what follows is refused, once a
    tick."""
    publisher = FastPublisher(harness)
    publisher.send(1, START, b"1")
    publisher.append(2, 3)
    publisher.send(5, APPEND, b"5")
    publisher.append(6, 30)
    publisher.send(31, COMMIT)
    *answers, behind = publisher.heard()
    assert answers == [flow(0, 10), gap(3, 5), final(3, 3)]
    assert code([behind]) == 10206
    assert code(publisher.ask(32, APPEND)) == 10206
    assert payloads(harness) == [b"1", b"2", b"3"]
    assert harness.engine.capacity.fast_batches() == 0


@pytest.mark.feature("fast-ingest.gap-fail")
@pytest.mark.parametrize("mode", ["fail", "ok"])
def test_a_sequence_that_was_there_ends_the_batch_in_both_modes(harness: EngineHarness, mode: str) -> None:
    publisher = FastPublisher(harness, gap=mode)
    publisher.send(1, START, b"1")
    publisher.append(2, 3)
    assert publisher.ask(2, APPEND, b"again") == [flow(0, 10), gap(3, 2), final(3, 3)]
    assert payloads(harness) == [b"1", b"2", b"3"]


def test_an_ended_batch_may_begin_again(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness)
    publisher.send(1, START)
    assert publisher.ask(2, COMMIT)[-1] == final(2, 2)
    assert code(publisher.ask(3, APPEND)) == 10206
    assert publisher.ask(1, START) == [flow(0, 10)]
    assert publisher.ask(2, COMMIT) == [final(4, 2)]


# --- messages that are refused ---------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.message-errors")
def test_with_ok_a_refused_message_is_reported_and_the_rest_goes_on(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness, gap="ok", flow=3)
    first, refused = publisher.ask(1, START, header=WRONG)
    assert first == flow(0, 3)
    assert (refused["type"], refused["seq"], refused["error"]["err_code"]) == ("err", 1, 10071)
    (refused,) = publisher.ask(2, APPEND, header=WRONG)
    assert (refused["seq"], refused["error"]["err_code"]) == (2, 10071)
    assert publisher.ask(3, APPEND, b"3") == [flow(3, 3)]
    refused, last = publisher.ask(4, COMMIT, header=WRONG)
    assert refused["seq"] == 4
    assert last == final(1, 3)
    assert payloads(harness) == [b"3"]


@pytest.mark.feature("fast-ingest.message-errors")
def test_with_fail_a_refused_message_ends_the_batch(harness: EngineHarness) -> None:
    """The message before it is the last one, and the final ack says why."""
    publisher = FastPublisher(harness)
    publisher.send(1, START, b"1")
    publisher.send(2, APPEND, header=WRONG)
    publisher.append(3, 4)
    first, refused, last, behind = publisher.heard()
    assert code([behind]) == 10206
    assert first == flow(0, 10)
    assert (refused["type"], refused["seq"], refused["error"]["err_code"]) == ("err", 2, 10071)
    assert last == final(1, 1, error=refused["error"])
    assert payloads(harness) == [b"1"]


@pytest.mark.feature("fast-ingest.message-errors")
def test_with_fail_a_first_message_that_is_refused_gets_a_flow_ack_and_its_error(
    harness: EngineHarness,
) -> None:
    """The batch existed, and ended."""
    publisher = FastPublisher(harness)
    first, answer = publisher.ask(1, START, header=WRONG)
    assert first == flow(0, 10)
    assert "batch" not in answer
    assert "type" not in answer
    assert answer["error"]["err_code"] == 10071
    assert code(publisher.ask(2, APPEND)) == 10206
    assert harness.engine.capacity.fast_batches() == 0


@pytest.mark.feature("fast-ingest.message-errors")
def test_limits_of_the_stream_refuse_messages_of_batches_too(harness: EngineHarness) -> None:
    harness.create("T", "t.>", allow_batched=True, max_msgs=2, discard="new", max_msg_size=5)
    publisher = FastPublisher(harness, gap="ok", subject="t.a")
    publisher.ask(1, START)
    codes = [a["error"]["err_code"] for a in publisher.ask(2, APPEND, b"too large")]
    assert codes == [10054]
    assert publisher.ask(3, APPEND) == []
    codes = [a["error"]["err_code"] for a in publisher.ask(4, APPEND)]
    assert codes == [10077]
    assert publisher.ask(5, EOB) == [{**final(2, 4), "stream": "T"}]


# --- pings -----------------------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.ping")
def test_a_ping_gets_the_latest_flow_ack_and_uses_up_no_sequence(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness)
    publisher.send(1, START)
    publisher.append(2, 25)
    publisher.heard()
    for _ in range(3):
        assert publisher.ask(25, PING) == [flow(20, 10)]
    assert publisher.ask(26, COMMIT) == [final(26, 26)]


@pytest.mark.feature("fast-ingest.ping")
def test_a_ping_tells_what_was_lost_at_the_end(harness: EngineHarness) -> None:
    """With ok the batch goes on behind it, and a flow ack that becomes due is sent; with fail it is
    over."""
    publisher = FastPublisher(harness, gap="ok")
    publisher.ask(1, START)
    assert publisher.ask(4, PING) == [gap(1, 5), flow(0, 10)]
    assert publisher.ask(17, PING)[-1] == flow(10, 10)
    assert publisher.ask(18, EOB) == [final(1, 17)]
    other = FastPublisher(harness, "other")
    other.ask(1, START)
    assert other.ask(4, PING) == [gap(1, 5), final(2, 1, "other")]


@pytest.mark.feature("fast-ingest.any-size")
@pytest.mark.parametrize("mode", ["fail", "ok"])
def test_who_applied_the_same_messages_can_go_on_with_the_batch(mode: str) -> None:
    """What a stream knows of its batches follows from the messages alone, so that another one which
    applied them takes the batch over; with ok it tells the gap and goes on, with fail the gap is the end."""
    leader, follower = EngineHarness(), EngineHarness()
    publishers = []
    for harness in (leader, follower):
        harness.create("S", "s.>", allow_batched=True, storage="memory")
        publisher = FastPublisher(harness, gap=mode, flow=5)
        publisher.send(1, START)
        publisher.append(2, 7)
        assert publisher.heard()[-1] == flow(5, 5)
        publishers.append(publisher)
    publishers[0].append(8, 10)
    assert publishers[0].heard() == [flow(10, 5)]
    heir = publishers[1]
    assert heir.ask(7, PING) == [flow(5, 5)]
    if mode == "ok":
        assert heir.ask(11, APPEND) == [gap(7, 11), flow(10, 5)]
        assert heir.ask(12, COMMIT) == [final(9, 12)]
    else:
        assert heir.ask(11, APPEND) == [gap(7, 11), final(7, 7)]


@pytest.mark.feature("fast-ingest.unknown-batch", "fast-ingest.any-size")
def test_a_restart_ends_what_was_not_committed(harness: EngineHarness) -> None:
    """What was stored stays; the batch is unknown, as with the official server."""
    publisher = FastPublisher(harness, gap="ok")
    publisher.send(1, START)
    publisher.append(2, 3)
    publisher.heard()
    again = harness.restart()
    assert code(FastPublisher(again, gap="ok").ask(4, APPEND)) == 10206
    assert again.state("S")["messages"] == 3


@pytest.mark.feature("fast-ingest.ping", "fast-ingest.ack-window")
def test_a_ping_behind_the_end_gets_the_last_answer_again(harness: EngineHarness) -> None:
    """A lost final ack stalls no publisher."""
    publisher = FastPublisher(harness)
    publisher.send(1, START)
    publisher.ask(2, COMMIT)
    assert publisher.ask(2, PING) == [final(2, 2)]
    assert code(publisher.ask(3, EOB)) == 10206


# --- limits and time -------------------------------------------------------------------------------


@pytest.mark.feature("fast-ingest.timeout")
def test_a_batch_that_was_silent_for_ten_seconds_is_forgotten_with_an_advisory(
    harness: EngineHarness,
) -> None:
    advisories = harness.listen(b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")
    silent, alive, pinging = (FastPublisher(harness, name) for name in ("silent", "alive", "pinging"))
    for publisher in (silent, alive, pinging):
        publisher.ask(1, START)
    harness.wait_until(harness.now + 6 * SECOND)
    alive.ask(2, APPEND)
    pinging.ask(1, PING)
    harness.wait_until(harness.now + 5 * SECOND)
    assert harness.engine.capacity.fast_batches() == 2
    assert code(silent.ask(2, APPEND)) == 10206
    assert alive.ask(3, COMMIT) == [final(5, 3, "alive")]
    advisory = json.loads(advisories[0][2])
    assert advisory["type"] == "io.nats.jetstream.advisory.v1.batch_abandoned"
    assert (advisory["stream"], advisory["batch"], advisory["reason"]) == ("S", "silent", "timeout")
    harness.wait_until(harness.now + 60 * SECOND)
    assert [json.loads(one[2])["batch"] for one in advisories] == ["silent", "pinging"]
    assert harness.engine.streams["S"].fast.next_deadline() is None
    assert silent.heard() == []


@pytest.mark.feature("fast-ingest.inflight")
def test_so_many_batches_a_stream_and_a_server() -> None:
    harness = EngineHarness(batch_inflight_per_stream_max=3, batch_inflight_total_max=5)
    for name in ("A", "B"):
        harness.create(name, f"{name}.>", allow_batched=True, storage="memory")
    made = [FastPublisher(harness, f"{name}{n}", subject=f"{name}.x") for name in "AB" for n in range(4)]
    answers = [publisher.ask(1, START)[0] for publisher in made]
    assert ["error" in answer for answer in answers] == [False, False, False, True, False, False, True, True]
    assert answers[3]["error"] == {
        "code": 429,
        "err_code": 10211,
        "description": "batch publish too many inflight",
    }
    made[0].ask(2, EOB)
    assert "error" not in FastPublisher(harness, "more", subject="B.x").ask(1, START)[0]


@pytest.mark.feature("fast-ingest.inflight")
def test_batches_of_other_accounts_count_against_the_limit_of_the_server() -> None:
    engines: list[JetStreamEngine] = []
    harnesses = [
        EngineHarness(shared=SharedState(engines=engines), batch_inflight_total_max=2) for _ in range(2)
    ]
    engines += [harness.engine for harness in harnesses]
    for harness in harnesses:
        harness.create("S", "s.>", allow_batched=True, storage="memory")
    one, other = harnesses
    first = FastPublisher(one, "a1")
    assert "error" not in first.ask(1, START)[0]
    assert "error" not in FastPublisher(other, "b1").ask(1, START)[0]
    assert code(FastPublisher(other, "b2").ask(1, START)) == 10211
    first.ask(2, EOB)
    assert "error" not in FastPublisher(other, "b2").ask(1, START)[0]


@pytest.mark.feature("fast-ingest.inflight")
def test_without_limits_of_its_own_a_stream_has_the_official_ones(harness: EngineHarness) -> None:
    assert (FAST_INFLIGHT_PER_STREAM, FAST_INFLIGHT_TOTAL) == (1000, 50_000)
    answers = [FastPublisher(harness, f"b{n}").ask(1, START)[0] for n in range(1001)]
    assert [n for n, answer in enumerate(answers) if "error" in answer] == [1000]


@pytest.mark.feature(
    "fast-ingest.reply-subject",
    "fast-ingest.allow-batched",
    "fast-ingest.id-length",
    "fast-ingest.unknown-batch",
)
def test_errors_may_have_the_official_numbers() -> None:
    """With `fast_ingest_errors: official`."""
    harness = EngineHarness(official_fast_errors=True)
    harness.create("S", "s.>", allow_batched=True)
    harness.create("PLAIN", "plain.>")
    publisher = FastPublisher(harness)
    assert code(FastPublisher(harness, "p", subject="plain.a").ask(1, START)) == 10205
    assert code(publisher.ask(1, APPEND)) == 10206
    assert code(FastPublisher(harness, "i" * 65).ask(1, START)) == 10207
    assert code(publisher.ask(2, APPEND)) == 10208


@pytest.mark.feature("fast-ingest.allow-batched")
def test_switching_batches_off_ends_them(harness: EngineHarness) -> None:
    publisher = FastPublisher(harness)
    publisher.ask(1, START)
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    assert "error" not in harness.api("STREAM.UPDATE.S", config)
    assert code(publisher.ask(2, APPEND)) == 10203
    harness.api("STREAM.UPDATE.S", {**config, "allow_batched": True})
    assert code(publisher.ask(2, APPEND)) == 10206


@pytest.mark.feature("fast-ingest.settings")
def test_a_batch_may_persist_asynchronously() -> None:
    harness = EngineHarness()
    harness.create("S", "s.>", allow_batched=True, persist_mode="async")
    publisher = FastPublisher(harness)
    publisher.ask(1, START)
    assert publisher.ask(2, COMMIT) == [final(2, 2)]


def test_a_stream_without_acks_says_nothing(harness: EngineHarness) -> None:
    harness.create("N", "n.>", allow_batched=True, no_ack=True)
    publisher = FastPublisher(harness, subject="n.a", flow=1)
    for seq, operation in ((1, START), (2, APPEND), (3, PING), (9, APPEND)):
        assert publisher.ask(seq, operation) == []
    assert harness.state("N")["messages"] == 2


def test_no_answer_leaves_before_the_write(harness: EngineHarness) -> None:
    heard = harness.listen(b"_INBOX.p.id.>")
    publisher = FastPublisher(harness, flow=1)
    publisher.send(1, START)
    publisher.send(2, COMMIT)
    harness.engine.tick.apply(harness.now)
    harness.engine.tick.write()
    assert heard == []
    harness.engine.tick.acknowledge()
    assert [json.loads(one[2]) for one in heard] == [flow(0, 1), final(2, 2)]
