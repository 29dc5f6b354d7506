"""Whatever a client sends, the engine answers in JSON and goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream.api.api_table import COLONS_MAX, OBJECTS_MAX
from penstock.jetstream.api.service import TABLE
from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.api-errors")

VERBS = [
    "INFO",
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.DELETE",
    "STREAM.PURGE",
    "STREAM.MSG.GET",
    "STREAM.MSG.DELETE",
    "STREAM.LEADER.STEPDOWN",
    "CONSUMER.CREATE",
    "CONSUMER.DURABLE.CREATE",
    "CONSUMER.NAMES",
    "CONSUMER.LIST",
    "CONSUMER.INFO",
    "CONSUMER.DELETE",
    "NOTHING",
]
FIELDS = [
    "name",
    "subjects",
    "retention",
    "max_msgs",
    "max_bytes",
    "max_age",
    "max_msg_size",
    "max_msgs_per_subject",
    "storage",
    "discard",
    "num_replicas",
    "duplicate_window",
    "metadata",
    "first_seq",
    "sealed",
    "mirror",
    "sources",
    "republish",
    "placement",
    "consumer_limits",
    "subject_delete_marker_ttl",
    "offset",
    "subject",
    "subjects_filter",
    "deleted_details",
    "filter",
    "seq",
    "keep",
    "last_by_subj",
    "next_by_subj",
    "start_time",
    "batch",
    "multi_last",
    "no_erase",
    "stream_name",
    "config",
    "pedantic",
]

tokens = st.one_of(st.sampled_from([b"S", b"T", b"a_b"]), st.binary(min_size=1, max_size=4))
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=5),
        st.sampled_from(["S", "s.>", "s.1", ">", "limits", "file", "2020-01-01T00:00:00Z", -1, 2**63, 2**64]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
bodies = st.one_of(
    st.binary(max_size=30),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=5).map(lambda body: json.dumps(body).encode()),
)
header_blocks = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"Nats-Msg-Id",
                    b"Nats-TTL",
                    b"Nats-Rollup",
                    b"Nats-Expected-Last-Sequence",
                    b"Nats-Trace-Dest",
                    b"Nats-Expected-Last-Subject-Sequence",
                    b"Nats-Expected-Last-Subject-Sequence-Subject",
                    b"Nats-Expected-Stream",
                    b"Nats-Expected-Last-Msg-Id",
                    b"Nats-Required-Api-Level",
                    b"X",
                ]
            ),
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b"S", b"1", b"0", b"sub", b"ALL", b"never", b"1h"])
            ),
        ),
        max_size=4,
    ).map(lambda pairs: b"NATS/1.0\r\n" + b"".join(n + b": " + v + b"\r\n" for n, v in pairs) + b"\r\n"),
)


def sent(js: EngineHarness, subject: bytes, header: bytes, payload: bytes) -> bool:
    """Publishes with the reply `answer`; False when it had no receiver, like all malformed subjects."""
    try:
        return publish(js.index, subject, b"answer", header, payload) > 0
    except ValueError:
        return False


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.sampled_from(VERBS), st.lists(tokens, max_size=3), bodies, header_blocks), max_size=8
    )
)
def test_every_request_to_an_endpoint_is_answered_once_with_json(
    requests: list[tuple[str, list[bytes], bytes, bytes]],
) -> None:
    js = EngineHarness()
    js.create("S", "s.>", allow_direct=True)
    js.request("s.1", b"x")
    js.listen(b"$JS.EVENT.>")
    answers = js.listen(b"answer")
    for verb, args, body, header in requests:
        subject = b".".join([b"$JS.API", verb.encode(), *args])
        answers.clear()
        if sent(js, subject, header, body):
            js.tick()
            if (
                TABLE.find([token.decode("utf-8", "surrogateescape") for token in subject.split(b".")[2:]])
                is None
            ):
                assert [answer[2] for answer in answers] in ([], [b""])  # silence, or no responders
            else:
                assert len(answers) == 1
                assert "type" in json.loads(answers[0][2])


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(tokens, header_blocks, st.binary(max_size=10)), max_size=10))
def test_every_publish_is_answered_once_with_json(publishes: list[tuple[bytes, bytes, bytes]]) -> None:
    js = EngineHarness()
    js.create("S", "s.>", allow_rollup_hdrs=True, subject_delete_marker_ttl=2 * 10**9, max_age=10**9)
    answers = js.listen(b"answer")
    count = sum([sent(js, b"s." + token, header, payload) for token, header, payload in publishes])
    js.tick()
    assert len(answers) == count
    for _, _, text in answers:
        answer = json.loads(text)
        assert answer["stream"] == "S"
        assert (answer["seq"] > 0) != ("error" in answer)
    js.wait_until(js.now + 3600 * 10**9)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.lists(tokens, max_size=2), bodies), max_size=6))
def test_every_direct_get_is_answered(requests: list[tuple[list[bytes], bytes]]) -> None:
    js = EngineHarness()
    js.create("S", "s.>", allow_direct=True)
    for n in range(3):
        js.request(f"s.{n}", b"x", b"NATS/1.0\r\nX: y\r\n\r\n" if n else b"NATS/1.0 junk")
    answers = js.listen(b"answer")
    for args, body in requests:
        answers.clear()
        if sent(js, b".".join([b"$JS.API.DIRECT.GET.S", *args]), b"", body):
            assert answers


def test_a_request_of_more_objects_than_any_needs_is_refused_before_they_are_made() -> None:
    js = EngineHarness()

    def create(count: int) -> str:
        body = b'{"name":"S","subjects":["s.>"],"sources":[%s]}' % b",".join([b"{}"] * count)
        return str(js.api("STREAM.CREATE.S", body)["error"]["description"])

    assert "objects; the most is" in create(OBJECTS_MAX)
    assert "objects" not in create(OBJECTS_MAX - 1)
    functions = {"src": "s.*", "dest": "t.{{wildcard(1)}}" + "{{" * OBJECTS_MAX}
    answer = js.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "subject_transform": functions})
    assert "objects" not in answer["error"]["description"]


def test_a_request_of_more_members_than_any_needs_is_refused_before_they_are_made() -> None:
    js = EngineHarness()

    def create(count: int) -> str:
        metadata = {f"{n:05}": "" for n in range(count)}
        answer = js.api("STREAM.CREATE.S", {"name": "S", "metadata": metadata})
        return str(answer["error"]["description"]) if "error" in answer else ""

    assert create(20_000) == ""
    assert "maximum" in create(COLONS_MAX - 10)
    assert "colons; the most is" in create(COLONS_MAX)
