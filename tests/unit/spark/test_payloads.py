"""Payloads into columns: one element for one payload, whatever it holds."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.decoders import JsonDecoder, MalformedPayloadError, decoder_for
from penstock.spark.source_options import PayloadOptions
from tests.support.examples import examples

pytestmark = pytest.mark.feature("spark.payloads")

FIELDS = pa.struct(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("inner", pa.struct([("ok", pa.bool_())])),
        ("_corrupt_record", pa.string()),
    ]
)
EMPTY: dict[str, Any] = dict.fromkeys(field.name for field in FIELDS)


def decode(
    rows: list[bytes], mode: str = "PERMISSIVE", kind: pa.DataType = FIELDS, payload: str = "json"
) -> list[Any]:
    decoder = decoder_for(PayloadOptions(payload, mode=mode), kind)
    assert decoder is not None
    column, keep = decoder(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type.equals(kind, check_metadata=True)
    found: list[Any] = (column if keep is None else column.filter(keep)).to_pylist()
    return found


def test_json_fields_have_the_schemas_types() -> None:
    text = (
        b'{"id":1,"name":"\\u00e9","price":2,"amount":1.25,"day":"2026-01-31","at":"2026-01-31T12:00:00.5+02:00",'
        b'"local":"2026-01-31T12:00:00","tags":["a",null],"inner":{"ok":true},"more":{"x":[1]}}'
    )
    assert decode([text]) == [
        {
            "id": 1,
            "name": "é",
            "price": 2.0,
            "amount": Decimal("1.25"),
            "day": date(2026, 1, 31),
            "at": datetime(2026, 1, 31, 10, 0, 0, 500_000, UTC),
            "local": datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None),
            "tags": ["a", None],
            "inner": {"ok": True},
            "_corrupt_record": None,
        }
    ]


def test_one_payload_is_read_alike_together_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        b'{"id":1,"name":"x","price":1e3,"amount":"1.50","day":"2026-01-31","at":"2026-01-31T12:00:00Z"}',
        b'{"id":null,"tags":[],"inner":null}',
        b'{"local":"2026-01-31 12:00:00.25","inner":{}}',
        b"",
        b"null",
        b"{}",
        b'{\n  "id": 5\n}',
    ]
    together = decode(rows)
    monkeypatch.setattr(JsonDecoder, "decode_batch", lambda self, raw: (None, 0))
    assert decode(rows) == together


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":1',
        b'{"id":"x"}',
        b'{"id":1.5}',
        b'{"id":3000000000}',
        b'{"id":1}}',
        b'{}}\n{"r":{}',
        b"{}\n{}",
        b"[1]",
        b"7",
        b"x",
        b" ",
        b"\xff",
        b'{"name":"\xff"}',
        b'{"name":"a\nb"}',
        b'{"day":"2026-13-01"}',
        b'{"id":NaN}',
        b'{"tags":{}}',
        b'{"amount":123456789012.5}',
    ],
)
def test_a_payload_that_cannot_be_read_gives_nulls_its_text_no_row_or_an_error(text: bytes) -> None:
    rows = [b'{"id":1}', text, b'{"id":2}']
    shown = text.decode(errors="replace")
    first, second = {**EMPTY, "id": 1}, {**EMPTY, "id": 2}
    assert decode(rows) == [first, {**EMPTY, "_corrupt_record": shown}, second]
    assert decode(rows, "DROPMALFORMED") == [first, second]
    with pytest.raises(MalformedPayloadError, match=re.escape(repr(text)[2:12])):
        decode(rows, "FAILFAST")
    bare = pa.struct([("id", pa.int32())])
    assert decode(rows[::2], kind=bare) == [{"id": 1}, {"id": 2}]


def test_a_string_field_takes_the_text_of_any_value() -> None:
    rows = [b'{"name":1.5}', b'{"name":{"a":[true]}}', b'{"name":"x"}']
    assert [row["name"] for row in decode(rows)] == ["1.5", '{"a": [true]}', "x"]


documents = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**31), 2**31 - 1) | st.none(),
        "name": st.text(max_size=5),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.text(max_size=3) | st.none(), max_size=3),
        "other": st.integers(),
    },
).map(lambda d: json.dumps(d).encode())
anything = st.one_of(
    documents, documents, documents, st.binary(max_size=8), st.sampled_from([b"", b"null", b"{}"])
)


def alone(text: bytes) -> Any:
    """The model: Python's json, one by one."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if value is None:
        return None
    if not isinstance(value, dict):
        return {**EMPTY, "_corrupt_record": text.decode(errors="replace")}
    return {**EMPTY, **{name: v for name, v in value.items() if name in EMPTY}}


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(anything, max_size=60))
def test_any_mixture_of_payloads_gives_each_its_own_row(rows: list[bytes]) -> None:
    assert decode(rows) == [alone(text) for text in rows]


def test_a_slice_of_a_column_is_read_as_what_it_shows() -> None:
    whole = pa.array([b'{"id":%d}' % i for i in range(10)], pa.binary())
    decoder = JsonDecoder(PayloadOptions(kind="json"), pa.struct([("id", pa.int32())]))
    assert decoder(whole[3:6])[0].to_pylist() == [{"id": 3}, {"id": 4}, {"id": 5}]


def test_text_is_utf8_or_marked() -> None:
    rows = ["é".encode(), b"", b"a\xffb"]
    assert decode(rows, kind=pa.string(), payload="string") == ["é", "", "a\ufffdb"]
    assert decode(rows, "DROPMALFORMED", pa.string(), "string") == ["é", ""]


def test_avro_records_are_structs() -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, {"id": 5})
    kind = pa.struct([("id", pa.int64()), ("_corrupt_record", pa.string())])
    options = PayloadOptions(kind="avro", avro_schema=json.dumps(schema))
    decoder = decoder_for(options, kind)
    assert decoder is not None
    column, _ = decoder(pa.array([file.getvalue(), b"", b"\x02\x02\x02"], pa.binary()))
    assert column.to_pylist()[:2] == [{"id": 5, "_corrupt_record": None}, None]
    assert column.to_pylist()[2]["_corrupt_record"] is not None
    with pytest.raises(ConfigError, match="no Avro schema"):
        decoder_for(PayloadOptions(kind="avro", avro_schema="{"), kind)


def test_arrow_batches_are_arrays_of_structs() -> None:
    schema = pa.schema([("x", pa.int32()), ("id", pa.int64())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([[7, 8], [1, 2]], schema=schema))
    rows = [sink.getvalue().to_pybytes(), b"", b"none"]
    kind = pa.list_(pa.field("element", pa.struct([("id", pa.int64())])))
    decoder = decoder_for(PayloadOptions(kind="arrow"), kind)
    assert decoder is not None
    column, _ = decoder(pa.array(rows, pa.binary()))
    assert column.to_pylist() == [[{"id": 1}, {"id": 2}], None, None]
    assert decoder.decode(pa.array(rows, pa.binary()))[1] == [2]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (PayloadOptions("json"), pa.string(), "a struct, not string"),
        (PayloadOptions("json"), pa.struct([("m", pa.map_(pa.string(), pa.int32()))]), "makes no map"),
        (PayloadOptions("json"), pa.struct([("b", pa.binary())]), "json, which makes no binary"),
        (PayloadOptions("json"), pa.struct([("_corrupt_record", pa.int32())]), "must be a string"),
        (PayloadOptions("arrow"), pa.struct([("x", pa.int32())]), "an array of structs"),
    ],
)
def test_a_type_that_cannot_be_made_is_refused(options: PayloadOptions, kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        decoder_for(options, kind)
