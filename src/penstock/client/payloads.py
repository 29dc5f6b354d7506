"""Bulk payloads for batches: iterables of bytes or Arrow columns, encoded by a kernel.

The client does not depend on pyarrow: an array is recognized by `buffers`, a chunked array by `chunks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from penstock.errors import MisuseError
from penstock.kernels.wire.output import OutBuffer, encode_appends, encode_column

CHUNK = 4096  # payloads of an iterable that are encoded at once


class Payloads(Protocol):
    """A sequence of payloads that a kernel can encode."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> bytes: ...
    def encode(
        self,
        out: OutBuffer,
        subject: bytes,
        prefix: bytes,
        seq: int,
        at: int,
        count: int,
        size_max: int,
        *,
        staged: bool = False,
    ) -> int:
        """Encode up to `count` payloads from index `at` as messages with batch sequences from `seq`.

        staged: messages of an atomic batch. Stops before a payload above size_max bytes, and when `out` holds
        1 MiB. Returns how many were written.
        """


class _List:
    def __init__(self, items: list[bytes]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> bytes:
        return self._items[at]

    def encode(
        self,
        out: OutBuffer,
        subject: bytes,
        prefix: bytes,
        seq: int,
        at: int,
        count: int,
        size_max: int,
        *,
        staged: bool = False,
    ) -> int:
        return encode_appends(out, subject, prefix, seq, self._items, at, count, size_max, staged)


class _Column:
    """An Arrow array of binary or string type. wide: 64-bit offsets."""

    def __init__(self, column: Any, *, wide: bool) -> None:
        self._column = column
        self._wide = wide
        _, offsets, data = column.buffers()
        self._offsets = memoryview(offsets).cast("B")
        self._data = memoryview(data).cast("B") if data is not None and data.size else None

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, at: int) -> bytes:
        value = self._column[at].as_py()
        return value.encode() if isinstance(value, str) else bytes(value)

    def encode(
        self,
        out: OutBuffer,
        subject: bytes,
        prefix: bytes,
        seq: int,
        at: int,
        count: int,
        size_max: int,
        *,
        staged: bool = False,
    ) -> int:
        start = self._column.offset + at
        return encode_column(
            out, subject, prefix, seq, self._offsets, self._wide, self._data, start, count, size_max, staged
        )


def runs_of(payloads: Iterable[bytes] | Any) -> Iterator[Payloads]:
    """Split payloads into runs that can be encoded.

    payloads: an iterable of bytes, or an Arrow array or chunked array of binary or string type. Raises
    MisuseError for columns with nulls or of other types.
    """
    if hasattr(payloads, "chunks"):
        for chunk in payloads.chunks:
            yield _column(chunk)
    elif hasattr(payloads, "buffers"):
        yield _column(payloads)
    else:
        iterator = iter(payloads)
        while items := list(itertools.islice(iterator, CHUNK)):
            yield _List(items)


def _column(column: Any) -> Payloads:
    if column.null_count:
        raise MisuseError(f"a message has a payload: the column has {column.null_count} nulls")
    kind = str(column.type)
    if kind not in ("binary", "string", "large_binary", "large_string"):
        raise MisuseError(f"payloads come from binary or string columns, not {kind}")
    return _Column(column, wide=kind.startswith("large_"))
