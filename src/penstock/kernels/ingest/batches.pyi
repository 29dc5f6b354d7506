"""Fast batches, staged atomic batches and their commit."""

from typing import Any

from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher
from penstock.kernels.log.stream_log import StreamLog

def parse(reply: bytes) -> tuple[bytes, int, bool, int, int] | None:
    """(id, flow, gap_ok, seq, operation) of a reply subject of a fast batch; None for any other."""

class KeyEntry:
    """Base class of the entries of a KeyTable."""

class KeyTable:
    """Batches by their keys."""

class FastBatch(KeyEntry):
    """One batch. Sequences are the batch's own, except for stream_seq."""

    id: bytes
    flow: int
    """The maximum of messages per ack that the client allows."""
    gap_ok: bool
    seq: int
    """The highest batch sequence received."""
    stream_seq: int
    """Stream sequence of its last message; 0: none was stored."""
    acked: int
    """The batch sequence in the last flow ack."""
    msgs: int
    """Current number of messages per flow ack."""
    @property
    def heard_ns(self) -> int: ...
    final: bytes | None
    """The final ack; None while the batch is open."""
    @property
    def is_refused(self) -> bool:
        """The batch has ended, and a later message was refused in this tick: further ones are dropped."""

    def heard(self, now: int) -> None:
        """A message of the batch arrived that Python handles."""

    def refuse(self, refused: bool) -> None:
        """Sets is_refused."""

class FastBatches(KeyTable):
    """The batches of one stream: the open ones, and those that ended recently."""

    count: int
    """Number of open batches."""
    def __init__(self) -> None: ...
    @property
    def has_due(self) -> bool:
        """Is a flow ack due for some batch?"""

    def start(self, reply: bytes, msgs: int, now: int) -> FastBatch:
        """Starts a batch, given the reply subject of its first message, with an ack every `msgs` messages
        (never more than the client allows). Raises ValueError for any other subject."""

    def find(self, reply: bytes) -> FastBatch | None:
        """The batch of a reply subject, open or recently ended; else None."""

    def received(self, batch: FastBatch, seq: int, stream_seq: int = 0, duplicate: bool = False) -> None:
        """Advances the batch to `seq`, whose message is at `stream_seq` in the stream (0: it is not
        stored; duplicate: it was stored before)."""

    def end(self, batch: FastBatch, final: bytes) -> None:
        """Ends the batch; `final` is the final ack, also for later pings."""

    def forget(self, batch: FastBatch) -> None:
        """Removes the batch."""

    def clear(self) -> None:
        """Removes all batches."""

    def all(self) -> list[FastBatch]:
        """The batches, open and ended, in the order of their starts."""

    def dump(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        """The state, for load()."""

    def load(self, batches: list[tuple[Any, ...]], ended: list[int]) -> None:
        """Takes over the state that dump() returned of another object; this one is new. Raises ValueError."""

    def open_batches(self) -> list[FastBatch]:
        """The batches that have not ended."""

class StagedTotal:
    """Memory of the staged messages of a stream: at most bytes_max. whole: counts those of all streams."""

    def __init__(self, bytes_max: int = ..., whole: StagedTotal | None = None) -> None: ...
    @property
    def bytes_max(self) -> int: ...
    def limit(self, bytes_max: int) -> None:
        """Sets the limit for further messages."""

    @property
    def bytes(self) -> int: ...

class StagedBatch(KeyEntry):
    """One open batch; created by StagedBatches."""

    seq: int
    """Sequence of the last received message of the batch."""
    @property
    def heard_ns(self) -> int: ...
    def next_seq(self) -> int:
        """Advances to the next message of the batch and returns its sequence in it."""

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
        """Replaces the header block of the last message."""

    def messages(self) -> list[tuple[bytes, bytes, bytes]]:
        """[(subject, header, payload)] of all messages, in order."""

class StagedBatches(KeyTable):
    """The open atomic batches of a stream.

    check_at -- ns; from then on the kernel takes no message until Python has checked for batches that timed
    out.
    """

    @property
    def check_at(self) -> int: ...
    @property
    def count(self) -> int:
        """Open batches."""

    def heard(self, batch: StagedBatch, now: int, timeout_ns: int) -> None:
        """A message of the batch arrived at `now`: it times out no earlier than timeout_ns later."""

    def check_from(self, at: int) -> None:
        """Sets check_at: no batch times out before."""

    def open(self, id: bytes, total: StagedTotal, messages_max: int, size_max: int) -> StagedBatch:
        """Opens a batch with limits on messages and bytes of records, which counts in `total`. Raises
        ValueError when one with that id is open."""

    def find(self, id: bytes) -> StagedBatch | None:
        """The open batch of an id, or None."""

    def close(self, batch: StagedBatch) -> None:
        """Removes an open batch; its messages stay readable."""

    def all(self) -> list[StagedBatch]:
        """The open batches, least recently used first."""

def check_staged(batch: StagedBatch, log: StreamLog, limits: PlainLimits, ids: MessageIds, now: int) -> bool:
    """May store_staged() store the batch as it is? False: it may not, or its headers need Python.
    now -- ns, end of the dedupe window."""

def store_staged(
    batch: StagedBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    ts: int,
    republisher: Republisher | None,
) -> int:
    """Stores the messages as one unit at `ts` (ns); returns the sequence of the last."""
