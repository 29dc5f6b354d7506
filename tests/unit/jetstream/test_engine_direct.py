"""Direct get, as the official server answers it: single messages, batches, last of many subjects."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.jetstream.limits import SUBJECTS_MAX
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.direct-get", "stream.direct-get-batch")

GET = "$JS.API.DIRECT.GET.C"
TIME = format_time(START_NS)


@pytest.fixture
def js() -> EngineHarness:
    """c.0 holds 1, 3, 5; c.1 holds 2, 4; c.h holds 6 with a header."""
    js = EngineHarness()
    js.create("C", "c.>", allow_direct=True)
    js.create("B", "b.>")
    for n in range(5):
        js.request(f"c.{n % 2}", b"m%d" % n)
    js.request("c.h", b"m5", b"NATS/1.0\r\nX: y\r\n\r\n")
    return js


def status(js: EngineHarness, subject: str, body: Any) -> tuple[int | None, str]:
    [(_, header, payload)] = js.messages(subject, body)
    assert payload == b""
    return headers.status_of(header)


def block(seq: int, subject: str, *extra: str, own: str = "") -> bytes:
    lines = [
        f"Nats-Stream: C\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\nNats-Time-Stamp: {TIME}",
        *extra,
    ]
    return (
        f"NATS/1.0\r\n{own}{chr(13) + chr(10)}".removesuffix("\r\n").encode()
        + "\r\n".join([*lines, "", ""]).encode()
    )


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        ({"seq": 1}, 1),
        ({"last_by_subj": "c.1"}, 4),
        ({"next_by_subj": "c.1", "seq": 3}, 4),
        ({"next_by_subj": "c.1"}, 2),
        ({"start_time": "2020-01-01T00:00:00Z"}, 1),
        ({"seq": 1, "bogus": 1}, 1),
        ({"seq": 1, "max_bytes": 3}, 1),
    ],
)
def test_one_message_comes_with_its_place_in_headers(js: EngineHarness, body: Any, seq: int) -> None:
    [(_, header, payload)] = js.messages(GET, body)
    assert (header, payload) == (block(seq, f"c.{(seq - 1) % 2}"), b"m%d" % (seq - 1))


def test_own_headers_come_first_and_no_hdr_leaves_all_out(js: EngineHarness) -> None:
    assert js.messages(GET, {"seq": 6})[0][1:] == (block(6, "c.h", own="X: y\r\n"), b"m5")
    assert js.messages(GET, {"seq": 6, "no_hdr": True})[0][1:] == (b"", b"m5")


def test_the_subject_form_gives_the_last_message(js: EngineHarness) -> None:
    assert js.messages(GET + ".c.1")[0][1:] == (block(4, "c.1"), b"m3")
    assert js.messages(GET + ".c.*", {"no_hdr": True})[0][1:] == (b"", b"m5")
    assert status(js, GET + ".c.zz", b"") == (404, "Message Not Found")
    assert status(js, GET + ".c.1", {"seq": 1}) == (408, "Bad Request")
    assert status(js, GET + ".c.1", b"x") == (408, "Malformed Request")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "Empty Request"),
        ({}, "Empty Request"),
        ({"batch": 3}, "Empty Request"),
        (b"x", "Malformed Request"),
        (b"[]", "Malformed Request"),
        ({"seq": 1, "last_by_subj": "c.1"}, "Bad Request"),
        ({"seq": 1, "start_time": "2020-01-01T00:00:00Z"}, "Bad Request"),
        ({"start_time": "soon"}, "Malformed Request"),
        ({"last_by_subj": "c.1", "batch": 2}, "Bad Request"),
        ({"next_by_subj": "a", "multi_last": ["a"]}, "Bad Request"),
        ({"multi_last": ["a"], "up_to_seq": 3, "up_to_time": "2020-01-01T00:00:00Z"}, "Bad Request"),
    ],
)
def test_bad_requests_get_a_status(js: EngineHarness, body: Any, expected: str) -> None:
    assert status(js, GET, body) == (408, expected)


@pytest.mark.parametrize(
    "subject", ["$JS.API.DIRECT.GET.B", "$JS.API.DIRECT.GET.NOPE", "$JS.API.DIRECT.GET.B.b.1"]
)
def test_streams_without_direct_access_have_no_responders(js: EngineHarness, subject: str) -> None:
    [(_, header, _)] = js.messages(subject, {"seq": 1})
    assert header == f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()


def test_a_required_api_level_that_is_too_high_is_refused(js: EngineHarness) -> None:
    header = b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
    [(_, answer, _)] = js.messages(GET, {"seq": 1}, header)
    assert headers.status_of(answer) == (412, "Required Api Level")


def batch(js: EngineHarness, body: Any) -> tuple[list[tuple[int, int, int]], dict[str, str]]:
    """[(sequence, pending, previous sequence)] and the headers that end the batch."""
    found = [headers.parse(header) for _, header, _ in js.messages(GET, body)]
    end = found.pop()
    assert (end.status, end.description) == (204, "EOB")
    rows = [
        [int(one.headers[name]) for name in ("Nats-Sequence", "Nats-Num-Pending", "Nats-Last-Sequence")]
        for one in found
    ]
    return [(a, b, c) for a, b, c in rows], dict(end.headers)


def end(pending: int, last: int, upto: int | None = None) -> dict[str, str]:
    ends = {"Nats-Num-Pending": str(pending), "Nats-Last-Sequence": str(last)}
    return ends if upto is None else {**ends, "Nats-UpTo-Sequence": str(upto)}


def test_batches_count_down_and_end_with_eob(js: EngineHarness) -> None:
    assert batch(js, {"batch": 3, "seq": 1}) == ([(1, 5, 0), (2, 4, 1), (3, 3, 2)], end(3, 3))
    assert batch(js, {"batch": 2, "seq": 1, "next_by_subj": "c.1"}) == ([(2, 1, 0), (4, 0, 2)], end(0, 4))
    assert batch(js, {"batch": 9, "seq": 5}) == ([(5, 1, 0), (6, 0, 5)], end(0, 6))
    assert batch(js, {"batch": 9, "seq": 1, "max_bytes": 1}) == ([(1, 5, 0)], end(5, 1))
    assert status(js, GET, {"batch": 9, "seq": 99}) == (404, "Message Not Found")
    assert status(js, GET, {"batch": 9, "next_by_subj": "zz"}) == (404, "Message Not Found")


def test_batches_without_headers_still_end_with_eob(js: EngineHarness) -> None:
    found = js.messages(GET, {"batch": 2, "seq": 2, "no_hdr": True})
    assert [(h, p) for _, h, p in found[:2]] == [(b"", b"m1"), (b"", b"m2")]
    assert headers.status_of(found[2][1]) == (204, "EOB")


def test_the_last_of_many_subjects_comes_in_order_of_sequence(js: EngineHarness) -> None:
    assert batch(js, {"multi_last": ["c.*"]}) == ([(4, 2, 0), (5, 1, 4), (6, 0, 5)], end(0, 6, 6))
    assert batch(js, {"multi_last": ["c.*"], "batch": 2}) == ([(4, 2, 0), (5, 1, 4)], end(1, 5, 6))
    assert batch(js, {"multi_last": ["c.*"], "up_to_seq": 2}) == ([(1, 1, 0), (2, 0, 1)], end(0, 2, 2))
    assert batch(js, {"multi_last": ["c.1", "c.1", "c.h"], "seq": 5}) == ([(6, 0, 0)], end(0, 6, 6))
    assert status(js, GET, {"multi_last": ["zz"]}) == (404, "No Results")
    assert status(js, GET, {"multi_last": ["zz"] * SUBJECTS_MAX}) == (404, "No Results")
    assert status(js, GET, {"multi_last": ["zz"] * (SUBJECTS_MAX + 1)}) == (408, "Bad Request")
    assert status(js, GET, {"multi_last": ["c.*"], "up_to_time": "2020-01-01T00:00:00Z"}) == (
        404,
        "No Results",
    )


def test_too_many_subjects_are_refused(js: EngineHarness) -> None:
    js.create("M", "m.>", allow_direct=True)
    for n in range(1025):
        js.engine.streams["M"].log.append(b"m.%d" % n, b"", b"", START_NS)
    assert status(js, "$JS.API.DIRECT.GET.M", {"multi_last": [">"]}) == (413, "Too Many Results")
