"""Rows as publish frames, and the pub acks for them."""

from enum import IntEnum

from typing_extensions import Buffer

from penstock.kernels.wire.frames import FrameParser
from penstock.kernels.wire.output import OutBuffer

class TextColumn:
    """A binary or string column from its Arrow buffers: int32 offsets, and the data (None when empty)."""

    def __init__(self, offsets: Buffer, data: Buffer | None, start: int, count: int) -> None: ...
    @property
    def count(self) -> int: ...
    def first_bad_subject(self) -> int:
        """The first row that is no valid publish subject (blanks or control characters, an empty token, a
        wildcard), or -1."""

class Rows:
    """The rows of one batch to publish."""

    def __init__(
        self,
        subjects: TextColumn,
        payloads: TextColumn,
        headers: TextColumn | None = None,
        ids: TextColumn | None = None,
        id_prefix: bytes = b"",
        first_row: int = 0,
        numbers: Buffer | None = None,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    def __len__(self) -> int: ...
    def message_ids(self) -> list[bytes]:
        """The ids of all rows; b"" for a row without one."""

    def subject(self, i: int) -> bytes: ...
    def size(self, i: int) -> int:
        """Bytes of a row's subject, header lines and payload."""

    def encode(
        self,
        out: OutBuffer,
        start: int,
        count: int,
        *,
        reply: bytes = b"",
        number: int = 0,
        end: bytes = b"",
        fixed: bytes = b"",
        numbered: bytes = b"",
        max_payload: int,
        out_max: int = 1048576,
    ) -> int:
        """Writes rows as PUB or HPUB; returns how many, fewer if one is too large or `out` is full."""

class AckEvent(IntEnum):
    ACKS_NEED_MORE = 0
    ACKS_OTHER = 1
    ACKS_CONTROL = 2
    ACKS_ERROR = 3

class AckWindow:
    """Tracks the acks of the numbered messages in flight."""

    def __init__(self, sid: bytes, stream: bytes, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def header(self) -> bytes: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def op(self) -> int: ...
    def sent(self, count: int) -> None: ...
    def acknowledge(self, number: int, duplicate: bool, seq: int) -> bool: ...
    def feed(self, parser: FrameParser) -> int: ...
