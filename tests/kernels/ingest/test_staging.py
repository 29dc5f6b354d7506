"""Kernels staging and commits: what waits for a commit, and which commits need no second look."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.ingest.batches import StagedBatches, StagedTotal, check_staged, store_staged
from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits
from penstock.kernels.log.stream_log import StreamLog
from tests.kernels.ingest.test_ingest import PREFIX, content, limits_of, model_content
from tests.reference.ingest import Message, StreamModel, encode
from tests.reference.records import counted
from tests.reference.staging import Headers, Staged, StagingModel, is_plain, may_store, size_of
from tests.support.examples import examples

NOW = 1000

subjects = st.sampled_from([b"a", b"a.b", b"c"])
more_headers = st.one_of(
    st.sampled_from(
        [
            {},
            {"X": "1"},
            {"Nats-TTL": "5"},
            {"Nats-Msg-Id": ""},
            {"Nats-Expected-Last-Msg-Id": ""},
            {"Nats-Expected-Last-Msg-Id": "m1"},
            {"Nats-Expected-Stream": "S"},
            {"Nats-Expected-Stream": "T"},
        ]
    ),
    st.builds(lambda n: {"Nats-Msg-Id": f"m{n}"}, st.integers(0, 4)),
    st.builds(lambda n: {"Nats-Expected-Last-Sequence": str(n)}, st.integers(0, 4)),
    st.builds(lambda n: {"Nats-Expected-Last-Subject-Sequence": str(n)}, st.integers(0, 3)),
)


def in_batch(batch_id: str, seq: object, commit: str | None, more: Headers) -> Headers:
    place = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(seq)}
    return {**place, **({"Nats-Batch-Commit": commit} if commit is not None else {}), **more}


steps = st.tuples(
    st.sampled_from(["one", "two", "other", ""]),
    st.one_of(
        st.integers(0, 4), st.just("next"), st.just("next"), st.sampled_from(["x", "", "0000000000001"])
    ),
    st.sampled_from([None, None, None, "1", "eob", ""]),
    more_headers,
    st.sampled_from([b"", b"_INBOX.1"]),
    st.binary(max_size=30),
)


@pytest.mark.feature("atomic.append")
@settings(max_examples=examples(300))
@given(
    st.lists(steps, max_size=30),
    st.integers(1, 4),
    st.sampled_from([150, 10_000]),
    st.sampled_from([NOW, NOW + 1]),
)
def test_the_next_messages_of_open_batches_are_taken_and_nothing_else(
    run: list[tuple[str, object, str | None, Headers, bytes, bytes]],
    messages_max: int,
    size_max: int,
    check_at: int,
) -> None:
    """What the model does not take is left to Python, and nothing is lost."""
    model = StagingModel(messages_max, size_max, check_at, {"one": [], "two": []})
    staged, total = StagedBatches(), StagedTotal()
    kernel = {name: staged.open(name.encode(), total, messages_max, size_max) for name in model.open}
    staged.check_from(check_at)
    batch, acks = IngestBatch(), AckBatch(PREFIX)
    expected_acks = []
    for batch_id, seq, commit, more, reply, payload in run:
        at = len(model.open.get(batch_id, [])) + 1 if seq == "next" else seq
        message: Staged = (b"a", in_batch(batch_id, at, commit, more), payload)
        publish = (message[0], reply, encode(message[1]), payload)
        batch.append(*publish)
        taken = apply_plain(batch, StreamLog(), PlainLimits(), MessageIds(0), NOW, NOW, acks, staged=staged)
        assert taken == model.take(message, NOW)
        if not taken:
            assert batch.take_one() == publish
        elif reply:
            expected_acks.append((reply, b""))
    assert acks.items() == expected_acks
    for name, messages in model.open.items():
        assert kernel[name].messages() == [(s, encode(h), p) for s, h, p in messages]
        assert kernel[name].count == len(messages) and kernel[name].seq == len(messages)
        assert kernel[name].size == sum(map(size_of, messages))
    for one in kernel.values():
        staged.close(one)
    assert (staged.count, total.bytes, staged.find(b"one")) == (0, 0, None)


@pytest.mark.feature(
    "atomic.commit",
    "atomic.checks-at-commit",
    "atomic.expected-last-seq",
    "atomic.expected-subject-seq",
    "atomic.expected-msg-id",
    "atomic.deduplication",
)
@settings(max_examples=examples(400))
@given(
    st.lists(st.tuples(subjects, st.builds(lambda n: {"Nats-Msg-Id": f"m{n}"}, st.integers(0, 4)))),
    st.lists(st.tuples(subjects, more_headers, st.binary(max_size=10)), min_size=1, max_size=5),
    st.builds(
        StreamModel,
        max_msgs=st.sampled_from([-1, 3]),
        max_bytes=st.sampled_from([-1, 400]),
        max_msgs_per_subject=st.sampled_from([-1, 1]),
        discard_new=st.booleans(),
        duplicate_window=st.sampled_from([0, 50, 5000]),
        storage=st.sampled_from(["file", "memory"]),
    ),
)
def test_a_commit_stores_what_the_model_stores(
    before: list[tuple[bytes, Headers]], batch: list[Staged], model: StreamModel
) -> None:
    """A yes is the model's yes, and then the whole batch is in the log."""
    log, ids, limits = (
        StreamLog(storage=model.storage),
        MessageIds(model.duplicate_window),
        limits_of(model),
    )
    early = IngestBatch()
    for subject, headers in before:
        early.append(subject, b"", encode(headers), b"")
    taken = apply_plain(early, log, limits, ids, 100, 100, AckBatch(PREFIX)) if before else 0
    for subject, headers in before[:taken]:
        model.publish(subject, headers, b"", 100)
    staged = StagedBatches().open(b"b", StagedTotal(), 10, 100_000)
    whole = [(s, in_batch("b", n, None, h), p) for n, (s, h, p) in enumerate(batch, start=1)]
    for subject, headers, payload in whole:
        staged.append(subject, encode(headers), payload)
    expected = may_store(model, whole, NOW)
    assert check_staged(staged, log, limits, ids, NOW) == expected
    assert content(log) == model_content(model)
    if not expected:
        return
    seq = store_staged(staged, log, limits, ids, NOW, None)
    for subject, headers, payload in whole:
        model.store(Message(model.last_seq + 1, subject, encode(headers), payload, NOW), headers, NOW)
    assert seq == log.last_seq == model.last_seq
    assert content(log) == model_content(model)
    assert (log.bytes, ids.last_id) == (model.bytes, model.last_id)


@pytest.mark.parametrize("storage", ["file", "memory"])
@given(st.lists(st.tuples(subjects, st.booleans(), st.binary(max_size=10)), min_size=1, max_size=4))
def test_a_commit_stores_what_just_fits_and_nothing_that_is_a_byte_larger(
    storage: str, batch: list[tuple[bytes, bool, bytes]]
) -> None:
    messages = [
        (subject, encode(in_batch("b", n, None, {}) if has_header else {}), payload)
        for n, (subject, has_header, payload) in enumerate(batch, start=1)
    ]
    size = sum(counted(storage, *one) for one in messages)
    staged = StagedBatches().open(b"b", StagedTotal(), 10, 100_000)
    for one in messages:
        staged.append(*one)
    log, ids = StreamLog(storage=storage), MessageIds(0)
    just, short = (PlainLimits(bytes_max=room, discard_new=True) for room in (size, size - 1))
    assert check_staged(staged, log, just, ids, NOW)
    assert not check_staged(staged, log, short, ids, NOW)
    store_staged(staged, log, just, ids, NOW, None)
    assert log.bytes == size


def test_every_block_the_kernel_takes_is_one_the_model_calls_plain() -> None:
    for headers in (
        {"Nats-Batch-Id": "b"},
        {"Nats-Batch-Sequence": "1"},
        {"Nats-Batch-Id": "", "Nats-Batch-Sequence": "1"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "-1"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Other": "1"},
    ):
        assert not is_plain(headers)
        staged = StagedBatches().open(b"b", StagedTotal(), 10, 1000)
        staged.append(b"a", encode(headers), b"")
        assert not check_staged(staged, StreamLog(), PlainLimits(), MessageIds(0), NOW)


def test_names_that_come_twice_are_left_to_python() -> None:
    staged, total = StagedBatches(), StagedTotal()
    staged.open(b"b", total, 10, 1000)
    staged.check_from(NOW + 1)
    for name, value in (("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", "1")):
        block = encode(in_batch("b", 1, None, {}))[:-2] + f"{name}: {value}\r\n\r\n".encode()
        batch = IngestBatch()
        batch.append(b"a", b"", block, b"")
        acks = AckBatch(PREFIX)
        assert not apply_plain(
            batch, StreamLog(), PlainLimits(), MessageIds(0), NOW, NOW, acks, staged=staged
        )


def test_the_total_of_the_server_ends_what_the_kernel_takes() -> None:
    staged, total = StagedBatches(), StagedTotal(300)
    one = staged.open(b"b", total, 100, 100_000)
    staged.check_from(NOW + 1)
    batch = IngestBatch()
    for seq in range(1, 6):
        batch.append(b"a", b"", encode(in_batch("b", seq, None, {})), b"x" * 20)
    acks = AckBatch(PREFIX)
    taken = apply_plain(batch, StreamLog(), PlainLimits(), MessageIds(0), NOW, NOW, acks, staged=staged)
    assert 0 < taken < 5 and taken == one.count and total.bytes <= 300


def test_the_last_header_can_be_another() -> None:
    total = StagedTotal()
    staged = StagedBatches()
    one = staged.open(b"b", total, 10, 1000)
    one.append(b"a", b"", b"1")
    one.append(b"b", encode({"X": "1"}), b"2")
    one.replace_last_header(encode({"Y": "22"}))
    assert one.messages() == [(b"a", b"", b"1"), (b"b", encode({"Y": "22"}), b"2")]
    assert one.last_header == encode({"Y": "22"})
    assert one.size == size_of((b"a", {}, b"1")) + size_of((b"b", {"Y": "22"}, b"2"))
    staged.close(one)
    assert total.bytes == 0


def test_an_id_is_open_once_and_batches_are_found_among_many() -> None:
    staged, total = StagedBatches(), StagedTotal()
    opened = [staged.open(b"%d" % n, total, 10, 1000) for n in range(1000)]
    with pytest.raises(ValueError, match="open already"):
        staged.open(b"7", total, 10, 1000)
    for n, one in enumerate(opened):
        staged.heard(one, (n * 7) % 1000, 1 << 40)
    assert [one.heard_ns for one in staged.all()] == sorted(one.heard_ns for one in opened)
    for n in range(0, 1000, 2):
        staged.close(opened[n])
    assert [staged.find(b"%d" % n) for n in range(1000)] == [
        one if n % 2 else None for n, one in enumerate(opened)
    ]
