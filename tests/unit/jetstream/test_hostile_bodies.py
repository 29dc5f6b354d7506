"""Bodies and configurations that once made our own code raise: refused, answered, and a restart works."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from penstock.jetstream.stream.stream_replica import StreamMeta
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.api import (
    ApiStreamConfig,
    DecodeError,
    ExternalStream,
    StreamPurgeRequest,
    StreamSource,
    decode,
    unknown_field,
)
from penstock.protocol.subjects import FILTER_MAX, is_valid_filter
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("stream.api-errors")

HUGE = [b"1e400", b"-1e999999", b"1" * 4301, b"[" * 400 + b"1e400" + b"]" * 400, b'{"b":1e400}']
LONG_FILTER = "t" * (FILTER_MAX + 1)


@pytest.mark.parametrize("number", HUGE)
def test_a_number_that_no_type_holds_is_an_unknown_field_like_any_other(number: bytes) -> None:
    for body in (b'{"a":%s}', b'{"seq":1,"a":%s}', b' {"a" : %s, "b":null}'):
        data = body % number
        assert unknown_field(StreamPurgeRequest(), data) == "a"
    with pytest.raises(DecodeError, match="out of range"):
        decode(StreamPurgeRequest, b'{"seq":%s}' % HUGE[0])
    assert unknown_field(decode(StreamPurgeRequest, b'{"a":%s}' % number), b'{"a":%s}' % number) == "a"


@pytest.mark.parametrize(("field", "most"), [("max_msgs", 2**63 - 1), ("first_seq", 2**64 - 1)])
def test_a_number_is_refused_from_its_first_value_of_more_bits_on(field: str, most: int) -> None:
    for before in (b"", b"1" * 18, b"-", b"\\u0031" * 50, b"\xd9\xa3" * 20):
        body = b'{"description":"%s","%s":%%d}' % (before, field.encode())
        assert getattr(decode(ApiStreamConfig, body % most), field) == most
        for number in (most + 1, 10**30):
            with pytest.raises(DecodeError, match=f"can not read `{field}`: .*out of range"):
                decode(ApiStreamConfig, body % number)


def test_an_unknown_field_is_found_at_any_depth() -> None:
    data = b'{"name":"S","sources":[{"name":"a"},{"name":"b","external":{"api":"x","depth":1e400}}]}'
    assert unknown_field(decode(ApiStreamConfig, data), data) == "depth"
    assert unknown_field(decode(ApiStreamConfig, b'{"name":"\xff"}'), b'{"name":"\xff"}') is None
    assert unknown_field(decode(ApiStreamConfig, b'{"\xff":1}'), b'{"\xff":1}') == "\ufffd"


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "request_",
    ["STREAM.INFO.S", "STREAM.PURGE.S", "STREAM.NAMES", "STREAM.LIST", "STREAM.MSG.GET.S", "CONSUMER.NAMES.S",
     "STREAM.MSG.DELETE.S", "CONSUMER.CREATE.S", "STREAM.SNAPSHOT.S", "STREAM.UPDATE.S", "CONSUMER.LIST.S",
     "CONSUMER.PAUSE.S.c", "CONSUMER.UNPIN.S.c"],
)  # fmt: skip
def test_every_request_with_such_a_number_is_answered(request_: str, number: bytes) -> None:
    js = EngineHarness()
    js.create("S", "s")
    js.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "durable_name": "c"}})
    assert js.api(request_, b'{"a":%s}' % number)["error"]["err_code"] == 10025


@pytest.mark.parametrize("number", HUGE)
def test_a_reset_reads_over_such_a_number(number: bytes) -> None:
    """It takes unknown fields, as the official server does."""
    js = EngineHarness()
    js.create("S", "s")
    js.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": {"name": "c", "durable_name": "c"}})
    assert js.api("CONSUMER.RESET.S.c", b'{"a":%s}' % number)["name"] == "c"


def test_a_subject_that_the_index_refuses_is_refused_before_it_is_kept() -> None:
    js = EngineHarness()
    longest = "t" * FILTER_MAX
    assert "error" not in js.api("STREAM.CREATE.A", {"name": "A", "subjects": [longest]})
    answer = js.api("STREAM.CREATE.B", {"name": "B", "subjects": [LONG_FILTER]})
    assert answer["error"]["description"] == "subject is too long, maximum allowed is 32768 bytes"
    wide = "é" * (FILTER_MAX // 2 + 1)
    assert "error" in js.api("STREAM.CREATE.B", {"name": "B", "subjects": [wide]})
    assert not is_valid_filter(LONG_FILTER) and is_valid_filter(longest)
    assert js.store.stream_names() == ["A"]
    assert "error" in js.api("STREAM.UPDATE.A", {"name": "A", "subjects": [LONG_FILTER]})
    config = {"filter_subject": LONG_FILTER}
    assert "error" in js.api("CONSUMER.CREATE.A", {"stream_name": "A", "config": config})


@pytest.mark.parametrize("length", [FILTER_MAX - 20, FILTER_MAX, 40_000])
@pytest.mark.parametrize("field", ["sources", "mirror"])
def test_a_prefix_for_deliveries_leaves_room_for_what_is_added(field: str, length: int) -> None:
    js = EngineHarness()
    source = {"name": "O", "external": {"api": "$JS.B.API", "deliver": "d" * length}}
    config = {"name": "T", field: [source] if field == "sources" else source}
    assert js.api("STREAM.CREATE.T", config)["error"]["err_code"] == 10024
    source["external"]["deliver"] = "d" * (FILTER_MAX - 25)  # type: ignore[index]
    assert "error" not in js.api("STREAM.CREATE.T", config)
    js.wait_until(js.now + 10_000_000_000)


def poisoned(path: Path, name: str, config: ApiStreamConfig) -> None:
    """What an earlier version kept."""
    no_limit = dict.fromkeys(("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"), -1)
    config = msgspec.structs.replace(config, **no_limit)
    store = FileStore(path)
    store.account("$G").create_stream(name, msgspec.json.encode(StreamMeta(config, 1)), "file")
    store.close()


def test_a_kept_stream_with_such_a_subject_is_offline_and_the_others_work(
    tmp_path: Path, noted_faults: list[BaseException]
) -> None:
    poisoned(tmp_path, "A", ApiStreamConfig(name="A", subjects=["a", LONG_FILTER]))
    poisoned(tmp_path, "B", ApiStreamConfig(name="B", subjects=["b"]))
    before = {path: path.read_bytes() for path in tmp_path.rglob("meta")}
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    assert [type(error) for error in noted_faults] == [ValueError]
    noted_faults.clear()
    assert js.request("b", b"x")["seq"] == 1
    assert js.messages("a", b"x") == [], "no part of the stream takes anything"
    error = js.api("STREAM.INFO.A")["error"]
    assert error["err_code"] == 10194 and "internal error, the server's log has it as fault" in str(error)
    assert list(js.api("STREAM.LIST")["offline"]) == ["A"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("meta")} == before
    assert js.api("STREAM.DELETE.A")["success"], "who looks after it can remove it"
    assert "error" not in js.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
    store.close()


def test_a_kept_source_with_such_a_prefix_is_read_no_more_and_says_so(
    tmp_path: Path, noted_faults: list[BaseException]
) -> None:
    external = ExternalStream(api="$JS.B.API", deliver="d" * 40_000)
    poisoned(tmp_path, "A", ApiStreamConfig(name="A", sources=[StreamSource(name="O", external=external)]))
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))

    def confirm(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        config = json.loads(payload)["config"]
        answer = {"name": "c", "config": config, "delivered": {}, "ack_floor": {}}
        publish(js.index, reply, b"", b"", json.dumps(answer).encode())

    js.index.insert(SinkSubscription(ServiceSink(confirm), b"$JS.B.API.CONSUMER.CREATE.>"))
    js.create("B", "b")
    js.wait_until(js.now + 10_000_000_000)
    assert [type(error) for error in noted_faults] == [ValueError]
    noted_faults.clear()
    assert js.request("b", b"x")["seq"] == 1
    (source,) = js.api("STREAM.INFO.A")["sources"]
    assert source["error"]["code"] == 500 and "fault" in source["error"]["description"]
    (problem,) = js.engine.containment.problems()
    assert problem.stream == "A" and problem.why.startswith("reading O has stopped: internal error")
    store.close()


@pytest.mark.parametrize("retention", ["limits", "interest"])
def test_a_kept_consumer_that_can_not_be_opened_is_offline_and_its_stream_works(
    tmp_path: Path, retention: str, noted_faults: list[BaseException]
) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("S", "s.>", retention=retention, storage="file")
    for name in ("bad", "good"):
        config = {"durable_name": name, "ack_policy": "explicit", "filter_subjects": ["s.a", "s.b"]}
        assert "error" not in js.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    kept = js.engine.streams["S"].consumers["bad"].store
    meta = json.loads(kept.meta)
    meta["config"]["filter_subjects"] = ["s.a", "s." + LONG_FILTER]
    kept.save_meta(json.dumps(meta).encode())
    js.engine.close()
    store.close()
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    stream = js.engine.streams["S"]
    if retention == "limits":
        assert sorted(stream.consumers) == ["bad", "good"], "nothing but an index refuses the filter"
        store.close()
        return
    assert [type(error) for error in noted_faults] == [ValueError]
    noted_faults.clear()
    assert list(stream.consumers) == ["good"]
    assert js.request("s.a", b"x")["seq"] == 1
    for request in ("CONSUMER.INFO.S.bad", "CONSUMER.RESET.S.bad"):
        assert js.api(request)["error"]["err_code"] == 10195
    body = {"stream_name": "S", "config": {"durable_name": "bad"}}
    assert js.api("CONSUMER.CREATE.S.bad", body)["error"]["err_code"] == 10195
    assert list(js.api("CONSUMER.LIST.S")["offline"]) == ["bad"]
    (message,) = js.messages("$JS.API.CONSUMER.MSG.NEXT.S.good", {"batch": 1, "no_wait": True})
    assert message[2] == b"x"
    assert js.state("S")["messages"] == 1
    assert js.api("CONSUMER.DELETE.S.bad")["success"]
    assert "offline" not in js.api("CONSUMER.LIST.S")
    store.close()


def test_a_creation_that_raises_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("$G"))
    js.create("S", "s", storage="file")

    def fails(*_: object) -> None:
        raise LookupError("no")

    with monkeypatch.context() as patch:
        patch.setattr(js.engine.sourcing, "follow", fails)
        answer = js.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"], "storage": "file"})
        assert answer["error"]["code"] == 500 and "fault" in answer["error"]["description"]
    with monkeypatch.context() as patch:
        patch.setattr("penstock.jetstream.consumer.consumer_replica.ConsumerReplica._join", fails)
        body = {"stream_name": "S", "config": {"durable_name": "c"}}
        assert js.api("CONSUMER.CREATE.S.c", body)["error"]["code"] == 500
    assert len(noted_faults) == 2
    noted_faults.clear()
    assert js.store.stream_names() == ["S"] and list(js.engine.streams) == ["S"] and not js.engine.offline
    assert js.messages("t", b"x") == []
    js.create("T", "t", storage="file")
    assert "error" not in js.api("CONSUMER.CREATE.S.c", body)
    store.close()
