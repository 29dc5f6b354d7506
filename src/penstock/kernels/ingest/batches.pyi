"""Fast batches, staged atomic batches and their commit."""

from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher
from penstock.kernels.log.stream_log import StreamLog

def parse(reply: bytes) -> tuple[bytes, int, bool, int, int] | None:
    """(id, flow, gap_ok, seq, operation) of a reply subject of a fast batch; None for any other."""

class KeyEntry:
    """What a KeyTable holds."""

class KeyTable:
    """Open batches by the bytes that name them."""

class FastBatch(KeyEntry):
    """One batch. Sequences are the batch's own, except for stream_seq."""

    id: bytes
    flow: int
    """The most messages per ack that the client allows."""
    gap_ok: bool
    seq: int
    """The highest one received."""
    stream_seq: int
    """Of its last message in the stream; 0: none was stored."""
    acked: int
    """In the last flow ack."""
    msgs: int
    """Messages per flow ack, now."""
    heard_ns: int
    final: bytes | None
    """The last answer; None while the batch is open."""
    is_refused: bool
    """It has ended, and a message behind the end was refused in this tick: the next ones are dropped."""

class FastBatches(KeyTable):
    """The batches of one stream: the open ones, and those that ended last."""

    count: int
    """Open ones."""
    def __init__(self) -> None: ...
    @property
    def has_due(self) -> bool:
        """Is there a batch that a flow ack is due to?"""

    def start(self, reply: bytes, msgs: int, now: int) -> FastBatch:
        """A new batch, of the reply subject of its first message, with an ack every `msgs` messages (never
        more than the client allows). Raises ValueError for no such subject."""

    def find(self, reply: bytes) -> FastBatch | None:
        """The batch of a reply subject, open or ended lately; else None."""

    def received(self, batch: FastBatch, seq: int, stream_seq: int = 0, duplicate: bool = False) -> None:
        """The batch has come as far as `seq`, whose message is at `stream_seq` in the stream (0: it is not
        stored; duplicate: it was stored before)."""

    def end(self, batch: FastBatch, final: bytes) -> None:
        """Ends the batch; `final` is the final ack, also for later pings."""

    def forget(self, batch: FastBatch) -> None:
        """Nothing of the batch is known from now on."""

    def clear(self) -> None:
        """Forgets every batch."""

    def open_batches(self) -> list[FastBatch]:
        """The batches that have not ended."""

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

def check_staged(batch: StagedBatch, log: StreamLog, limits: PlainLimits, ids: MessageIds, now: int) -> bool:
    """May store_staged() store the batch as it is? False: it may not, or its headers ask for more than the
    kernels know. now -- ns, what the dedupe window ends at."""

def store_staged(
    batch: StagedBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    ts: int,
    republisher: Republisher | None,
) -> int:
    """Stores the messages as one unit at `ts` (ns): returns the sequence of the last."""
