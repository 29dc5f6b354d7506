"""Storing one publish: interest, limits and republishing."""

from collections.abc import Callable

from penstock.kernels.consumer.pump import Pump
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper

class InterestState:
    """What the consumers of one stream need.

    work_queue: an unacked message stays without an interested consumer. held: a consumer that belongs here is
    missing, so everything stays. retired: messages that were removed.
    """

    work_queue: bool
    held: bool
    retired: int
    log: StreamLog
    def __init__(self, log: StreamLog, *, work_queue: bool = False) -> None: ...
    def add(self, pump: Pump, since: int = 0) -> None:
        """A consumer, by its pump. since: the first sequence of which its position says that it was acked."""

    def remove(self, pump: Pump) -> None:
        """A consumer is gone. What only it needed stays until review()."""

    def refilter(self, pump: Pump, since: int) -> None:
        """A consumer's filters changed. since: as in add()."""

    def wants(self, subject: bytes) -> bool:
        """Would any consumer take a message of this subject?"""

    def settle(self, pump: Pump) -> int:
        """Removes messages acked through `pump` since the last call, unless another consumer needs them;
        returns how many."""

    def review(self, from_seq: int = 0) -> int:
        """Removes messages from from_seq on that no consumer needs; returns how many."""

    def review_part(self, from_seq: int, work: int) -> tuple[int, int]:
        """The same until it has done so much work (in the units of jetstream/slices.py). Returns how many
        went, and where it goes on; 0: it has seen all."""

class Republisher:
    """Takes what is stored (`apply_plain` and `store_one` give it to it) and sends it when told to.

    stream -- its name. format_time -- ns as text for headers.
    """

    def __init__(self, stream: bytes, format_time: Callable[[int], str]) -> None: ...
    def configure(self, mapper: SubjectMapper | None, headers_only: bool) -> None:
        """From now on; what waits stays as it is.

        mapper -- from the stored subject to the one to publish under, b"" for "not this one"; None: none.
        headers_only -- no payload, but its size in `Nats-Msg-Size`.
        """

    @property
    def count(self) -> int:
        """Messages that wait."""

    def route(self, index: SubscriptionIndex) -> int:
        """Routes the waiting messages; returns how many found a subscriber."""

    def clear(self) -> None:
        """Drops what waits."""

class PlainLimits:
    """The limits that apply_plain enforces; negative and 0 mean none.

    per_message -- every publish goes to Python: sealed streams, discard_new_per_subject, counters.
    needs -- of an interest stream: what no consumer wants uses up a sequence and is not stored.
    stream -- its name, which publishes may expect.
    """

    msgs_max: int
    bytes_max: int
    msg_size_max: int
    per_subject_max: int
    discard_new: bool
    per_message: bool
    no_ack: bool
    interest_state: InterestState | None
    stream: bytes
    def __init__(
        self,
        *,
        msgs_max: int = -1,
        bytes_max: int = -1,
        msg_size_max: int = -1,
        per_subject_max: int = -1,
        discard_new: bool = False,
        per_message: bool = False,
        no_ack: bool = False,
        interest_state: InterestState | None = None,
        stream: bytes = b"",
    ) -> None: ...

def store_one(
    log: StreamLog,
    limits: PlainLimits,
    subject: bytes,
    header: bytes,
    payload: bytes,
    ts: int,
    republisher: Republisher | None = None,
) -> int:
    """Stores one message that Python decided about, enforces the limits, returns its sequence."""

def enforce_part(log: StreamLog, limits: PlainLimits, at: int, work: int) -> tuple[int, int]:
    """Removes what is above limits that were changed: subjects' limits first, then the stream's.

    at -- 1 to begin, then what the call before returned.
    work -- in the units of jetstream/slices.py, after which it stops.

    Returns the work it did, and where it goes on; 0: the limits hold.
    """
