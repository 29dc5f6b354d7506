"""Payloads into columns, in the executor, by Arrow: text, JSON, Avro, Arrow batches.

JSON goes through pyarrow's reader, a batch at a time. Each payload is wrapped as `{"r":payload}` and the
lines are read as one text. A payload can't change how many rows come out unseen: each line holds at least one
document, and what is unfinished in one line can't go on in the next, since after the wrapper's `}` no JSON
goes on with `{`. So as many rows as payloads are the right rows; anything else, and any error, makes fewer
payloads be read together, until those at fault are read one by one.

Invariants: one element out for one payload in, in order; an empty payload (a marker of a deletion) and JSON's
null are null; a payload that can't be read never fails its neighbours (but in mode FAILFAST the query).

Rejected: a JSON parser of our own; Python's json for every row (a tenth of the rate).
"""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock import errors
from penstock.extras import need
from penstock.spark.source_options import PayloadOptions

# So few payloads are read one by one rather than divided further.
ROWS_ALONE = 16
_ROW_AT_FAULT = re.compile(r"in row (\d+)")
_TEXT_SHOWN = 200

# A column, and which rows to keep (None: all).
Decoded = tuple[pa.Array, pa.Array | None]


class MalformedPayloadError(errors.PenstockError):
    """A payload can't be read, and option `mode` is FAILFAST."""


def decoder_for(options: PayloadOptions, kind: pa.DataType) -> Decoder | None:
    """What makes a column of type `kind` of payloads; None when they are left as they are.

    Raises ConfigError when that format can't make such a column.
    """
    if options.kind == "string":
        return StringDecoder(options, kind)
    if options.kind == "json":
        return JsonDecoder(options, kind)
    if options.kind == "arrow":
        return ArrowDecoder(options, kind)
    if options.kind == "avro":
        return AvroDecoder(options, kind)
    return None


class Decoder(ABC):
    """Binary arrays into arrays of `kind`. Keeps to option `mode`."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        self.options = options
        self.kind = kind

    @abstractmethod
    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        """The column, and the rows whose payloads can't be read (null in it)."""

    def __call__(self, raw: pa.BinaryArray) -> Decoded:
        """Raises MalformedPayloadError in mode FAILFAST."""
        column, bad = self.decode(raw)
        if not bad or self.options.mode == "PERMISSIVE":
            return column, None
        if self.options.mode == "FAILFAST":
            text = raw[bad[0]].as_py()[:_TEXT_SHOWN]
            raise MalformedPayloadError(
                f"a payload can't be read as {self.options.kind}: {text!r}. Option 'mode' is FAILFAST: with "
                "PERMISSIVE it gives nulls (and its text in a field _corrupt_record), with "
                "DROPMALFORMED no row"
            )
        keep = [True] * len(raw)
        for row in bad:
            keep[row] = False
        return column, pa.array(keep)


class StringDecoder(Decoder):
    """UTF-8. What is none has U+FFFD in the places that are not."""

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        try:
            return raw.cast(pa.string()), []
        except pa.ArrowInvalid:
            texts = [value.decode(errors="replace") for value in raw.to_pylist()]
            bad = [i for i, value in enumerate(raw.to_pylist()) if not _is_text(value)]
            return pa.array(texts, pa.string()), bad


class StructDecoder(Decoder):
    """A struct a payload, with the text of those that can't be read in the schema's corrupt field."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        super().__init__(options, kind)
        if not pa.types.is_struct(kind):
            raise errors.ConfigError(
                f"option 'payload' is {options.kind}: column 'data' is a struct, not {kind}"
            )
        self.fields = [kind.field(i) for i in range(kind.num_fields)]
        corrupt = [f for f in self.fields if f.name == options.corrupt_column]
        if corrupt and not pa.types.is_string(corrupt[0].type):
            raise errors.ConfigError(f"field {options.corrupt_column!r} takes texts: it must be a string")
        self.has_corrupt = bool(corrupt)
        self.values_kind = pa.struct([f for f in self.fields if f.name != options.corrupt_column])

    def finish(self, values: pa.StructArray, raw: pa.BinaryArray, bad: list[int]) -> pa.Array:
        """`values` (of values_kind, null where malformed) as `kind`: malformed ones are structs of nulls."""
        count = len(raw)
        nulls = values.is_null()
        corrupt = pa.nulls(count, pa.string())
        if bad:
            at = set(bad)
            nulls = pa.array([null and i not in at for i, null in enumerate(nulls.to_pylist())])
            if self.has_corrupt:
                texts = [raw[i].as_py().decode(errors="replace") if i in at else None for i in range(count)]
                corrupt = pa.array(texts, pa.string())
        columns = dict(zip((f.name for f in self.values_kind), values.flatten(), strict=True))
        return pa.StructArray.from_arrays(
            [columns.get(f.name, corrupt) for f in self.fields],
            fields=self.fields,
            mask=nulls,
        )


class JsonDecoder(StructDecoder):
    """JSON objects, as Spark's from_json reads them: unknown fields are left out, absent ones null, a field
    that is a string takes any value's text."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        super().__init__(options, kind)
        self.parse_kind = _parse_kind(self.values_kind)
        self.parse_options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field("r", self.parse_kind)]), unexpected_field_behavior="ignore"
        )

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        chunks, bad = [pa.nulls(0, self.values_kind)], list[int]()
        filled = pc.if_else(pc.equal(pc.binary_length(raw), 0), b"null", raw)
        at, window = 0, len(raw)
        while at < len(raw):
            part = filled[at : at + window]
            together, fault = self.together(part)
            if together is None and len(part) > ROWS_ALONE:
                window = max(ROWS_ALONE, fault or len(part) // 4)
                continue
            chunks.append(self.one_by_one(part, at, bad) if together is None else together)
            at += len(part)
            window *= 4
        values = chunks[1] if len(chunks) == 2 else pa.concat_arrays(chunks)
        return self.finish(values, raw, bad), bad

    def together(self, raw: pa.BinaryArray) -> tuple[pa.StructArray | None, int]:
        """All of them by pyarrow's reader; None when one can't be read so, and which (0: not known)."""
        if not self.values_kind.num_fields:
            return None, 0  # without a field the reader counts no rows
        lines = pc.binary_join_element_wise(b'{"r":', raw, b"}\n", b"")
        _, offsets, data = lines.buffers()
        ends = memoryview(offsets).cast("i")
        start, end = ends[lines.offset], ends[lines.offset + len(lines)]
        try:
            raw.cast(pa.string())  # pyarrow's reader lets through what is no UTF-8
            table = pyarrow.json.read_json(
                pa.BufferReader(data.slice(start, end - start)),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=end - start + 1),
                parse_options=self.parse_options,
            )
            if table.num_rows != len(raw):
                return None, 0
            column = table.column("r")
            whole = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            return _conform(whole, self.values_kind), 0
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            found = _ROW_AT_FAULT.search(str(error))
            return None, int(found[1]) if found else 0

    def one_by_one(self, raw: pa.BinaryArray, first: int, bad: list[int]) -> pa.StructArray:
        """By Python. `first` is the number of the first one; those that can't be read are added to `bad`."""
        rows = []
        for i, payload in enumerate(raw.to_pylist()):
            row = None
            try:
                row = _coerce(json.loads(payload, parse_float=Decimal), self.values_kind)
                pa.array([row], self.values_kind)  # refuses numbers out of their type's range
            except (ValueError, ArithmeticError, RecursionError, pa.ArrowException):
                row = None
                bad.append(first + i)
            rows.append(row)
        return pa.array(rows, self.values_kind)


class ArrowDecoder(Decoder):
    """Arrow IPC streams: the rows of a payload's batches as an array of structs."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        super().__init__(options, kind)
        if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
            raise errors.ConfigError(
                f"option 'payload' is arrow: column 'data' is an array of structs, not {kind}"
            )
        self.schema = pa.schema(list(kind.value_type))

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        offsets, tables, bad = [0], [self.schema.empty_table()], []
        for i, payload in enumerate(raw):
            try:
                table = self.read_one(payload.as_buffer())
                tables.append(table)
                offsets.append(offsets[-1] + table.num_rows)
            except (pa.ArrowException, KeyError):
                offsets.append(offsets[-1])
                if len(payload.as_buffer()):
                    bad.append(i)
        whole = pa.concat_tables(tables).combine_chunks()
        structs = pa.StructArray.from_arrays(
            [c.chunk(0) if c.num_chunks else pa.nulls(0, c.type) for c in whole.columns],
            fields=list(self.schema),
        )
        lengths = raw.is_valid() if not bad else pa.array([i not in set(bad) for i in range(len(raw))])
        mask = pc.or_(pc.invert(lengths), pc.equal(pc.binary_length(raw), 0))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), structs, type=self.kind, mask=mask
        ), bad

    def read_one(self, payload: pa.Buffer) -> pa.Table:
        with pa.ipc.open_stream(payload) as stream:
            return stream.read_all().select(self.schema.names).cast(self.schema)


class AvroDecoder(StructDecoder):
    """Avro records without a container, by fastavro: a Python object a row, so slower than the others."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        super().__init__(options, kind)
        self.read = _avro_reader(options.avro_schema or "")

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        rows, bad = [], []
        for i, payload in enumerate(raw.to_pylist()):
            row = None
            if payload:
                try:
                    row = self.read(payload)
                    pa.array([row], self.values_kind)
                except Exception:  # noqa: BLE001  a reader of bytes of any kind fails in any way
                    row = None
                    bad.append(i)
            rows.append(row)
        return self.finish(pa.array(rows, self.values_kind), raw, bad), bad


def _avro_reader(schema: str) -> Callable[[bytes], Any]:
    need("option 'payload' = avro", "avro")
    import fastavro

    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise errors.ConfigError(f"option 'avroSchema' is no Avro schema: {error}") from None

    def read(payload: bytes) -> Any:
        file = io.BytesIO(payload)
        record = fastavro.schemaless_reader(file, parsed, None)
        if file.tell() != len(payload):
            raise ValueError("bytes are left over")
        return record

    return read


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_kind(kind: pa.DataType) -> pa.DataType:
    """The type pyarrow's reader makes, of which `_conform` makes `kind`. ConfigError when it can't."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _parse_kind(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_parse_kind(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    simple = (
        pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_timestamp(kind)
    )
    if not simple:
        raise errors.ConfigError(
            f"option 'payload' is json, which makes no {kind}: take a string, and from_json or unbase64 on it"
        )
    return kind


def _conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What the reader made, as the type Spark expects: names of list items, dates, nullability."""
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind):
        parts = [_conform(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        values = _conform(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    return array.cast(kind)


def _coerce(value: Any, kind: pa.DataType) -> Any:
    """A value of Python's json as one that pyarrow takes for `kind`; ValueError when it is another kind."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {f.name: _coerce(value.get(f.name), f.type) for f in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_coerce(item, kind.value_type) for item in value]
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, default=_number, ensure_ascii=False)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    if pa.types.is_integer(kind) and number and isinstance(value, int):
        return value
    if pa.types.is_floating(kind) and number:
        return float(value)
    if pa.types.is_decimal(kind) and (number or isinstance(value, str)):
        return _decimal(value, kind.scale)
    if pa.types.is_timestamp(kind) and isinstance(value, str):
        when = datetime.fromisoformat(value)
        if kind.tz is None:
            return when.replace(tzinfo=None)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when
    if pa.types.is_date32(kind) and isinstance(value, str):
        return date.fromisoformat(value[:10])
    raise ValueError(f"{value!r} is no {kind}")


def _decimal(value: Any, scale: int) -> Decimal:
    try:
        return Decimal(value).quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        raise ValueError(f"{value!r} is no decimal") from None


def _number(value: Any) -> Any:
    assert isinstance(value, Decimal)
    return float(value)
