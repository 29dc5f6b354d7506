"""What consumers use of their account. The engine makes one `ConsumerPorts` for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.jetstream.advisories import Advisories
from penstock.jetstream.consumer.fair_scheduler import FairScheduler
from penstock.jetstream.consumer.interest import InterestWatch
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica


class ConsumerPorts(Struct, frozen=True, eq=False):
    """The account as its consumers see it.

    index: the account's subscriptions; deliveries and responses are published into it. advisories: publishes
    events and metrics. interest: calls when a deliver subject gains or loses subscribers. scheduler: orders
    the consumers that deliver in a tick. dirty: marked when acks wait for `ConsumerReplica.apply`. streams:
    the open streams by name, a live view.

    config: returns the present configuration of the engine. clock: returns ns since the epoch. new_id:
    returns an unused id. activate: lets a consumer deliver in this tick. index_subjects: called with a stream
    whose messages will be looked up by wildcards. review: called with a stream of which a consumer may no
    longer need some messages. defer: runs a call in the next tick. expired: called with a consumer that was
    unused for its inactive threshold; it is closed afterwards unless that has to wait for the disk.
    """

    index: SubscriptionIndex
    advisories: Advisories
    interest: InterestWatch
    scheduler: FairScheduler
    dirty: DirtyList
    streams: Mapping[str, StreamReplica]
    config: Callable[[], EngineConfig]
    clock: Callable[[], int]
    new_id: Callable[[], str]
    activate: Callable[[ConsumerReplica], None]
    index_subjects: Callable[[StreamReplica], None]
    review: Callable[[StreamReplica], None]
    defer: Callable[[Callable[[], object]], None]
    expired: Callable[[ConsumerReplica], None]
