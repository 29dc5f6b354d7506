"""A consumer's delivery targets, and the sink of its acks."""

from collections.abc import Callable
from enum import IntEnum

from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList, Sink

class TargetEnd(IntEnum):
    """Why a target gets no more messages."""

    END_FULL = 0
    END_BYTES_LEFT = 1
    END_TOO_LARGE = 2
    END_NO_INTEREST = 3
    END_WRONG_PIN = 4

class Target:
    """A delivery target: a waiting pull request, or the deliver subject of a push consumer.

    batch: messages left, negative for no bound. bytes_left: 0 for no bound. priority, min_pending,
    min_ack_pending and pin are those of priority groups (ADR-42).
    """

    batch: int
    bytes_left: int
    delivered: int
    priority: int
    min_pending: int
    min_ack_pending: int
    pin: bytes
    @property
    def subject(self) -> bytes: ...
    def __init__(self, subject: bytes, batch: int = -1, max_bytes: int = 0) -> None: ...
    def is_wanted(self, index: SubscriptionIndex) -> bool: ...
    def when_drained(self, callback: Callable[[], object]) -> None: ...

class HeldDeliveries:
    """Copies of messages that a Rotation gave to targets, until they may leave. size: in bytes."""

    @property
    def size(self) -> int: ...
    def take(self) -> HeldDeliveries:
        """Returns the messages as another object; this one is empty then."""

    def send(self, rotation: Rotation) -> None:
        """Delivers all messages to their targets, in their order, and empties this object."""

class Rotation:
    """Selects the next target of a consumer.

    backlog_max: unsent bytes at which a receiver gets no more. prioritized: targets are ordered by
    priority, and stay so. on_end: called immediately for each target that leaves the list.
    """

    backlog_max: int
    @property
    def prioritized(self) -> bool: ...
    def __init__(
        self,
        index: SubscriptionIndex,
        state: AckState,
        on_end: Callable[[Target, int], object] | None = None,
    ) -> None: ...
    def add(self, targets: list[Target], target: Target) -> None: ...
    def pin_clients(self, new_pin: Callable[[], bytes] | None) -> None: ...
    def deliver_into(self, held: HeldDeliveries | None) -> None:
        """From now on `held` takes the messages; None: their targets do."""

    def hold_message(self, target: Target, reply: bytes, header: bytes) -> bool:
        """Adds a message without payload to those that are held. Returns False when none are."""

    def hold_pin(self, pin: bytes) -> None: ...
    def unpin(self) -> int: ...

class AckQueue:
    """Acks of one consumer that wait for the end of the tick; `owner` is marked in the dirty list."""

    @property
    def owner(self) -> object: ...
    @property
    def is_dirty(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def samples(self) -> list[tuple[int, int, int, int]]: ...
    def __init__(self, owner: object, dirty_list: DirtyList) -> None: ...
    def sample(self, state: AckState, stream_seq: int) -> int: ...
    def mark(self) -> int: ...
    def clean(self) -> None: ...
    def begin(self, sample_percent: int) -> list[tuple[int, int, int, int, bytes, bytes]]: ...
    def take_samples(self) -> list[tuple[int, int, int, int]]: ...
    def apply(self, state: AckState, upto: int = ...) -> int: ...

class AckSink(Sink):
    """Receives the acks of all consumers of one stream, `$JS.ACK.<stream>.>`."""

    def add(self, consumer: bytes, queue: AckQueue) -> None: ...
    def remove(self, consumer: bytes) -> None: ...
