"""What Python sees of staged messages."""

from penstock.kernels.log.key_table import KeyEntry, KeyTable

class StagedTotal:
    """What the staged messages of a whole server take: at most bytes_max."""

    bytes_max: int
    def __init__(self, bytes_max: int = ...) -> None: ...
    @property
    def bytes(self) -> int: ...

class StagedBatch(KeyEntry):
    """One open batch; StagedBatches makes it."""

    seq: int
    """Of the last message of the batch that came."""
    heard_ns: int
    @property
    def id(self) -> bytes: ...
    @property
    def total(self) -> StagedTotal: ...
    @property
    def count(self) -> int:
        """Messages."""

    @property
    def size(self) -> int:
        """Bytes of their records."""

    @property
    def flags(self) -> int: ...
    @property
    def last_header(self) -> bytes:
        """The header block of the last message. Raises IndexError when there is none."""

    def append(self, subject: bytes, header: bytes, payload: bytes) -> None:
        """Adds a message. Raises ValueError when it is too large for a batch of publishes."""

    def replace_last_header(self, header: bytes) -> None:
        """The last message gets another header block."""

    def messages(self) -> list[tuple[bytes, bytes, bytes]]:
        """[(subject, header, payload)] of all, in their order."""

class StagedBatches(KeyTable):
    """The open atomic batches of a stream.

    check_at -- ns; from then on the kernel takes nothing before Python looked whether a batch was silent for
    too long.
    """

    check_at: int
    @property
    def count(self) -> int:
        """Open batches."""

    def open(self, id: bytes, total: StagedTotal, messages_max: int, size_max: int) -> StagedBatch:
        """A new batch, of at most so many messages and bytes of records, that counts in `total`. Raises
        ValueError when one of that id is open."""

    def find(self, id: bytes) -> StagedBatch | None:
        """The open batch of an id, or None."""

    def close(self, batch: StagedBatch) -> None:
        """Forgets an open batch; what it holds stays readable."""

    def all(self) -> list[StagedBatch]:
        """The open batches, the one heard of longest ago first."""
