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
from penstock.spark.source_options import PayloadOptions, SourceOptions

TYPES: dict[str, DataType] = {
    "subject": StringType(),
    "seq": LongType(),
    "time": TimestampType(),
    "headers": MapType(StringType(), ArrayType(StringType(), False), False),
    "data": BinaryType(),
    "stream": StringType(),
}


def schema_of(options: SourceOptions) -> StructType | str:
    """The source's schema; as DDL text if Spark must parse the payload's fields.

    Raises ConfigError if the payload's fields are not given.
    """
    names = options.columns or [name for name in TYPES if name != "headers" or options.include_headers]
    if "data" not in names or options.payload.kind == "raw":
        return StructType([StructField(name, TYPES[name], nullable=False) for name in names])
    types = {name: f"{TYPES[name].simpleString()} not null" for name in names}
    return ", ".join(
        f"{name} {types[name] if name != 'data' else _data_type(options.payload)}" for name in names
    )


def _data_type(payload: PayloadOptions) -> str:
    if payload.kind == "string":
        return "string"
    if payload.schema is None:
        raise ConfigError(
            f"option 'payload' is {payload.kind}: give the fields by 'payloadSchema' (\"id bigint, name "
            'string"), or the type of column data by .schema()'
        )
    fields = payload.schema.strip()
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
