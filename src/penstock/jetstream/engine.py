"""JetStream of one account: constructs its parts, and connects them.

The server drives it in ticks: engine_tick.py has the steps of a tick, and their ordering contracts. New work
(a publish, an ack, a request) marks a dirty list or calls `wake`.

No part knows the engine: each takes what it uses, and what calls back to a part that is constructed later
goes through a method here. So the arrows point from the API to the engine, and from there to its parts, the
consumers and the streams.

No IO, clock or randomness of its own: the stores do the IO; time and ids come from callables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from msgspec import Struct, field

from penstock import faults
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.capacity import Capacity, HasCapacity
from penstock.jetstream.closing import close_all, finish_syncs
from penstock.jetstream.commands import CommandSink
from penstock.jetstream.commit import Commit, CommitPorts, LocalCommit
from penstock.jetstream.consumer.consumer_ports import ConsumerPorts
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.fair_scheduler import FairScheduler
from penstock.jetstream.consumer.interest import InterestWatch
from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.containment import Containment
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.engine_tick import EngineTick, TickParts
from penstock.jetstream.group_commands import GroupCommands
from penstock.jetstream.indexing import SubjectIndexing
from penstock.jetstream.inflight import BatchContext, Inflight
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.opening import Opening, OpeningPorts
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.replicated_stream import ReplicatedPorts
from penstock.jetstream.replicated_streams import ReplicatedStreams
from penstock.jetstream.reviews import Reviews
from penstock.jetstream.slices import Slices
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.sourcing_ports import SourcingPorts
from penstock.jetstream.stream import rollups
from penstock.jetstream.stream.overflow import Overflow
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_registry import RegistryParts, StreamRegistry
from penstock.jetstream.stream_removals import StreamRemovals
from penstock.jetstream.stream_table import StreamTable
from penstock.jetstream.transfer_ports import TransferPorts
from penstock.jetstream.transfers import RestoreMemory, Transfers
from penstock.jetstream.waiting import WaitingRequests
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList, Sink
from penstock.protocol.api import ApiStats, ApiStreamConfig, ClusterInfo, StorageType, StreamAlternate
from penstock.protocol.transforms import Below
from penstock.store.interface import AccountStore, StreamStore

log = logging.getLogger("penstock.jetstream")


def _unknown(sink: Sink) -> dict[str, Any] | None:
    return None


def _no_cluster(account: str, stream: str, consumer: str) -> ClusterInfo | None:
    return None


def _no_alternates(account: str, stream: str, domain: str) -> list[StreamAlternate]:
    return []


class SharedState(Struct, frozen=True, kw_only=True):
    """What the engines of one server share: each takes the same one. The defaults are for one on its own.

    engines: a live view of the running engines, whose accounts share the server's storage and batches; an
    engine may be missing until it has recovered. inflight: open atomic batches. restore_memory: memory of
    restores. requests: waiting API requests. describe_client: returns the `client` object of an advisory, or
    None for a sink that is not a client. cluster_of: callable(account, stream, consumer or "") -> the
    `cluster` object of an info, None on a server without a cluster. alternates_of: callable(account, stream,
    domain) -> the `alternates` of a stream's info.
    """

    engines: Iterable[HasCapacity] = ()
    inflight: Inflight = field(default_factory=Inflight)
    restore_memory: RestoreMemory = field(default_factory=RestoreMemory)
    requests: WaitingRequests = field(default_factory=WaitingRequests)
    describe_client: Callable[[Sink], dict[str, Any] | None] = _unknown
    cluster_of: Callable[[str, str, str], ClusterInfo | None] = _no_cluster
    alternates_of: Callable[[str, str, str], list[StreamAlternate]] = _no_alternates


class RequestService(Protocol):
    """What serves `$JS.API` for an engine."""

    def start(self) -> None:
        """Subscribes: the engine has recovered."""

    def stop(self) -> None:
        """Unsubscribes."""

    def on_request(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        """Processes one request."""


class JetStreamEngine:
    """The engine of one account.

    index: the account's subscriptions; the engine adds its own sinks. stores: persists streams. api:
    constructs the service for requests. clock: returns ns since epoch. new_id: returns an unused id (for
    consumers and advisories). wake: called when there is work for the end of a tick. below: `below(n)`
    returns a uniform random number in 0..n-1 (for subject transforms). shared: what it shares with the
    engines of the server's other accounts. commands: takes the commands of all streams; None:
    none is encoded. commit: constructs what makes changes durable.
    """

    def __init__(
        self,
        index: SubscriptionIndex,
        stores: AccountStore,
        *,
        api: Callable[[JetStreamEngine], RequestService],
        config: EngineConfig,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        wake: Callable[[], None],
        below: Below = lambda n: 0,
        shared: SharedState | None = None,
        commands: CommandSink | None = None,
        commit: Callable[[EngineConfig, CommitPorts], Commit] = LocalCommit,
    ) -> None:
        shared = shared or SharedState()
        self.index = index
        self.config = config
        self.clock = clock
        self.describe_client = shared.describe_client
        self._cluster_of = shared.cluster_of
        self._alternates_of = shared.alternates_of
        self._stores = stores
        self._new_id = new_id
        self._wake = wake
        self._below = below
        self._commands = commands
        self.table = StreamTable()
        self.streams = self.table.open
        self.offline = self.table.offline
        self.advisories = Advisories(index, clock=clock, new_id=new_id, domain=config.domain)
        self.api_stats = ApiStats(level=config.api_level)
        self.overflow = Overflow(wake)
        self.allowance = rollups.Allowance(rollups.TICK_MESSAGES_MAX)
        self.requests = shared.requests
        self.deferrals = Deferrals(wake, shared.requests)
        self.dirty_streams = DirtyList(wake)
        self.dirty_consumers = DirtyList(wake)
        self._interest = InterestWatch(index)
        self._scheduler = FairScheduler()
        self._indexing = SubjectIndexing(wake)
        self.commit = commit(config, self._commit_ports())
        self.capacity = Capacity(
            config,
            self.table,
            shared.engines,
            inflight=shared.inflight,
            allowance=self.allowance,
            restoring=self._restoring,
            api_stats=self.api_stats,
        )
        self.batches = BatchContext(self._config, shared.inflight, self.advisories.batch_abandoned)
        self.pending = PendingWork(
            self.commit, self.capacity, config=self._config, wake=wake, roll_up=self._roll_up
        )
        self.containment = Containment(
            config.account,
            index,
            self.table,
            self.pending,
            self.commit,
            self.deferrals,
            self.capacity,
            stop_readers=self._stop_readers,
            reader_failures=self._reader_failures,
        )
        self.slices = Slices(
            shared.requests,
            self.commit,
            wake=wake,
            defer=self.pending.defer,
            failed=self.containment.work_failed,
        )
        self.reviews = Reviews(self.table, self.slices, self.pending, self.containment)
        self.removals = StreamRemovals(
            self.table,
            self.pending,
            self.containment,
            self.slices,
            self.overflow,
            self.deferrals,
            config=self._config,
        )
        self.consumers = ConsumerRegistry(
            self._consumer_ports(), self.pending, self.containment, self.reviews
        )
        self.replicated = ReplicatedStreams(self._replicated_ports(), stores, self._new_stream)
        self.sourcing = Sourcing(self._sourcing_ports())
        self.transfers = Transfers(self._transfer_ports(), shared.restore_memory)
        self.registry = StreamRegistry(self._registry_parts())
        self._opening = Opening(self._opening_ports())
        self.tick = EngineTick(self._tick_parts())
        self._api = api(self)

    # --- life ----------------------------------------------------------------------------------

    def recover(self, now: int) -> None:
        """Opens every stored stream with its consumers, then answers requests. See opening.py."""
        self._opening.recover(now)
        faults.contain(self.sourcing.retire_orphans, self.containment.work_failed)
        self._api.start()

    def serve(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        """Processes an API request that arrived before the engine subscribed."""
        self._api.on_request(subject, reply, header, payload, origin)

    def may_answer(self) -> bool:
        """Applies earlier publishes for a read-only request. False: the request has to wait."""
        if self.pending.routing.is_active or self.commit.in_flight:
            return False
        if self.dirty_streams or self.dirty_consumers or self.pending.deferred or self.deferrals.ready:
            self.tick.apply(self.clock())
        return True

    def cluster_of(self, stream: str, consumer: str = "") -> ClusterInfo | None:
        """The `cluster` object of a stream or consumer; None on a server without a cluster."""
        return self._cluster_of(self.config.account, stream, consumer)

    def alternates_of(self, stream: str) -> list[StreamAlternate]:
        """The streams of the cluster with the same messages: the stream and its mirrors; none without one."""
        return self._alternates_of(self.config.account, stream, self.config.domain)

    def configure(self, config: EngineConfig) -> None:
        """Applies changed limits and options to what comes next; present streams and consumers stay."""
        self.config = config
        self.commit.configure(config)
        self.capacity.configure(config)

    def end_pulls(self) -> None:
        """Ends all waiting pull requests before the server stops."""
        for stream in list(self.streams.values()):
            for consumer in list(stream.consumers.values()):
                faults.contain(consumer.end_pulls, self.containment.work_failed)

    def close(self) -> None:
        """Stops: takes no more messages, writes what is left and closes every store."""
        failed = self.containment.work_failed
        for stop in (self._api.stop, self.slices.stop, self.transfers.stop, self.sourcing.stop):
            faults.contain(stop, failed)
        for stream in list(self.streams.values()):
            faults.contain(stream.unsubscribe, failed, self.index)
        finish_syncs(self.streams, self.containment.stream_failed)
        faults.contain(self.removals.finish_rollups, failed, self._apply)
        self._apply()
        self.tick.write()
        finish_syncs(self.streams, self.containment.stream_failed)
        self.tick.acknowledge()
        close_all(self.streams)

    def _apply(self) -> None:
        self.tick.apply(self.clock())

    # --- what the parts use --------------------------------------------------------------------

    def _commit_ports(self) -> CommitPorts:
        return CommitPorts(
            clock=self.clock,
            wake=self._wake,
            bound_input=self._bound_input,
            committed=self._committed,
            recovered=self._write_recovered,
            stream_failed=self._stream_failed,
        )

    def _consumer_ports(self) -> ConsumerPorts:
        return ConsumerPorts(
            index=self.index,
            advisories=self.advisories,
            interest=self._interest,
            scheduler=self._scheduler,
            dirty=self.dirty_consumers,
            streams=self.streams,
            config=self._config,
            clock=self.clock,
            new_id=self._new_id,
            activate=self.pending.touch_consumer,
            index_subjects=self._indexing.add,
            review=self.reviews.begin,
            defer=self.pending.defer,
            expired=self._consumer_expired,
        )

    def _replicated_ports(self) -> ReplicatedPorts:
        return ReplicatedPorts(
            index=self.index,
            table=self.table,
            capacity=self.capacity,
            pending=self.pending,
            containment=self.containment,
            consumers=self.consumers,
            reviews=self.reviews,
            deferrals=self.deferrals,
            follow_origins=self._follow_origins,
            forget_origins=self._forget_origins,
            origin_changed=self._origin_changed,
            clock=self.clock,
            wake=self._wake,
            rollup_messages=self.config.rollup_messages,
        )

    def _sourcing_ports(self) -> SourcingPorts:
        return SourcingPorts(
            index=self.index,
            table=self.table,
            consumers=self.consumers,
            account=self.config.account,
            domain=self.config.domain,
            clock=self.clock,
            new_id=self._new_id,
            wake=self._wake,
            defer=self.pending.defer,
        )

    def _transfer_ports(self) -> TransferPorts:
        return TransferPorts(
            index=self.index,
            table=self.table,
            stores=self._stores,
            advisories=self.advisories,
            interest=self._interest,
            config=self._config,
            clock=self.clock,
            new_id=self._new_id,
            has_room=self.capacity.has_room,
            wake=self._wake,
            defer=self.pending.defer,
            adopt=self._adopt,
            failed=self.containment.work_failed,
        )

    def _registry_parts(self) -> RegistryParts:
        return RegistryParts(
            index=self.index,
            table=self.table,
            stores=self._stores,
            advisories=self.advisories,
            capacity=self.capacity,
            pending=self.pending,
            containment=self.containment,
            slices=self.slices,
            removals=self.removals,
            reviews=self.reviews,
            consumers=self.consumers,
            sourcing=self.sourcing,
            config=self._config,
            clock=self.clock,
            is_restoring=self.transfers.is_restoring,
            new_stream=self._new_stream,
        )

    def _opening_ports(self) -> OpeningPorts:
        return OpeningPorts(
            account=self.config.account,
            is_clustered=self.config.is_clustered,
            api_level=self.config.api_level,
            index=self.index,
            table=self.table,
            stores=self._stores,
            capacity=self.capacity,
            pending=self.pending,
            containment=self.containment,
            consumers=self.consumers,
            sourcing=self.sourcing,
            new_stream=self._new_stream,
            clock=self.clock,
        )

    def _tick_parts(self) -> TickParts:
        return TickParts(
            index=self.index,
            table=self.table,
            pending=self.pending,
            commit=self.commit,
            deferrals=self.deferrals,
            containment=self.containment,
            capacity=self.capacity,
            overflow=self.overflow,
            allowance=self.allowance,
            scheduler=self._scheduler,
            dirty_streams=self.dirty_streams,
            dirty_consumers=self.dirty_consumers,
            sourcing=self.sourcing,
            replicated=self.replicated,
            transfers=self.transfers,
            slices=self.slices,
            indexing=self._indexing,
            clock=self.clock,
            wake=self._wake,
        )

    def _config(self) -> EngineConfig:
        return self.config

    def _new_stream(
        self,
        config: ApiStreamConfig,
        store: StreamStore,
        created: int,
        *,
        group: GroupCommands | None = None,
        standby: StandbyConsumers | None = None,
    ) -> StreamReplica:
        """Constructs a stream with its store, without subscriptions. group, standby: of a replicated one."""
        stream = StreamReplica(
            config,
            store,
            created=created,
            domain=self.config.domain,
            api_level=self.config.api_level,
            dirty=self.dirty_streams,
            full=self.overflow.full,
            below=self._below,
            batches=self.batches,
            allowance=self.allowance,
            commands=self._commands if group is None else None,
            group=group,
            standby=standby,
        )
        self.overflow.bound(stream, self.config)
        return stream

    def _adopt(self, store: StreamStore) -> Generator[int, None, StreamReplica]:
        """Adds a stream with messages and consumers to the account; its store is open. Yields work in the
        units of slices.py."""
        stream = yield from self._opening.adopt(store)
        self.advisories.stream_action(stream.name, "create")
        return stream

    # --- calls of parts that are constructed later ---------------------------------------------

    def _bound_input(self, stream: StreamReplica) -> None:
        self.overflow.bound(stream, self.config)

    def _committed(self, stream: StreamReplica) -> None:
        self.tick.committed(stream)

    def _write_recovered(self, stream: StreamReplica) -> None:
        self.tick.recovered(stream)

    def _stream_failed(self, error: Exception, stream: StreamReplica) -> None:
        self.containment.stream_failed(error, stream)

    def _restoring(self, storage: StorageType) -> int:
        return self.transfers.used(storage)

    def _roll_up(self, stream: StreamReplica) -> None:
        self.removals.roll_up(stream)

    def _stop_readers(self, stream: StreamReplica) -> None:
        self.sourcing.forget(stream, for_good=False)

    def _follow_origins(self, stream: StreamReplica) -> None:
        self.sourcing.follow(stream)

    def _forget_origins(self, stream: StreamReplica, for_good: bool) -> None:
        self.sourcing.forget(stream, for_good=for_good)

    def _origin_changed(self, name: str) -> None:
        self.sourcing.origin_changed(name)

    def _reader_failures(self) -> list[tuple[str, str]]:
        return self.sourcing.failures() + self.replicated.differences()

    def _consumer_expired(self, consumer: ConsumerReplica) -> None:
        self.consumers.expired(consumer)
