"""The client's batches (ADR-50) on real servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock.client
from penstock.client import JetStream, Stream
from penstock.errors import (
    BatchEndedError,
    BatchNotEnabledError,
    JetStreamApiError,
    MaxPayloadError,
    MisuseError,
    NoStreamError,
    WrongLastSequenceError,
)

pytestmark = pytest.mark.feature("client.fast-publisher")

pa = pytest.importorskip("pyarrow")


async def payloads(stream: Stream) -> list[bytes]:
    state = (await stream.info()).state
    return [(await stream.get_message(seq)).data for seq in range(state.first_seq or 1, state.last_seq + 1)]


# --- atomic ----------------------------------------------------------------------------------------


@pytest.mark.feature("atomic.start", "atomic.append", "atomic.commit")
async def test_an_atomic_batch_is_stored_as_a_whole(js: JetStream, stream: Stream) -> None:
    async with js.atomic_batch() as batch:
        await batch.add("s.street", b"Main St")
        await batch.add("s.city", b"Springfield", ack=True)
        assert await payloads(stream) == []
        ack = await batch.commit("s.zip", b"12345")
    assert (ack.stream, ack.seq, ack.batch, ack.count) == ("S", 3, batch.id, 3)
    assert await payloads(stream) == [b"Main St", b"Springfield", b"12345"]


@pytest.mark.feature("atomic.commit-eob")
async def test_an_atomic_batch_ends_without_another_message(js: JetStream, stream: Stream) -> None:
    async with js.atomic_batch(ack_every=2) as batch:
        for n in range(5):
            await batch.add("s.a", b"%d" % n)
        ack = await batch.commit_eob()
    assert (ack.seq, ack.count) == (5, 5)
    last = await stream.get_message(5)
    assert last.headers is not None
    assert last.headers["Nats-Batch-Commit"] == "1"


async def test_leaving_by_an_exception_stores_nothing(js: JetStream, stream: Stream) -> None:
    async def fail() -> None:
        async with js.atomic_batch() as batch:
            await batch.add("s.a", b"1")
            raise RuntimeError("something went wrong")

    with pytest.raises(RuntimeError):
        await fail()
    assert await payloads(stream) == []


async def test_forgetting_to_commit_is_an_error(js: JetStream, stream: Stream) -> None:
    with pytest.raises(MisuseError, match="neither committed nor aborted"):
        async with js.atomic_batch() as batch:
            await batch.add("s.a", b"1")


@pytest.mark.feature("atomic.checks-at-commit")
async def test_an_expectation_that_does_not_hold_refuses_the_whole_batch(
    js: JetStream, stream: Stream
) -> None:
    await js.publish("s.a", b"before")
    async with js.atomic_batch() as batch:
        await batch.add("s.b", b"1")
        with pytest.raises(WrongLastSequenceError):
            await batch.commit("s.a", b"2", expected_last_subject_sequence=7)
    assert await payloads(stream) == [b"before"]


@pytest.mark.feature(
    "atomic.expected-last-seq",
    "atomic.expected-subject-seq",
    "atomic.expected-msg-id",
    "atomic.deduplication",
)
@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"expected_last_sequence": 1}, "only be asked for by the first message"),
        ({}, {"expected_last_subject_sequence": 0}, "is written earlier in this batch"),
        ({}, {"expected_last_msg_id": "x"}, "can't be used in an atomic batch"),
        ({"msg_id": "x"}, {"msg_id": "x"}, "is in this batch already"),
    ],
)
async def test_what_no_server_would_take_costs_no_batch(
    js: JetStream, stream: Stream, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    async with js.atomic_batch() as batch:
        await batch.add("s.a", b"1", **first)
        with pytest.raises(MisuseError, match=text):
            await batch.add("s.a", b"2", **second)
        ack = await batch.commit("s.c", b"3")
    assert ack.count == 2


@pytest.mark.feature("atomic.deduplication")
async def test_a_duplicate_in_the_window_refuses_the_batch(js: JetStream, stream: Stream) -> None:
    await js.publish("s.a", b"before", msg_id="x")
    async with js.atomic_batch() as batch:
        await batch.add("s.b", b"1", msg_id="x")
        with pytest.raises(JetStreamApiError) as refused:
            await batch.commit_eob()
    assert refused.value.err_code == 10201


async def first_message(js: JetStream, kind: str, subject: str) -> None:
    if kind == "atomic":
        async with js.atomic_batch() as batch:
            await batch.add(subject, b"1")
    else:
        async with js.fast_ingest(subject) as fast:
            await fast.add(payload=b"1")


@pytest.mark.feature("atomic.allow-atomic", "fast-ingest.allow-batched")
@pytest.mark.parametrize("kind", ["atomic", "fast"])
async def test_a_stream_without_batches_says_so(js: JetStream, kind: str) -> None:
    await js.create_stream("PLAIN", subjects=["plain.>"])
    try:
        with pytest.raises(BatchNotEnabledError):
            await first_message(js, kind, "plain.a")
    finally:
        await js.delete_stream("PLAIN")


@pytest.mark.parametrize("kind", ["atomic", "fast"])
async def test_a_subject_without_a_stream_says_so(js: JetStream, kind: str) -> None:
    with pytest.raises(NoStreamError):
        await first_message(js, kind, "nobody.a")


# --- fast ingest -----------------------------------------------------------------------------------


@pytest.mark.feature(
    "fast-ingest.flow-ack", "fast-ingest.flow", "fast-ingest.ack-window", "fast-ingest.final-ack"
)
@pytest.mark.parametrize("gap", ["fail", "ok"])
@pytest.mark.parametrize("outstanding", [1, 2, 3])
async def test_a_fast_batch_stores_everything_in_order(
    js: JetStream, stream: Stream, gap: Any, outstanding: int
) -> None:
    async with js.fast_ingest("s.f", gap=gap, outstanding_acks=outstanding) as batch:
        seen = [await batch.add(payload=b"%d" % n) for n in range(1000)]
        ack = await batch.commit(payload=b"last")
    assert (ack.seq, ack.batch, ack.count) == (1001, batch.id, 1001)
    assert [one.batch_sequence for one in seen] == list(range(1, 1001))
    acked = [one.ack_sequence for one in seen]
    assert acked == sorted(acked)
    assert acked[-1] >= 1000 - outstanding * 100
    assert (await stream.get_message(500)).data == b"499"


@pytest.mark.feature("fast-ingest.final-ack")
async def test_a_fast_batch_ends_without_another_message(js: JetStream, stream: Stream) -> None:
    async with js.fast_ingest("s.f") as batch:
        for n in range(10):
            await batch.add(f"s.{n}", b"x")
        ack = await batch.commit_eob()
    assert (ack.seq, ack.count) == (10, 10)


@pytest.mark.feature("fast-ingest.single-message")
async def test_a_fast_batch_of_one_message(js: JetStream, stream: Stream) -> None:
    async with js.fast_ingest() as batch:
        ack = await batch.commit("s.one", b"x")
    assert (ack.seq, ack.count) == (1, 1)


COUNT = 20_000
LISTED = [b"payload %d" % n for n in range(COUNT)]


@pytest.mark.feature("fast-ingest.any-size")
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(LISTED, id="list"),
        pytest.param(pa.array(LISTED, pa.binary()), id="binary"),
        pytest.param(pa.array(LISTED, pa.binary())[3:], id="sliced"),
        pytest.param(pa.array([one.decode() for one in LISTED], pa.large_string()), id="large string"),
        pytest.param(
            pa.chunked_array([pa.array(LISTED[:5], pa.binary()), pa.array(LISTED[5:])]), id="chunked"
        ),
    ],
)
async def test_many_payloads_at_once(js: JetStream, stream: Stream, given: Any) -> None:
    async with js.fast_ingest("s.f", flow=500) as batch:
        await batch.add_many(given)
        ack = await batch.commit_eob()
    assert ack.count == ack.seq == len(given)
    first = COUNT - len(given)
    for seq in (1, 2, 7, 9_999, len(given)):
        assert (await stream.get_message(seq)).data == LISTED[first + seq - 1]


async def test_a_payload_that_is_too_large_costs_no_batch_sequence(js: JetStream, stream: Stream) -> None:
    huge = bytes(1024 * 1024 + 1)
    async with js.fast_ingest("s.f") as batch:
        await batch.add(payload=b"1")
        with pytest.raises(MaxPayloadError):
            await batch.add(payload=huge)
        with pytest.raises(MaxPayloadError):
            await batch.add_many([b"2", huge, b"3"])
        ack = await batch.commit(payload=b"4")
    assert ack.count == 3
    assert await payloads(stream) == [b"1", b"2", b"4"]


@pytest.mark.feature("fast-ingest.message-errors")
async def test_with_gap_ok_a_refused_message_is_reported_and_the_rest_goes_on(
    js: JetStream, stream: Stream
) -> None:
    errors: list[tuple[int, JetStreamApiError]] = []
    async with js.fast_ingest(
        "s.f", gap="ok", on_error=lambda seq, error: errors.append((seq, error))
    ) as batch:
        await batch.add(payload=b"1")
        await batch.add(payload=b"2", expected_last_sequence=77)
        await batch.add(payload=b"3")
        ack = await batch.commit_eob()
    assert ack.count == 3
    assert [(seq, error.err_code) for seq, error in errors] == [(2, 10071)]
    assert await payloads(stream) == [b"1", b"3"]


@pytest.mark.feature("fast-ingest.message-errors")
async def test_with_gap_ok_a_batch_of_one_refused_message_says_why(js: JetStream, stream: Stream) -> None:
    async with js.fast_ingest("s.f", gap="ok") as batch:
        with pytest.raises(BatchEndedError, match="after 0 of 1 messages: wrong last sequence"):
            await batch.commit(payload=b"1", expected_last_sequence=77)
    assert await payloads(stream) == []


@pytest.mark.feature("fast-ingest.message-errors")
async def test_with_gap_fail_a_refused_message_ends_the_batch(js: JetStream, stream: Stream) -> None:
    async with js.fast_ingest("s.f", flow=1, outstanding_acks=1) as batch:
        await batch.add(payload=b"1")
        await batch.add(payload=b"2", expected_last_sequence=77)
        with pytest.raises(BatchEndedError) as ended:
            await batch.add(payload=b"3")
    assert ended.value.ack.count == 1
    assert await payloads(stream) == [b"1"]


async def test_a_first_message_that_is_refused_raises_its_error(js: JetStream, stream: Stream) -> None:
    with pytest.raises(WrongLastSequenceError):
        async with js.fast_ingest("s.f") as batch:
            await batch.add(payload=b"1", expected_last_sequence=77)


@pytest.mark.feature("fast-ingest.gap-ok", "fast-ingest.gap-fail")
async def test_a_lost_message_ends_a_fail_batch_and_is_reported_to_an_ok_batch(
    js: JetStream, stream: Stream
) -> None:
    """The client skips a sequence on purpose."""
    async with js.fast_ingest("s.f", gap="ok") as batch:
        await batch.add(payload=b"1")
        batch._flow.take()
        await batch.add(payload=b"3")
        ack = await batch.commit_eob()
        assert ack.count == 3
        assert len(batch.gaps) == 1
    async with js.fast_ingest("s.f", gap="fail") as batch:
        await batch.add(payload=b"1")
        batch._flow.take()
        await batch.add(payload=b"3")
        with pytest.raises(BatchEndedError) as ended:
            await batch.commit_eob()
    assert ended.value.ack.count == 1
    assert await payloads(stream) == [b"1", b"3", b"1"]


@pytest.mark.feature("fast-ingest.inbox")
async def test_a_batch_has_an_inbox_of_its_own_and_leaves_it_at_the_end(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One subscription below its id, which ends when the batch fails."""
    subjects: list[str] = []
    subscribe = js.session.subscribe

    def note(subject: str, **more: Any) -> Any:
        subjects.append(subject)
        return subscribe(subject, **more)

    monkeypatch.setattr(js.session, "subscribe", note)
    async with js.fast_ingest("s.f", gap="fail", flow=1, outstanding_acks=1) as batch:
        await batch.add(payload=b"1")
        assert [subject.endswith(f".{batch.id}.>") for subject in subjects] == [True]
        with pytest.raises(BatchEndedError):
            await batch.add_many([b"3"] * (batch._flow.take() + 100))
        assert batch._subscription is None
    assert len(subjects) == 1


@pytest.mark.feature("fast-ingest.gap-ok", "fast-ingest.ping")
async def test_a_commit_that_was_lost_is_sent_again(
    js: JetStream, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ping finds the gap, and the commit takes another sequence."""
    async with js.fast_ingest("s.f", gap="ok", timeout=1.0) as batch:
        await batch.add(payload=b"1")
        send, lost = batch._send, []

        def lose_one(subject: bytes, header: bytes, body: bytes, seq: int, operation: Any) -> None:
            if lost:
                send(subject, header, body, seq, operation)
            lost.append(seq)

        monkeypatch.setattr(batch, "_send", lose_one)
        ack = await batch.commit(payload=b"2")
    assert (ack.count, lost, batch.gaps[0][1]) == (3, [2, 3], 3)
    assert await payloads(stream) == [b"1", b"2"]


@pytest.mark.feature("fast-ingest.flow")
async def test_eight_publishers_at_once(url: str, js: JetStream, stream: Stream) -> None:
    """All of them are served."""

    async def publish(n: int) -> int:
        async with penstock.client.connect(url) as client, client.jetstream().fast_ingest(f"s.{n}") as batch:
            await batch.add_many([b"x" * 100] * 2000)
            return (await batch.commit_eob()).count

    assert await asyncio.gather(*map(publish, range(8))) == [2000] * 8
    assert (await stream.info()).state.messages == 16_000
