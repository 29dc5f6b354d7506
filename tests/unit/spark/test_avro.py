"""Avro payloads: schemas that change, the columns that a schema has, types that Arrow has otherwise."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.spark.decoders import decoder_for
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.reader_schemas import fields_of
from penstock.spark.source_options import SourceOptions
from tests.support.avro_payloads import encoded, record

pytest.importorskip("fastavro")
pytestmark = pytest.mark.feature("spark.payloads")


def decode(rows: list[bytes], kind: pa.DataType, writer: str, reader: str | None = None) -> list[Any]:
    decoder = decoder_for(PayloadOptions("avro", avro_schema=writer, avro_reader_schema=reader), kind)
    assert decoder is not None
    column, _ = decoder(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type == kind
    found: list[Any] = column.to_pylist()
    return found


def test_what_was_written_is_read_as_the_readers_schema_says() -> None:
    writer = record(("id", "int"), ("gone", "string"), ("name", "string"))
    reader = record(("id", "long"), ("name", ["null", "string"]), ("added", "string", "none"))
    kind = pa.struct([("id", pa.int64()), ("name", pa.string()), ("added", pa.string())])
    payload = encoded(writer, {"id": 1, "gone": "x", "name": "n"})
    assert decode([payload, b"", b"\x02"], kind, writer, reader) == [
        {"id": 1, "name": "n", "added": "none"},
        None,
        {"id": None, "name": None, "added": None},
    ]


def test_types_that_have_no_column_of_their_own_are_what_carries_them() -> None:
    schema = record(
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
        ("key", {"type": "string", "logicalType": "uuid"}),
        ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
        ("hash", {"type": "fixed", "name": "F", "size": 2}),
        ("tags", {"type": "array", "items": "string"}),
        ("counts", {"type": "map", "values": "int"}),
        ("inner", {"type": "record", "name": "I", "fields": [{"name": "again", "type": "K"}]}),
        ("maybe", ["null", "int", "long"]),
    )
    assert fields_of(PayloadOptions("avro", avro_schema=schema)) == (
        "`day`: date, `at`: timestamp, `local`: timestamp_ntz, `clock`: int, `key`: string, "
        "`amount`: decimal(10,2), `kind`: string, `hash`: binary, `tags`: array<string>, "
        "`counts`: map<string,int>, `inner`: struct<`again`: string>, `maybe`: bigint"
    )
    kind = pa.struct(
        [
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("clock", pa.int32()),
            ("key", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("kind", pa.string()),
            ("hash", pa.binary()),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("inner", pa.struct([("again", pa.string())])),
            ("maybe", pa.int64()),
        ]
    )
    value = {
        "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "local": datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None),
        "clock": 5,
        "key": "k",
        "amount": Decimal("1.25"),
        "kind": "B",
        "hash": b"ab",
        "tags": ["x"],
        "counts": {"a": 1},
        "inner": {"again": "A"},
        "maybe": 2**40,
    }
    plain = schema.replace('"logicalType": "time-millis"', '"doc": ""').replace(
        '"logicalType": "uuid"', '"doc": ""'
    )
    assert decode([encoded(plain, value)], kind, schema) == [{**value, "counts": [("a", 1)]}]


def test_a_value_that_a_column_cannot_hold_costs_its_own_row_only() -> None:
    schema = record(("n", "long"))
    rows = [encoded(schema, {"n": n}) for n in (1, 2**40, 2)]
    kind = pa.struct([("n", pa.int32())])
    assert decode(rows, kind, schema) == [{"n": 1}, {"n": None}, {"n": 2}]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('"string"', "is no record"),
        ("{", "option 'avroSchema' is no Avro schema"),
        (record(("n", "nothing")), "no Avro schema"),
        (record(("n", ["int", "string"])), "an Avro union of int, string is no column"),
        (record(("next", ["null", "R"])), "type R contains itself"),
    ],
)
def test_a_schema_without_columns_is_refused_with_words(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fields_of(PayloadOptions("avro", avro_schema=schema))


def test_a_column_that_the_schema_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="field 'm', which the Avro schema does not have; it has n"):
        decode([], pa.struct([("m", pa.int64())]), record(("n", "long")))
    # A union that is no column can be left out.
    schema = record(("n", "long"), ("odd", ["int", "string"]))
    payload = encoded(schema, {"n": 1, "odd": "x"})
    assert decode([payload], pa.struct([("n", pa.int64())]), schema) == [{"n": 1}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give 'avroSchema', the schema of the payloads, or 'schemaRegistry'"),
        ({"avroSchema": "{}", "schemaRegistry": "http://r"}, "contradict"),
        ({"schemaRegistry": "r:8081"}, "write http[s]://host"),
        ({"schemaRegistry": "http://u:p@r"}, "user and password have options"),
        ({"schemaRegistry": "http://r", "schemaVersion": "3"}, "without 'schemaSubject'"),
        ({"schemaRegistry": "http://r", "schemaRegistryUser": "u"}, "give both of them"),
        ({"avroSchema": "{}", "schemaSubject": "s"}, "without 'schemaRegistry'"),
        ({"avroSchema": "{}", "protobufMessage": "m"}, "but 'payload' is avro"),
        ({"schemaRegistry": "http://r", "schemaSubject": "s", "avroReaderSchema": "{}"}, "contradict"),
        ({"avroSchema": "{}", "compression": "brotli"}, "none, gzip, zstd, lz4, s2 or auto"),
    ],
)
def test_options_that_contradict_are_refused_with_words(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        SourceOptions.parse({"stream": "ORDERS", "payload": "avro", **given})


def test_a_registry_has_the_name_that_confluents_clients_give_it_and_its_secrets_are_not_shown() -> None:
    given = {"stream": "ORDERS", "payload": "avro", "schema.registry.url": "https://r/api/"}
    payload = SourceOptions.parse(
        {**given, "schemaRegistryUser": "u", "schemaRegistryPassword": "hush", "schemaSubject": "s"}
    ).payload
    assert payload.registry is not None
    assert (payload.registry.url, payload.registry.password) == ("https://r/api", "hush")
    assert "hush" not in repr(payload)
