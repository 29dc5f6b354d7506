"""Payloads in Confluent's wire format, their schemas from a registry over HTTP."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.spark.decoders import MalformedPayloadError, decoder_for
from penstock.spark.payload_options import PayloadOptions, RegistryOptions
from penstock.spark.payloads.reader_schemas import fields_of, with_reader_schema
from penstock.spark.payloads.schema_registry import (
    RegistryUnavailableError,
    SchemaRegistry,
    SchemaRegistryError,
    UnknownSchemaError,
    registry_of,
)
from tests.support.avro_payloads import encoded, record
from tests.support.protobuf_shop import shop_class, shop_descriptor, shop_file
from tests.support.schema_registries import RegistryDouble, framed, running_registry

pytest.importorskip("google.protobuf")
pytestmark = pytest.mark.feature("spark.payloads")

V1 = record(("id", "int"), ("gone", "string"))
V2 = record(("id", "long"), ("name", "string", "none"))
KIND = pa.struct([("id", pa.int64()), ("name", pa.string()), ("_corrupt_record", pa.string())])


@pytest.fixture
def registry() -> Iterator[RegistryDouble]:
    registry_of.cache_clear()
    with running_registry() as double:
        yield double


def options(registry: RegistryDouble, kind: str = "avro", **more: Any) -> PayloadOptions:
    given = {"retry_s": 0.0, "timeout_s": 5.0}
    ours = {
        name: more.pop(name) for name in ("subject", "version", "user", "password", "token") if name in more
    }
    return PayloadOptions(kind, registry=RegistryOptions(registry.url, **given, **ours), **more)


def decode(ours: PayloadOptions, rows: list[bytes], kind: pa.DataType = KIND) -> list[Any]:
    decoder = decoder_for(with_reader_schema(ours), kind)
    assert decoder is not None
    column, keep = decoder(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type == kind
    found: list[Any] = (column if keep is None else column.filter(keep)).to_pylist()
    return found


def row(**values: Any) -> dict[str, Any]:
    return {"id": None, "name": None, "_corrupt_record": None, **values}


def two_versions(registry: RegistryDouble) -> list[bytes]:
    """Payloads of two schemas, alternating, with an empty one, one in no wire format and one cut off."""
    first, second = registry.add("orders-value", V1), registry.add("orders-value", V2)
    old = framed(first, encoded(V1, {"id": 1, "gone": "x"}))
    new = framed(second, encoded(V2, {"id": 2, "name": "n"}))
    return [old, new, b"", b"text", framed(second, b"\x02"), old, new]


BAD = [row(_corrupt_record="text"), row(_corrupt_record="\x02")]


def test_each_payload_is_read_by_its_own_schema_and_columns_are_filled_by_name(
    registry: RegistryDouble,
) -> None:
    rows = two_versions(registry)
    old, new = row(id=1), row(id=2, name="n")
    assert decode(options(registry), rows) == [old, new, None, *BAD, old, new]


def test_the_readers_schema_adds_defaults_and_widens(registry: RegistryDouble) -> None:
    rows = two_versions(registry)
    old, new = row(id=1, name="none"), row(id=2, name="n")
    for given in (
        options(registry, avro_reader_schema=V2),
        options(registry, subject="orders-value", version=2),
    ):
        assert decode(given, rows) == [old, new, None, *BAD, old, new]
    resolved = with_reader_schema(options(registry, subject="orders-value"))
    assert fields_of(resolved) == "`id`: bigint, `name`: string"
    assert decode(options(registry, avro_reader_schema=V2, mode="DROPMALFORMED"), rows) == [
        old, new, None, old, new,
    ]  # fmt: skip
    with pytest.raises(MalformedPayloadError, match="text"):
        decode(options(registry, avro_reader_schema=V2, mode="FAILFAST"), rows)


def test_a_schema_is_asked_for_once_in_a_process(registry: RegistryDouble) -> None:
    rows = two_versions(registry)
    for _ in range(3):
        decode(options(registry), rows)
    assert registry.paths == ["/schemas/ids/1", "/schemas/ids/2"]


def test_schemas_that_name_others_are_read_with_them(registry: RegistryDouble) -> None:
    inner, outer = record(("n", "int"), name="Inner"), record(("in", "Inner"), name="Outer")
    registry.add("inner", inner)
    schema_id = registry.add("outer", outer, references={"Inner": "inner"})
    whole = record(("in", {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int"}]}))
    kind = pa.struct([("in", pa.struct([("n", pa.int32())]))])
    rows = [framed(schema_id, encoded(whole, {"in": {"n": 3}}))]
    assert decode(options(registry), rows, kind) == [{"in": {"n": 3}}]
    given = options(registry, subject="outer")
    assert fields_of(with_reader_schema(given)) == "`in`: struct<`n`: int>"
    assert decode(given, rows, kind) == [{"in": {"n": 3}}]


def test_json_is_read_without_asking_for_its_schema(registry: RegistryDouble) -> None:
    rows = [framed(9, b'{"id": 1}'), b'{"id": 2}', framed(9, b"{")]
    found = decode(options(registry, "json"), rows)
    assert found == [row(id=1), row(_corrupt_record='{"id": 2}'), row(_corrupt_record="{")]
    assert registry.paths == []


ORDER_KIND = pa.struct([("id", pa.int64()), ("name", pa.string()), ("extra", pa.string())])


def test_protobuf_is_read_by_the_message_that_the_payload_names(registry: RegistryDouble) -> None:
    old = registry.add_protobuf("shop", shop_file(removed=("name",)))
    new = registry.add_protobuf("shop", shop_file(added=(("extra", "string"),)))
    order = shop_class(added=(("extra", "string"),))(id=2, name="n", extra="e").SerializeToString()
    rows = [
        framed(old, shop_class()(id=1).SerializeToString(), b"\x00"),  # short for the first message
        framed(new, order, b"\x02\x00"),
        framed(new, shop_class("shop.Refund")(id=3).SerializeToString(), b"\x02\x02"),
        framed(new, b"\x0a\x01k\x10\x01", b"\x04\x00\x00"),  # Order.Line
    ]
    assert decode(options(registry, "protobuf"), rows, ORDER_KIND) == [
        {"id": 1, "name": None, "extra": None},
        {"id": 2, "name": "n", "extra": "e"},
        {"id": 3, "name": None, "extra": None},
        {"id": None, "name": None, "extra": None},
    ]


def test_a_readers_descriptor_reads_its_own_message_only(registry: RegistryDouble) -> None:
    first = registry.add_protobuf("shop", shop_file())
    rows = [
        framed(first, shop_class()(id=1, name="n").SerializeToString(), b"\x00"),
        framed(first, shop_class("shop.Refund")(id=3).SerializeToString(), b"\x02\x02"),
    ]
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    expected = [{"id": 1, "name": "n"}, {"id": None, "name": None}]
    given = options(registry, "protobuf", descriptor=shop_descriptor(), message="shop.Order")
    assert decode(given, rows, kind) == expected
    by_subject = options(registry, "protobuf", subject="shop", message="shop.Order")
    assert decode(by_subject, rows, kind) == expected
    assert (fields_of(with_reader_schema(by_subject)) or "").startswith("`id`: bigint, `name`: string")
    with pytest.raises(ConfigError, match=r"several messages.*shop\.Order, shop\.Refund"):
        with_reader_schema(options(registry, "protobuf", subject="shop"))


def test_a_registry_that_gives_no_descriptors_says_what_to_give(registry: RegistryDouble) -> None:
    registry.serializes = False
    first = registry.add_protobuf("shop", shop_file())
    with pytest.raises(SchemaRegistryError, match="give options 'protobufDescriptor' and 'protobufMessage'"):
        decode(options(registry, "protobuf"), [framed(first, b"", b"\0")], ORDER_KIND)


def test_protobuf_files_that_import_others_are_read_with_them(registry: RegistryDouble) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    registry.add_protobuf("shop", shop_file())
    file = FileDescriptorProto(name="x.proto", package="x", syntax="proto3", dependency=["shop.proto"])
    field = file.message_type.add(name="Box").field.add(name="order", number=1, label=1, type=11)
    field.type_name = ".shop.Order"
    box = registry.add_protobuf("box", file, {"shop.proto": "shop"})
    inner = shop_class()(id=7).SerializeToString()
    kind = pa.struct([("order", pa.struct([("id", pa.int64())]))])
    rows = [framed(box, b"\x0a" + bytes([len(inner)]) + inner, b"\0")]
    assert decode(options(registry, "protobuf"), rows, kind) == [{"order": {"id": 7}}]


def test_an_unknown_schema_fails_the_task_in_every_mode(registry: RegistryDouble) -> None:
    said = re.escape(f"the schema registry {registry.url} has no schema id 5: Schema 5 not found")
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        with pytest.raises(UnknownSchemaError, match=said):
            decode(options(registry, mode=mode), [framed(5, b"x")])
    with pytest.raises(UnknownSchemaError, match=r"has no subject 'none', version latest: Subject"):
        with_reader_schema(options(registry, subject="none"))
    registry.add("orders-value", V1)
    with pytest.raises(UnknownSchemaError, match="version 3: Version 3 not found"):
        with_reader_schema(options(registry, subject="orders-value", version=3))
    with pytest.raises(
        SchemaRegistryError, match=r"schema id 1 of the registry .* is AVRO, and option 'payload'"
    ):
        decode(options(registry, "protobuf"), [framed(1, b"x", b"\0")], ORDER_KIND)


def test_a_registry_that_is_down_is_an_error_that_says_so(registry: RegistryDouble) -> None:
    away = options(registry)
    assert away.registry is not None
    port = registry.url.rpartition(":")[2]
    closed = replace(away, registry=replace(away.registry, url=f"http://127.0.0.2:{port}"))
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.2:\d+ does not answer \(.*refused"):
        decode(closed, [framed(1, b"x")])
    registry.failures = 1
    with pytest.raises(RegistryUnavailableError, match="can't answer for schema id 1 \\(503 "):
        decode(away, [framed(1, b"x")])


def test_a_registry_that_comes_back_in_time_is_asked_again(
    registry: RegistryDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("penstock.spark.reconnecting.time.sleep", pauses.append)
    rows = two_versions(registry)
    registry.failures = 3
    given = options(registry)
    assert given.registry is not None
    patient = replace(given, registry=replace(given.registry, retry_s=60.0))
    assert decode(patient, rows[:1]) == [row(id=1)]
    assert len(pauses) == 3
    assert registry.paths == ["/schemas/ids/1"] * 4


def test_credentials_are_sent_and_a_refusal_names_their_options(registry: RegistryDouble) -> None:
    rows = two_versions(registry)[:1]
    registry.authorization = "Basic " + base64.b64encode(b"me:se:cret").decode()
    assert decode(options(registry, user="me", password="se:cret"), rows) == [row(id=1)]
    with pytest.raises(SchemaRegistryError, match=r"refused schema id 1 \(401 Unauthorized\); options"):
        decode(options(registry), rows)
    registry.authorization = "Bearer t"
    registry_of.cache_clear()
    assert decode(options(registry, token="t"), rows) == [row(id=1)]


def test_an_answer_that_is_no_schema_is_an_error(
    registry: RegistryDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "answer", lambda *_: (200, "<html>"))
    given = options(registry)
    assert given.registry is not None
    with pytest.raises(SchemaRegistryError, match="/schemas/ids/1 is no schema"):
        SchemaRegistry(given.registry).by_id(1, "avro")
