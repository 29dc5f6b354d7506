from collections.abc import Callable
from enum import IntEnum

from penstock.kernels.ackstate import AckState
from penstock.kernels.filtercursor import FilterCursor
from penstock.kernels.pieces import Pieces
from penstock.kernels.streamlog import StreamLog
from penstock.kernels.subjects import SubscriptionIndex

class RunEnd(IntEnum):
    """Why Pump.run() stopped."""

    RUN_EMPTY = 0
    RUN_NO_TARGET = 1
    RUN_ACKS_FULL = 2
    RUN_BLOCKED = 3
    RUN_BUDGET = 4
    RUN_STALLED = 5
    RUN_STANDBY = 6
    RUN_WAIT = 7
    RUN_KEYS_FULL = 8

class TargetEnd(IntEnum):
    """Why a target gets no more messages."""

    END_FULL = 0
    END_BYTES_LEFT = 1
    END_TOO_LARGE = 2
    END_NO_INTEREST = 3
    END_WRONG_PIN = 4

class Target:
    """Where messages go: a waiting pull request, or the deliver subject of a push consumer.

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

class Pump:
    """Delivers one consumer's messages. See pump.pyx."""

    position: int
    headers_only: bool
    max_ack_pending: int
    max_deliver: int
    backlog_max: int
    on_end: Callable[[Target, int], object] | None
    on_flow: Callable[[], object] | None
    given_up: list[tuple[int, int]]
    flow_window: int
    flow_bytes: int
    flow_size: int
    flow_open: bool
    total_sent: int
    prioritized: bool
    on_pin: Callable[[Target], object] | None
    replaying: bool
    parked_max: int
    def __init__(
        self,
        log: StreamLog,
        state: AckState,
        index: SubscriptionIndex,
        ack_prefix: bytes,
        filters: list[bytes],
        position: int,
    ) -> None: ...
    @property
    def log(self) -> StreamLog: ...
    @property
    def state(self) -> AckState: ...
    @property
    def cursor(self) -> FilterCursor | None: ...
    @property
    def pieces(self) -> Pieces: ...
    @property
    def sent(self) -> int: ...
    @property
    def wait_until(self) -> int: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def skipping(self) -> bool: ...
    def set_filters(self, filters: list[bytes]) -> None: ...
    def set_pin(self, pin: bytes) -> None: ...
    def set_rate(self, rate: int, burst: int) -> None: ...
    def set_key_token(self, token: int) -> None: ...
    def report_to(self, news: list[Pump] | None) -> None: ...
    def close(self) -> None: ...
    def move_to(self, position: int) -> None: ...
    def start_with(self, seqs: list[int], resume: int) -> None: ...
    def drop_missing(self) -> int: ...
    def run(self, targets: list[Target], now: int, budget: int) -> int: ...

def ready(pumps: list[Pump]) -> list[int]:
    """Indexes of those that have a message to deliver."""

def take_news(news: list[Pump]) -> list[Pump]:
    """The pumps that reported since the last time; `news` is empty then."""
