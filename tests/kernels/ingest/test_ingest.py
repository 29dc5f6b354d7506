"""Kernel ingest: batches keep what was routed, plain runs obey the limits, acks say what was stored."""

from __future__ import annotations

import json
import random
import time
from importlib.machinery import ExtensionFileLoader

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.base.duration_histogram import DurationHistogram
from penstock.kernels.ingest import ingest
from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, StreamSink, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, enforce_part, store_one
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference.ingest import Message, StreamModel, encode
from tests.reference.records import counted

PREFIX = b'{"stream":"S","seq":'

subjects = st.sampled_from([b"a", b"a.b", b"orders.1", b"x" * 300])
payloads = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"y" * 5000]))
replies = st.sampled_from([b"", b"_INBOX.1", b"_INBOX.abc.2"])
plain_headers = st.sampled_from([{}, {"X": "1"}, {"KV-Operation": "DEL"}, {"X-Nats-Msg-Id": "no", "B": ""}])
id_headers = st.sampled_from(
    [{"Nats-Msg-Id": "1"}, {"A": "b", "Nats-Msg-Id": "2", "C": "d"}, {"Nats-Msg-Id": ""}]
)

expecting_headers = st.builds(
    lambda name, value, more: {**more, name: value},
    st.sampled_from(
        [
            "Nats-Expected-Stream",
            "Nats-Expected-Last-Sequence",
            "Nats-Expected-Last-Subject-Sequence",
            "Nats-Expected-Last-Msg-Id",
        ]
    ),
    st.sampled_from(["0", "1", "2", "3", "S", "99999999999999999999", "x"]),
    st.sampled_from([{}, {"Nats-Msg-Id": "1"}, {"Nats-Expected-Last-Sequence": "1", "Nats-Msg-Id": "2"}]),
)
any_headers = st.one_of(plain_headers, id_headers, expecting_headers)


def limits_of(model: StreamModel) -> PlainLimits:
    return PlainLimits(
        msgs_max=model.max_msgs,
        bytes_max=model.max_bytes,
        msg_size_max=model.max_msg_size,
        per_subject_max=model.max_msgs_per_subject,
        discard_new=model.discard_new,
        stream=b"S",
    )


def content(log: StreamLog) -> list[tuple[int, bytes, bytes, bytes, int]]:
    found, seq = [], 1
    while (message := log.load_next(b"", seq)) is not None:
        found.append((message.seq, message.subject, message.header, message.payload, message.ts))
        seq = message.seq + 1
    return found


def model_content(model: StreamModel) -> list[tuple[int, bytes, bytes, bytes, int]]:
    return [(m.seq, m.subject, m.header, m.payload, m.ts) for m in model.messages]


def test_the_kernel_is_compiled() -> None:
    assert isinstance(ingest.__loader__, ExtensionFileLoader)


@given(st.lists(st.tuples(subjects, replies, plain_headers, payloads), max_size=30))
def test_a_batch_gives_back_what_was_put_in(
    publishes: list[tuple[bytes, bytes, dict[str, str], bytes]],
) -> None:
    batch = IngestBatch()
    expected = [(s, r, encode(h), p) for s, r, h, p in publishes]
    for publish_ in expected:
        batch.append(*publish_)
    assert len(batch) == len(expected)
    assert [batch.take_one() for _ in expected] == expected
    assert batch.take_one() is None
    batch.rewind()
    assert batch.take_one() == (expected[0] if expected else None)
    batch.clear()
    assert (len(batch), batch.size, batch.take_one()) == (0, 0, None)


@given(
    st.lists(
        st.lists(
            st.tuples(subjects, replies, st.one_of(plain_headers, id_headers, expecting_headers), payloads),
            max_size=20,
        ),
        max_size=4,
    ),
    st.builds(
        StreamModel,
        max_msgs=st.sampled_from([-1, 1, 3]),
        max_bytes=st.sampled_from([-1, 200, 6000]),
        max_msg_size=st.sampled_from([-1, 0, 20]),
        max_msgs_per_subject=st.sampled_from([-1, 1, 2]),
        discard_new=st.booleans(),
        duplicate_window=st.sampled_from([0, 150]),
        storage=st.sampled_from(["file", "memory"]),
    ),
)
def test_a_plain_run_stores_what_the_model_stores(
    runs: list[list[tuple[bytes, bytes, dict[str, str], bytes]]], model: StreamModel
) -> None:
    log, acks, ids = StreamLog(storage=model.storage), AckBatch(PREFIX), MessageIds(model.duplicate_window)
    for now, publishes in enumerate(runs, start=1):
        now *= 100  # noqa: PLW2901
        batch = IngestBatch()
        for subject, reply, headers, payload in publishes:
            batch.append(subject, reply, encode(headers), payload)
        taken = apply_plain(batch, log, limits_of(model), ids, now, now, acks)
        expected_acks = []
        for subject, reply, headers, payload in publishes[:taken]:
            answer = model.publish(subject, headers, payload, now)
            assert "err_code" not in answer  # what is refused must not be stored by the run
            if reply:
                expected_acks.append((reply, {"stream": "S", **answer}))
        assert content(log) == model_content(model)
        assert (log.messages, log.bytes, log.last_seq) == (len(model.messages), model.bytes, model.last_seq)
        assert [(reply, json.loads(text)) for reply, text in acks.items()] == expected_acks
        assert ids.last_id == model.last_id
        acks.clear()
        if taken < len(publishes):
            subject, reply, headers, payload = publishes[taken]
            assert batch.take_one() == (subject, reply, encode(headers), payload)
            size = model.size_of(Message(0, subject, encode(headers), payload, now))
            near_the_limit = model.discard_new and 0 < model.max_bytes < model.bytes + size
            at_the_limit = model.discard_new and model.max_msgs == len(model.messages)
            refused = "err_code" in model.publish(subject, headers, payload, now)
            assert near_the_limit or at_the_limit or refused
            return  # the model may have stored it; Python would decide here


@pytest.mark.parametrize("storage", ["file", "memory"])
@given(subject=subjects, headers=plain_headers, payload=payloads)
def test_a_run_takes_what_just_fits_and_leaves_what_is_a_byte_larger(
    storage: str, subject: bytes, headers: dict[str, str], payload: bytes
) -> None:
    size = counted(storage, subject, encode(headers), payload)
    for room in (size, size - 1):
        batch, log = IngestBatch(), StreamLog(storage=storage)
        batch.append(subject, b"", encode(headers), payload)
        limits = PlainLimits(bytes_max=room, discard_new=True, stream=b"S")
        assert apply_plain(batch, log, limits, MessageIds(0), 1, 1, AckBatch(PREFIX)) == (room == size)
        assert log.bytes == (size if room == size else 0)


SPECIAL = [
    b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Msg-Id: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id2: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Stream: S\r\nNats-Expected-Stream: S\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence-Subject: S\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Other: S\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Stream: S",
    b"NATS/1.0\r\nNats-Msg-Id: 1\n\r\n",
    b"NATS/1.0\r\nA: b\nNats-Msg-Id: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: 1",
    b"NATS/1.0\r\nNats-Msg-Id:",
    b"NATS/1.0\r\nX: y\r\nNats-TTL:1\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"garbage",
    b"NATS/1.0\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("header", SPECIAL)
def test_a_run_stops_before_a_special_header_and_goes_on_behind_it(header: bytes) -> None:
    batch, log, acks = IngestBatch(), StreamLog(), AckBatch(PREFIX)
    batch.append(b"a", b"r", b"", b"1")
    batch.append(b"b", b"r", header, b"2")
    batch.append(b"c", b"r", b"", b"3")
    limits = PlainLimits(stream=b"S")
    assert apply_plain(batch, log, limits, MessageIds(0), 1, 1, acks) == 1
    assert apply_plain(batch, log, limits, MessageIds(0), 1, 1, acks) == 0
    assert batch.take_one() == (b"b", b"r", header, b"2")
    assert apply_plain(batch, log, limits, MessageIds(0), 1, 1, acks) == 1
    assert [json.loads(text)["seq"] for _, text in acks.items()] == [1, 2]


def test_per_message_limits_leave_every_publish_to_python() -> None:
    batch = IngestBatch()
    batch.append(b"a", b"", b"", b"1")
    limits, acks = PlainLimits(per_message=True), AckBatch(PREFIX)
    assert apply_plain(batch, StreamLog(), limits, MessageIds(0), 1, 1, acks) == 0
    assert batch.take_one() == (b"a", b"", b"", b"1")


def test_no_ack_streams_store_without_acks() -> None:
    batch, log, acks = IngestBatch(), StreamLog(), AckBatch(PREFIX)
    batch.append(b"a", b"r", b"", b"1")
    assert apply_plain(batch, log, PlainLimits(no_ack=True), MessageIds(0), 1, 1, acks) == 1
    assert (log.messages, len(acks)) == (1, 0)


@pytest.mark.parametrize("value", [b" x-1", b"x-1", b"\t x-1 \t", b"x-1  "])
def test_ids_are_found_without_the_space_around_them(value: bytes) -> None:
    batch, log, acks, ids = IngestBatch(), StreamLog(), AckBatch(PREFIX), MessageIds(100)
    header = b"NATS/1.0\r\nNats-Msg-Id:" + value + b"\r\nB: c\r\n\r\n"
    batch.append(b"a", b"r", header, b"1")
    batch.append(b"b", b"r", header, b"2")
    assert apply_plain(batch, log, PlainLimits(), ids, 1, 1, acks) == 2
    assert (log.messages, ids.last_id, ids.find(b"x-1", 100), ids.find(b"x-1", 101)) == (1, b"x-1", 1, 0)
    assert acks.items()[1] == (b"r", b'{"stream":"S","seq":1,"duplicate":true}')


@settings(max_examples=50)
@given(
    st.integers(16_000, 36_000),
    st.lists(st.one_of(st.none(), st.integers(0, 72_000)), min_size=1, max_size=70),
)
def test_a_window_of_many_ids_finds_what_a_dict_finds(count: int, numbers: list[int | None]) -> None:
    """Above 16,384 ids a run looks up those of several publishes in advance: between publishes without an id,
    and with ids that the run stores itself, in a table that may be growing."""
    ids, log, acks, batch = MessageIds(1000), StreamLog(), AckBatch(PREFIX), IngestBatch()
    known = {2 * number: number + 1 for number in range(count)}
    for number, seq in known.items():
        ids.add(b"id-%d" % number, seq, 1)
    expected = []
    for number in numbers:
        headers = {} if number is None else {"Nats-Msg-Id": f"id-{number}"}
        batch.append(b"a", b"r", encode(headers), b"x")
        stored = sum(not is_duplicate for _, is_duplicate in expected) + 1
        found = known.get(number) if number is not None else None
        if number is not None and found is None:
            known[number] = stored
        expected.append((found or stored, found is not None))
    assert apply_plain(batch, log, PlainLimits(), ids, 1, 1, acks) == len(numbers)
    answers = [json.loads(text) for _, text in acks.items()]
    assert [(one["seq"], one.get("duplicate", False)) for one in answers] == expected


def test_store_one_and_enforce_part_hold_the_limits() -> None:
    log = StreamLog()
    limits = PlainLimits(msgs_max=3, per_subject_max=2)
    for n in range(4):
        assert store_one(log, limits, b"a", b"", b"%d" % n, 5) == n + 1
    assert [m[0] for m in content(log)] == [3, 4]
    for _ in range(2):
        store_one(log, limits, b"b", b"NATS/1.0\r\nX: y\r\n\r\n", b"", 5)
    assert [m[0] for m in content(log)] == [4, 5, 6]
    work, at = enforce_part(log, PlainLimits(per_subject_max=1), 1, 1_000_000)
    assert [m[0] for m in content(log)] == [4, 6]
    assert (0 < work < 1_000_000, at) == (True, 0)


@pytest.mark.parametrize(
    "limits",
    [{"msgs_max": 30}, {"bytes_max": 2000}, {"per_subject_max": 2}, {"per_subject_max": 3, "msgs_max": 20}],
    ids=str,
)
def test_lowered_limits_hold_after_parts_of_bounded_work(limits: dict[str, int]) -> None:
    log, rng = StreamLog(), random.Random(5)
    subjects = [b"s.%d" % rng.randrange(20) for _ in range(3000)]
    for subject in subjects:
        log.append(subject, b"", b"x", 1)
    at, parts = 1, 0
    while at:
        before = log.removals
        work, at = enforce_part(log, PlainLimits(**limits), at, 5000)
        assert log.removals - before <= work // 192 and work <= 5000 + 16 * 200
        parts += 1
    assert parts > 50
    keep = limits.get("per_subject_max", 3000)
    kept = [seq for n, seq in enumerate(range(1, 3001)) if subjects[n:].count(subjects[n]) <= keep]
    most = limits.get("msgs_max") or (2000 // log.cost_of(3, 0, 1) if "bytes_max" in limits else 3000)
    assert [m[0] for m in content(log)][3:] == kept[-most:][3:]


def test_publishes_that_fit_no_record_are_refused() -> None:
    with pytest.raises(ValueError, match="70000 bytes of subject"):
        IngestBatch().append(b"s" * 70_000, b"", b"", b"")


def test_a_sink_collects_marks_once_and_swaps_its_batches() -> None:
    marks: list[int] = []
    dirty = DirtyList(lambda: marks.append(1))
    stream = object()
    sink = StreamSink(dirty, stream)
    index = SubscriptionIndex()
    index.insert(SinkSubscription(sink, b"s.>"))
    for n in range(3):
        assert publish(index, b"s.%d" % n, b"r", b"", b"x") == 1
    assert (marks, dirty.take()) == ([1], [stream])
    first = sink.take()
    publish(index, b"s.9", b"", b"", b"y")
    assert (len(first), dirty.take()) == (3, [stream])
    assert sink.take().take_one() == (b"s.9", b"", b"", b"y")
    assert len(sink.take()) == 0


def test_the_acks_of_a_batch_are_timed_from_the_arrival_of_its_first_publish() -> None:
    index, dirty = SubscriptionIndex(), DirtyList(lambda: None)
    sink = StreamSink(dirty, object())
    index.insert(SinkSubscription(sink, b"s.>"))
    before = time.monotonic_ns()
    for reply in (b"r", b"", b"r"):
        publish(index, b"s.1", reply, b"", b"x")
    after = time.monotonic_ns()
    batch, acks, times = sink.take(), AckBatch(PREFIX), DurationHistogram()
    assert before <= batch.since <= after
    log = StreamLog()
    apply_plain(batch, log, PlainLimits(), MessageIds(0), 1, 1, acks)
    assert acks.since == batch.since
    publish(index, b"s.2", b"r", b"", b"x")
    apply_plain(sink.take(), log, PlainLimits(), MessageIds(0), 1, 1, acks)  # during a sync
    assert acks.since == batch.since
    acks.route(index, times)
    sum_ns, _, events = times.snapshot()
    assert events == 3
    assert sum_ns <= 3 * (time.monotonic_ns() - before)
    assert acks.since == 0
    acks.add(b"r", b"not timed: the arrival of its publish is unknown")
    acks.route(index, times)
    assert times.snapshot()[2] == 3


def test_acks_of_a_group_are_timed_from_what_its_leader_noted() -> None:
    index, acks, times = SubscriptionIndex(), AckBatch(PREFIX), DurationHistogram()
    acks.arrived(5)
    batch = IngestBatch()
    batch.append(b"s", b"r", b"", b"x")
    again = IngestBatch.decode(batch.encode())
    apply_plain(again, StreamLog(), PlainLimits(), MessageIds(0), 1, 1, acks)
    acks.arrived(7)  # of a later entry: these acks still wait
    assert (again.since, acks.since) == (0, 5)
    acks.route(index, times)
    assert times.snapshot()[2] == 1


def test_acks_reach_their_inboxes_in_order() -> None:
    index = SubscriptionIndex()
    client = ClientSink(DirtyList())
    index.insert(SinkSubscription(client, b"_INBOX.me.*", sid=b"7"))
    acks = AckBatch(PREFIX)
    acks.add_ack(b"_INBOX.me.1", 18446744073709551615)
    acks.add(b"_INBOX.me.2", b"{}")
    acks.add_ack(b"_INBOX.other", 3)
    assert acks.route(index) == 2
    assert len(acks) == 0
    assert client.take() == (
        b'MSG _INBOX.me.1 7 41\r\n{"stream":"S","seq":18446744073709551615}\r\nMSG _INBOX.me.2 7 2\r\n{}\r\n'
    )
