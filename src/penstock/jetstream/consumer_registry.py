"""The life of an account's consumers: creates, recovers and deletes them.

Ordering contract: a consumer that acked messages of an interest or work-queue stream is deleted after the
removals by its acks were written. Until then only its state records what it acked: after a crash in between,
the next consumer would receive messages whose acks were confirmed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from functools import partial

import msgspec

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.jetstream.commands import DropConsumer, RetainMessages, SetConsumer
from penstock.jetstream.consumer.consumer_ports import ConsumerPorts
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.standby import NO_PIN, Pin, StandbyConsumer
from penstock.jetstream.consumer.start import start_of
from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.containment import Containment
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.reviews import Reviews
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiConsumerConfig, encode
from penstock.protocol.ids import base62
from penstock.store.interface import ConsumerStore
from penstock.store.memory import MemoryConsumerStore

log = logging.getLogger("penstock.jetstream")

NAME_LEN = 8  # of generated names


class ConsumerRegistry:
    """The consumers of one account's streams. ports: what each of them uses."""

    def __init__(
        self, ports: ConsumerPorts, pending: PendingWork, containment: Containment, reviews: Reviews
    ) -> None:
        self._ports = ports
        self._pending = pending
        self._containment = containment
        self._reviews = reviews
        self._proposed: set[tuple[str, str]] = set()  # streams and consumers

    def unused_name(self, stream: StreamReplica) -> str:
        """A name that no consumer of the stream has."""
        while True:
            name = self._ports.new_id()[-NAME_LEN:] or base62(len(stream.consumers), NAME_LEN)
            if name not in stream.consumers:
                return name

    def create(
        self,
        stream: StreamReplica,
        config: ApiConsumerConfig,
        name: str,
        now: int,
        *,
        driven: bool = False,
    ) -> ConsumerReplica:
        """Creates a consumer with a checked configuration. driven: see ConsumerMeta.

        Raises StoreError when it cannot be stored.
        """
        one_per_subject = stream.config.max_msgs_per_subject == 1
        start = start_of(config, stream.log, one_per_subject=one_per_subject)
        meta = ConsumerMeta(config, name, now, start.seq, start.resume_seq, driven=driven)
        store = stream.store.create_consumer(name, encode(meta), config.mem_storage or config.direct)
        try:
            consumer = ConsumerReplica(self._ports, stream, meta, store, now)
        except Exception:
            # Do not leave files that a restart cannot open.
            left = partial(self._containment.record_leftover_consumer, stream, name)
            faults.contain(store.delete, left)
            raise
        stream.consumers[name] = consumer
        stream.apply(SetConsumer(name, store.meta), now)
        self._pending.touch_consumer(consumer)
        self._ports.advisories.consumer_action(stream.name, name, "create")
        consumer.advise_if_paused()
        return consumer

    def propose(
        self, stream: StreamReplica, config: ApiConsumerConfig, name: str, now: int
    ) -> Generator[int, None, ConsumerReplica]:
        """create() for a stream with a group: yields work until the consumer is committed. Raises
        JetStreamApiError 10014 when it is deleted at once, and LeadershipLostError."""
        one_per_subject = stream.config.max_msgs_per_subject == 1
        start = start_of(config, stream.log, one_per_subject=one_per_subject)
        meta = ConsumerMeta(config, name, now, start.seq, start.resume_seq, driven=False)
        key = (stream.name, name)
        self._proposed.add(key)
        try:
            yield from stream.change(SetConsumer(name, encode(meta)), now)
        finally:
            self._proposed.discard(key)
        consumer = stream.consumers.get(name)
        if consumer is None:
            raise codes.CONSUMER_NOT_FOUND.exception(stream=stream.name)
        self._ports.advisories.consumer_action(stream.name, name, "create")
        consumer.advise_if_paused()
        return consumer

    def is_replicated(self, stream: StreamReplica) -> bool:
        """Whether consumers of the stream are changed by propose()."""
        return stream.group is not None

    def is_proposed(self, stream: StreamReplica, name: str) -> bool:
        """Whether propose() waits for a consumer of that name."""
        return (stream.name, name) in self._proposed

    def take_over(self, stream: StreamReplica, standby: StandbyConsumer, now: int) -> ConsumerReplica:
        """Makes a consumer deliver that the commands of its stream made. Its state is in the commands, so
        that its own store keeps nothing. Raises StoreCorruptError."""
        store = MemoryConsumerStore({}, standby.meta.name, encode(standby.meta))
        store.snapshot(standby.state.snapshot())
        consumer = self.recover(stream, store, now, standby.pin)
        self._pending.touch_consumer(consumer)
        return consumer

    def recover(
        self, stream: StreamReplica, store: ConsumerStore, now: int, pin: Pin = NO_PIN
    ) -> ConsumerReplica:
        """Opens the consumer in `store`. pin: of the standby that takes over.

        Raises StoreCorruptError when its state cannot be read.
        """
        try:
            meta = msgspec.json.decode(store.meta, type=ConsumerMeta)
            consumer = ConsumerReplica(self._ports, stream, meta, store, now, pin)
        except Exception:
            store.abandon()
            raise
        try:
            consumer.dead_letters.resume()
        except Exception:
            consumer.abandon()
            raise
        stream.consumers[consumer.name] = consumer
        return consumer

    def expired(self, consumer: ConsumerReplica) -> None:
        """Deletes a consumer that was unused for its inactive threshold, unless the removals by its acks
        cannot be written."""
        with contextlib.suppress(StoreWriteError):  # already logged
            self._pending.write_removals(consumer.stream)
            self.retire(consumer)

    def retire(self, consumer: ConsumerReplica) -> None:
        """Deletes a consumer without a request, such as after its inactive threshold. Where its files cannot
        be removed, a restart recovers it and it expires again."""
        with contextlib.suppress(StoreWriteError):  # already logged
            self._pending.write_removals(consumer.stream)
        self._take_out(consumer)
        try:
            consumer.store.delete()
        except StoreError as error:
            log.error("consumer %s: its files cannot be removed: %s", consumer.name, error)
        self._removed(consumer)

    def delete(self, consumer: ConsumerReplica, *, sync: bool) -> None:
        """Deletes a consumer on request. sync: the removal survives a power failure.

        Raises StoreError where its files cannot be removed: a restart could recover it, so it is offline
        until another request removes it. Raises StoreWriteError where the removals by its acks cannot be
        written; then the consumer continues.
        """
        self._pending.write_removals(consumer.stream)
        self._take_out(consumer)
        try:
            consumer.store.delete(sync=sync)
        except StoreError as error:
            self._containment.leave_out(consumer.stream, consumer.name, str(error))
            raise
        self._removed(consumer)

    def delete_offline(self, stream: StreamReplica, name: str, *, sync: bool) -> None:
        """Deletes an offline consumer, and the messages that only it needed.

        Raises StoreWriteError. sync: the removal survives a power failure.
        """
        stream.store.delete_consumer(name, sync=sync)
        del stream.offline[name]
        stream.apply(DropConsumer(name), stream.now)
        if not stream.offline:
            stream.apply(RetainMessages(False), stream.now)
            self._reviews.begin(stream)
        self._pending.touch_stream(stream)
        self._ports.advisories.consumer_action(stream.name, name, "delete")

    def end(self, consumer: ConsumerReplica) -> None:
        """Ends a consumer whose stream is deleted with all its files."""
        self._pending.forget_consumer(consumer)
        consumer.end()
        self._advise_deleted(consumer)

    def _take_out(self, consumer: ConsumerReplica) -> None:
        self._pending.forget_consumer(consumer)
        consumer.stream.consumers.pop(consumer.name, None)
        consumer.stream.apply(DropConsumer(consumer.name), consumer.stream.now)
        consumer.end()

    def _removed(self, consumer: ConsumerReplica) -> None:
        stream = consumer.stream
        if stream.is_to_be_reviewed(held_back=consumer.config.direct or consumer.is_driven):
            self._reviews.begin(stream)
        self._advise_deleted(consumer)

    def _advise_deleted(self, consumer: ConsumerReplica) -> None:
        self._ports.advisories.consumer_action(consumer.stream.name, consumer.name, "delete")
