"""Messages in transit from one stream, the origin, to another one that mirrors or sources it."""

from collections.abc import Callable

from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.kernels.wire.output import RunBuffer
from penstock.kernels.wire.sinks import Sink

class CopyBatch(RunBuffer):
    """A run of an origin's messages as the target stores them, in the origin's order.

    line: for sources (`line, middle, end`), the parts of the header line that names the origin, around
    sequence and subject. Without it, header blocks keep the lines that name earlier origins. clear() doesn't
    reset `reached`.
    """

    reached: int
    def __init__(self, line: tuple[bytes, bytes, bytes] | None = None) -> None: ...
    def append(
        self, seq: int, ts: int, subject: bytes, header: bytes, payload: bytes, origin_subject: bytes = b""
    ) -> None:
        """Adds one message; origin_subject: its subject in the origin, if that differs."""

    def place(self, seq: int) -> None:
        """Notes that the origin has nothing to copy up to this sequence."""

    def gather(
        self,
        origin: StreamLog,
        from_seq: int,
        filters: list[bytes],
        mappers: list[SubjectMapper],
        enough: int,
    ) -> int:
        """Adds messages of the origin from from_seq on that pass a filter (an empty list: all), with their
        subjects mapped by the mappers, until the batch has `enough` bytes.

        Returns the sequence up to which the origin was searched.
        """

    def take_one(self) -> tuple[int, int, bytes, bytes, bytes] | None:
        """(seq, ts, subject, header, payload) at `position`, which moves past it; None at the end."""

    def encode(self, head: bytes = b"") -> bytes:
        """`head`, and the messages from `position` on: for each the fields of CopyEntry (copying.pxd),
        subject, header block, payload."""

    @staticmethod
    def decode(data: bytes, start: int = 0, end: int = ...) -> CopyBatch:
        """The batch that was encoded as the bytes of `data` from offset `start` to `end`. Raises ValueError
        when it is malformed."""

def settle_upto(state: AckState, log: StreamLog, filters: list[bytes], upto_seq: int, ts: int) -> int:
    """Marks the messages up to a sequence that pass a filter (none: all) as delivered at `ts` (ns), and as
    settled if the policy needs no acks; returns how many."""

class DeliverySink(Sink):
    """A Python callable that receives a consumer's deliveries, also in another account: callback(subject,
    reply, header, payload) with the subject that a message was stored with."""

    def __init__(self, callback: Callable[[bytes, bytes, bytes, bytes], object]) -> None: ...

def apply_mirrored(
    batch: CopyBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    republisher: Republisher | None = None,
) -> int:
    """Stores messages from `batch.position` on under their own sequences, with gaps between them.

    Returns how many it processed, including those that the log already has. Stops at the end of the batch or
    before the first message that is left to Python.
    """

def apply_sourced(
    batch: CopyBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    now: int,
    ts: int,
    republisher: Republisher | None = None,
) -> int:
    """Stores messages from `batch.position` on at the end of the log, at `ts`, except duplicates within
    the window before `now` (ns). Returns and stops as `apply_mirrored` does.
    """
