"""Kernel directget: answers are what the model says, and those without Python what Python says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.log.queries import DirectGets, RequestsButDirectGets, send_run, send_these
from penstock.kernels.log.stream_log import StoredRecord, StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import headers
from penstock.protocol.durations import NS_PER_S
from tests.reference import direct_get as model
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.direct-get", "stream.direct-get-batch")

GET = "$JS.API.DIRECT.GET.C"
HEADERS = [b"", b"NATS/1.0\r\nX: y\r\n\r\n", b"NATS/1.0\r\n\r\n", b"no block", b"\r\n\r"]
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"c.a", b"c.b", b"c.longer.one"]),
        st.sampled_from(HEADERS),
        st.binary(max_size=40),
        st.integers(0, 2**63 - 1) | st.integers(0, 10**9).map(lambda n: n * NS_PER_S),
    ),
    max_size=20,
)


def stored(messages: list[tuple[bytes, bytes, bytes, int]], removed: set[int]) -> StreamLog:
    log = StreamLog(256)
    for subject, header, payload, ts in messages:
        log.append(subject, header, payload, ts)
    for seq in removed:
        log.remove(seq)
    return log


def listening() -> tuple[SubscriptionIndex, list[tuple[bytes, bytes]]]:
    index = SubscriptionIndex()
    heard: list[tuple[bytes, bytes]] = []

    def hear(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        assert (subject, reply, origin) == (b"inbox", b"", None)
        heard.append((header, payload))

    index.insert(SinkSubscription(ServiceSink(hear), b"inbox"))
    return index, heard


def live(log: StreamLog) -> list[StoredRecord]:
    return [message for seq in range(1, log.last_seq + 1) if (message := log.load(seq)) is not None]


@given(
    MESSAGES,
    st.sets(st.integers(1, 20)),
    st.sampled_from([b"", b"c.a", b"c.*"]),
    st.integers(1, 22),
    st.integers(0, 6),
    st.integers(1, 300),
    st.booleans(),
)
def test_a_run_of_messages_is_what_the_model_says(
    messages: list[tuple[bytes, bytes, bytes, int]],
    removed: set[int],
    filter_subject: bytes,
    seq: int,
    most: int,
    room: int,
    bare: bool,
) -> None:
    log = stored(messages, removed)
    index, heard = listening()
    wanted = {b"": {b"c.a", b"c.b", b"c.longer.one"}, b"c.*": {b"c.a", b"c.b"}}.get(filter_subject, {b"c.a"})
    chosen = [one for one in live(log) if one.seq >= seq and one.subject in wanted]
    sent, last, pending = send_run(
        index, b"inbox", b"S", log,
        filter=filter_subject, seq=seq, pending=len(chosen), most=most, room=room, bare=bare,
    )  # fmt: skip
    expected = model.batch(b"S", chosen, most=most, room=room, bare=bare)
    assert (heard, last, pending) == expected
    assert sent == len(heard)


@given(MESSAGES, st.sets(st.integers(1, 20)), st.integers(0, 6), st.integers(1, 300))
def test_chosen_messages_are_what_the_model_says(
    messages: list[tuple[bytes, bytes, bytes, int]], chosen: set[int], most: int, room: int
) -> None:
    log = stored(messages, set())
    index, heard = listening()
    there = [one for one in live(log) if one.seq in chosen]
    sent, last, pending = send_these(
        index, b"inbox", b"S", log, seqs=[one.seq for one in there], most=most, room=room
    )
    assert (heard, last, pending) == model.batch(b"S", there, most=most, room=room, bare=False)
    assert sent == len(heard)


def test_messages_that_are_gone_are_passed_over() -> None:
    log = stored([(b"c.a", b"", b"%d" % n, n) for n in range(1, 5)], {2})
    index, heard = listening()
    assert send_these(index, b"inbox", b"S", log, seqs=[1, 2, 9, 4], most=0, room=999) == (2, 4, 0)
    assert [payload for _, payload in heard] == [b"1", b"4"]


ASKS = st.one_of(
    st.fixed_dictionaries({"seq": st.integers(1, 9)}),
    st.fixed_dictionaries(
        {"last_by_subj": st.sampled_from(["c.a", "c.b", "c.none", "c.*", "c..", "ü", 'a"b'])}
    ),
    st.fixed_dictionaries(
        {"next_by_subj": st.sampled_from(["c.a", "c.none", "c.*", ">"])}, optional={"seq": st.integers(1, 9)}
    ),
)


def asked(js: EngineHarness, body: bytes, header: bytes = b"") -> list[tuple[bytes, bytes]]:
    return [(head, payload) for _, head, payload in js.messages(GET, body, header)]


@given(MESSAGES, st.sets(st.integers(1, 5)), ASKS, st.sampled_from([None, 1, 3]))
def test_requests_answered_in_the_kernel_get_what_python_says(
    messages: list[tuple[bytes, bytes, bytes, int]],
    removed: set[int],
    ask: dict[str, Any],
    indent: int | None,
) -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    log = js.engine.streams["C"].log
    for subject, header, payload, ts in messages:
        log.append(subject, header, payload, ts)
    for seq in removed:
        log.remove(seq)
    slow = json.dumps({**ask, "bogus": 1}).encode()  # a field that the kernel leaves to Python
    for separators in ((",", ":"), (" , ", " : ")):
        quick = json.dumps(ask, indent=indent, separators=separators).encode()
        assert asked(js, quick) == asked(js, slow)
    if ask.get("last_by_subj") in ("c.a", "c.b", "c.none", "c.*"):
        by_subject = js.messages(f"{GET}.{ask['last_by_subj']}")
        assert [(head, payload) for _, head, payload in by_subject] == asked(js, slow)


@pytest.mark.parametrize(
    "body",
    [
        b'{"seq":1,"seq":2}', b'{"seq":01}', b'{"seq":1.0}', b'{"seq":-1}', b'{"seq":99999999999999999999}',
        b'{"seq":1', b'{"seq":1,}', b'{"seq" 1}', b'{"seq":}', b'{seq:1}', b'{"seq":1}x', b"{}", b"", b"{",
        b'{"next_by_subj":"c.a","last_by_subj":"c.a"}', b'{"last_by_subj":""}', b'{"last_by_subj":1}', b" ",
        b'{"last_by_subj":"c.\\u0061"}', b'{"last_by_subj":"c.a', b'{"seq":1,"last_by_subj":"c.a"}',
        b'{"seq":0}', b'{"SEQ":1}',
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_python(body: bytes) -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    js.request("c.a", b"1")
    js.request("c.a", b"2")
    # A header of no meaning has it read by Python too.
    assert asked(js, body) == asked(js, body, b"NATS/1.0\r\nX: y\r\n\r\n")


def test_a_request_sees_what_was_published_before_it_in_the_same_tick() -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    heard = js.listen(b"answer")
    publish(js.index, b"c.a", b"", b"", b"fresh")
    publish(js.index, f"{GET}.c.a".encode(), b"answer", b"", b"")
    js.tick()
    assert [payload for _, _, payload in heard] == [b"fresh"]


def test_an_answer_that_leads_back_to_the_service_is_no_endless_road() -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    js.request("c.a", b'{"seq":1}')
    publish(js.index, GET.encode(), GET.encode(), b"", b'{"seq":1}')
    js.tick()
    assert headers.parse(asked(js, b'{"seq":1}')[0][0]).headers["Nats-Sequence"] == "1"


TOKENS = st.sampled_from(
    ["S", "T", "DIRECT", "GET", "STREAM", "INFO", "\u00e4", "\udcff", "SS", "DIRECT.GET", ""]
)


@given(st.lists(TOKENS, min_size=1, max_size=5), st.sets(TOKENS), st.sampled_from(["$JS.API.", "$JS.d.API."]))
def test_direct_gets_of_streams_with_their_own_subscriptions_are_ignored(
    tokens: list[str], answered: set[str], prefix: str
) -> None:
    index = SubscriptionIndex()
    heard: list[bytes] = []
    names: dict[str, Any] = dict.fromkeys(answered)
    sink = RequestsButDirectGets(lambda subject, *rest: heard.append(subject), lambda: None, names)
    index.insert(SinkSubscription(sink, f"{prefix}>".encode()))
    request = ".".join(one for one in tokens if one)
    verbs = request.split(".")
    subject = (prefix + request).encode("utf-8", "surrogateescape")
    if not request:
        return
    publish(index, subject, b"r", b"", b"")
    is_ignored = verbs[:2] == ["DIRECT", "GET"] and len(verbs) > 2 and verbs[2] in answered
    assert heard == ([] if is_ignored else [subject])
    names.clear()
    publish(index, subject, b"r", b"", b"")
    assert heard[-1] == subject, "what is answered may change"


@pytest.mark.parametrize(
    "body", [b'{"seq":1}', b'{"seq":2}', b'{"last_by_subj":"c.a"}', b'{"seq":1,"batch":2}']
)
def test_a_subscription_to_the_direct_gets_of_one_stream_answers_as_one_to_the_api(body: bytes) -> None:
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    js.request("c.a", b"one")
    left: list[bytes] = []
    sink = DirectGets(
        lambda subject, *rest: left.append(subject),
        lambda: None,
        js.engine,
        js.engine.index,
        b"none",
        len("$JS.API."),
    )
    for rest in ("", ".>"):
        js.engine.index.insert(SinkSubscription(sink, f"{GET}{rest}".encode()))
    heard = js.listen(b"inbox")
    publish(js.index, GET.encode(), b"inbox", b"", body)
    js.tick()
    by_api = [one for one in heard if one[1] != b"none" and b"404" not in one[1]]
    if b"batch" in body:
        assert left == [GET.encode()], "it is for the callback"
    elif b"2" in body:
        assert (left, [one[1] for one in heard if one[1] == b"none"]) == ([], [b"none"])
    else:
        assert (left, len(by_api)) == ([], 2)
        assert by_api[0] == by_api[1]
