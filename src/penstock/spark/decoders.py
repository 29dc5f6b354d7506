"""Decode payloads into Arrow columns in the executor: text, JSON, Arrow IPC, and what other formats share.

JSON payloads are parsed by pyarrow's reader in batches. Each payload is wrapped as `{"r":payload}` on a line
of its own. A malformed payload cannot change the number of rows undetected: each line holds at least one
document, and an unfinished document cannot continue on the next line because no JSON continues with `{` after
the wrapper's `}`. If the number of rows equals the number of payloads, the rows are correct. Otherwise, or on
any error, the batch is divided until the malformed payloads are decoded singly.

Invariants: one element per payload, in order; an empty payload (a delete marker) and JSON `null` are null; a
malformed payload does not affect other rows (mode FAILFAST fails the query instead).

Rejected: our own JSON parser; Python's json module for every row (a tenth of the throughput).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import date, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock import errors
from penstock.protocol.durations import parse_iso8601
from penstock.spark.payload_options import PayloadOptions

# Batches of at most this many payloads are decoded singly instead of divided further.
SINGLE_ROWS_MAX = 16
_ROW_AT_FAULT = re.compile(r"in row (\d+)")
_TEXT_SHOWN = 200

# A column and a mask of rows to keep; None keeps all.
Decoded = tuple[pa.Array, pa.Array | None]
Decode = Callable[[pa.BinaryArray], Decoded]


class MalformedPayloadError(errors.PenstockError):
    """A payload can't be read, and option `mode` is FAILFAST."""


def decoder_for(options: PayloadOptions, kind: pa.DataType) -> Decoder | None:
    """The decoder that produces a column of type `kind` of plain payloads; None for raw ones.

    Raises ConfigError if the payload format cannot produce that type.
    """
    if options.kind == "string":
        return StringDecoder(options, kind)
    if options.kind == "arrow":
        return ArrowDecoder(options, kind)
    if options.registry is not None:
        from penstock.spark.payloads.confluent_wire import ConfluentDecoder

        return ConfluentDecoder(options, kind)
    if options.kind == "json":
        return JsonDecoder(options, kind)
    if options.kind == "avro":
        from penstock.spark.payloads.avro_records import AvroDecoder

        return AvroDecoder(options, kind)
    if options.kind == "protobuf":
        from penstock.spark.payloads.protobuf_messages import ProtobufDecoder

        return ProtobufDecoder(options, kind)
    return None


def payload_decoder(options: PayloadOptions, kind: pa.DataType) -> Decode | None:
    """What turns payloads as they are stored into a column of type `kind`; None if that is the column.

    Raises ConfigError if the payload format cannot produce that type.
    """
    decoder = decoder_for(options, kind)
    if options.compression == "none":
        return decoder
    from penstock.spark.payloads.decompression import Decompressor

    decompress = Decompressor(options.compression, options.plain_bytes_max)
    inner = decoder or RawDecoder(options, kind)
    return lambda raw: inner(*decompress(raw))


class Decoder(ABC):
    """Decodes binary arrays into arrays of type `kind`, and applies option `mode`."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        self.options = options
        self.kind = kind

    @abstractmethod
    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        """Return the column and the indices of malformed payloads, which are null in it."""

    def malformed(self, raw: pa.BinaryArray) -> pa.Array:
        """The column for payloads that are all malformed."""
        return pa.nulls(len(raw), self.kind)

    def __call__(self, raw: pa.BinaryArray, spoiled: Sequence[int] = ()) -> Decoded:
        """Decode and apply option `mode`. Raises MalformedPayloadError in mode FAILFAST.

        spoiled: indices of payloads that an earlier step could not read.
        """
        column, bad = self.decode(raw) if not spoiled else self.decode_others(raw, spoiled)
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

    def decode_others(self, raw: pa.BinaryArray, spoiled: Sequence[int]) -> tuple[pa.Array, list[int]]:
        """As `decode`, with payloads that are malformed without a look at them."""
        left_out = set(spoiled)
        others = [i for i in range(len(raw)) if i not in left_out]
        column, bad = self.decode(raw.take(pa.array(others, pa.int64())))
        lost = self.malformed(raw.take(pa.array(spoiled, pa.int64())))
        whole = merge([(others, column), (spoiled, lost)], self.kind)
        return whole, sorted({*spoiled, *(others[i] for i in bad)})


def merge(parts: Sequence[tuple[Sequence[int], pa.Array]], kind: pa.DataType) -> pa.Array:
    """One column of parts, each with the indices of its elements in it. Every index is in one part."""
    order = [i for indices, _ in parts for i in indices]
    places = [0] * len(order)
    for at, i in enumerate(order):
        places[i] = at
    whole = pa.concat_arrays([pa.nulls(0, kind), *(array for _, array in parts)])
    return whole.take(pa.array(places, pa.int64()))


class RawDecoder(Decoder):
    """Payloads as they are. Those that can't be decompressed are null."""

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        return raw, []


class StringDecoder(Decoder):
    """UTF-8 text. Invalid bytes become U+FFFD."""

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        try:
            return raw.cast(pa.string()), []
        except pa.ArrowInvalid:
            texts = [value.decode(errors="replace") for value in raw.to_pylist()]
            bad = [i for i, value in enumerate(raw.to_pylist()) if not _is_text(value)]
            return pa.array(texts, pa.string()), bad

    def malformed(self, raw: pa.BinaryArray) -> pa.Array:
        return self.decode(raw)[0]


class StructDecoder(Decoder):
    """One struct per payload. Malformed payloads go as text into the schema's corrupt-record field."""

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

    def malformed(self, raw: pa.BinaryArray) -> pa.Array:
        return self.finish(pa.nulls(len(raw), self.values_kind), raw, list(range(len(raw))))

    def decode_rows(self, rows: list[Any], bad: list[int]) -> pa.StructArray:
        """Python values, one per payload, as an array of values_kind.

        bad: receives the indices of rows that do not fit, which become null.
        """
        try:
            return pa.array(rows, self.values_kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            fitting = []
            for i, row in enumerate(rows):
                try:
                    pa.array([row], self.values_kind)
                    fitting.append(row)
                except (pa.ArrowException, ValueError, TypeError, OverflowError):
                    fitting.append(None)
                    bad.append(i)
            return pa.array(fitting, self.values_kind)

    def finish(self, values: pa.StructArray, raw: pa.BinaryArray, bad: list[int]) -> pa.Array:
        """Convert `values` (type values_kind, null where malformed) to `kind`.

        Malformed rows become structs whose fields are null.
        """
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
    """JSON objects with the semantics of Spark's from_json.

    Unknown fields are ignored, missing fields are null, and a string field takes any value as text.
    """

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
            together, fault = self.decode_batch(part)
            if together is None and len(part) > SINGLE_ROWS_MAX:
                window = max(SINGLE_ROWS_MAX, fault or len(part) // 4)
                continue
            chunks.append(self.decode_singly(part, at, bad) if together is None else together)
            at += len(part)
            window *= 4
        values = chunks[1] if len(chunks) == 2 else pa.concat_arrays(chunks)
        return self.finish(values, raw, bad), bad

    def decode_batch(self, raw: pa.BinaryArray) -> tuple[pa.StructArray | None, int]:
        """Decode all payloads with pyarrow's reader.

        Returns (array, 0), or (None, index of the offending row, 0 if unknown) if that fails.
        """
        if not self.values_kind.num_fields:
            return None, 0  # the reader reports no rows for a struct without fields
        lines = pc.binary_join_element_wise(b'{"r":', raw, b"}\n", b"")
        _, offsets, data = lines.buffers()
        ends = memoryview(offsets).cast("i")
        start, end = ends[lines.offset], ends[lines.offset + len(lines)]
        try:
            raw.cast(pa.string())  # pyarrow's reader accepts invalid UTF-8
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

    def decode_singly(self, raw: pa.BinaryArray, first: int, bad: list[int]) -> pa.StructArray:
        """Decode each payload with Python's json.

        first: index of the first payload. bad: receives the indices of malformed payloads.
        """
        rows = []
        for i, payload in enumerate(raw.to_pylist()):
            row = None
            try:
                row = _coerce(json.loads(payload, parse_float=Decimal), self.values_kind)
                pa.array([row], self.values_kind)  # rejects numbers out of range
            except (ValueError, ArithmeticError, RecursionError, pa.ArrowException):
                row = None
                bad.append(first + i)
            rows.append(row)
        return pa.array(rows, self.values_kind)


class ArrowDecoder(Decoder):
    """Arrow IPC streams. The rows of a payload's batches become an array of structs."""

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


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_kind(kind: pa.DataType) -> pa.DataType:
    """The type to request from pyarrow's reader so that `_conform` can produce `kind`.

    Raises ConfigError if the reader has no such type.
    """
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
    """Convert the reader's array to the type Spark expects: list item names, dates, nullability."""
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
    """Convert a value from Python's json to one pyarrow accepts for `kind`. Raises ValueError."""
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
        when = parse_iso8601(value)
        if kind.tz is None:
            return when.replace(tzinfo=None)
        return when.replace(tzinfo=timezone.utc) if when.tzinfo is None else when
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
