"""What readers of mirrors and sources use of their account. The engine makes one `SourcingPorts` for all."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.routing.subscription_index import SubscriptionIndex


class SourcingPorts(Struct, frozen=True, eq=False):
    """The account as readers see it.

    account, domain: its names. consumers: creates and deletes the consumers that make an origin retain
    messages. clock: returns ns since the epoch. new_id: returns an unused id. wake: requests the end of a
    tick. defer: runs a call in the next tick.
    """

    index: SubscriptionIndex
    table: StreamTable
    consumers: ConsumerRegistry
    account: str
    domain: str
    clock: Callable[[], int]
    new_id: Callable[[], str]
    wake: Callable[[], None]
    defer: Callable[[Callable[[], object]], None]
