"""The life of an account's streams: creates, updates and deletes them on request.

Ordering contracts: the store of a stream exists before the stream does, and is gone before its response; a
stream whose files could not be removed stays known, as offline, because a restart could recover it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial

import msgspec
from msgspec import Struct

from penstock import faults
from penstock.errors import JetStreamApiError, StoreError
from penstock.jetstream import stream_config
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commands import Update
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.containment import Containment
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.reviews import Reviews
from penstock.jetstream.slices import Slices
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.stream import shrinking
from penstock.jetstream.stream.dedupe import drop_ids, prepare_ids
from penstock.jetstream.stream.source_config import check_among
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.jetstream.stream_removals import StreamRemovals
from penstock.jetstream.stream_table import StreamTable
from penstock.jetstream.subject_claims import bounded
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiStreamConfig, StreamConfigRequest
from penstock.store.interface import AccountStore, StreamStore

log = logging.getLogger("penstock.jetstream")

CONSUMER_END_WORK = 16 * 1024  # ending a consumer, in the units of slices.py


class RegistryParts(Struct, frozen=True, eq=False):
    """The parts of an engine that a stream is registered with.

    config: returns the present configuration of the engine. is_restoring: whether a stream of that name is
    being restored. new_stream: constructs a stream from its configuration, store and creation time (ns).
    """

    index: SubscriptionIndex
    table: StreamTable
    stores: AccountStore
    advisories: Advisories
    capacity: Capacity
    pending: PendingWork
    containment: Containment
    slices: Slices
    removals: StreamRemovals
    reviews: Reviews
    consumers: ConsumerRegistry
    sourcing: Sourcing
    config: Callable[[], EngineConfig]
    clock: Callable[[], int]
    is_restoring: Callable[[str], bool]
    new_stream: Callable[[ApiStreamConfig, StreamStore, int], StreamReplica]


class StreamRegistry:
    """Changes the streams of one account's engine on request."""

    def __init__(self, parts: RegistryParts) -> None:
        self._parts = parts
        self._table = parts.table

    def create(self, request: StreamConfigRequest, now: int) -> StreamReplica:
        """Creates the stream of a StreamConfigRequest, or returns the present one with the same
        configuration.

        Raises JetStreamApiError: those of `stream_config.checked`, 10058 when the name has another
        configuration, 10065 for subjects of another stream, 10027, 10028 and 10047 for the account's limits.
        """
        config = self._among_others(stream_config.checked(request, self._parts.config()), request)
        present = self._table.open.get(config.name)
        if self._parts.is_restoring(config.name):
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if present is not None:
            if stream_config.same(present.config, config):
                return self._written(present)
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        if config.name in self._table.offline:
            self._table.find(config.name)
        self._check_overlap(config)
        self._parts.capacity.check(config, None)
        meta = msgspec.json.encode(StreamMeta(config, now))
        try:
            store = self._parts.stores.create_stream(config.name, meta, config.storage.value)
        except StoreError as error:
            log.error("stream %s cannot be created: %s", config.name, error)
            raise codes.STREAM_CREATE.exception(err=str(error)) from error
        try:
            stream = self._table.open[config.name] = self._parts.new_stream(config, store, now)
            self._table.claims.claim(config.name, config.subjects)
            stream.number_from_first()
            stream.subscribe(self._parts.index)
            self._parts.sourcing.follow(stream)
        except Exception:
            half_made = self._table.open.get(config.name)
            if half_made is not None:
                self._parts.containment.take_out(half_made)
            self._table.claims.release(config.name)
            # Do not leave files that a restart cannot open.
            faults.contain(store.delete, partial(self._parts.containment.record_leftover_stream, config.name))
            raise
        self._parts.pending.touch_stream(stream)
        self._parts.advisories.stream_action(stream.name, "create")
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
        """Checks the configuration of a stream to restore. Raises JetStreamApiError like create(), and
        10130 for a name in use."""
        config = self._among_others(stream_config.restored(request, self._parts.config()), request)
        self._check_overlap(config)
        self._parts.capacity.check(config, None)
        name = config.name
        if name in self._table.open or name in self._table.offline or self._parts.is_restoring(name):
            raise codes.STREAM_NAME_EXIST_RESTORE_FAILED.exception(stream=name)
        return config

    def update(self, request: StreamConfigRequest, now: int) -> Generator[int, None, StreamReplica]:
        """Updates a stream's configuration, then removes messages above lowered limits. Yields work in the
        units of slices.py. Raises JetStreamApiError like create(), 10059, 10052."""
        stream = self._table.find(request.name)
        config = self._checked_update(stream, request)
        ids = yield from self._parts.removals.run(stream, prepare_ids(stream, config, now))
        if ids:
            try:
                # Others may have changed the account meanwhile.
                config = self._checked_update(stream, request)
            except JetStreamApiError:
                drop_ids(stream, ids)
                raise
        retention = stream.config.retention
        with self._parts.containment.changing(stream):
            try:
                stream.update(config, now, ids)
            except StoreError as error:
                log.error("stream %s: its new configuration cannot be written: %s", stream.name, error)
                raise codes.STREAM_UPDATE.exception(err=str(error)) from error
            self._table.claims.claim(config.name, config.subjects)
            stream.subscribe(self._parts.index)
            self._parts.sourcing.follow(stream)
        if config.retention is not retention:
            self._parts.reviews.begin(stream)
        self._parts.pending.touch_stream(stream)
        yield from self._parts.removals.run(
            stream, shrinking.slices(stream, partial(self._slice_begins, stream))
        )
        self._parts.pending.touch_stream(stream, at_once=False)  # a start would enforce the limits again
        self._parts.advisories.stream_action(stream.name, "modify")
        return stream

    def follow(self, stream: StreamReplica, config: ApiStreamConfig) -> Generator[int, None, None]:
        """update() of a stream with a group to a configuration that its cluster agreed on: yields work until
        it is committed. Raises LeadershipLostError."""
        retention = stream.config.retention
        update = Update(config, 0, stream.sources.positions_before(config))
        yield from stream.change(update, self._parts.clock())
        if config.retention is not retention:
            self._parts.reviews.begin(stream)
        self._parts.pending.touch_stream(stream)
        yield from self._parts.removals.run(
            stream, shrinking.slices(stream, partial(self._slice_begins, stream))
        )
        self._parts.advisories.stream_action(stream.name, "modify")

    def _slice_begins(self, stream: StreamReplica) -> int:
        """Sets what the account admits, for what the slice stores; returns the time (ns)."""
        self._parts.capacity.admit(stream)
        return self._parts.clock()

    def _checked_update(self, stream: StreamReplica, request: StreamConfigRequest) -> ApiStreamConfig:
        """The configuration that a request asks for. Raises JetStreamApiError like update()."""
        config = self._among_others(
            stream_config.updated(stream.config, request, self._parts.config()), request
        )
        self._check_consumer_limits(stream, config)
        self._check_overlap(config)
        self._parts.capacity.check(config, stream)
        return config

    def delete(self, name: str) -> None:
        """Deletes a stream with its messages and consumers, also an offline one.

        It is removed from the account at once; ending its consumers takes slices. Another stream may get the
        name meanwhile.

        Raises JetStreamApiError 10059, and 10050 where its files cannot be removed: a restart could recover
        it, so it is offline until another request removes it.
        """
        try:
            if name in self._table.offline:
                self._parts.stores.delete_stream(name)
                del self._table.offline[name]
                self._table.claims.release(name)
                self._parts.sourcing.retire_orphans()
            else:
                stream = self._table.find(name)
                with self._parts.containment.changing(stream):
                    self._delete(stream)
        except StoreError as error:
            log.error("stream %s: its files cannot be removed: %s", name, error)
            raise codes.STREAM_DELETE.exception(err=str(error)) from error
        self._parts.advisories.stream_action(name, "delete")

    def _delete(self, stream: StreamReplica) -> None:
        try:
            # First: if the stream comes back, it needs its consumers in its origins.
            stream.store.delete()
        except StoreError as error:
            self._parts.containment.set_aside(stream, str(error))
            raise
        stream.unsubscribe(self._parts.index)
        self._parts.sourcing.forget(stream)
        stream.atomic.drop()
        self._parts.containment.drop(stream)
        self._table.claims.release(stream.name)
        consumers = list(stream.consumers.values())
        stream.consumers.clear()
        for consumer in consumers:
            consumer.suspend()
        self._parts.slices.add(self._delete_rest(consumers, stream))

    def _delete_rest(
        self, consumers: list[ConsumerReplica], stream: StreamReplica
    ) -> Generator[int, None, None]:
        for consumer in consumers:
            faults.contain(self._parts.consumers.end, self._parts.containment.work_failed, consumer)
            yield CONSUMER_END_WORK
        stream.free_messages()

    def _among_others(self, config: ApiStreamConfig, request: StreamConfigRequest) -> ApiStreamConfig:
        def find(name: str) -> ApiStreamConfig | None:
            stream = self._table.open.get(name)
            return stream.config if stream is not None else None

        return check_among(config, find, pedantic=request.pedantic)

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
            if self._table.claims.collide(config.name, config.subjects):
                raise codes.STREAM_SUBJECT_OVERLAP.exception(stream=config.name)
