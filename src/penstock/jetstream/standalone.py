"""Streams that a server stored without a cluster, as the beginnings of replicated ones.

A server of a cluster does not open such a stream. It reads the stream's files once and makes of them a state
(stream/replica_state.py), with which the stream's group begins; then they are removed. Until that state is on
disk they stay as they are.

Rejected: publishing the messages to the new stream (they would get other sequences and times, and consumers
would begin again).
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec
from msgspec import Struct

from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.consumer.state import ConsumerMeta, Recorder
from penstock.jetstream.stream.replica_state import CHUNK_SEQS, ChunkNames, Keep, TakenState, take_slices
from penstock.jetstream.stream.stream_recovery import recover
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.protocol.api import ApiConsumerConfig, ApiStreamConfig
from penstock.store.interface import StreamStore

FIRST_INDEX = FIRST_TERM = 1
"""Of the entry in whose place the state is: the group's log begins behind it."""
CONSUMER_WORK = 64 * 1024
READ_TEXT = "the stream was stored without a cluster"


class StandaloneStream(Struct, frozen=True, eq=False):
    """What the cluster has to know of one. created: ns. consumers: name, configuration and time of creation
    (ns) of each that clients made."""

    config: ApiStreamConfig
    created: int
    consumers: tuple[tuple[str, ApiConsumerConfig, int], ...]


def described(store: StreamStore) -> StandaloneStream:
    """Reads what the cluster has to know. Raises StoreError, DecodeError: a consumer that cannot be read
    would be lost."""
    meta = msgspec.json.decode(store.meta, type=StreamMeta)
    found = []
    for name in store.consumer_names():
        one = store.open_consumer(name)
        try:
            consumer = msgspec.json.decode(one.meta, type=ConsumerMeta)
        finally:
            one.abandon()
        if not consumer.is_for_copies:
            found.append((consumer.name, consumer.config, consumer.created))
    return StandaloneStream(meta.config, meta.created, tuple(found))


class StandaloneSource:
    """The state of one, taken from its files.

    open_store: the stream's. config: with which the stream is to go on. new_stream: constructs a stream from
    its configuration, store and time of creation. clock: ns since the epoch.
    """

    def __init__(
        self,
        open_store: Callable[[], StreamStore],
        config: ApiStreamConfig,
        new_stream: Callable[[ApiStreamConfig, StreamStore, int], StreamReplica],
        clock: Callable[[], int],
    ) -> None:
        self._open_store = open_store
        self._config = config
        self._new_stream = new_stream
        self._clock = clock

    def state_slices(
        self, has: Callable[[bytes], bool], keep: Keep, chunk_seqs: int = CHUNK_SEQS
    ) -> Generator[int, None, TakenState]:
        """As ReplicatedStream.state_slices(). Raises StoreError when the files cannot be read."""
        store = self._open_store()
        try:
            meta = msgspec.json.decode(store.meta, type=StreamMeta)
            stream = self._new_stream(self._config, store, meta.created)
            yield from recover(stream, self._clock(), meta.rollups)
            standby = StandbyConsumers()
            for name in store.consumer_names():
                self._read_consumer(store, name, standby)
                yield CONSUMER_WORK
            position = (FIRST_INDEX, FIRST_TERM, b"")
            return (
                yield from take_slices(stream, standby, lambda: position, ChunkNames(), has, keep, chunk_seqs)
            )
        finally:
            store.abandon()

    @staticmethod
    def _read_consumer(store: StreamStore, name: str, standby: StandbyConsumers) -> None:
        one = store.open_consumer(name)
        try:
            standby.set_consumer(name, one.meta)
            Recorder(one, standby.by_name[name].state, 0, None).recover(store.log.last_seq)
        finally:
            one.abandon()
