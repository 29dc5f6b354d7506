"""Recovers streams and consumers from the store: at a start, and at the end of a restore.

A stream that cannot be opened for any reason is offline: its files stay untouched, requests about it are
rejected with the reason, and the other streams work. The same applies to a consumer: its stream works without
it. No file and no configuration, of this version or an earlier one, therefore prevents a server from
starting.

Invariant: an offline asset has no subscription, no pending work and no deadline.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator

import msgspec
from msgspec import Struct

from penstock import faults
from penstock.errors import StoreError
from penstock.jetstream import standalone, stream_config
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.containment import Containment
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.sourcing import Sourcing
from penstock.jetstream.stream.stream_recovery import recover
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.protocol.api import ApiStreamConfig
from penstock.store.interface import AccountStore, StreamStore

log = logging.getLogger("penstock.jetstream")

CONSUMER_WORK = 64 * 1024  # a consumer is opened, in the units of slices.py
PART_WORK = 64 * 1024
REMOVALS_PER_WRITE = 8192  # messages removed before their tombstones are written: 1.5 ms at most


class OpeningPorts(Struct, frozen=True, eq=False):
    """What recovery uses of its account.

    api_level: the highest one that this server supports. new_stream: constructs a stream from its
    configuration, store and creation time. clock: returns ns since the epoch.
    """

    account: str
    is_clustered: bool
    api_level: int
    index: SubscriptionIndex
    table: StreamTable
    stores: AccountStore
    capacity: Capacity
    pending: PendingWork
    containment: Containment
    consumers: ConsumerRegistry
    sourcing: Sourcing
    new_stream: Callable[[ApiStreamConfig, StreamStore, int], StreamReplica]
    clock: Callable[[], int]


class Opening:
    """Recovery of one account's streams."""

    def __init__(self, ports: OpeningPorts) -> None:
        self._ports = ports

    def recover(self, now: int) -> None:
        """Opens every stored stream with its consumers, then removes what acks or time have settled.

        What an origin may remove is only known when the streams that read it are open.
        """
        ports, names = self._ports, self._ports.stores.stream_names()
        for name in names:
            faults.contain(self._recover_stream, self._stream_failed, name, now)
        faults.contain(ports.sourcing.set_back, ports.containment.work_failed)
        for name in names:
            if name in ports.table.open:
                faults.contain(self._begin_recovered, self._stream_failed, name, now)

    def adopt(self, store: StreamStore) -> Generator[int, None, StreamReplica]:
        """Takes over a restored stream; yields work in the units of slices.py. The stream is unreachable
        until it is complete. When this raises or is closed, only the store is left."""
        meta = msgspec.json.decode(store.meta, type=StreamMeta)
        ports = self._ports
        stream = ports.new_stream(meta.config, store, meta.created)
        try:
            yield from _written(stream, self._build(stream, meta))
            ports.table.open[stream.name] = stream
            ports.table.claims.claim(stream.name, meta.config.subjects)
            self._begin(stream, ports.clock())
        except (Exception, GeneratorExit):
            ports.containment.take_out(stream)
            ports.table.claims.release(stream.name)
            raise
        return stream

    def _build(self, stream: StreamReplica, meta: StreamMeta) -> Generator[int, None, None]:
        """Recovers a restored stream and its consumers, and removes what acks or time have settled."""
        now = self._ports.clock()
        yield from recover(stream, now, meta.rollups)
        for name in stream.store.consumer_names():
            faults.contain(self._recover_consumer, self._consumer_failed, stream, name, now)
            yield CONSUMER_WORK
        # A backup without consumers keeps its messages for new ones.
        seq = 1 if stream.interest_state is not None and stream.consumers else 0
        while seq:
            assert stream.interest_state is not None
            settled, seq = stream.interest_state.unneeded(seq, PART_WORK)
            settled.remove_from(stream.log)
            yield PART_WORK
        while True:
            yield stream.expire(self._ports.clock(), PART_WORK)
            if not stream.timers.is_behind:
                return

    def _recover_stream(self, name: str, now: int) -> None:
        store = self._ports.stores.open_stream(name)
        try:
            meta = msgspec.json.decode(store.meta, type=StreamMeta)
            if meta.restoring:
                log.warning("stream %s: its restore did not complete, removing it", name)
                store.delete()
                return
            if meta.replicated:
                store.abandon()  # its group opens it
                self._ports.table.unopened.add(name)
                return
            if self._ports.is_clustered:
                ports = self._ports
                ports.table.standalone[name] = standalone.described(store)
                raise StoreError("the stream was stored without a cluster, which has not taken it in yet")
            level, served = stream_config.stored_level(meta.config), self._ports.api_level
            if level > served:
                raise StoreError(f"unsupported - required API level: {level}, current API level: {served}")
            self._open_stream(store, meta, now)
        except Exception:
            half_open = self._ports.table.open.get(name)
            if half_open is not None:
                self._ports.containment.take_out(half_open)
            store.abandon()
            raise

    def _stream_failed(self, error: Exception, name: str, now: int) -> None:
        why = _reason(error, f"recovery of stream {name} of account {self._ports.account}")
        log.error("stream %s is offline, its files stay as they are: %s", name, why)
        self._ports.table.offline[name] = why

    def _open_stream(self, store: StreamStore, meta: StreamMeta, now: int) -> None:
        ports = self._ports
        # Known from now on: when it can't be opened, this tells what to take out again.
        stream = ports.table.open[meta.config.name] = ports.new_stream(meta.config, store, meta.created)
        # Also of a stream that can't be opened: another one with its subjects would keep it from coming back.
        ports.table.claims.claim(meta.config.name, meta.config.subjects)
        deque(recover(stream, now, meta.rollups), maxlen=0)  # at once: no client is served yet
        for name in store.consumer_names():
            faults.contain(self._recover_consumer, self._consumer_failed, stream, name, now)

    def _begin_recovered(self, name: str, now: int) -> None:
        stream = self._ports.table.open[name]
        try:
            if stream.interest_state is not None:
                # An ack may have been written without its removal.
                stream.interest_state.unneeded()[0].remove_from(stream.log)
            self._begin(stream, now)
        except Exception:
            self._ports.containment.take_out(stream)
            stream.store.abandon()
            raise

    def _begin(self, stream: StreamReplica, now: int) -> None:
        """Activates a stream whose consumers are open."""
        ports = self._ports
        ports.capacity.admit(stream)
        stream.expire(now)
        stream.subscribe(ports.index)
        ports.sourcing.follow(stream)
        ports.pending.touch_stream(stream)

    def _recover_consumer(self, stream: StreamReplica, name: str, now: int) -> None:
        self._ports.consumers.recover(stream, stream.store.open_consumer(name), now)

    def _consumer_failed(self, error: Exception, stream: StreamReplica, name: str, now: int) -> None:
        why = _reason(error, f"recovery of consumer {name} of stream {stream.name}")
        log.error("consumer %s of stream %s is left out: %s", name, stream.name, why)
        # No command yet: the stream is not open.
        stream.offline[name] = why
        stream.retain_messages(True)


def _written(stream: StreamReplica, steps: Generator[int, None, None]) -> Generator[int, None, None]:
    """Writes the tombstones of what the steps remove while they go on: a million of them take a tenth of
    a second."""
    log, recorded = stream.log, stream.log.messages
    with stream.store.removing():
        for work in steps:
            if recorded - log.messages >= REMOVALS_PER_WRITE:  # (its `removals` does not count those by acks)
                stream.store.write()
                recorded = log.messages
            recorded = max(recorded, log.messages)
            yield work


def _reason(error: Exception, where: str) -> str:
    if isinstance(error, (StoreError, msgspec.DecodeError)):
        return str(error)
    return faults.describe(faults.note(where, error))
