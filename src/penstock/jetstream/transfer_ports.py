"""What snapshots and restores use of their account. The engine makes one `TransferPorts` for all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator

from msgspec import Struct

from penstock.jetstream.advisories import Advisories
from penstock.jetstream.consumer.interest import InterestWatch
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.protocol.api import StorageType
from penstock.store.interface import AccountStore, StreamStore


class TransferPorts(Struct, frozen=True, eq=False):
    """The account as snapshots and restores see it.

    stores: persists restored streams. config: returns the present configuration. has_room: whether so many
    more bytes of a storage fit the limits. wake: requests the end of a tick. defer: runs a call in the next
    tick. adopt: adds a restored stream to the account, in slices. failed: called with an exception that
    concerns no asset.
    """

    index: SubscriptionIndex
    table: StreamTable
    stores: AccountStore
    advisories: Advisories
    interest: InterestWatch
    config: Callable[[], EngineConfig]
    clock: Callable[[], int]
    new_id: Callable[[], str]
    has_room: Callable[[StorageType, int], bool]
    wake: Callable[[], None]
    defer: Callable[[Callable[[], object]], None]
    adopt: Callable[[StreamStore], Generator[int, None, StreamReplica]]
    failed: Callable[[Exception], object]
