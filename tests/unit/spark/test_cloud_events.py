"""CloudEvents in both modes: attributes as a struct, the event's data as the payload."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.decoders import Decoder, MalformedPayloadError, RawDecoder, decoder_for
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.cloud_events import EventColumns, NoEventError, event_of
from penstock.spark.payloads.decompression import Decompressor
from tests.support.examples import examples

pytestmark = pytest.mark.feature("spark.payloads")

EVENT = pa.struct(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("type", pa.string()),
        ("specversion", pa.string()),
        ("subject", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("datacontenttype", pa.string()),
        ("dataschema", pa.string()),
        ("extensions", pa.map_(pa.string(), pa.string())),
    ]
)
NAMES = [field.name for field in EVENT]
HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
BARE = {**dict.fromkeys(NAMES), "extensions": {}}


def structured(**members: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "7", "source": "/a", "type": "t", **members}).encode()


def test_headers_have_the_attributes_in_binary_mode() -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "a%20b%E2%82%AC",
        "ce-source": '"/x \\"y\\""',
        "ce-type": "com.example",
        "ce-time": "2026-01-31T12:00:00.123456789Z",
        "ce-partitionkey": "k",
        "content-type": "application/json",
        "other": "left out",
    }
    attributes, data = event_of(headers, b'{"n": 1}')
    assert data == b'{"n": 1}'
    assert attributes == {
        **BARE,
        "specversion": "1.0",
        "id": "a b€",
        "source": '/x "y"',
        "type": "com.example",
        "time": datetime(2026, 1, 31, 12, 0, 0, 123_456, UTC),
        "datacontenttype": "application/json",
        "extensions": {"partitionkey": "k"},
    }


@pytest.mark.parametrize(
    "kind", ["application/cloudevents", "application/cloudevents+json; charset=UTF-8", ""]
)
def test_the_payload_has_all_in_structured_mode(kind: str) -> None:
    payload = structured(data={"n": 1.50}, time="2026-01-31T12:00:00+02:00", count=5, ok=True)
    attributes, data = event_of({"content-type": kind} if kind else {}, payload)
    assert attributes == {
        **BARE,
        "specversion": "1.0",
        "id": "7",
        "source": "/a",
        "type": "t",
        "time": datetime(2026, 1, 31, 10, tzinfo=UTC),
        "extensions": {"count": "5", "ok": "true"},
    }
    assert json.loads(data) == {"n": 1.5}


@pytest.mark.parametrize(
    ("members", "data"),
    [
        ({}, b""),
        ({"data": None}, b"null"),
        ({"data": "text"}, b'"text"'),
        ({"data": "te\u20act", "datacontenttype": "text/plain"}, "te€t".encode()),
        ({"data": "text", "datacontenttype": "application/json"}, b'"text"'),
        ({"data": {"a": 1}, "datacontenttype": "application/vnd.x+json"}, b'{"a": 1}'),
        ({"data_base64": "AAE="}, b"\0\1"),
        (
            {"data": 12345678901234567890123, "datacontenttype": "application/json"},
            b"12345678901234567890123",
        ),
    ],
)
def test_the_data_of_a_structured_event_is_what_its_content_type_says(members: Any, data: bytes) -> None:
    assert event_of({}, structured(**members))[1] == data


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({"content-type": "application/cloudevents"}, b"none"),
        ({"content-type": "application/cloudevents"}, b"[1]"),
        ({"content-type": "application/cloudevents"}, b'{"id":"1"}'),
        ({"content-type": "application/cloudevents-batch+json"}, b"[]"),
        ({"content-type": "application/cloudevents+avro"}, b"\0"),
        ({}, b'{"specversion":"1.0","data_base64":"%"}'),
        ({}, b'{"specversion":"1.0"'),
    ],
)
def test_what_says_that_it_is_an_event_and_is_none_is_an_error(
    headers: dict[str, str], payload: bytes
) -> None:
    with pytest.raises(NoEventError):
        event_of(headers, payload)


@pytest.mark.parametrize("payload", [b"", b"text", b'{"a": 1}', b"\xff"])
def test_a_message_that_is_no_event_keeps_its_payload(payload: bytes) -> None:
    assert event_of({"content-type": "application/json"}, payload) == (None, payload)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(st.sampled_from(["content-type", "ce-id", "ce-time", "x"]), st.text(max_size=12)),
    st.binary(max_size=12) | st.builds(structured, data=st.integers() | st.text(max_size=3)),
)
def test_any_message_is_an_event_or_none_or_an_error(headers: dict[str, str], payload: bytes) -> None:
    try:
        attributes, data = event_of(headers, payload)
    except NoEventError:
        return
    assert isinstance(data, bytes)
    pa.array([attributes], EVENT).validate(full=True)


def rows(decoder: Decoder, payloads: list[bytes], compression: str = "none") -> list[dict[str, Any]]:
    headers = [[("Ce-Id", ["5", "6"])], [("Content-Type", ["application/cloudevents+json"])], []]
    messages = pa.record_batch(
        [pa.array([1, 2, 3]), pa.array(headers, HEADERS), pa.array(payloads, pa.binary())],
        names=["seq", "headers", "data"],
    )
    schema = pa.schema([("data", decoder.kind), ("seq", pa.int64()), ("cloudevent", EVENT)])
    decompress = Decompressor(compression, 1000) if compression != "none" else None
    found: list[dict[str, Any]] = EventColumns(decompress, decoder).record_batch(messages, schema).to_pylist()
    return found


def json_decoder(mode: str = "PERMISSIVE") -> Decoder:
    kind = pa.struct([("n", pa.int64()), ("_corrupt_record", pa.string())])
    decoder = decoder_for(PayloadOptions("json", mode=mode), kind)
    assert decoder is not None
    return decoder


def test_the_data_of_events_is_decoded_like_payloads() -> None:
    payloads = [b'{"n": 1}', structured(data={"n": 2}), b'{"n": 3}']
    for compression in ("none", "gzip"):
        stored = [gzip.compress(one) for one in payloads] if compression == "gzip" else payloads
        found = rows(json_decoder(), stored, compression)
        assert [row["data"]["n"] for row in found] == [1, 2, 3]
        assert [row["seq"] for row in found] == [1, 2, 3]
        assert [row["cloudevent"] and row["cloudevent"]["id"] for row in found] == ["5", "7", None]


def test_the_mode_decides_about_what_is_no_event() -> None:
    payloads = [b'{"n": 1}', b"no event", b'{"n": 3}']
    found = rows(json_decoder(), payloads)
    assert found[1]["data"] == {"n": None, "_corrupt_record": "no event"}
    assert found[1]["cloudevent"] is None
    assert [row["seq"] for row in rows(json_decoder("DROPMALFORMED"), payloads)] == [1, 3]
    with pytest.raises(MalformedPayloadError, match="no event"):
        rows(json_decoder("FAILFAST"), payloads)
    raw = rows(RawDecoder(PayloadOptions(), pa.binary()), payloads)
    assert [row["data"] for row in raw] == [b'{"n": 1}', None, b'{"n": 3}']
