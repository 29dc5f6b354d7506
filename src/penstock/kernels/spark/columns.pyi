"""Python interface of the columns kernel; the contract is in columns.pxd and columns.pyx."""

from collections.abc import Iterable
from enum import IntEnum

from penstock.kernels.wire.frames import FrameParser

class Event(IntEnum):
    """Why `ColumnBuilder.feed` returned."""

    EVENT_NEED_MORE = 0
    EVENT_FULL = 1
    EVENT_END = 2
    EVENT_STATUS = 3
    EVENT_MESSAGE = 4
    EVENT_CONTROL = 5
    EVENT_GAP = 6
    EVENT_ERROR = 7

class ColumnBuffer:
    """Memory of one finished Arrow buffer (buffer protocol, read-only)."""

    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ColumnBuilder:
    """Collects the messages of one subscription into Arrow buffers.

    columns: any of subject, seq, time, headers, data. sid: id of the subscription whose messages become rows.
    direct: they answer a direct-get batch, else a pull consumer's. rows_max, bytes_max: bounds of a batch.
    ValueError for an unknown column or a bound out of range.
    """

    def __init__(
        self,
        columns: Iterable[str],
        *,
        sid: bytes,
        direct: bool = False,
        rows_max: int = 32768,
        bytes_max: int = 16777216,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def end_seq(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def op(self) -> int: ...
    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def message(self) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...
    def restart(self, next_seq: int, end_seq: int, sid: bytes | None = None) -> None: ...
    def feed(self, parser: FrameParser) -> int: ...
    def extend(
        self,
        messages: list[tuple[int, bytes, bytes | None, bytes | None, bytes]],
        start: int = 0,
        *,
        ordered: bool = True,
    ) -> tuple[int, int]: ...
    def take(self) -> tuple[int, dict[str, tuple[ColumnBuffer, ...]]]: ...
