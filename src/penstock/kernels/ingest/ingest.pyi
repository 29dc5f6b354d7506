"""What Python sees of ingest: batches of publishes, their storing, their acks."""

from penstock.kernels.ingest.batches import FastBatches, StagedBatches
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.kernels.wire.output import RunBuffer
from penstock.kernels.wire.sinks import DirtyList, Sink

class IngestBatch(RunBuffer):
    """A run of publishes in the order in which they reached the stream."""

    def __init__(self) -> None: ...
    def append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Adds one publish as if it had been routed here. Raises ValueError when it is too large."""

    def take_one(self) -> tuple[bytes, bytes, bytes, bytes] | None:
        """(subject, reply, header, payload) at `position`, which moves past it; None at the end."""

class StreamSink(Sink):
    """The receiving end of a stream's subjects; puts `stream` into `dirty_list` when publishes wait.

    mapper -- changes subjects before anything else sees them (the stream's subject_transform).
    msgs_max, bytes_max -- of the publishes that wait; msgs_max = 0 (default): no limits. What is above is
    turned away: its reply subject (b"" for none) gets into `rejected`, and `stream` into `full_list`.
    """

    is_dirty: bool
    mapper: SubjectMapper | None
    msgs_max: int
    bytes_max: int
    rejected: list[bytes]
    def __init__(self, dirty_list: DirtyList, stream: object, full_list: DirtyList | None = None) -> None: ...
    @property
    def stream(self) -> object: ...
    @property
    def batch(self) -> IngestBatch: ...
    def mark(self) -> None:
        """The stream has something to apply that did not come by its subjects."""

    def take(self) -> IngestBatch:
        """Everything collected since the last take; valid until the take after the next."""

class AckBatch:
    """Acks of one stream that wait for their records to be written.

    prefix -- the JSON of a positive ack up to its sequence: b'{"stream":"ORDERS","seq":'.
    """

    def __init__(self, prefix: bytes) -> None: ...
    @property
    def count(self) -> int: ...
    def __len__(self) -> int: ...
    def add_ack(self, reply: bytes, seq: int, duplicate: bool = False) -> None:
        """The positive ack of the message stored at `seq`, now or (duplicate) before."""

    def add(self, reply: bytes, text: bytes) -> None:
        """Any other answer to a publish: an error, a duplicate."""

    def route(self, index: SubscriptionIndex) -> int:
        """Routes all acks and empties the batch; returns how many found a taker."""

    def items(self) -> list[tuple[bytes, bytes]]:
        """[(reply, text)] of what waits."""

    def clear(self) -> None:
        """Drops what waits."""

def apply_plain(
    batch: IngestBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    now: int,
    ts: int,
    acks: AckBatch,
    republisher: Republisher | None = None,
    batches: FastBatches | None = None,
    staged: StagedBatches | None = None,
) -> int:
    """Stores publishes from `batch.position` on; returns how many it took, duplicates included.

    Stops at the end of the batch or before the first publish that Python has to decide about.
    ts -- ns, the time of every message of the run. now -- ns, what the dedupe window ends at.
    republisher -- is given what was stored.
    batches -- take note of the messages of fast batches; without them those are left to Python.
    staged -- takes those of open atomic batches, but for what Python has to look at.
    """

def acknowledge_fast(batches: FastBatches, acks: AckBatch, limit: int) -> None:
    """One flow ack for each batch that one is due to.

    limit -- messages per ack that the batches tend to from then on.
    """

def scan_headers(log: StreamLog, name: bytes, from_seq: int = 0) -> list[tuple[int, int, bytes]]:
    """[(seq, ts, value)] of every message at or after from_seq whose header block has the name."""

def recover_ids(log: StreamLog, ids: MessageIds, from_seq: int, now: int) -> None:
    """Gives `ids` those of the messages at or after from_seq, as storing them would have."""
