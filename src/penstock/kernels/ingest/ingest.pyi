"""Python interface of ingest: batches of publishes, storing them, their acks."""

from penstock.kernels.base.duration_histogram import DurationHistogram
from penstock.kernels.ingest.batches import FastBatches, StagedBatches
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.kernels.wire.output import RunBuffer
from penstock.kernels.wire.sinks import DirtyList, Sink

class IngestBatch(RunBuffer):
    """A run of publishes in the order in which they reached the stream.

    since -- when its first publish arrived, ns of the monotonic clock; 0 = unknown.
    """

    def __init__(self, since: int = 0) -> None: ...
    @property
    def since(self) -> int: ...
    def append(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Adds one publish as if it had been routed to this stream. Raises ValueError when it is too
        large."""

    def take_one(self) -> tuple[bytes, bytes, bytes, bytes] | None:
        """(subject, reply, header, payload) at `position`, which moves past it; None at the end."""

    def encode(self, head: bytes = b"") -> bytes:
        """`head`, and the publishes from `position` on: for each its lengths (subject and reply 16 bits,
        header block and body 32 bits, little-endian), subject, reply, body."""

    @staticmethod
    def decode(data: bytes, start: int = 0, end: int = ...) -> IngestBatch:
        """The batch that was encoded as the bytes of `data` from offset `start` to `end`. Raises ValueError
        when it is malformed."""

class StreamSink(Sink):
    """The sink of a stream's subjects; puts `stream` into `dirty_list` when publishes wait.

    mapper -- changes subjects first (the stream's subject_transform).
    msgs_max, bytes_max -- see limit().
    rejected -- reply subjects of the publishes that were rejected since take_rejected(), b"" for none.
    """

    is_dirty: bool
    def __init__(self, dirty_list: DirtyList, stream: object, full_list: DirtyList | None = None) -> None: ...
    @property
    def stream(self) -> object: ...
    @property
    def batch(self) -> IngestBatch: ...
    @property
    def mapper(self) -> SubjectMapper | None: ...
    @property
    def msgs_max(self) -> int: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def rejected(self) -> list[bytes]: ...
    def map_subjects(self, mapper: SubjectMapper | None) -> None:
        """Sets what changes the subjects of further publishes."""

    def limit(self, msgs_max: int, bytes_max: int) -> None:
        """Limits the publishes that wait; msgs_max = 0 (default): no limits.

        A publish above a limit is rejected: `stream` is added to `full_list`.
        """

    def take_rejected(self) -> list[bytes]:
        """Removes and returns `rejected`."""

    def mark(self) -> None:
        """Marks the stream dirty for work other than publishes to its subjects."""

    def take(self) -> IngestBatch:
        """The publishes collected since the last take; valid until the take after the next."""

class AckBatch:
    """Acks of one stream that wait for their records to be written.

    prefix -- the JSON of a positive ack up to its sequence: b'{"stream":"ORDERS","seq":'.
    """

    def __init__(self, prefix: bytes) -> None: ...
    @property
    def count(self) -> int: ...
    def __len__(self) -> int: ...
    def add_ack(self, reply: bytes, seq: int, duplicate: bool = False) -> None:
        """Adds the positive ack of the message stored at `seq`, now or (duplicate) before."""

    def add(self, reply: bytes, text: bytes) -> None:
        """Adds any other reply to a publish, such as an error."""

    @property
    def since(self) -> int:
        """When the first publish of these acks arrived, ns of the monotonic clock; 0 = unknown."""

    def arrived(self, since: int) -> None:
        """Notes when the publishes arrived whose acks follow, unless acks of earlier ones wait."""

    def route(self, index: SubscriptionIndex, times: DurationHistogram | None = None) -> int:
        """Routes all acks and empties the batch; returns how many had a receiver.

        times -- receives how long ago the first of their publishes arrived, once for each ack.
        """

    def items(self) -> list[tuple[bytes, bytes]]:
        """[(reply, text)] of the waiting acks."""

    def clear(self) -> None:
        """Drops the waiting acks."""

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
    """Stores publishes from `batch.position` on; returns how many it processed, including duplicates.

    Stops at the end of the batch or before the first publish that is left to Python.
    ts -- ns, the time of every message of the run. now -- ns, the end of the dedupe window.
    republisher -- receives the stored messages.
    batches -- track the messages of fast batches; without them those are left to Python.
    staged -- receives the messages of open atomic batches, except those left to Python.
    """

def acknowledge_fast(batches: FastBatches, acks: AckBatch, limit: int) -> None:
    """Adds the flow acks that are due, one per batch.

    limit -- the number of messages per ack that the batches approach.
    """

def scan_headers(
    log: StreamLog, name: bytes, from_seq: int, looks: int
) -> tuple[list[tuple[int, int, bytes]], int]:
    """[(seq, ts, value)] of the messages at or after from_seq whose header block has the name, and the
    sequence to continue at; 0: there are no more.

    looks -- reads at most so many messages.
    """

def recover_ids(log: StreamLog, ids: MessageIds, from_seq: int, looks: int) -> int:
    """Adds the ids of the messages at or after from_seq to `ids`, as storing them did. Returns the
    sequence to continue at; 0: there are no more.

    looks -- reads at most so many messages.
    """
