"""Columns of the source: their types, selection by options, validation of a user's schema."""

from __future__ import annotations

import json

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import ConfigError
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.source_options import SourceOptions

TYPES: dict[str, DataType] = {
    "subject": StringType(),
    "seq": LongType(),
    "time": TimestampType(),
    "headers": MapType(StringType(), ArrayType(StringType(), False), False),
    "cloudevent": StructType(
        [
            *(
                StructField(name, TimestampType() if name == "time" else StringType())
                for name in ("id", "source", "type", "specversion", "subject", "time")
            ),
            StructField("datacontenttype", StringType()),
            StructField("dataschema", StringType()),
            StructField("extensions", MapType(StringType(), StringType())),
        ]
    ),
    "data": BinaryType(),
    "stream": StringType(),
}


def schema_of(options: SourceOptions) -> StructType | str:
    """The source's schema; as DDL text if Spark must parse the payload's fields.

    Raises ConfigError if the payload's fields are not given.
    """
    shown = {"headers": options.include_headers, "cloudevent": options.cloud_events}
    names = options.columns or [name for name in TYPES if shown.get(name, True)]
    if "data" not in names or options.payload.kind == "raw":
        may_be_lost = options.payload.compression != "none" or options.cloud_events or "cloudevent" in names
        nullable = {"cloudevent": True, "data": may_be_lost}
        return StructType([StructField(name, TYPES[name], nullable.get(name, False)) for name in names])
    types = {name: f"{TYPES[name].simpleString()} not null" for name in names}
    types["cloudevent"] = TYPES["cloudevent"].simpleString()
    return ", ".join(
        f"{name} {types[name] if name != 'data' else _data_type(options.payload)}" for name in names
    )


def _data_type(payload: PayloadOptions) -> str:
    if payload.kind == "string":
        return "string"
    text = payload.schema
    if text is None and payload.kind in ("avro", "protobuf"):
        from penstock.spark.payloads.reader_schemas import fields_of

        text = fields_of(payload)
    if text is None:
        hint = "" if payload.registry is None or payload.kind == "json" else ", 'schemaSubject'"
        raise ConfigError(
            f"option 'payload' is {payload.kind}: give the fields by 'payloadSchema' (\"id bigint, name "
            f'string"){hint}, or the type of column data by .schema()'
        )
    fields = text.strip()
    if fields.startswith("{"):
        try:
            kind = StructType.fromJson(json.loads(fields))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"option 'payloadSchema' is no schema in Spark's JSON: {error!r}") from None
        fields = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in kind.fields)
    return f"array<struct<{fields}>>" if payload.kind == "arrow" else f"struct<{fields}>"


def check_schema(schema: StructType, payload: PayloadOptions) -> StructType:
    """Return `schema` if valid. Raises ConfigError for an unknown column or a wrong type."""
    for field in schema.fields:
        kind = TYPES.get(field.name)
        if kind is None:
            known = ", ".join(TYPES)
            raise ConfigError(f"the jetstream source has no column {field.name!r}; it has {known}")
        # simpleString omits nullability, which may differ
        is_text, given_text = kind.simpleString(), field.dataType.simpleString()
        if field.name == "data" and payload.kind != "raw":
            _check_data(given_text, payload)
        elif is_text != given_text:
            hint = ""
            if field.name == "data":
                hint = "; option 'payload' makes a string or a struct of it"
            raise ConfigError(f"column {field.name!r} is {is_text}, the given schema says {given_text}{hint}")
    return schema


def _check_data(given: str, payload: PayloadOptions) -> None:
    wanted = {"string": "string", "arrow": "array<struct<"}.get(payload.kind, "struct<")
    if not given.startswith(wanted):
        raise ConfigError(
            f"option 'payload' is {payload.kind}, which makes column 'data' {wanted.rstrip('<')}"
            f"{'<…>' if '<' in wanted else ''}; the given schema says {given}"
        )
