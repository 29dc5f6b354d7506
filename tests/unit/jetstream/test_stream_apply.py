"""A stream's apply(): every check and its answer, against the official server's order and texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol.api import ApiStreamConfig, DiscardPolicy
from penstock.store.memory import MemoryStreamStore
from tests.reference.ingest import StreamModel, encode

pytestmark = pytest.mark.feature("stream.publish-ack")

WINDOW_NS = 1_000
Publish = tuple[bytes, dict[str, str], bytes]


def make_stream(**settings: Any) -> StreamReplica:
    config = ApiStreamConfig(**{"name": "S", "subjects": ["s.>"], **NO_LIMITS, **settings})
    store = MemoryStreamStore({}, "S", b"", storage=config.storage.value)
    return StreamReplica(config, store, created=1, domain="", api_level=3, dirty=DirtyList())


NO_LIMITS = {
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msg_size": -1,
    "max_msgs_per_subject": -1,
    "max_consumers": -1,
    "num_replicas": 1,
    "duplicate_window": WINDOW_NS,
}


def put(stream: StreamReplica, *publishes: Publish, now: int = 10) -> list[dict[str, Any]]:
    """Publishes in one batch; the answers, in order."""
    batch = IngestBatch()
    for subject, headers, payload in publishes:
        batch.append(subject, b"reply", encode(headers), payload)
    stream.apply(batch, now)
    answers = [json.loads(text) for _, text in stream.acks.items()]
    stream.acks.clear()
    return answers


def put_one(
    stream: StreamReplica, subject: bytes = b"s.1", payload: bytes = b"x", now: int = 10, **headers: str
) -> Any:
    """One publish; header names with _ for -."""
    return put(stream, (subject, {k.replace("_", "-"): v for k, v in headers.items()}, payload), now=now)[0]


def error(code: int, err_code: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": text}, "stream": "S", "seq": 0}


def stored(seq: int) -> dict[str, Any]:
    return {"stream": "S", "seq": seq}


def test_a_plain_publish_is_acked_with_its_sequence() -> None:
    stream = make_stream()
    assert put(stream, (b"s.1", {}, b"a"), (b"s.2", {"X": "y"}, b"b")) == [stored(1), stored(2)]
    message = stream.log.load(2)
    assert message is not None
    assert (message.subject, message.header, message.payload, message.ts) == (
        b"s.2", b"NATS/1.0\r\nX: y\r\n\r\n", b"b", 10,
    )  # fmt: skip


def test_the_domain_stands_in_the_ack() -> None:
    store = MemoryStreamStore({}, "S", b"", storage="file")
    config = ApiStreamConfig(name="S", subjects=["s"], **NO_LIMITS)
    stream = StreamReplica(config, store, created=1, domain="hub", api_level=3, dirty=DirtyList())
    assert put_one(stream, b"s") == {"stream": "S", "domain": "hub", "seq": 1}


def test_a_message_id_is_a_duplicate_within_the_window_only() -> None:
    stream = make_stream()
    assert put_one(stream, Nats_Msg_Id="1", now=10) == stored(1)
    assert put_one(stream, b"s.other", Nats_Msg_Id="1", now=9 + WINDOW_NS) == {**stored(1), "duplicate": True}
    assert put_one(stream, Nats_Msg_Id="2", now=9 + WINDOW_NS) == stored(2)
    assert put_one(stream, Nats_Msg_Id="1", now=10 + WINDOW_NS) == stored(3)
    assert put_one(stream, Nats_Msg_Id="", now=10 + WINDOW_NS) == stored(4)
    assert len(stream.ids) == 2


def test_ids_within_one_batch_are_duplicates_too() -> None:
    publish = (b"s.1", {"Nats-Msg-Id": "1"}, b"x")
    assert put(make_stream(), publish, publish) == [stored(1), {**stored(1), "duplicate": True}]


def test_a_stream_without_window_keeps_no_ids() -> None:
    stream = make_stream(duplicate_window=0)
    assert put_one(stream, Nats_Msg_Id="1") == stored(1)
    assert put_one(stream, Nats_Msg_Id="1") == stored(2)


REFUSED_HEADERS = [
    ({"Nats-Batch-Id": "b"}, error(400, 10174, "atomic publish is disabled")),
    ({"Nats-Incr": "1"}, error(400, 10168, "message counters is disabled")),
    ({"Nats-Expected-Stream": "T"}, error(400, 10060, "expected stream does not match")),
    ({"Nats-TTL": "5"}, error(400, 10166, "per-message TTL is disabled")),
    ({"Nats-Expected-Last-Subject-Sequence": "7"}, error(400, 10071, "wrong last sequence: 2")),
    (
        {"Nats-Expected-Last-Subject-Sequence-Subject": "s.>"},
        error(400, 10193, "missing sequence for expected last sequence per subject"),
    ),
    ({"Nats-Expected-Last-Sequence": "7"}, error(400, 10071, "wrong last sequence: 3")),
    ({"Nats-Schedule": "@every 1s"}, error(400, 10188, "message schedules is disabled")),
    ({"Nats-Scheduler": "x"}, error(400, 10212, "message schedules invalid scheduler")),
    ({"Nats-Stream-Source": "x"}, error(400, 10227, "message stream source header is not allowed")),
    ({"Nats-Msg-Id": "1"}, {**stored(2), "duplicate": True}),
    ({"Nats-Expected-Last-Msg-Id": "9"}, error(400, 10070, "wrong last msg ID: ")),
    ({"Nats-Rollup": "sub"}, error(500, 10111, "rollup not permitted")),
]


def three_messages() -> StreamReplica:
    stream = make_stream()
    put(stream, (b"s.0", {}, b""), (b"s.1", {"Nats-Msg-Id": "1"}, b"x"), (b"s.2", {}, b""))
    return stream


@pytest.mark.parametrize(("headers", "answer"), REFUSED_HEADERS)
def test_each_header_is_refused_with_the_official_text(
    headers: dict[str, str], answer: dict[str, Any]
) -> None:
    stream = three_messages()
    assert put(stream, (b"s.1", headers, b"x")) == [answer]
    assert stream.log.last_seq == 3


@pytest.mark.parametrize("first", range(len(REFUSED_HEADERS)))
def test_of_two_offences_the_earlier_check_answers(first: int) -> None:
    headers, answer = REFUSED_HEADERS[first]
    for later, _ in REFUSED_HEADERS[first + 1 :]:
        if headers.keys() == {"Nats-Expected-Last-Subject-Sequence"} and "Subject" in next(iter(later)):
            continue  # together they are one well-formed expectation, of another subject
        assert put(three_messages(), (b"s.1", {**later, **headers}, b"x")) == [answer], later


def test_expected_sequences_that_match_are_stored() -> None:
    stream = make_stream()
    assert put_one(stream, Nats_Expected_Last_Sequence="0") == stored(1)
    assert put_one(stream, b"s.2", Nats_Expected_Last_Subject_Sequence="0") == stored(2)
    assert put_one(stream, b"s.1", Nats_Expected_Last_Subject_Sequence="1") == stored(3)
    other = {"Nats_Expected_Last_Subject_Sequence_Subject": "s.*"}
    assert put_one(stream, b"s.9", Nats_Expected_Last_Subject_Sequence="3", **other) == stored(4)
    assert put_one(stream, Nats_Expected_Stream="S", Nats_Expected_Last_Sequence="4") == stored(5)


@pytest.mark.parametrize("value", ["abc", "-1", "1x", "99999999999999999999999", "18446744073709551616"])
def test_what_is_no_sequence_matches_none(value: str) -> None:
    stream = make_stream()
    assert put_one(stream, Nats_Expected_Last_Sequence=value) == error(400, 10071, "wrong last sequence: 0")


def test_the_last_message_id_is_that_of_the_very_last_message() -> None:
    stream = make_stream()
    put_one(stream, Nats_Msg_Id="7")
    assert put_one(stream, Nats_Expected_Last_Msg_Id="7") == stored(2)
    assert put_one(stream, Nats_Expected_Last_Msg_Id="7") == error(400, 10070, "wrong last msg ID: ")
    put_one(stream, Nats_Msg_Id="8")
    put_one(stream)
    assert put_one(stream, Nats_Expected_Last_Msg_Id="8") == error(400, 10070, "wrong last msg ID: ")


def test_rollups_remove_what_is_older() -> None:
    stream = make_stream(allow_rollup_hdrs=True)
    put(stream, *[(b"s.%d" % (n % 2), {}, b"x") for n in range(6)])
    assert put_one(stream, b"s.1", Nats_Rollup="SUB") == stored(7)
    assert stream.log.subjects() == {b"s.0": 3, b"s.1": 1}
    assert put_one(stream, b"s.1", Nats_Rollup="zz") == error(500, 10111, 'rollup value invalid: "zz"')
    assert put_one(stream, b"s.3", Nats_Rollup="all") == stored(8)
    assert stream.log.subjects() == {b"s.3": 1}


def test_sizes_count_headers_and_payload() -> None:
    stream = make_stream(max_msg_size=30)
    too_large = error(400, 10054, "message size exceeds maximum allowed")
    assert put_one(stream, payload=b"x" * 30) == stored(1)
    assert put_one(stream, payload=b"x" * 31) == too_large
    assert put_one(stream, payload=b"x" * 10, A="bcd") == stored(2)
    assert put_one(stream, payload=b"x" * 11, A="bcd") == too_large


def test_header_blocks_above_64k_are_refused() -> None:
    answer = put_one(make_stream(), A="x" * 70_000)
    assert answer == error(400, 10097, "header size exceeds maximum allowed of 64k")


@pytest.mark.feature("stream.api-levels")
@pytest.mark.parametrize("level", ["4", "x"])
def test_a_publish_that_requires_a_higher_api_level_is_refused(level: str) -> None:
    answer = put_one(make_stream(), Nats_Required_Api_Level=level)
    assert answer == error(412, 10185, "JetStream minimum api level required")


STORED_BLOCKS = [
    (b"NATS/1.0 503\r\nX: y\r\n\r\n", b"NATS/1.0\r\nX: y\r\n\r\n"),
    (b"NATS/1.0 503 No\r\n\r\n", b""),
    (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\r\n"),
    (b"garbage", b"garbage"),
    (b"NATS/1.0\r\nNats-Request-Info: {}\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"),
    (b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n", b""),
    (b"NATS/1.0\r\nNats-Required-Api-Level: 1\r\n\r\n", b""),
    (b"NATS/1.0\r\nNats-Trace-Dest: t\r\n\r\n", b"NATS/1.0\r\nNats-Trace-Dest: trace disabled\r\n\r\n"),
    (b"NATS/1.0\r\nNats-Msg-Id:   5  \r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id:   5  \r\n\r\n"),
]


@pytest.mark.parametrize(("sent", "kept"), STORED_BLOCKS)
def test_blocks_are_stored_without_what_was_meant_for_the_server(sent: bytes, kept: bytes) -> None:
    stream = make_stream()
    batch = IngestBatch()
    batch.append(b"s.1", b"", sent, b"x")
    stream.apply(batch, 5)
    message = stream.log.load(1)
    assert message is not None
    assert (message.header, message.payload) == (kept, b"x")


def test_discard_new_refuses_with_the_limit_that_is_reached() -> None:
    stream = make_stream(discard=DiscardPolicy.NEW, max_msgs=2, max_msgs_per_subject=1)
    full = error(503, 10077, "maximum messages exceeded")
    assert [put_one(stream, s) for s in (b"s.1", b"s.2", b"s.3", b"s.1")] == [
        stored(1),
        stored(2),
        full,
        stored(3),
    ]
    assert stream.log.subjects() == {b"s.1": 1, b"s.2": 1}

    stream = make_stream(discard=DiscardPolicy.NEW, max_bytes=70)
    full = error(503, 10077, "maximum bytes exceeded")
    assert [put_one(stream, b"s.11") for _ in range(3)] == [stored(1), stored(2), full]

    stream = make_stream(discard=DiscardPolicy.NEW, discard_new_per_subject=True, max_msgs_per_subject=1)
    full = error(503, 10077, "maximum messages per subject exceeded")
    assert [put_one(stream, s) for s in (b"s.1", b"s.1", b"s.2")] == [stored(1), full, stored(2)]


def test_sealed_streams_take_nothing() -> None:
    answer = put_one(make_stream(sealed=True))
    assert answer == error(400, 10109, "invalid operation on sealed stream")


def test_no_ack_streams_answer_nothing_not_even_errors() -> None:
    stream = make_stream(no_ack=True, max_msg_size=40)
    assert (
        put(stream, (b"s.1", {}, b"x"), (b"s.1", {}, b"x" * 41), (b"s.1", {"Nats-Msg-Id": "1"}, b"x")) == []
    )
    assert stream.log.messages == 2


def test_a_failed_write_turns_every_waiting_ack_into_an_error() -> None:
    stream = make_stream()
    batch = IngestBatch()
    batch.append(b"s.1", b"r1", b"", b"x")
    batch.append(b"s.1", b"r2", encode({"Nats-Msg-Id": "1"}), b"x")
    stream.apply(batch, 5)
    stream.write_failed("no space left on device")
    expected = error(503, 10077, "no space left on device")
    assert [(reply, json.loads(text)) for reply, text in stream.acks.items()] == [
        (b"r1", expected),
        (b"r2", expected),
    ]


def test_times_never_go_backwards_within_a_stream() -> None:
    stream = make_stream()
    put_one(stream, now=100)
    put_one(stream, now=50)
    assert [stream.log.load(n).ts for n in (1, 2)] == [100, 100]  # type: ignore[union-attr]


# --- against the model -------------------------------------------------------------------------

_sequences = st.integers(0, 6).map(str)
headers_of_publishes = st.fixed_dictionaries(
    {},
    optional={
        "X": st.just("y"),
        "Nats-Msg-Id": st.sampled_from(["1", "2", "3"]),
        "Nats-Expected-Stream": st.sampled_from(["S", "S", "T"]),
        "Nats-Expected-Last-Sequence": _sequences,
        "Nats-Expected-Last-Subject-Sequence": _sequences,
        "Nats-Expected-Last-Msg-Id": st.sampled_from(["1", "2"]),
        "Nats-Rollup": st.sampled_from(["sub", "ALL"]),
    },
)
publish_steps = st.tuples(
    st.sampled_from([b"s.1", b"s.2", b"s.3"]),
    st.one_of(st.just({}), headers_of_publishes),
    st.sampled_from([b"", b"x", b"y" * 40]),
)
steps = st.lists(st.tuples(st.lists(publish_steps, max_size=6), st.integers(0, 700)), max_size=8)
models = st.builds(
    StreamModel,
    max_msgs=st.sampled_from([-1, 1, 3]),
    max_bytes=st.sampled_from([-1, 110, 400]),
    max_msg_size=st.sampled_from([-1, 60]),
    max_msgs_per_subject=st.sampled_from([-1, 1, 2]),
    discard_new=st.booleans(),
    discard_new_per_subject=st.booleans(),
    allow_rollup=st.booleans(),
    duplicate_window=st.sampled_from([0, WINDOW_NS]),
    max_age=st.sampled_from([0, 1_500]),
)


def stream_like(model: StreamModel) -> StreamReplica:
    return make_stream(
        max_msgs=model.max_msgs,
        max_bytes=model.max_bytes,
        max_msg_size=model.max_msg_size,
        max_msgs_per_subject=model.max_msgs_per_subject,
        discard=DiscardPolicy.NEW if model.discard_new else DiscardPolicy.OLD,
        discard_new_per_subject=model.discard_new and model.discard_new_per_subject,
        allow_rollup_hdrs=model.allow_rollup,
        duplicate_window=model.duplicate_window,
        max_age=model.max_age,
    )


def answer_of(ack: dict[str, Any]) -> dict[str, object]:
    if "error" in ack:
        return {"err_code": ack["error"]["err_code"]}
    return {key: value for key, value in ack.items() if key != "stream"}


@given(models, steps)
def test_a_stream_does_what_the_model_does(
    model: StreamModel, batches: list[tuple[list[Publish], int]]
) -> None:
    stream = stream_like(model)
    now = 1
    for publishes, pause in batches:
        now += pause
        model.expire(now)
        stream.expire(now)
        expected = [model.publish(*publish, now) for publish in publishes]
        assert [answer_of(ack) for ack in put(stream, *publishes, now=now)] == expected
        kept = [(m.seq, m.subject, m.header, m.payload, m.ts) for m in model.messages]
        found = [stream.log.load(seq) for seq in range(1, stream.log.last_seq + 1)]
        assert [(m.seq, m.subject, m.header, m.payload, m.ts) for m in found if m is not None] == kept
        assert (stream.log.messages, stream.log.bytes) == (len(model.messages), model.bytes)


@given(models, steps)
def test_the_same_batches_make_the_same_stream(
    model: StreamModel, batches: list[tuple[list[Publish], int]]
) -> None:
    answers, states, infos = [], [], []
    for cut in (False, True):  # one batch a step, and one batch a publish: the cuts must not show
        stream, now = stream_like(model), 1
        heard = []
        for publishes, pause in batches:
            now += pause
            stream.expire(now)
            for group in [[p] for p in publishes] if cut else [publishes]:
                heard.extend(put(stream, *group, now=now))
        answers.append(heard)
        states.append([stream.log.load(seq) for seq in range(1, stream.log.last_seq + 1)])
        infos.append(stream.state(deleted=True))
    assert answers[0] == answers[1]
    assert states[0] == states[1]
    assert infos[0] == infos[1]
