from collections.abc import Callable
from enum import IntEnum

from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.endpoints import Rotation, Target
from penstock.kernels.log.filter_cursor import FilterCursor
from penstock.kernels.log.record_reads import BlockReads
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex

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

class Pump:
    """Delivers one consumer's messages. See pump.pyx."""

    position: int
    headers_only: bool
    max_ack_pending: int
    max_deliver: int
    on_flow: Callable[[], object] | None
    given_up: list[tuple[int, int]]
    flow_window: int
    flow_bytes: int
    flow_size: int
    flow_open: bool
    total_sent: int
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
    def rotation(self) -> Rotation: ...
    @property
    def cursor(self) -> FilterCursor | None: ...
    @property
    def reads(self) -> BlockReads: ...
    @property
    def sent(self) -> int: ...
    @property
    def wait_until(self) -> int: ...
    @property
    def num_pending(self) -> int: ...
    @property
    def skipping(self) -> bool: ...
    def set_filters(self, filters: list[bytes]) -> None: ...
    def set_rate(self, rate: int, burst: int) -> None: ...
    def set_key_token(self, token: int) -> None: ...
    def report_to(self, ready_list: list[Pump] | None) -> None: ...
    def close(self) -> None: ...
    def move_to(self, position: int) -> None: ...
    def start_with(self, seqs: list[int], resume: int) -> None: ...
    def drop_missing(self) -> int: ...
    def run(self, targets: list[Target], now: int, budget: int) -> int: ...

def ready(pumps: list[Pump]) -> list[int]:
    """Indexes of the pumps that have a message to deliver."""

def drain_ready(reported: list[Pump]) -> list[Pump]:
    """The pumps that reported themselves since the last call; empties `reported`."""
