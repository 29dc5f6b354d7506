"""Protobuf payloads, made by the protobuf package, as columns."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.decoders import decoder_for
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.reader_schemas import fields_of
from penstock.spark.source_options import SourceOptions
from tests.support.examples import examples
from tests.support.protobuf_shop import shop_class, shop_descriptor

pytest.importorskip("google.protobuf")
pytestmark = pytest.mark.feature("spark.payloads")

LINE = pa.struct([("sku", pa.string()), ("count", pa.int32())])
FIELDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "name": pa.string(),
    "price": pa.float64(),
    "state": pa.string(),
    "rank": pa.int32(),
    "raw": pa.binary(),
    "big": pa.decimal128(20, 0),
    "ok": pa.bool_(),
    "first": LINE,
    "lines": pa.list_(pa.field("element", LINE)),
    "numbers": pa.list_(pa.field("element", pa.int32())),
    "by_sku": pa.map_(pa.string(), LINE),
    "at": pa.timestamp("us", "UTC"),
    "took": pa.duration("us"),
    "note": pa.string(),
    "parent": pa.string(),
    "more": pa.string(),
    "card": pa.string(),
    "cash": pa.int32(),
}
ORDER = pa.struct(list(FIELDS.items()))


def decode(rows: list[bytes], kind: pa.DataType, mode: str = "PERMISSIVE", **options: Any) -> list[Any]:
    given = {"descriptor": shop_descriptor(), "message": "shop.Order", **options}
    decoder = decoder_for(PayloadOptions("protobuf", mode=mode, **given), kind)
    assert decoder is not None
    column, keep = decoder(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type.equals(kind, check_metadata=True)
    found: list[Any] = (column if keep is None else column.filter(keep)).to_pylist()
    return found


def test_every_kind_of_field_is_a_column() -> None:
    order = shop_class()(id=-5, name="é", price=1.5, state=1, rank=0, raw=b"\xff", big=2**64 - 1, ok=True)
    order.numbers[:] = [1, -2]
    order.cash = 3
    order.first.sku = "a"
    order.lines.add(sku="b", count=2)
    order.lines.add()
    order.by_sku["x"].count = 9
    order.at.FromDatetime(datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC))
    order.took.FromTimedelta(timedelta(seconds=-1, microseconds=-5))
    order.note.value = ""
    order.parent.id = 4
    order.more.update({"k": [1, None]})
    assert decode([order.SerializeToString()], ORDER) == [
        {
            "id": -5,
            "name": "é",
            "price": 1.5,
            "state": "PAID",
            "rank": 0,
            "raw": b"\xff",
            "big": Decimal(2**64 - 1),
            "ok": True,
            "first": {"sku": "a", "count": 0},
            "lines": [{"sku": "b", "count": 2}, {"sku": "", "count": 0}],
            "numbers": [1, -2],
            "by_sku": [("x", {"sku": "", "count": 9})],
            "at": datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC),
            "took": timedelta(seconds=-1, microseconds=-5),
            "note": "",
            "parent": '{"id": "4"}',
            "more": '{"k": [1.0, null]}',
            "card": None,
            "cash": 3,
        }
    ]


def test_what_is_unset_has_its_default_or_is_null_where_protobuf_can_tell() -> None:
    found = decode([b""], ORDER)[0]
    defaults = {"id": 0, "name": "", "price": 0.0, "state": "NEW", "raw": b"", "big": 0, "ok": False}
    defaults |= {"lines": [], "numbers": [], "by_sku": []}
    assert found == {**dict.fromkeys(FIELDS), **defaults}


def test_the_fields_of_a_descriptor_are_spark_types() -> None:
    text = fields_of(PayloadOptions("protobuf", descriptor=shop_descriptor(), message="shop.Order"))
    assert text == (
        "`id`: bigint, `name`: string, `price`: double, `state`: string, `rank`: int, `raw`: binary, "
        "`big`: decimal(20,0), `ok`: boolean, `first`: struct<`sku`: string, `count`: int>, "
        "`lines`: array<struct<`sku`: string, `count`: int>>, `numbers`: array<int>, "
        "`by_sku`: map<string,struct<`sku`: string, `count`: int>>, `at`: timestamp, "
        "`took`: interval day to second, `note`: string, `parent`: string, `more`: string, `card`: string, "
        "`cash`: int"
    )


def test_an_enum_that_has_grown_is_its_number() -> None:
    payload = shop_class()(state=7).SerializeToString()
    assert decode([payload], pa.struct([("state", pa.string())])) == [{"state": "7"}]
    assert decode([payload], pa.struct([("state", pa.int32())])) == [{"state": 7}]


BAD = [b"\x0a", b"\xff", b"\x12\x01\xff"]  # cut off, no tag, a text that is no UTF-8


@pytest.mark.parametrize("payload", BAD)
def test_a_payload_that_is_no_message_costs_its_own_row_only(payload: bytes) -> None:
    kind = pa.struct([("id", pa.int64()), ("_corrupt_record", pa.string())])
    rows = [shop_class()(id=1).SerializeToString(), payload, shop_class()(id=2).SerializeToString()]
    one, two = ({"id": i, "_corrupt_record": None} for i in (1, 2))
    bad = {"id": None, "_corrupt_record": payload.decode(errors="replace")}
    assert decode(rows, kind) == [one, bad, two]
    assert decode(rows, kind, "DROPMALFORMED") == [one, two]


def test_a_value_that_a_column_cannot_hold_costs_its_own_row_only() -> None:
    rows = [shop_class()(big=value).SerializeToString() for value in (1, 2**63, 2)]
    kind = pa.struct([("big", pa.int64())])
    assert decode(rows, kind) == [{"big": 1}, {"big": None}, {"big": 2}]
    assert decode([*rows, b"\xff", rows[0]], kind, "DROPMALFORMED") == [{"big": 1}, {"big": 2}, {"big": 1}]


orders = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.text(max_size=4),
        "rank": st.integers(-(2**31), 2**31 - 1),
        "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "first": st.fixed_dictionaries({"sku": st.text(max_size=3)}),
        "lines": st.lists(st.fixed_dictionaries({"count": st.integers(0, 9)}), max_size=3),
        "card": st.text(max_size=3),
    },
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(orders | st.sampled_from(BAD), max_size=20))
def test_any_mixture_of_payloads_gives_each_its_own_row(given: list[Any]) -> None:
    make = shop_class()
    rows = [one if isinstance(one, bytes) else make(**one).SerializeToString() for one in given]
    names = ("id", "name", "rank", "numbers", "first", "lines", "card")
    kind = pa.struct([(name, FIELDS[name]) for name in names])
    expected = []
    for one in given:
        if isinstance(one, bytes):
            expected.append(dict.fromkeys(names))
            continue
        line = {"sku": "", "count": 0}
        first = {**line, **one["first"]} if "first" in one else None
        row = {"id": 0, "name": "", "rank": None, "numbers": [], "card": None, **one, "first": first}
        expected.append(row | {"lines": [{**line, **each} for each in one.get("lines", ())]})
    assert decode(rows, kind) == expected


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"message": "shop.Nothing"}, ORDER, "no message 'shop.Nothing'; there are shop.Order, shop.Refund"),
        ({"descriptor": b"\xff"}, ORDER, "no FileDescriptorSet"),
        ({"descriptor": b""}, ORDER, "no FileDescriptorSet"),
        (
            {},
            pa.struct([("idd", pa.int64())]),
            "field 'idd', which message shop.Order does not have; it has id",
        ),
        ({}, pa.struct([("lines", pa.string())]), "can't be a column of type string"),
        ({}, pa.struct([("by_sku", LINE)]), "can't be a column of type struct"),
        ({}, pa.struct([("first", pa.int32())]), "can't be a column of type int32"),
        ({}, pa.struct([("id", pa.timestamp("us"))]), "can't be a column of type timestamp"),
        ({}, pa.string(), "a struct, not string"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(options: Any, kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        decode([], kind, **options)


def test_a_descriptor_that_lacks_an_import_says_how_to_make_it() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = FileDescriptorSet()
    files.file.add(name="a.proto", dependency=["b.proto"])
    with pytest.raises(ConfigError, match=r"lacks b\.proto: make it with protoc --include_imports"):
        decode([], ORDER, descriptor=files.SerializeToString())


def parse(**given: str) -> PayloadOptions:
    return SourceOptions.parse({"stream": "ORDERS", "payload": "protobuf", **given}).payload


def test_a_descriptor_is_a_file_of_the_driver_or_text(tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(shop_descriptor())
    text = base64.b64encode(shop_descriptor()).decode()
    assert parse(protobufDescriptor=str(file), protobufMessage="shop.Order").descriptor == shop_descriptor()
    assert parse(protobufDescriptorBase64=text, protobufMessage="shop.Order").descriptor == shop_descriptor()
    for options, said in (
        ({"protobufDescriptor": str(file)}, "give 'protobufDescriptor'"),
        ({"protobufDescriptor": str(tmp_path / "none"), "protobufMessage": "x"}, "No such file"),
        ({"protobufDescriptorBase64": "%", "protobufMessage": "x"}, "no base64"),
        ({"protobufDescriptor": "x", "protobufDescriptorBase64": "x"}, "give one of them"),
        ({"protobufMessage": "x", "avroSchema": "{}"}, "'avroSchema' is given, but 'payload' is protobuf"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse(**options)
