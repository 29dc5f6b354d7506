"""Avro records without a container, read by fastavro, and what their schema is as columns.

Columns have the types that Spark's from_avro gives; unions are those of one type and null, or of two numbers.
Times of day, durations and uuids are read as the numbers, bytes and texts that carry them: pyarrow makes no
column of fastavro's objects for them.

Slower than JSON: fastavro makes a Python object per row.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.extras import need
from penstock.spark.decoders import StructDecoder
from penstock.spark.payload_options import PayloadOptions

_SIMPLE = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
    "null": "void",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
# Unions of these are the type of the last one.
_WIDENING = (("int", "bigint"), ("float", "double"))
_READ_AS_CARRIER = ("time-millis", "time-micros", "duration", "uuid")


class AvroSchema:
    """A parsed schema. Raises ConfigError, which names `option`, for a text that is none.

    references: schemas that this one names, in an order in which each names earlier ones only.
    """

    def __init__(self, option: str, text: str, references: Sequence[str] = ()) -> None:
        need("option 'payload' = avro", "avro")
        import fastavro

        named: dict[str, Any] = {}
        try:
            for reference in references:
                fastavro.parse_schema(_without_carried(json.loads(reference)), named)
            self.parsed = fastavro.parse_schema(_without_carried(json.loads(text)), named)
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"{option} is no Avro schema: {error}") from None
        self.named = named

    def fields(self) -> list[str]:
        """Names of the record's fields; empty if it is no record."""
        return (
            [field["name"] for field in self.parsed.get("fields", ())]
            if isinstance(self.parsed, dict)
            else []
        )

    def ddl(self) -> str:
        """The fields of the record as DDL. Raises ConfigError for what is no record or has no column type."""
        if not self.fields():
            raise ConfigError("the Avro schema is no record: give its column's type by 'payloadSchema'")
        kind = _type_of(self.parsed, self.named, ())
        return kind.removeprefix("struct<").removesuffix(">")


class AvroDecoder(StructDecoder):
    """Avro records as structs, by the writer's schema, resolved to the reader's if there is one."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType, writer: AvroSchema | None = None) -> None:
        super().__init__(options, kind)
        writer = writer or AvroSchema("option 'avroSchema'", options.avro_schema or "")
        reader = None
        if options.avro_reader_schema is not None:
            reader = AvroSchema(
                "option 'avroReaderSchema'", options.avro_reader_schema, options.avro_reader_references
            )
        self.read = _record_reader(writer, reader)
        if options.registry is None:
            check_names(self.values_kind, (reader or writer).fields(), "the Avro schema")

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        rows, bad = [], list[int]()
        for i, payload in enumerate(raw.to_pylist()):
            row = None
            if payload:
                try:
                    row = self.read(payload)
                except Exception:  # noqa: BLE001  fastavro raises many types for malformed input
                    bad.append(i)
            rows.append(row)
        values = self.decode_rows(rows, bad)
        return self.finish(values, raw, bad), sorted(bad)


def check_names(kind: pa.StructType, known: Sequence[str], where: str) -> None:
    """Raises ConfigError if the column has a field that no payload of this schema has."""
    for field in kind:
        if known and field.name not in known:
            raise ConfigError(
                f"column 'data' has a field {field.name!r}, which {where} does not have; it has "
                f"{', '.join(known)}"
            )


def _record_reader(writer: AvroSchema, reader: AvroSchema | None) -> Callable[[bytes], Any]:
    import fastavro

    reads = None if reader is None else reader.parsed

    def read(payload: bytes) -> Any:
        file = io.BytesIO(payload)
        record = fastavro.schemaless_reader(file, writer.parsed, reads)
        if file.tell() != len(payload):
            raise ValueError("bytes are left over")
        return record

    return read


def _without_carried(schema: Any) -> Any:
    """The schema without the logical types that are read as what carries them."""
    if isinstance(schema, list):
        return [_without_carried(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _without_carried(value) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
    }
    if kept.get("logicalType") in _READ_AS_CARRIER:
        del kept["logicalType"]
    return kept


def _type_of(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    """Spark's name of an Avro type. inside: names of the records around it."""
    if isinstance(schema, list):
        return _type_of_union(schema, named, inside)
    if isinstance(schema, str):
        if schema in _SIMPLE:
            return _SIMPLE[schema]
        if schema in inside:
            raise ConfigError(f"the Avro type {schema} contains itself: leave it out by 'payloadSchema'")
        return _type_of(named[schema], named, inside)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "array":
        return f"array<{_type_of(schema['items'], named, inside)}>"
    if kind == "map":
        return f"map<string,{_type_of(schema['values'], named, inside)}>"
    if kind in ("record", "error"):
        name = schema["name"]
        if name in inside:
            raise ConfigError(f"the Avro type {name} contains itself: leave it out by 'payloadSchema'")
        fields = [
            f"`{field['name']}`: {_type_of(field['type'], named, (*inside, name))}"
            for field in schema["fields"]
        ]
        return f"struct<{', '.join(fields)}>"
    return (
        _type_of(kind, named, inside) if not isinstance(kind, str) or kind not in _SIMPLE else _SIMPLE[kind]
    )


def _type_of_union(branches: list[Any], named: Mapping[str, Any], inside: tuple[str, ...]) -> str:
    kinds = {_type_of(branch, named, inside) for branch in branches} - {"void"}
    if not kinds:
        return "void"
    if len(kinds) == 1:
        return kinds.pop()
    for widening in _WIDENING:
        if kinds == set(widening):
            return widening[-1]
    raise ConfigError(
        f"an Avro union of {', '.join(sorted(kinds))} is no column: give a type by 'payloadSchema' without it"
    )
