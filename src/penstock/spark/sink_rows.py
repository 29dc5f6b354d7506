"""Converts record batches to rows to publish: subjects, header lines, payloads and ids as Arrow columns.

Arrow's compute functions process whole columns; there is no Python object per row. Invalid messages (no
subject, a subject with spaces or wildcards, a multi-line header value) are rejected before anything of their
batch is sent, and the error names the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, MisuseError
from penstock.kernels.spark.row_frames import Rows, TextColumn
from penstock.spark.sink_options import SinkOptions, SubjectTemplate

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BAD_VALUE = r"[\r\n]"
_BAD_NAME = r"[\x00-\x20:\x7f]|^$"


@dataclass(frozen=True)
class Columns:
    """The rows of a batch. headers: complete header lines with line ends; None if no row has any."""

    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    ids: pa.Array | None

    def rows(self, id_prefix: bytes, first_row: int, numbers: Buffer | None = None) -> Rows:
        return Rows(
            _text_column(self.subjects),
            _text_column(self.payloads),
            _text_column(self.headers) if self.headers is not None else None,
            _text_column(self.ids) if self.ids is not None else None,
            id_prefix,
            first_row,
            numbers,
        )

    def filter(self, mask: pa.Array) -> Columns:
        return Columns(
            self.subjects.filter(mask),
            self.payloads.filter(mask),
            self.headers.filter(mask) if self.headers is not None else None,
            self.ids.filter(mask) if self.ids is not None else None,
        )


def _text_column(array: pa.Array) -> TextColumn:
    _, offsets, data = array.buffers()
    plain = memoryview(data).cast("B") if data is not None and data.size else None
    return TextColumn(memoryview(offsets).cast("B"), plain, array.offset, len(array))


class Layout:
    """Maps batches of one schema to rows. Raises ConfigError for missing or unsuitable columns."""

    def __init__(self, options: SinkOptions, schema: pa.Schema) -> None:
        self.options = options
        self._names = schema.names
        self._data = self._data_column()
        for template in (options.subject, options.message_id, *(t for _, t in options.headers)):
            for name in template.columns if template is not None else ():
                self._require(name, "a template names it")
        if options.subject is None:
            self._require("subject", "say option 'subject', or have a column of that name")

    def _data_column(self) -> str:
        named = self.options.data_column
        if named is not None:
            return self._require(named, "option 'dataColumn' names it")
        for name in ("data", "value"):
            if name in self._names:
                return name
        raise ConfigError(
            "the rows have no column 'data' (or 'value') for the payload: say option 'dataColumn', or make "
            f"one, as by to_json(struct(*)) AS data; there are {', '.join(self._names)}"
        )

    def _require(self, name: str, why: str) -> str:
        if name not in self._names:
            raise ConfigError(f"the rows have no column {name!r} ({why}); there are {', '.join(self._names)}")
        return name

    def columns(self, batch: pa.RecordBatch, first_row: int) -> Columns:
        """The rows of a batch. Raises MisuseError, with the row's number, for an invalid message."""
        options = self.options
        if options.subject is not None:
            subjects = _filled(options.subject, batch, "subject", first_row)
        else:
            subjects = _texts(batch.column("subject"), "subject")
            _refuse_nulls(subjects, "subject", first_row)
        bad = _text_column(subjects).first_bad_subject()
        if bad >= 0:
            raise _refusal(subjects, bad, "no subject to publish to", first_row)
        payloads = pc.fill_null(_texts(batch.column(self._data), self._data).cast(pa.binary()), b"")
        ids = None
        if options.message_id is not None and options.exactly_once:
            ids = _filled(options.message_id, batch, "messageId", first_row)
            _refuse_matches(ids, r"[\r\n]|^$", "no message id", first_row)
        return Columns(subjects, payloads, self._header_lines(batch, first_row), ids)

    def _header_lines(self, batch: pa.RecordBatch, first_row: int) -> pa.Array | None:
        parts: list[pa.Array] = []
        for name, template in self.options.headers:
            values = _filled(template, batch, f"header {name}", first_row)
            _refuse_matches(values, _BAD_VALUE, f"no value of header {name}: it has two lines", first_row)
            parts.append(_joined(f"{name}: ", values, "\r\n"))
        if "headers" in self._names:
            parts.append(header_column(batch.column("headers")))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else _joined(*parts)


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _filled(template: SubjectTemplate, batch: pa.RecordBatch, what: str, first_row: int) -> pa.Array:
    """Expand the template per row. Raises MisuseError if one of its columns is null in a row."""
    if not template.columns:
        return pa.repeat(pa.scalar(template.texts[0], pa.string()), batch.num_rows)
    parts: list[pa.Array | str] = [template.texts[0]]
    for name, text in zip(template.columns, template.texts[1:], strict=True):
        parts += [_texts(batch.column(name), name).cast(pa.string()), text]
    made = _joined(*parts)
    _refuse_nulls(made, what, first_row)
    return made


def _texts(array: pa.Array, name: str) -> pa.Array:
    """Return string and binary columns unchanged, cast others to text. Raises ConfigError."""
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array
    try:
        return array.cast(pa.binary() if pa.types.is_large_binary(array.type) else pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise ConfigError(f"column {name!r} of type {array.type} can't be written as text") from None


def _refuse_nulls(array: pa.Array, what: str, first_row: int) -> None:
    if array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise MisuseError(f"row {first_row + row} of this task has no {what}: a column of it is null")


def _refuse_matches(array: pa.Array, pattern: str, what: str, first_row: int) -> None:
    bad = pc.index(pc.match_substring_regex(array, pattern), True).as_py()
    if bad >= 0:
        raise _refusal(array, bad, what, first_row)


def _refusal(array: pa.Array, row: int, what: str, first_row: int) -> MisuseError:
    return MisuseError(f"row {first_row + row} of this task: {array[row].as_py()!r} is {what}")


def header_column(column: pa.Array) -> pa.Array:
    """Convert a column of header maps to one text of header lines per row, empty for none."""
    kind = column.type
    if pa.types.is_map(kind):
        entries = pa.ListArray.from_arrays(
            column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"]),
            mask=column.is_null() if column.null_count else None,
        )  # fmt: skip
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2:
        entries = column
    else:
        raise ConfigError(
            f"column 'headers' is {kind}; it may be map<string,string>, map<string,array<string>> or "
            "array<struct<key:string,value:binary>>"
        )
    rows = pc.list_parent_indices(entries)
    pairs = pc.list_flatten(entries)
    names, values = pc.struct_field(pairs, [0]), pc.struct_field(pairs, [1])
    if pa.types.is_list(values.type):
        inner = pc.list_parent_indices(values)
        names, rows, values = names.take(inner), rows.take(inner), pc.list_flatten(values)
    names = _texts(names, "headers").cast(pa.string())
    values = pc.fill_null(_texts(values, "headers").cast(pa.string()), "")
    for array, pattern, what in ((names, _BAD_NAME, "name"), (values, _BAD_VALUE, "value")):
        bad = pc.index(pc.match_substring_regex(array, pattern), True).as_py()
        if bad >= 0:
            raise MisuseError(f"column 'headers': {array[bad].as_py()!r} is no header {what}")
    lines = _joined(names, ": ", values, "\r\n")
    counts = _counts(rows, len(column))
    return pc.binary_join(pa.ListArray.from_arrays(counts, lines), "")


def _counts(rows: pa.Array, count: int) -> pa.Array:
    """Arrow list offsets per row, from the ascending row numbers of the lines."""
    import numpy as np

    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows.to_numpy(), minlength=count), out=offsets[1:])
    return pa.array(offsets, pa.int32())
