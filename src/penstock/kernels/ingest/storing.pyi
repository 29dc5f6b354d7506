"""Storing one publish: interest, limits and republishing."""

from collections.abc import Callable

from penstock.kernels.consumer.pump import Pump
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper

class SettledRuns:
    """The sequences of messages that their stream's consumers settled, as runs: a command of the stream.

    count: the number of runs.
    """

    count: int
    def append(self, first: int, last: int) -> None:
        """Adds a run. Raises ValueError."""

    def items(self) -> list[tuple[int, int]]:
        """[(first, last)] in the order in which they were added."""

    def remove_from(self, log: StreamLog) -> int:
        """Removes the messages that are still there; returns how many."""

    def encode(self) -> bytes:
        """The runs, for decode()."""

    @staticmethod
    def decode(data: bytes, start: int = 0, end: int = ...) -> SettledRuns:
        """Raises ValueError when what `data` has from offset `start` to `end` is malformed."""

class InterestState:
    """The messages that the consumers of one stream need.

    work_queue: an unacked message stays even without an interested consumer. held: one of the stream's
    consumers is missing, so no message is removed.
    """

    work_queue: bool
    @property
    def held(self) -> bool: ...
    log: StreamLog
    def __init__(self, log: StreamLog, *, work_queue: bool = False) -> None: ...
    def keep_all(self, keep: bool) -> None:
        """Sets `held`: while a consumer is missing, nothing is removed."""

    def add(self, pump: Pump, since: int = 0) -> None:
        """Adds a consumer, by its pump. since: its acks count from this sequence on."""

    def remove(self, pump: Pump) -> None:
        """Removes a consumer. Messages that only it needed stay until review()."""

    def refilter(self, pump: Pump, since: int) -> None:
        """Updates a consumer's filters. since: as in add()."""

    def expect(self, name: str, filters: list[bytes]) -> None:
        """Adds a consumer that another server owns, or changes its filters: messages for it are stored.
        Whether it needs them is decided there."""

    def forget(self, name: str) -> None:
        """Removes a consumer that another server owns."""

    def wants(self, subject: bytes) -> bool:
        """Would a consumer receive a message of this subject?"""

    def settled(self, pump: Pump) -> SettledRuns | None:
        """The messages acked through `pump` since the last call that no other consumer needs; None: none.
        The caller removes them, before the next call."""

    def unneeded(self, from_seq: int = 0, work: int = 2**63 - 1) -> tuple[SettledRuns, int]:
        """The messages from from_seq on that no consumer needs; in a work queue, those of them that a
        consumer acked. Stops after an amount of work (in the units of jetstream/slices.py). Returns the
        sequence at which to continue too; 0: complete. The caller removes them."""

class Republisher:
    """Collects the messages that `apply_plain` and `store_one` store, and sends them in route().

    stream -- its name. format_time -- ns as text for headers.
    """

    def __init__(self, stream: bytes, format_time: Callable[[int], str]) -> None: ...
    def configure(self, mapper: SubjectMapper | None, headers_only: bool) -> None:
        """Changes the configuration for later messages; waiting ones are unaffected.

        mapper -- from the stored subject to the one to publish under, b"" to skip a message; None: skip all.
        headers_only -- no payload, but its size in `Nats-Msg-Size`.
        """

    @property
    def count(self) -> int:
        """Number of waiting messages."""

    def route(self, index: SubscriptionIndex) -> int:
        """Routes the waiting messages; returns how many found a subscriber."""

    def clear(self) -> None:
        """Drops the waiting messages."""

class PlainLimits:
    """The limits that apply_plain enforces; negative and 0 mean none.

    per_message -- leave every publish to Python: sealed streams, discard_new_per_subject, counters.
    interest_state -- of an interest stream: a message that no consumer wants uses up a sequence and is not
    stored.
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
    """Stores one message that Python has checked, enforces the limits, returns its sequence."""

def enforce_part(log: StreamLog, limits: PlainLimits, at: int, work: int) -> tuple[int, int]:
    """Removes messages above changed limits: subjects' limits first, then the stream's.

    at -- 1 to begin, then the result of the previous call.
    work -- in the units of jetstream/slices.py, after which it stops.

    Returns the work it did, and the position at which to continue; 0: the log is within its limits.
    """
