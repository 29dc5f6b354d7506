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
    """A run of an origin's messages as they are to be stored, in the origin's order.

    line: for sources (`line, middle, end`), what the header line that names the origin consists of besides
    sequence and subject. Without it, header blocks keep what they say about earlier origins. `reached` stays
    when the batch is cleared.
    """

    reached: int
    def __init__(self, line: tuple[bytes, bytes, bytes] | None = None) -> None: ...
    def append(
        self, seq: int, ts: int, subject: bytes, header: bytes, payload: bytes, origin_subject: bytes = b""
    ) -> None:
        """Adds one message; origin_subject: what it had in the origin, where that is another one."""

    def place(self, seq: int) -> None:
        """The origin has nothing to copy up to this sequence."""

    def gather(
        self,
        origin: StreamLog,
        from_seq: int,
        filters: list[bytes],
        mappers: list[SubjectMapper],
        enough: int,
    ) -> int:
        """Adds messages of the origin from from_seq on that pass a filter (an empty list: all), each under
        the subject the mappers make of its own, until the batch has `enough` bytes.

        Returns the sequence up to which the origin was looked through.
        """

    def take_one(self) -> tuple[int, int, bytes, bytes, bytes] | None:
        """(seq, ts, subject, header, payload) at `position`, which moves past it; None at the end."""

def settle_upto(state: AckState, log: StreamLog, filters: list[bytes], upto_seq: int, ts: int) -> int:
    """Enters the messages up to a sequence that pass a filter (none: all) as delivered at `ts` (ns), with a
    policy that needs no acks as settled; returns how many."""

class DeliverySink(Sink):
    """A Python callable that gets what a consumer delivers, in another account too: callback(subject, reply,
    header, payload) with the subject a message was stored with."""

    def __init__(self, callback: Callable[[bytes, bytes, bytes, bytes], object]) -> None: ...

def apply_mirrored(
    batch: CopyBatch,
    log: StreamLog,
    limits: PlainLimits,
    ids: MessageIds,
    republisher: Republisher | None = None,
) -> int:
    """Stores messages from `batch.position` on under their sequences; sequences between them are left out.

    Returns how many it took; those the log has already count. Stops at the end of the batch or before the
    first message that Python has to decide about.
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
    """Stores messages from `batch.position` on under the log's own sequences, at `ts`, but no duplicates of
    the window before `now` (ns). Returns and stops as `apply_mirrored` does.
    """
