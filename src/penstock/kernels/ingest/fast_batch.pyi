"""What Python sees of fast batches."""

from penstock.kernels.log.key_table import KeyEntry, KeyTable

def parse(reply: bytes) -> tuple[bytes, int, bool, int, int] | None:
    """(id, flow, gap_ok, seq, operation) of a reply subject of a fast batch; None for any other."""

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
        """The batch is over; `final` is what its publisher is told, now and when it asks again."""

    def forget(self, batch: FastBatch) -> None:
        """Nothing of the batch is known from now on."""

    def clear(self) -> None:
        """Forgets every batch."""

    def open_batches(self) -> list[FastBatch]:
        """The batches that have not ended."""
