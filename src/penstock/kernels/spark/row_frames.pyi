"""What Python sees of the rows kernel."""

from typing_extensions import Buffer

from penstock.kernels.wire.buffers import OutBuffer

class TextColumn:
    """A binary or string column from its Arrow buffers: int32 offsets, and the data (None when empty)."""

    def __init__(self, offsets: Buffer, data: Buffer | None, start: int, count: int) -> None: ...
    @property
    def count(self) -> int: ...
    def first_bad_subject(self) -> int:
        """The first row that is no subject to publish to (blanks or control characters, an empty token, a
        wildcard), or -1."""

class Rows:
    """The rows of one batch, to be published."""

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
        """The ids of all rows; empty ones where there is none."""

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
        """Writes rows as PUB or HPUB; returns how many, fewer before one too large or when `out` is full."""
