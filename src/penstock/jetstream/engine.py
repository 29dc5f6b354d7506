"""JetStream of one account: its streams and consumers, and the API that manages them.

The server drives it in ticks: engine_tick.py has the steps of a tick, and their ordering contracts. New work
(a publish, an ack, a request) marks a dirty list or calls `wake`.

No IO, clock or randomness of its own: the stores do the IO; time and ids come from callables.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock import faults
from penstock.errors import JetStreamApiError, StoreError
from penstock.jetstream import slices, stream_config
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.api import ApiService
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.consumer.fair_scheduler import FairScheduler
from penstock.jetstream.consumer.interest import InterestWatch
from penstock.jetstream.containment import Containment
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.engine_tick import EngineTick
from penstock.jetstream.indexing import SubjectIndexing
from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.opening import Opening
from penstock.jetstream.reviews import Reviews
from penstock.jetstream.shared_state import SharedState
from penstock.jetstream.slices import Slices
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.stream import rollups, shrinking
from penstock.jetstream.stream.overflow import Overflow
from penstock.jetstream.stream.source_config import check_among
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.jetstream.subject_claims import SubjectClaims, bounded
from penstock.jetstream.transfers import Transfers
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList, Sink
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiStats, ApiStreamConfig, StreamConfigRequest
from penstock.protocol.transforms import Below
from penstock.store.interface import AccountStore, StreamStore

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica

log = logging.getLogger("penstock.jetstream")

T = TypeVar("T")

CONSUMER_END_WORK = 16 * 1024  # ending a consumer, in the units of slices.py
NOTED_REMOVALS = 8192  # messages that slices remove before a tick writes their notes: 1.5 ms at most
# removing a consumer's files, or one file of the stream; a slow disk takes ten times as long
FILES_WORK = 128 * 1024


class JetStreamEngine:
    """The engine of one account.

    index: the account's subscriptions; the engine adds its own sinks. stores: persists streams. clock:
    returns ns since epoch. new_id: returns an unused id (for consumers and advisories). wake: called when
    there is work for the end of a tick. below: `below(n)` returns a uniform random number in 0..n-1 (for
    subject transforms). shared: what it shares with the engines of the server's other accounts.
    """

    def __init__(
        self,
        index: SubscriptionIndex,
        stores: AccountStore,
        *,
        config: EngineConfig,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        wake: Callable[[], None],
        below: Below = lambda n: 0,
        shared: SharedState | None = None,
    ) -> None:
        shared = shared or SharedState()
        self.index = index
        self.stores = stores
        self.config = config
        self.clock = clock
        self.new_id = new_id
        self.streams: dict[str, StreamReplica] = {}
        self.claims = SubjectClaims()  # of streams and restores
        self.offline: dict[str, str] = {}  # streams that could not be opened, and why
        self.advisories = Advisories(index, clock=clock, new_id=new_id, domain=config.domain)
        self.api_stats = ApiStats(level=config.api_level)
        self.capacity = Capacity(self, shared.engines)
        self.describe_client = shared.describe_client
        self.batches = BatchContext(
            lambda: self.config,
            shared.inflight,
            self.advisories.batch_abandoned,
            self.capacity.may_start_fast_batch,
        )
        self.dirty_streams = DirtyList(wake)
        self.dirty_consumers = DirtyList(wake)
        self.wake = wake
        self._below = below
        self.overflow = Overflow(wake)
        self.allowance = rollups.Allowance(rollups.TURN_MESSAGES)
        self.requests = shared.requests
        self.deferrals = Deferrals(wake, shared.requests)
        self.containment = Containment(self)
        self.tick = EngineTick(self)
        self.commit = self.tick.commit
        self.interest = InterestWatch(index)
        self.scheduler = FairScheduler()
        self.indexing = SubjectIndexing(wake)
        self.slices = Slices(self)
        self.reviews = Reviews(self)
        self.transfers = Transfers(self, shared.restore_memory)
        self.sourcing = Sourcing(self)
        self._opening = Opening(self)
        self._api = ApiService(self)

    # --- life ----------------------------------------------------------------------------------

    def recover(self, now: int) -> None:
        """Opens every stored stream with its consumers, then answers requests. See opening.py."""
        self._opening.recover(now)
        faults.contain(self.sourcing.retire_orphans, self.containment.work_failed)
        self._api.start()

    def serve(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        """Processes an API request that arrived before the engine subscribed."""
        self._api.on_request(subject, reply, header, payload, origin)

    def adopt(self, store: StreamStore) -> Generator[int, None, StreamReplica]:
        """Adds a stream with messages and consumers to the account; its store is open. Yields work in the
        units of slices.py."""
        stream = yield from self._opening.adopt(store)
        self.advisories.stream_action(stream.name, "create")
        return stream

    def may_answer(self) -> bool:
        """Applies earlier publishes for a read-only request. False: the request has to wait."""
        tick = self.tick
        if tick.routing.is_active or self.commit.in_flight:
            return False
        if self.dirty_streams or self.dirty_consumers or tick.deferred or self.deferrals.ready:
            tick.apply(self.clock())
        return True

    def configure(self, config: EngineConfig) -> None:
        """Applies changed limits and options to what comes next; present streams and consumers stay."""
        self.config = config
        self.commit.configure(config)

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
        for stream in list(self.streams.values()):
            faults.contain(self._finish_sync, self.containment.stream_failed, stream)
        faults.contain(self._finish_rollups, failed)
        self.tick.apply(self.clock())
        self.tick.write()
        for stream in list(self.streams.values()):
            faults.contain(self._finish_sync, self.containment.stream_failed, stream)
        self.tick.acknowledge()
        for stream in self.streams.values():
            stream.atomic.drop()
            for close in (*(consumer.close for consumer in stream.consumers.values()), stream.store.close):
                faults.contain(close, partial(self._closing_failed, stream))
        self.streams.clear()

    def _closing_failed(self, stream: StreamReplica, error: Exception) -> None:
        if not isinstance(error, StoreError):
            faults.note(f"closing stream {stream.name}", error)
        log.error("stream %s: closing it failed: %s", stream.name, error)

    def _finish_sync(self, stream: StreamReplica) -> None:
        """Waits for the sync in flight."""
        if stream.durability.is_syncing:
            try:
                stream.store.sync()
            except StoreError as error:
                log.error("stream %s: syncing it failed: %s", stream.name, error)

    def block_input(self, stream: StreamReplica, is_blocked: bool) -> None:
        """Bounds what waits for a stream that applies nothing for now."""
        is_blocked = is_blocked or stream.durability.is_rolling_up
        self.overflow.bound(stream, self.config, is_syncing=is_blocked)

    # --- streams -------------------------------------------------------------------------------

    def stream(self, name: str) -> StreamReplica:
        """Returns a stream by name. Raises JetStreamApiError 10059, or 10194 when it is offline."""
        stream = self.streams.get(name)
        if stream is None:
            if name in self.offline:
                raise codes.STREAM_OFFLINE_REASON.exception(err=self.offline[name], stream=name)
            raise codes.STREAM_NOT_FOUND.exception(stream=name)
        return stream

    def create_stream(self, request: Any, now: int) -> StreamReplica:
        """Creates the stream of a StreamConfigRequest, or returns the present one with the same
        configuration.

        Raises JetStreamApiError: those of `stream_config.checked`, 10058 when the name has another
        configuration, 10065 for subjects of another stream, 10027, 10028 and 10047 for the account's limits.
        """
        config = self._among_others(stream_config.checked(request, self.config), request)
        present = self.streams.get(config.name)
        if self.transfers.is_restoring(config.name):
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if present is not None:
            if stream_config.same(present.config, config):
                return self._written(present)
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if config.name in self.offline:
            self.stream(config.name)
        self._check_overlap(config)
        self.capacity.check(config, None)
        meta = msgspec.json.encode(StreamMeta(config, now))
        try:
            store = self.stores.create_stream(config.name, meta, config.storage.value)
        except StoreError as error:
            log.error("stream %s cannot be created: %s", config.name, error)
            raise codes.STREAM_CREATE.exception(err=str(error)) from error
        try:
            stream = self.streams[config.name] = self.new_stream(config, store, now)
            self.claims.claim(config.name, config.subjects)
            stream.number_from_first()
            stream.subscribe(self.index)
            self.sourcing.follow(stream)
        except Exception:
            half_made = self.streams.get(config.name)
            if half_made is not None:
                self.containment.take_out(half_made)
            self.claims.release(config.name)
            # Do not leave files that a restart cannot open.
            faults.contain(store.delete, partial(self.containment.record_leftover_stream, config.name))
            raise
        self.tick.touch_stream(stream)
        self.advisories.stream_action(stream.name, "create")
        return stream

    def _written(self, present: StreamReplica) -> StreamReplica:
        """Makes an existing stream durable: the response promises that, as it does for a new one. Raises
        10049."""
        try:
            present.store.sync_name()
        except StoreError as error:
            raise codes.STREAM_CREATE.exception(err=str(error)) from error
        return present

    def check_restore(self, request: StreamConfigRequest) -> ApiStreamConfig:
        """Checks the configuration of a stream to restore. Raises JetStreamApiError like create_stream, and
        10130 for a name in use."""
        config = self._among_others(stream_config.restored(request, self.config), request)
        self._check_overlap(config)
        self.capacity.check(config, None)
        name = config.name
        if name in self.streams or name in self.offline or self.transfers.is_restoring(name):
            raise codes.STREAM_NAME_EXIST_RESTORE_FAILED.exception(stream=name)
        return config

    def update_stream(self, request: Any, now: int) -> Generator[int, None, StreamReplica]:
        """Updates a stream's configuration, then removes messages above lowered limits. Yields work in the
        units of slices.py. Raises JetStreamApiError like create_stream, 10059, 10052."""
        stream = self.stream(request.name)
        config = self._checked_update(stream, request)
        ids = yield from self.removing(stream, stream.ids_after(config, now))
        if ids is not None:
            config = self._checked_update(stream, request)  # others may have changed the account meanwhile
        retention = stream.config.retention
        with self.containment.changing(stream):
            try:
                stream.update(config, now, ids)
            except StoreError as error:
                log.error("stream %s: its new configuration cannot be written: %s", stream.name, error)
                raise codes.STREAM_UPDATE.exception(err=str(error)) from error
            self.claims.claim(config.name, config.subjects)
            stream.subscribe(self.index)
            self.sourcing.follow(stream)
        if config.retention is not retention:
            self.reviews.begin(stream)
        self.tick.touch_stream(stream)
        yield from self.removing(stream, shrinking.slices(stream, self.clock))
        self.tick.touch_stream(stream, at_once=False)  # a start would enforce the limits again
        self.advisories.stream_action(stream.name, "modify")
        return stream

    def _checked_update(self, stream: StreamReplica, request: Any) -> ApiStreamConfig:
        """The configuration that a request asks for. Raises JetStreamApiError like update_stream."""
        config = self._among_others(stream_config.updated(stream.config, request, self.config), request)
        self._check_consumer_limits(stream, config)
        self._check_overlap(config)
        self.capacity.check(config, stream)
        return config

    def removing(self, stream: StreamReplica, steps: Generator[int, None, T]) -> Generator[int, None, T]:
        """The slices of a request that works on the messages of a stream; returns what they return.

        Notes of removed messages are written while it goes on: those of a million take a tenth of a second.
        After a crash, what was removed so far is gone.

        Raises JetStreamApiError 10059 when the stream is deleted meanwhile.
        """
        noted = stream.log.removals
        with self.containment.changing(stream), stream.store.removing():
            while True:
                try:
                    work = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if stream.log.removals - noted >= NOTED_REMOVALS:
                    noted = stream.log.removals
                    self.tick.note_removals(stream)
                yield work
                if self.streams.get(stream.name) is not stream:
                    raise codes.STREAM_NOT_FOUND.exception(stream=stream.name)

    def roll_up(self, stream: StreamReplica) -> None:
        """Holds the stream until slices have removed what its roll-ups replace."""
        stream.durability.rollup_started()
        try:
            stream.keep_rollups()
        except StoreError as error:  # after a crash, some of the replaced messages may be there again
            log.error("stream %s: its roll-ups can not be recorded: %s", stream.name, error)
        self.block_input(stream, True)
        self.slices.add(self._roll_up(stream))

    def _roll_up(self, stream: StreamReplica) -> Generator[int, None, None]:
        yield slices.WORK  # the message is written first
        try:
            yield from self.removing(stream, stream.rollups.slices())
        except JetStreamApiError:
            return  # the stream was deleted
        self._end_rollups(stream)

    def _end_rollups(self, stream: StreamReplica) -> None:
        self.overflow.bound(stream, self.config, is_syncing=stream.durability.is_syncing)
        self.deferrals.release(stream)

    def _finish_rollups(self) -> None:
        """Applies what waits for roll-ups at once: the engine closes."""
        while rolling := [stream for stream in self.streams.values() if stream.durability.is_rolling_up]:
            for stream in rolling:
                deque(stream.rollups.slices(), maxlen=0)
                self._end_rollups(stream)
            self.tick.apply(self.clock())
            self.slices.stop()

    def delete_stream(self, name: str) -> None:
        """Deletes a stream with its messages and consumers, also an offline one.

        It is removed from the account at once; ending its consumers and removing its files take slices.
        Another stream may get the name meanwhile.

        Raises JetStreamApiError 10059, and 10050 where its files cannot be removed: a restart could recover
        it, so it is offline until another request removes it.
        """
        try:
            if name in self.offline:
                files = self.stores.begin_delete(name)
                del self.offline[name]
                self.claims.release(name)
                self.sourcing.retire_orphans()
                self.remove_files(files)
            else:
                stream = self.stream(name)
                with self.containment.changing(stream):
                    self._delete_stream(stream)
        except StoreError as error:
            log.error("stream %s: its files cannot be removed: %s", name, error)
            raise codes.STREAM_DELETE.exception(err=str(error)) from error
        self.advisories.stream_action(name, "delete")

    def _delete_stream(self, stream: StreamReplica) -> None:
        try:
            # First: if the stream comes back, it needs its consumers in its origins.
            files = stream.store.begin_delete()
        except StoreError as error:
            self.containment.set_aside(stream, str(error))
            raise
        stream.unsubscribe(self.index)
        self.sourcing.forget(stream)
        stream.atomic.drop()
        self.drop_stream(stream)
        self.deferrals.drop(stream)
        self.commit.drop(stream)
        self.claims.release(stream.name)
        consumers = list(stream.consumers.values())
        stream.consumers.clear()
        for consumer in consumers:
            consumer.suspend()
        self.slices.add(self._delete_rest(consumers, files))

    def remove_files(self, files: Iterator[object]) -> None:
        """Completes a begin_delete() in slices: removing the files of 3,000 consumers takes 0.4 s."""
        self.slices.add(self._delete_rest([], files))

    def _delete_rest(
        self, consumers: list[ConsumerReplica], files: Iterator[object]
    ) -> Generator[int, None, None]:
        for consumer in consumers:
            faults.contain(self._end_consumer, self.containment.work_failed, consumer)
            yield CONSUMER_END_WORK
        for _ in files:
            yield FILES_WORK

    def _end_consumer(self, consumer: ConsumerReplica) -> None:
        self.tick.forget_consumer(consumer)
        consumer.end()
        self.advisories.consumer_action(consumer.stream.name, consumer.name, "delete")

    def drop_stream(self, stream: StreamReplica) -> None:
        """Drops the pending work and deadlines of a stream."""
        name = stream.config.name
        is_known = self.streams.get(name) is stream
        if is_known:
            del self.streams[name]
        self.tick.forget_stream(stream)
        if is_known:
            self.capacity.forget(stream)

    def _among_others(self, config: ApiStreamConfig, request: StreamConfigRequest) -> ApiStreamConfig:
        def find(name: str) -> ApiStreamConfig | None:
            stream = self.streams.get(name)
            return stream.config if stream is not None else None

        return check_among(config, find, pedantic=request.pedantic)

    def delete_offline_consumer(self, stream: StreamReplica, name: str, *, sync: bool) -> None:
        """Deletes an offline consumer, and the messages that only it needed.

        Raises StoreWriteError. sync: the removal survives a power failure.
        """
        stream.store.delete_consumer(name, sync=sync)
        del stream.offline[name]
        if stream.interest_state is not None and not stream.offline:
            stream.interest_state.keep_all(False)
            self.reviews.begin(stream)
        self.tick.touch_stream(stream)
        self.advisories.consumer_action(stream.name, name, "delete")

    def new_stream(self, config: ApiStreamConfig, store: Any, created: int) -> StreamReplica:
        """Constructs a stream with its store, without subscriptions."""
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
        )
        self.overflow.bound(stream, self.config, is_syncing=False)
        return stream

    def _check_consumer_limits(self, stream: StreamReplica, config: ApiStreamConfig) -> None:
        """Rejects new limits below those of existing consumers (10069)."""
        before, limits = stream.config.consumer_limits, config.consumer_limits
        if limits == before:
            return
        violated = [
            name
            for name, consumer in sorted(stream.consumers.items())
            if 0 < limits.inactive_threshold < consumer.config.inactive_threshold
            or 0 < limits.max_ack_pending < consumer.config.max_ack_pending
        ]
        if violated:
            err = f"change to limits violates consumers: {', '.join(violated)}"
            raise codes.STREAM_UPDATE.exception(err=err)

    def _check_overlap(self, config: ApiStreamConfig) -> None:
        with bounded(stream_config.refuse):
            if self.claims.collide(config.name, config.subjects):
                raise codes.STREAM_SUBJECT_OVERLAP.exception(stream=config.name)
