"""The replicated streams of one account's engine.

What runs the groups opens a stream here with its port, and calls the ReplicatedStream with what the group
commits and who leads. At the end of each tick, flush() proposes what the streams' leaders submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Protocol

import msgspec

from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.group_commands import GroupCommands, StreamGroupPort
from penstock.jetstream.replicated_stream import ReplicatedPorts, ReplicatedStream
from penstock.jetstream.standalone import StandaloneSource
from penstock.jetstream.stream.replica_state import (
    ChunkNames,
    ReplicaState,
    config_of,
    decode_state,
    restore_slices,
)
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.protocol.api import ApiStreamConfig
from penstock.store.interface import AccountStore, StreamStore

RETRY_NS = 50_000_000
RESTORE_WRITE_WORK = 16 << 20
"""What is restored between two writes: about 4 MiB."""


class NewReplica(Protocol):
    """Constructs a stream without subscriptions."""

    def __call__(
        self,
        config: ApiStreamConfig,
        store: StreamStore,
        created: int,
        *,
        group: GroupCommands | None = None,
        standby: StandbyConsumers | None = None,
    ) -> StreamReplica: ...


class ReplicatedStreams:
    """See the module. stores: make the streams' stores. new_stream: constructs a stream."""

    def __init__(self, ports: ReplicatedPorts, stores: AccountStore, new_stream: NewReplica) -> None:
        self._ports = ports
        self._stores = stores
        self._new_stream = new_stream
        self._by_name: dict[str, ReplicatedStream] = {}
        self.changed: dict[str, None] = {}  # with something to propose
        self._restored: dict[str, StreamStore] = {}  # complete archives
        self.retry_due: int | None = None

    def find(self, name: str) -> ReplicatedStream | None:
        """The replica of a stream, or None for one without a group."""
        return self._by_name.get(name)

    def differences(self) -> list[tuple[str, str]]:
        """Streams of which this server's replica differs from the leader's, and how that was noticed."""
        found = [(name, one.difference) for name, one in self._by_name.items()]
        return [(name, difference) for name, difference in found if difference]

    def open(self, config: ApiStreamConfig, created: int, port: StreamGroupPort) -> ReplicatedStream:
        """Begins to follow a stream from the first entry of its group on. Raises StoreError when the disk
        fails."""
        stream, standby, commands = self._new(config, created, port)
        return self._begin(ReplicatedStream(stream, standby, commands, self._ports))

    def restore(
        self,
        manifest: bytes,
        chunk_of: Callable[[bytes], bytes],
        index: int,
        term: int,
        port: StreamGroupPort,
    ) -> ReplicatedStream:
        """Begins to follow a stream from a state on, that after entry `index` of `term`: a checkpoint, or
        what the leader sent. Takes the place of the replica that is open here. chunk_of: the bytes of a
        chunk.

        Raises MalformedCommandError when the state cannot be read, StoreError when the disk fails. The
        replica that was open here is closed then, and another state can be restored.
        """
        slices = self.restore_slices(decode_state(manifest), chunk_of, index, term, port)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                restored: ReplicatedStream = end.value
                return restored

    def restore_slices(
        self,
        state: ReplicaState,
        chunk_of: Callable[[bytes], bytes],
        index: int,
        term: int,
        port: StreamGroupPort,
    ) -> Generator[int, None, ReplicatedStream]:
        """The same in slices: yields work (of slices.py). The stream is not here before the last one.
        Chunks are asked for in the order of `state.files`. The caller closes the generator before it opens,
        restores or closes a stream of this name."""
        stream, standby, commands = self._new(config_of(state), state.created, port)
        names = ChunkNames()
        is_done = False
        unwritten = 0
        try:
            for work in restore_slices(stream, standby, state, chunk_of, names):
                unwritten += work
                if unwritten > RESTORE_WRITE_WORK:
                    unwritten = 0
                    stream.store.write()
                yield work
            is_done = True
        finally:
            if not is_done:
                stream.store.delete()
        named = {state.chunk_seqs: names}
        return self._begin(
            ReplicatedStream(stream, standby, commands, self._ports, index, term, named, state.state_hash)
        )

    def standalone_source(self, config: ApiStreamConfig) -> StandaloneSource:
        """The state of a stream that was stored without a cluster, and goes on with this configuration."""
        new_stream = partial(self._new_stream, group=None, standby=None)
        restored = self._restored.pop(config.name, None)

        def open_store() -> StreamStore:
            return restored if restored is not None else self._stores.open_stream(config.name)

        return StandaloneSource(open_store, config, new_stream, self._ports.clock)

    def keep_restored(self, store: StreamStore) -> None:
        """Keeps the store of a complete archive for standalone_source()."""
        self._restored[store.name] = store

    def drop_restored(self, name: str) -> None:
        """Removes it, unless the stream goes on with what was in it."""
        self._restored.pop(name, None)
        if name not in self._by_name:
            self._remove_files(name)

    def close(self, name: str, *, ended: bool = False) -> None:
        """Stops following a stream and removes its files: its group goes on without this server, or it is
        opened again. ended: the stream is deleted. The files of a replica that failed stay as they are until
        discard(), or until the stream is opened again."""
        replica = self._by_name.pop(name, None)
        if replica is None:
            return
        replica.close(ended=ended)
        self.changed.pop(name, None)
        if not replica.failure:
            self._ports.containment.take_out(replica.stream)
            replica.stream.store.delete()
            replica.stream.free_messages()
        else:
            self._ports.table.unopened.add(name)
        self._ports.table.offline.pop(name, None)
        self._ports.table.claims.release(name)
        self._ports.origin_changed(name)

    @property
    def unopened(self) -> frozenset[str]:
        """Replicas with files here that no group has opened: see StreamTable."""
        return frozenset(self._ports.table.unopened)

    def discard(self, name: str) -> None:
        """Removes the files of a replica that no group has opened: its group is gone. Does nothing for
        another stream of this name. Raises StoreWriteError."""
        if name in self._ports.table.unopened:
            self._remove_files(name)
            self._ports.table.unopened.discard(name)

    def _remove_files(self, name: str) -> None:
        if self._stores.has_stream(name):
            self._stores.delete_stream(name)

    def _new(
        self, config: ApiStreamConfig, created: int, port: StreamGroupPort
    ) -> tuple[StreamReplica, StandbyConsumers, GroupCommands]:
        """A stream without messages, in place of the one of its name."""
        name = config.name
        self.close(name)
        # Files may be ahead of the checkpoint, so that they cannot be continued: see decision 0032.
        self._remove_files(name)
        self._ports.table.unopened.discard(name)
        meta = msgspec.json.encode(StreamMeta(config, created, replicated=True))
        # The files of a single replica may be the only copy when the log of groups is lost (decision 0032).
        is_alone = config.num_replicas <= 1
        create = self._stores.create_stream if is_alone else self._stores.create_replica
        store = create(name, meta, config.storage.value)
        commands = GroupCommands(port, self._ports.clock, partial(self._note_changed, name))
        standby = StandbyConsumers()
        stream = self._new_stream(config, store, created, group=commands, standby=standby)
        stream.number_from_first()
        return stream, standby, commands

    def _begin(self, replica: ReplicatedStream) -> ReplicatedStream:
        stream = replica.stream
        self._ports.table.open[stream.name] = stream
        self._ports.table.offline.pop(stream.name, None)
        self._ports.table.standalone.pop(stream.name, None)
        self._ports.table.claims.claim(stream.name, stream.config.subjects)
        self._by_name[stream.name] = replica
        self._ports.pending.note_stream(stream)
        self._ports.origin_changed(stream.name)
        return replica

    def flush(self) -> None:
        """Proposes what was submitted since the last call, an entry for each stream, unless it waits for
        entries in flight: their commit wakes the next tick. retry_due: when (ns) to call again for what a
        group did not take, such as one that hands over; None: nothing is left."""
        changed, self.changed = self.changed, {}
        is_refused = False
        for name in changed:
            replica = self._by_name.get(name)
            if replica is None:
                continue
            if replica.commands.may_wait:
                self.changed[name] = None
            elif not replica.propose():
                self.changed[name] = None
                is_refused = True
        self.retry_due = self._ports.clock() + RETRY_NS if is_refused else None

    def _note_changed(self, name: str) -> None:
        self.changed[name] = None
        self._ports.wake()
