"""`$JS.API.STREAM.>` against an engine: answers, errors and states as the official server gives them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock.protocol.durations import format_time
from tests.support.engine import START_NS, EngineHarness

pytestmark = pytest.mark.feature("stream.api")

ZERO = "0001-01-01T00:00:00Z"
T = "io.nats.jetstream.api.v1."


@pytest.fixture
def js() -> EngineHarness:
    return EngineHarness()


def refused(answer: dict[str, Any]) -> tuple[int, int, str]:
    error = answer["error"]
    return error["code"], error["err_code"], error["description"]


def test_account_info_counts_what_is_there(js: EngineHarness) -> None:
    js.create("A")
    js.create("M", storage="memory")
    js.request("A", b"hello")
    js.request("M", b"hello")
    info = js.api("INFO")
    assert (info["type"], info["streams"], info["consumers"]) == (T + "account_info_response", 2, 0)
    assert (info["storage"], info["memory"]) == (36, 22)
    assert info["limits"]["max_storage"] == -1
    assert info["api"] == {"level": 5, "total": 2, "errors": 0}  # the request itself is not counted yet


def test_a_created_stream_shows_its_defaults(js: EngineHarness) -> None:
    answer = js.api("STREAM.CREATE.A", {"name": "A"})
    assert answer["type"] == T + "stream_create_response"
    assert answer["did_create"] is True
    assert answer["created"] == answer["ts"] == format_time(START_NS)
    assert answer["config"] == {
        "name": "A",
        "subjects": ["A"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": 120_000_000_000,
        "compression": "none",
        "allow_direct": False,
        "mirror_direct": False,
        "sealed": False,
        "deny_delete": False,
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "consumer_limits": {},
        "allow_msg_ttl": False,
        "metadata": {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.14.0"},
    }
    assert answer["state"] == {
        "messages": 0,
        "bytes": 0,
        "first_seq": 0,
        "first_ts": ZERO,
        "last_seq": 0,
        "last_ts": ZERO,
        "consumer_count": 0,
    }


def test_creating_again_is_fine_with_the_same_configuration_only(js: EngineHarness) -> None:
    first = js.create("A", metadata={"k": "v"})
    js.now += 5
    again = js.create("A", metadata={"k": "v"})
    assert again["created"] == first["created"]
    assert refused(js.api("STREAM.CREATE.A", {"name": "A", "max_msgs": 5})) == (
        400,
        10058,
        "stream name already in use with a different configuration",
    )


@pytest.mark.parametrize(
    ("body", "err_code"),
    [
        (b"", 10056),
        (b"{", 10025),
        (b"[]", 10025),
        ({"name": "A", "bogus": 1}, 10025),
        ({"name": "A", "max_msgs": "x"}, 10025),
        ({"name": "A", "storage": "tape"}, 10025),
        ({"name": "B"}, 10056),
    ],
)
def test_bad_create_requests_are_refused(js: EngineHarness, body: Any, err_code: int) -> None:
    assert js.api("STREAM.CREATE.A", body)["error"]["err_code"] == err_code
    assert js.engine.streams == {}


@pytest.mark.parametrize("subject", ["FOO.BAR", "STREAM.INFO", "STREAM.INFO.A.B"])
def test_unknown_requests_are_met_with_silence(js: EngineHarness, subject: str) -> None:
    assert js.messages(f"$JS.API.{subject}") == []


@pytest.mark.parametrize("subject", ["CONSUMER.MSG.NEXT.A", "CONSUMER.MSG.NEXT.A.B.C", "DIRECT.GET"])
def test_unknown_pulls_and_direct_gets_have_no_responders(js: EngineHarness, subject: str) -> None:
    [(_, header, payload)] = js.messages(f"$JS.API.{subject}")
    assert header.startswith(b"NATS/1.0 503\r\n")
    assert payload == b""


@pytest.mark.parametrize("verb", ["INFO", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE"])
def test_what_is_asked_of_an_unknown_stream_is_404(js: EngineHarness, verb: str) -> None:
    body = {"seq": 1} if verb.startswith("MSG") else b""
    assert refused(js.api(f"STREAM.{verb}.NOPE", body)) == (404, 10059, "stream not found")
    update = js.api("STREAM.UPDATE.NOPE", {"name": "NOPE"})
    assert (update["type"], refused(update)[1]) == (T + "stream_update_response", 10059)


@pytest.mark.feature("stream.api-levels")
@pytest.mark.parametrize("level", ["", "-1", "0", "+3", " 5"])
def test_an_api_level_that_requires_nothing_more_is_met(js: EngineHarness, level: str) -> None:
    header = f"NATS/1.0\r\nNats-Required-Api-Level: {level}\r\n\r\n".encode()
    assert "error" not in js.api("STREAM.NAMES", header=header)


@pytest.mark.feature("stream.api-levels")
@pytest.mark.parametrize("level", ["9", "x", "1.5", "-", "+"])
def test_requests_that_require_a_higher_api_level_are_refused(js: EngineHarness, level: str) -> None:
    header = f"NATS/1.0\r\nNats-Required-Api-Level: {level}\r\n\r\n".encode()
    assert refused(js.api("STREAM.NAMES", header=header)) == (
        412,
        10185,
        "JetStream minimum api level required",
    )


def test_streams_can_not_share_a_subject(js: EngineHarness) -> None:
    js.create("A", "a.>")
    overlap = (400, 10065, "subjects overlap with an existing stream")
    assert refused(js.api("STREAM.CREATE.B", {"name": "B", "subjects": ["a.*"]})) == overlap
    js.create("B", "b")
    assert refused(js.api("STREAM.UPDATE.B", {"name": "B", "subjects": ["b", "a.x"]})) == overlap


def test_states_follow_publishes_deletes_and_purges(js: EngineHarness) -> None:
    js.create("B", "b.>")
    for n in range(5):
        js.now += 1_000
        assert js.request(f"b.{n % 2}", b"m%d" % n) == {"stream": "B", "seq": n + 1}
    first, last = format_time(START_NS + 1_000), format_time(START_NS + 5_000)
    assert js.state("B") == {
        "messages": 5,
        "bytes": 175,
        "first_seq": 1,
        "first_ts": first,
        "last_seq": 5,
        "last_ts": last,
        "num_subjects": 2,
        "consumer_count": 0,
    }
    assert js.api("STREAM.MSG.DELETE.B", {"seq": 2})["success"] is True
    assert refused(js.api("STREAM.MSG.DELETE.B", {"seq": 2})) == (400, 10043, "sequence 2 not found")
    assert js.api("STREAM.MSG.DELETE.B", {"seq": 3, "no_erase": True})["success"] is True
    state = js.state("B", deleted_details=True)
    assert (state["messages"], state["num_deleted"], state["deleted"]) == (3, 2, [2, 3])
    assert js.api("STREAM.PURGE.B")["purged"] == 3
    assert js.state("B") == {
        "messages": 0,
        "bytes": 0,
        "first_seq": 6,
        "first_ts": ZERO,
        "last_seq": 5,
        "last_ts": last,
        "consumer_count": 0,
    }


def test_a_first_sequence_is_where_numbering_begins(js: EngineHarness) -> None:
    answer = js.create("C", first_seq=10)
    assert (answer["config"]["first_seq"], answer["state"]["first_seq"], answer["state"]["last_seq"]) == (
        10,
        10,
        9,
    )
    assert js.request("C", b"x")["seq"] == 10


def test_purges_by_filter_sequence_and_keep(js: EngineHarness) -> None:
    js.create("B", "b.>")
    for n in range(10):
        js.request(f"b.{n % 2}", b"x")
    assert js.api("STREAM.PURGE.B", {"filter": "b.1", "keep": 2})["purged"] == 3
    assert js.api("STREAM.PURGE.B", {"seq": 5})["purged"] == 2
    assert js.api("STREAM.PURGE.B", {"filter": "zz"}) == {
        "type": T + "stream_purge_response",
        "success": True,
        "purged": 0,
    }
    assert refused(js.api("STREAM.PURGE.B", {"seq": 3, "keep": 2})) == (400, 10003, "bad request")
    assert js.api("STREAM.PURGE.B", b"{x")["error"]["err_code"] == 10025
    assert js.api("STREAM.PURGE.B", b"x")["error"]["err_code"] == 10025
    assert js.state("B")["messages"] == 5


def test_denied_operations_are_refused(js: EngineHarness) -> None:
    js.create("D", "d.>", deny_delete=True, deny_purge=True)
    js.request("d.x", b"hello")
    assert refused(js.api("STREAM.PURGE.D")) == (500, 10110, "stream purge not permitted")
    assert refused(js.api("STREAM.MSG.DELETE.D", {"seq": 1})) == (500, 10057, "message delete not permitted")


def test_sealing_ends_every_change(js: EngineHarness) -> None:
    js.create("A", "a.>", allow_rollup_hdrs=True)
    js.request("a.x", b"1")
    config = js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"], "sealed": True, "max_age": 10**10})[
        "config"
    ]
    assert {
        k: config[k]
        for k in ("sealed", "deny_delete", "deny_purge", "discard", "max_age", "allow_rollup_hdrs")
    } == {
        "sealed": True,
        "deny_delete": True,
        "deny_purge": True,
        "discard": "new",
        "max_age": 0,
        "allow_rollup_hdrs": False,
    }
    sealed = (400, 10109, "invalid operation on sealed stream")
    assert refused(js.request("a.x", b"2")) == sealed
    assert refused(js.api("STREAM.PURGE.A")) == sealed
    assert refused(js.api("STREAM.MSG.DELETE.A", {"seq": 1})) == sealed
    assert js.api("STREAM.DELETE.A")["success"] is True


def test_subjects_are_listed_in_pages(js: EngineHarness) -> None:
    js.create("B", "b.>")
    for n in range(5):
        js.request(f"b.{n % 2}", b"x")
    info = js.api("STREAM.INFO.B", {"subjects_filter": ">"})
    assert (info["total"], info["offset"], info["limit"]) == (2, 0, 100_000)
    assert info["state"]["subjects"] == {"b.0": 3, "b.1": 2}
    info = js.api("STREAM.INFO.B", {"subjects_filter": "b.*", "offset": 1})
    assert info["state"]["subjects"] == {"b.1": 2}
    assert "subjects" not in js.api("STREAM.INFO.B", {"subjects_filter": "b.0", "offset": 1})["state"]
    assert info["cluster"] == {"leader": "srv"}


def test_names_and_lists_come_in_pages_and_by_subject(js: EngineHarness) -> None:
    for name in "CAB":
        js.create(name, f"{name.lower()}.>")
    names = js.api("STREAM.NAMES")
    assert (names["total"], names["offset"], names["limit"], names["streams"]) == (
        3,
        0,
        1024,
        ["A", "B", "C"],
    )
    assert js.api("STREAM.NAMES", {"offset": 2})["streams"] == ["C"]
    assert (
        js.api("STREAM.NAMES", {"offset": 10})["offset"],
        js.api("STREAM.NAMES", {"offset": 10})["streams"],
    ) == (3, [])
    assert js.api("STREAM.NAMES", {"subject": "b.x"})["streams"] == ["B"]
    assert js.api("STREAM.NAMES", {"subject": "zzz"})["streams"] == []
    listed = js.api("STREAM.LIST", {"offset": 1})
    assert (listed["total"], listed["limit"], [s["config"]["name"] for s in listed["streams"]]) == (
        3,
        256,
        ["B", "C"],
    )
    assert js.api("STREAM.NAMES", b"{")["error"]["err_code"] == 10025


MESSAGE_REQUESTS: list[tuple[dict[str, Any], int | None]] = [
    ({"seq": 1}, 1),
    ({"seq": 100}, None),
    ({"last_by_subj": "b.1"}, 4),
    ({"last_by_subj": "b.*"}, 5),
    ({"next_by_subj": "b.1", "seq": 3}, 4),
    ({"next_by_subj": "b.1"}, 2),
    ({"start_time": "2020-01-01T00:00:00Z"}, 1),
    ({"start_time": "2020-01-01T00:00:00Z", "next_by_subj": "b.1"}, 2),
    ({"start_time": "2120-01-01T00:00:00Z"}, None),
]
BAD_MESSAGE_REQUESTS: list[Any] = [
    b"",
    {},
    {"seq": 0},
    {"seq": 3, "last_by_subj": "b.1"},
    {"batch": 3, "seq": 1},
    {"seq": 1, "start_time": "2020-01-01T00:00:00Z"},
    {"last_by_subj": "b.1", "next_by_subj": "b.1"},
]


@pytest.mark.parametrize(("body", "seq"), MESSAGE_REQUESTS)
def test_messages_are_got_by_sequence_subject_and_time(js: EngineHarness, body: Any, seq: int | None) -> None:
    js.create("B", "b.>")
    for n in range(5):
        js.request(f"b.{n % 2}", b"m%d" % n)
    answer = js.api("STREAM.MSG.GET.B", body)
    if seq is None:
        assert refused(answer) == (404, 10037, "no message found")
    else:
        expected = {"subject": f"b.{(seq - 1) % 2}", "seq": seq, "time": format_time(START_NS)}
        data = base64.b64encode(b"m%d" % (seq - 1)).decode()
        assert answer["message"] == {**expected, "data": data}


@pytest.mark.parametrize("body", BAD_MESSAGE_REQUESTS)
def test_contradictory_message_requests_are_refused(js: EngineHarness, body: Any) -> None:
    js.create("B", "b.>")
    js.request("b.1", b"x")
    assert refused(js.api("STREAM.MSG.GET.B", body)) == (400, 10003, "bad request")


@pytest.mark.feature("stream.message-get-delete")
@pytest.mark.parametrize(
    "body",
    [
        {"seq": -1},
        {"seq": 2**64},
        {"start_time": "yesterday"},
        {"seqs": 1},
        {"seq": 1, "no_headers": True},
        [1],
    ],
)
def test_message_requests_that_make_no_sense_are_refused(js: EngineHarness, body: Any) -> None:
    """Error 10025."""
    js.create("B", "b.>")
    assert refused(js.api("STREAM.MSG.GET.B", body))[:2] == (400, 10025)


def test_headers_of_a_got_message_can_be_left_out(js: EngineHarness) -> None:
    js.create("B")
    header = b"NATS/1.0\r\nX: y\r\n\r\n"
    js.request("B", b"body", header)
    assert base64.b64decode(js.api("STREAM.MSG.GET.B", {"seq": 1})["message"]["hdrs"]) == header
    assert "hdrs" not in js.api("STREAM.MSG.GET.B", {"seq": 1, "no_hdr": True})["message"]


def test_updates_take_new_subjects_and_limits_at_once(js: EngineHarness) -> None:
    js.create("B", "b.>", "c")
    for n in range(6):
        js.request(f"b.{n % 2}", b"x")
    answer = js.api(
        "STREAM.UPDATE.B", {"name": "B", "subjects": ["b.>", "d"], "max_msgs": 4, "max_msgs_per_subject": 1}
    )
    assert (answer["type"], answer["state"]["messages"]) == (T + "stream_update_response", 2)
    assert js.request("d", b"x")["seq"] == 7
    assert js.messages("c", b"x") == []


UPDATES_REFUSED = [
    ({"storage": "memory"}, "stream configuration update can not change storage type"),
    ({"deny_purge": True}, "stream configuration update can not cancel deny message deletes"),
    ({"deny_delete": True}, "stream configuration update can not cancel deny purge"),
]


@pytest.mark.parametrize(("change", "text"), UPDATES_REFUSED)
def test_what_an_update_may_not_change_is_refused(
    js: EngineHarness, change: dict[str, Any], text: str
) -> None:
    js.create("A", "a.>", deny_delete=True, deny_purge=True)
    keep = {"deny_delete": True, "deny_purge": True} if "storage" in change else {}
    answer = js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["a.>"], **keep, **change})
    assert refused(answer) == (500, 10052, text)


def test_a_deleted_stream_takes_nothing_and_its_name_is_free(js: EngineHarness) -> None:
    js.create("A", "a")
    js.request("a", b"x")
    assert js.api("STREAM.DELETE.A", b"x")["error"]["err_code"] == 10038
    assert js.api("STREAM.DELETE.A", {}) == {"type": T + "stream_delete_response", "success": True}
    assert js.messages("a", b"x") == []
    js.create("A", "a", storage="memory")
    assert js.request("a", b"x")["seq"] == 1


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_deleted_stream_frees_its_messages_at_once(js: EngineHarness, storage: str) -> None:
    """Not when a garbage collection finds the objects that refer to each other, the log among them."""
    js.create("A", "a", storage=storage)
    js.request("a", b"x" * 100)
    log = js.engine.streams["A"].log
    assert sum(block.size for block in log.block_list()) > 100
    js.api("STREAM.DELETE.A", {})
    for _ in range(10):
        js.tick()
    assert sum(block.size for block in log.block_list()) < 100


def test_requests_see_the_publishes_before_them(js: EngineHarness) -> None:
    from penstock.kernels.wire.dispatch import publish

    js.create("A", "a")
    publish(js.index, b"a", b"", b"", b"x")
    assert js.state("A")["messages"] == 1


def test_a_domain_has_an_api_of_its_own() -> None:
    js = EngineHarness(domain="hub")
    assert js.request("$JS.hub.API.STREAM.CREATE.A", {"name": "A"})["domain"] == "hub"
    assert js.api("STREAM.NAMES")["streams"] == ["A"]
    assert js.request("A", b"x") == {"stream": "A", "domain": "hub", "seq": 1}
    assert js.api("INFO")["domain"] == "hub"


def test_account_limits_refuse_streams_and_messages() -> None:
    js = EngineHarness(max_streams=1, max_storage=100, max_memory=50)
    assert js.api("STREAM.CREATE.A", {"name": "A", "max_bytes": 101})["error"]["err_code"] == 10047
    assert (
        js.api("STREAM.CREATE.A", {"name": "A", "max_bytes": 51, "storage": "memory"})["error"]["err_code"]
        == 10028
    )
    js.create("A", "a", max_bytes=100)
    assert js.api("INFO")["reserved_storage"] == 100
    assert js.api("STREAM.CREATE.B", {"name": "B"})["error"]["err_code"] == 10027
    js.api("STREAM.UPDATE.A", {"name": "A", "subjects": ["a"]})
    assert "seq" in js.request("a", b"x" * 90)
    assert refused(js.request("a", b"x")) == (503, 10023, "insufficient resources")


def test_the_subject_index_is_made_piece_by_piece_for_who_asks_with_a_wildcard() -> None:
    harness = EngineHarness()
    harness.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    log = harness.engine.streams["S"].log
    for i in range(40_000):
        log.append(b"s.%d.%d" % (i % 10, i), b"", b"", 1)
    for name, filter_subject in (("literal", "s.1.1"), ("wildcard", "s.7.*")):
        assert log.unindexed_subjects == 40_000
        body = {"stream_name": "S", "config": {"name": name, "filter_subject": filter_subject}}
        answer = harness.request(f"$JS.API.CONSUMER.CREATE.S.{name}.{filter_subject}", body)
    assert answer["num_pending"] == 4_000
    wakes = []
    while log.unindexed_subjects:
        before = harness.wakes
        harness.tick()
        wakes.append(harness.wakes > before)
    assert len(wakes) <= 2
    harness.tick()
    before = harness.wakes
    harness.tick()
    assert harness.wakes == before
