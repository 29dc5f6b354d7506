"""An origin read by the consumer protocol, under the API of a domain; time is the test's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.external import RETRY_MAX_NS, ExternalReader, ReaderState
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from tests.support.engine import EngineHarness
from tests.unit.jetstream.test_mirrors import content, make, origin_info, payloads, settle

pytestmark = pytest.mark.feature("sourcing.external")

SECOND = 1_000_000_000
EXTERNAL = {"api": "$JS.hub.API", "deliver": "deliver.here"}


@pytest.fixture
def js() -> EngineHarness:
    js = EngineHarness(domain="hub")
    js.create("O", "o.*")
    return js


def reader_of(js: EngineHarness, name: str) -> ExternalReader:
    (reader,) = js.engine.sourcing.readers[name]
    assert isinstance(reader, ExternalReader)
    return reader


def put(js: EngineHarness, *bodies: bytes) -> None:
    for body in bodies:
        publish(js.index, b"o.x", b"", b"", body)
    settle(js)


def later(js: EngineHarness, seconds: float) -> None:
    js.wait_until(js.now + int(seconds * SECOND))
    settle(js)


def mirror(js: EngineHarness, **more: Any) -> None:
    make(js, "M", mirror={"name": "O", "external": EXTERNAL}, **more)
    settle(js)


def test_a_mirror_and_a_source_follow(js: EngineHarness) -> None:
    put(js, b"0", b"1")
    mirror(js)
    make(js, "S", sources=[{"name": "O", "external": EXTERNAL, "filter_subject": "o.x"}])
    put(js, b"2")
    assert content(js, "M") == content(js, "O")
    assert payloads(js, "S") == [b"0", b"1", b"2"]
    assert origin_info(js, "M") == {"name": "O", "external": EXTERNAL, "lag": 0, "active": 0}
    assert js.api("CONSUMER.NAMES.O")["consumers"] == []  # they are no business of the origin's users
    names = list(js.engine.streams["O"].consumers)
    assert sorted(name.rsplit("_", 1)[0] for name in names) == ["JS_MIRROR", "JS_SRC"]
    js.api("STREAM.DELETE.M")
    js.api("STREAM.DELETE.S")
    later(js, 30)
    assert not js.engine.streams["O"].consumers  # they have no subscribers any more


def test_a_delivery_that_got_lost_is_noticed_by_the_next_one(js: EngineHarness) -> None:
    mirror(js)
    put(js, b"0")
    reader = reader_of(js, "M")
    taken, reader._consumer = reader._consumer, "nobody"
    put(js, b"lost")
    reader._consumer = taken
    put(js, b"2")
    assert payloads(js, "M") == [b"0"] and reader.state is ReaderState.WAITING
    later(js, 1)
    assert content(js, "M") == content(js, "O")


def test_a_heartbeat_tells_of_a_delivery_that_got_lost(js: EngineHarness) -> None:
    mirror(js)
    put(js, b"0", b"1")
    reader = reader_of(js, "M")
    first = reader._consumer
    reader._delivered -= 1
    later(js, 1.5)
    assert reader.state is ReaderState.WAITING
    later(js, 2)
    assert reader.state is ReaderState.FOLLOWING and reader._consumer != first
    put(js, b"2")
    assert content(js, "M") == content(js, "O")


def test_a_consumer_that_falls_silent_is_recreated(js: EngineHarness) -> None:
    mirror(js)
    put(js, b"0")
    js.api(f"CONSUMER.DELETE.O.{reader_of(js, 'M')._consumer}")
    put(js, b"1")
    assert payloads(js, "M") == [b"0"]
    assert origin_info(js, "M")["active"] == 0
    later(js, 12)
    assert content(js, "M") == content(js, "O")


def test_while_an_origin_rests_its_consumer_stays(js: EngineHarness) -> None:
    mirror(js)
    put(js, b"0")
    consumer = reader_of(js, "M")._consumer
    later(js, 300)
    assert reader_of(js, "M")._consumer == consumer
    assert origin_info(js, "M")["active"] <= SECOND


def test_an_origin_made_again_is_sourced_from_its_beginning(js: EngineHarness) -> None:
    make(js, "S", sources=[{"name": "O", "external": EXTERNAL}])
    put(js, b"0", b"1", b"2")
    js.api("STREAM.DELETE.O")
    js.now += SECOND
    js.create("O", "o.*")
    put(js, b"new")
    later(js, 15)
    assert payloads(js, "S") == [b"0", b"1", b"2", b"new"]
    header = content(js, "S")[4].header
    assert b" 1 > > o.x " + js.engine.streams["O"].identity.encode() in header


def test_who_expects_another_stream_is_refused(js: EngineHarness) -> None:
    config = {"name": "c", "deliver_subject": "d", "ack_policy": "none", "direct": True}
    body = {"stream_name": "O", "config": config}
    header = b"NATS/1.0\r\nNats-Stream-Identity: other\r\n\r\n"
    refused = js.api("CONSUMER.CREATE.O.c", body, header)
    identity = js.engine.streams["O"].identity
    assert refused["error"]["err_code"] == 10225
    assert refused["error"]["description"] == f"consumer's stream identity does not match: {identity}"
    [(_, header, _)] = js.messages("$JS.API.CONSUMER.CREATE.O", body)
    assert header == b"NATS/1.0\r\nNats-Stream-Identity: %s\r\n\r\n" % identity.encode()


def test_what_a_full_stream_refuses_is_delivered_again(js: EngineHarness) -> None:
    mirror(js, discard="new", max_msgs=2)
    put(js, b"0", b"1", b"2", b"3")
    assert payloads(js, "M") == [b"0", b"1"]
    assert origin_info(js, "M")["error"]["err_code"] == 10077
    js.api("STREAM.PURGE.M")
    later(js, 3)
    assert payloads(js, "M") == [b"2", b"3"]


def test_a_missing_origin_is_asked_for_less_and_less_often(js: EngineHarness) -> None:
    make(js, "M", mirror={"name": "NONE", "external": EXTERNAL})
    settle(js)
    assert origin_info(js, "M")["error"]["err_code"] == 10059
    before = js.engine.api_stats.errors
    later(js, 100)
    assert 5 <= js.engine.api_stats.errors - before <= 8
    later(js, 3600)
    js.create("NONE", "none")
    js.request("none", b"x")
    later(js, RETRY_MAX_NS / SECOND)
    assert payloads(js, "M") == [b"x"] and "error" not in origin_info(js, "M")


def test_an_api_without_responders_is_reported(js: EngineHarness) -> None:
    make(js, "M", mirror={"name": "O", "external": {"api": "far.away", "deliver": ""}})
    make(js, "S", sources=[{"name": "O", "external": {"api": "far.away", "deliver": ""}}])
    settle(js)
    error = origin_info(js, "M")["error"]
    assert (error["err_code"], error["description"]) == (10029, "no response from far.away.CONSUMER.CREATE.O")
    assert origin_info(js, "S")[0]["error"]["err_code"] == 10045


def test_a_consumer_that_delivers_at_once_has_no_interest_before_its_response_is_there(
    js: EngineHarness,
) -> None:
    """An origin on another server may deliver before it responds; a mirror that took the position in that
    response for the beginning would miss what came before."""
    early: list[int] = []

    def create(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        config = json.loads(payload)["config"]
        early.append(publish(js.index, config["deliver_subject"].encode(), b"$JS.ACK", b"", b"early"))
        answer = {"name": "c", "config": config, "delivered": {}, "ack_floor": {}}
        publish(js.index, reply, b"", b"", json.dumps(answer).encode())

    js.index.insert(SinkSubscription(ServiceSink(create), b"far.CONSUMER.CREATE.>"))
    origin = {"name": "X", "external": {"api": "far", "deliver": ""}}
    make(js, "M", mirror=origin)
    make(js, "S", sources=[origin])
    settle(js)
    assert early == [0, 0]


def test_a_start_by_time_and_filters_reach_the_consumer(js: EngineHarness) -> None:
    put(js, b"0")
    js.now += SECOND
    put(js, b"1")
    since = js.api("STREAM.MSG.GET.O", {"seq": 2})["message"]["time"]
    transforms = [{"src": "o.x", "dest": "t.x"}, {"src": "o.y", "dest": "t.y"}]
    source = {"name": "O", "external": EXTERNAL, "opt_start_time": since, "subject_transforms": transforms}
    make(js, "S", sources=[source])
    publish(js.index, b"o.z", b"", b"", b"left out")
    publish(js.index, b"o.y", b"", b"", b"2")
    settle(js)
    got = [(one.subject, one.payload) for one in content(js, "S").values()]
    assert got == [(b"t.x", b"1"), (b"t.y", b"2")]
    js = EngineHarness(js.store, now=js.now, domain="hub")
    later(js, 15)  # the first names it asks for are those of the consumers before
    put(js, b"3")
    assert payloads(js, "S") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_an_origin_that_keeps_what_is_needed_removes_what_is_stored(retention: str) -> None:
    js = EngineHarness(domain="hub")
    js.create("O", "o.*", retention=retention)
    make(js, "S", sources=[{"name": "O", "external": EXTERNAL}])
    settle(js)
    (name,) = js.api("CONSUMER.NAMES.O")["consumers"]
    put(js, b"0", b"1", b"2")
    assert payloads(js, "S") == [b"0", b"1", b"2"] and len(content(js, "O")) == 3
    later(js, 2)  # the heartbeat asks for the acks
    assert len(content(js, "O")) == 0
    js = EngineHarness(js.store, now=js.now, domain="hub")
    put(js, b"3")
    later(js, 15)
    assert payloads(js, "S") == [b"0", b"1", b"2", b"3"] and len(content(js, "O")) == 0
    assert js.api("CONSUMER.NAMES.O")["consumers"] == [name]
    js.api("STREAM.DELETE.S")
    settle(js)
    assert js.api("CONSUMER.NAMES.O")["consumers"] == []


def test_answers_that_do_not_reach_the_consumer_are_said_until_one_does(
    js: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    js.create("Q", "q", retention="workqueue")
    make(js, "S", sources=[{"name": "Q", "external": EXTERNAL}])
    settle(js)
    with monkeypatch.context() as patch:
        patch.setattr(ExternalReader, "_answer", lambda *_: None)
        publish(js.index, b"q", b"", b"", b"0")
        settle(js)
        later(js, 3)
        assert "error" not in origin_info(js, "S")[0]
        later(js, 2)
        assert origin_info(js, "S")[0]["error"]["err_code"] == 10228
    later(js, 3)
    assert "error" not in origin_info(js, "S")[0]
    assert len(content(js, "Q")) == 0
