"""Zero-copy Arrow record batches over the kernel's column buffers.

The kernel's columns have no nulls. A user's schema may differ from the source's in field order and
nullability. Arrow types come from Spark's own `to_arrow_schema`, because Spark compares them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.kernels.spark.columns import ColumnBuffer

Buffers = Mapping[str, Sequence["ColumnBuffer"]]
# Decodes payloads into a column. The second result is a mask of rows to keep; None keeps all.
Decode = Callable[[pa.BinaryArray], tuple[pa.Array, pa.Array | None]]


def record_batch(
    schema: pa.Schema, rows: int, buffers: Buffers, *, stream: str, decode: Decode | None = None
) -> pa.RecordBatch:
    """Build a record batch of `schema`.

    schema: fields are any of stream, subject, seq, time, headers, data. decode: turns payloads into the
    `data` column and may drop rows.
    """
    keep = None
    arrays = []
    for field in schema:
        if field.name == "stream":
            arrays.append(pa.repeat(pa.scalar(stream, field.type), rows))
        elif field.name == "data" and decode is not None:
            array, keep = decode(_array(pa.binary(), rows, [pa.py_buffer(b) for b in buffers["data"]]))
            arrays.append(array)
        else:
            arrays.append(_array(field.type, rows, [pa.py_buffer(b) for b in buffers[field.name]]))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if keep is None else batch.filter(keep)


def _array(kind: pa.DataType, rows: int, buffers: list[pa.Buffer]) -> pa.Array:
    if pa.types.is_map(kind):
        return _headers(kind, rows, *buffers)
    return pa.Array.from_buffers(kind, rows, [None, *buffers])


def _headers(
    kind: pa.MapType,
    rows: int,
    map_offsets: pa.Buffer,
    name_offsets: pa.Buffer,
    names: pa.Buffer,
    list_offsets: pa.Buffer,
    value_offsets: pa.Buffer,
    values: pa.Buffer,
) -> pa.Array:
    """Assemble map<string, list<string>>, innermost arrays first."""
    entries = name_offsets.size // 4 - 1
    items = value_offsets.size // 4 - 1
    value_array = pa.Array.from_buffers(kind.item_type.value_type, items, [None, value_offsets, values])
    lists = pa.Array.from_buffers(kind.item_type, entries, [None, list_offsets], children=[value_array])
    keys = pa.Array.from_buffers(kind.key_type, entries, [None, name_offsets, names])
    pairs = pa.StructArray.from_arrays([keys, lists], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows, [None, map_offsets], children=[pairs])
