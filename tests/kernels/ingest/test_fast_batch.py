"""Kernel fastbatch: what reply subjects say, and when flow acks are due, as the model has it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.ingest.batches import FastBatches, parse
from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, acknowledge_fast, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits
from penstock.kernels.log.stream_log import StreamLog
from tests.reference import fast_batch as reference
from tests.support.examples import examples

NOW = 1_000_000

numbers = st.one_of(
    st.integers(0, 12).map(str),
    st.sampled_from(
        ["-1", "+1", "", "x", "007", "1 ", "70000", str(2**64 - 1), str(2**64 - 2), str(2**64), "9" * 40]
    ),
)
tokens = st.one_of(st.text("ab.$ \0", max_size=3), st.sampled_from(["id", "_INBOX.x", "ok", "fail", "1"]))
replies = st.one_of(
    st.builds(
        lambda p, i, flow, gap, seq, op: f"{p}.{i}.{flow}.{gap}.{seq}.{op}.$FI".encode(),
        tokens, tokens, numbers, st.sampled_from(["ok", "fail", "OK", "", "o"]), numbers, numbers,
    ),
    st.lists(st.one_of(tokens, numbers), max_size=7).map(lambda parts: ".".join([*parts, "$FI"]).encode()),
    st.binary(max_size=12).map(lambda junk: junk + b".$FI"),
    st.binary(max_size=12),
)  # fmt: skip


@pytest.mark.feature("fast-ingest.reply-subject")
@settings(max_examples=examples(1500))
@given(replies)
def test_a_reply_subject_says_what_the_model_reads_in_it(reply: bytes) -> None:
    """Also malformed subjects of every kind."""
    assert parse(reply) == reference.parse(reply)


@pytest.mark.feature("fast-ingest.reply-subject", "fast-ingest.operations")
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"p.id.10.ok.1.0.$FI", (b"id", 10, True, 1, 0)),
        (b"_INBOX.a.b.id.0.fail.2.1.$FI", (b"id", 10, False, 2, 1)),
        (b"p.id.99999999999999999999.ok.1.2.$FI", (b"id", 65535, True, 1, 2)),
        (b"p.id.10.ok.1.4.$FI", (b"id", 10, True, 1, 4)),
        (b"p.id.10.ok.1.3.$FI", None),  # there is nothing to commit
        (b"p.id.10.ok.2.0.$FI", None),
        (b"p.id.10.ok.1.1.$FI", None),
        (b"p.id.10.ok.0.4.$FI", None),
        (b"p.id.10.ok.2.5.$FI", None),
        (b"p.id.10.ok.2.01.$FI", None),
        (b"p.id.10.maybe.2.1.$FI", None),
        (b"id.10.ok.1.0.$FI", None),  # without a prefix the acks have no subscriber
        (b".id.10.ok.1.0.$FI", None),
        (b".$FI", None),
    ],
)
def test_subjects_by_hand(reply: bytes, said: object) -> None:
    assert parse(reply) == said


def test_no_byte_can_be_cut_off_a_subject() -> None:
    reply = b"p.id.10.ok.12.1.$FI"
    for end in range(len(reply)):
        assert parse(reply[:end]) is None
        assert parse(reply[:end] + b"\xff" + reply[end + 1 :]) == reference.parse(
            reply[:end] + b"\xff" + reply[end + 1 :]
        )


class Run:
    """Batches under the ingest kernel, a run at a time."""

    def __init__(self) -> None:
        self.log, self.ids, self.acks = StreamLog(), MessageIds(0), AckBatch(b'{"stream":"S","seq":')
        self.batches = FastBatches()

    def apply(self, *replies: bytes) -> int:
        batch = IngestBatch()
        for reply in replies:
            batch.append(b"s", reply, b"", b"x")
        return apply_plain(batch, self.log, PlainLimits(), self.ids, NOW, NOW, self.acks, None, self.batches)

    def answers(self, limit: int) -> dict[bytes, dict[str, int]]:
        acknowledge_fast(self.batches, self.acks, limit)
        found = {reply: json.loads(text) for reply, text in self.acks.items()}
        self.acks.clear()
        return found


@pytest.mark.feature("fast-ingest.flow")
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 600)), max_size=40),
)
def test_flow_acks_are_due_when_the_model_says(
    flow: int, msgs: int, runs: list[tuple[int, int, int]]
) -> None:
    """Three batches in turn; one ack a run, for the latest multiple, with the pace from then on."""
    run = Run()
    models = []
    for n in range(3):
        batch = run.batches.start(b"p.id%d.%d.ok.1.0.$FI" % (n, flow), msgs, NOW)
        run.batches.received(batch, 1, 1)
        models.append(reference.BatchModel(flow, min(flow, msgs), seq=1))
    run.answers(flow)
    for model in models:
        if model.is_due:
            model.ack(flow)
    for n, count, limit in runs:
        model = models[n]
        seqs = range(model.seq + 1, model.seq + count + 1)
        assert run.apply(*(b"p.id%d.%d.ok.%d.1.$FI" % (n, flow, seq) for seq in seqs)) == count
        model.seq += count
        expected = {}
        if model.is_due:
            acked, pace = model.ack(limit)
            reply = b"p.id%d.%d.ok.%d.1.$FI" % (n, flow, model.seq)
            expected[reply] = {"type": "ack", "seq": acked, "msgs": pace, "ack_msgs": pace}
        assert run.answers(limit) == expected
    assert run.log.messages == sum(model.seq - 1 for model in models)


@pytest.mark.parametrize(
    "reply",
    [
        b"p.id.10.ok.4.1.$FI",  # a gap
        b"p.id.10.ok.2.1.$FI",  # once more
        b"p.id.10.ok.3.2.$FI",
        b"p.id.10.ok.3.3.$FI",
        b"p.id.10.ok.3.4.$FI",
        b"p.other.10.ok.3.1.$FI",
        b"q.id.10.ok.3.1.$FI",  # of another publisher
        b"p.id.10.ok.3x.1.$FI",
        b"p.id.10.ok.1.0.$FI",
    ],
)
def test_whatever_is_not_the_next_message_is_left_to_python(reply: bytes) -> None:
    run = Run()
    run.batches.received(run.batches.start(b"p.id.10.ok.1.0.$FI", 10, NOW), 1, 1)
    assert run.apply(b"p.id.10.ok.2.1.$FI", reply, b"p.id.10.ok.3.1.$FI") == 1
    assert run.apply(b"p.id.7.fail.3.1.$FI") == 1  # what was agreed at the start holds


def test_what_comes_behind_the_end_is_left_to_python_until_one_message_was_refused() -> None:
    run = Run()
    batch = run.batches.start(b"p.id.10.ok.1.0.$FI", 10, NOW)
    run.batches.received(batch, 1, 1)
    run.batches.end(batch, b"{}")
    assert run.batches.count == 0
    assert run.apply(b"p.id.10.ok.2.1.$FI", b"p.id.10.ok.3.2.$FI") == 0
    batch.refuse(True)
    assert run.apply(b"p.id.10.ok.2.1.$FI", b"p.id.10.ok.3.2.$FI") == 2
    assert run.apply(b"p.id.10.ok.3.4.$FI") == 0
    assert run.log.messages == 0
    run.batches.forget(batch)
    assert run.apply(b"p.id.10.ok.2.1.$FI") == 0


def test_only_so_many_ended_batches_stay_known() -> None:
    batches = FastBatches()
    for n in range(5000):
        batches.end(batches.start(b"p.%d.10.ok.1.0.$FI" % n, 1, NOW), b"{}")
    known = [n for n in range(5000) if batches.find(b"p.%d.10.ok.2.1.$FI" % n) is not None]
    assert known == list(range(5000 - 64, 5000))


@given(
    st.lists(st.tuples(st.sampled_from(["start", "end", "forget", "due"]), st.integers(0, 5)), max_size=60)
)
def test_batches_are_found_from_their_start_until_they_are_forgotten(steps: list[tuple[str, int]]) -> None:
    batches = FastBatches()
    known: dict[int, object] = {}
    open_ones: set[int] = set()
    for step, n in steps:
        reply = b"p.%d.3.ok.1.0.$FI" % n
        if step == "start" and n not in known:
            known[n] = batches.start(reply, 1, NOW)
            open_ones.add(n)
            continue
        batch = batches.find(reply)
        assert batch is known.get(n)
        if batch is None:
            continue
        if step == "end" and n in open_ones:
            batches.end(batch, b"{}")
            open_ones.discard(n)
        elif step == "forget":
            batches.forget(batch)
            open_ones.discard(n)
            del known[n]
        elif step == "due" and n in open_ones:
            batches.received(batch, batch.seq + 1, 1)
    assert batches.count == len(open_ones)
    assert {int(batch.id) for batch in batches.open_batches()} == open_ones
    assert not batches.has_due or open_ones


def test_a_subject_that_is_none_starts_no_batch() -> None:
    with pytest.raises(ValueError, match="not a reply subject"):
        FastBatches().start(b"p.id.10.ok.1.9.$FI", 1, NOW)
