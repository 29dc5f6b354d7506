"""One server of the simulation: an engine, its replicated streams, their Raft groups, and the disk.

The disk has of each group what it has in `raft_sim`. The state of a stream is rebuilt from its checkpoint and
the entries of the log behind it, as on a server that starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

from penstock.jetstream.api import ApiService
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.replica_state import decode_state, missing_chunks
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.api import ApiStreamConfig
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame, GroupReady, RaftHost
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import Entry, EntryKind, HardState, RaftSnapshot
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready, Role
from penstock.store.memory import MemoryAccountStore
from penstock.testing.stream_sim.stream_history import StreamHistory

CREATED_NS = 1_700_000_000_000_000_000
TICKS_MAX = 1000
CHUNK_SEQS = 8
PAUSED_NS = 20_000_000  # between two looks whether a server goes on

Arrived = Callable[["StreamServer", str, bytes, bytes, bytes], None]


class StreamDisk:
    """What a server has of a stream's group."""

    def __init__(self, membership: Membership) -> None:
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self.snapshot = RaftSnapshot(0, 0, membership)

    def write(self, ready: Ready) -> None:
        """Stores the hard state and the entries, which replace what follows the first of them."""
        self.hard_state = ready.hard_state or self.hard_state
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [one for one in self.entries if one.index < first] + list(ready.entries)

    def compact(self, snapshot: RaftSnapshot, keep_from: int) -> None:
        """Stores a checkpoint, and removes entries that it has."""
        self.snapshot = snapshot
        self.entries = [one for one in self.entries if one.index >= min(keep_from, snapshot.index + 1)]

    def install(self, snapshot: RaftSnapshot, *, keeps_entries: bool) -> None:
        """Stores the state that a leader sent."""
        self.snapshot = snapshot
        self.entries = [one for one in self.entries if keeps_entries and one.index > snapshot.index]


class SimPort:
    """The group of a stream, as group_commands.StreamGroupPort has it."""

    def __init__(self, server: StreamServer, group: str) -> None:
        self._server = server
        self._group = group
        self._reads: dict[int, Callable[[], object]] = {}
        self._contexts = itertools.count(1)

    def propose(self, data: bytes) -> int:
        return self._server.host.touch(self._group).propose([data], self._server.clock())

    def read_index(self, done: Callable[[], object]) -> bool:
        context = next(self._contexts)
        is_taken = self._server.host.touch(self._group).read_index(context)
        if is_taken:
            self._reads[context] = done
        return is_taken

    def confirmed(self, context: int) -> None:
        """The group confirmed a read."""
        self._reads.pop(context)()


class StreamServer:
    """See the module. skew_ns: how far its clock is off. arrived: called with what clients receive here."""

    def __init__(
        self,
        number: int,
        streams: dict[str, ApiStreamConfig],
        membership: Membership,
        options: RaftOptions,
        random: Random,
        histories: dict[str, StreamHistory],
        send: Callable[[Frame], None],
        call_later: Callable[[int, Callable[[], None]], None],
        clock: Callable[[], int],
        arrived: Arrived,
        fetch: Callable[[str, bytes], bytes | None],
    ) -> None:
        self.number = number
        self.name = f"s{number}.0"
        self.disk = {name: StreamDisk(membership) for name in streams}
        self._streams = streams
        self._options = options
        self._random = random
        self._histories = histories
        self._send = send
        self._call_later = call_later
        self.clock = clock
        self._arrived = arrived
        self.skew_ns = 0
        self.boot = 0
        self.is_up = self.is_paused = False
        self._sync_ns_max = 2_000_000
        self._ids = itertools.count(1)
        self._fetch = fetch
        self.chunks: dict[str, dict[bytes, bytes]] = {name: {} for name in streams}
        self.restored = self.fetched = self.spared = self.written = self.kept = 0
        self.ports: dict[str, SimPort] = {}
        self.groups: dict[str, RaftReplica] = {}
        self._terms: dict[str, int] = {}  # in which it serves
        self.replicas: dict[str, ReplicatedStream] = {}
        self._unsynced: list[list[GroupReady]] = []
        self._is_syncing = False
        self._awake = False
        self.host = RaftHost(self.name, 0, options)
        self.index = SubscriptionIndex()

    # --- life

    def start(self, peers: list[str], now: int) -> None:
        """Starts with what is on disk."""
        self.boot += 1
        self.is_up = True
        self._unsynced, self._is_syncing, self._terms = [], False, {}
        self.host = RaftHost(self.name, self.boot, self._options)
        self.host.set_peers(peers, now)
        self.index = SubscriptionIndex()
        self.index.insert(SinkSubscription(ServiceSink(self._on_arrival), b"_IN.>"))
        self.engine = JetStreamEngine(
            self.index,
            MemoryAccountStore(),
            api=ApiService,
            config=EngineConfig(server_name=self.name, version="2.14.0", journal_min_bytes=300),
            clock=self.stream_clock,
            new_id=lambda: f"id{self.number}{next(self._ids):08d}",
            wake=self._wake,
        )
        self.engine.recover(self.stream_clock())
        for name, config in self._streams.items():
            self._open(name, config, now)

    def _open(self, name: str, config: ApiStreamConfig, now: int) -> None:
        disk = self.disk[name]
        log = RaftLog(disk.snapshot, [one for one in disk.entries if one.index > disk.snapshot.index])
        group = self.groups[name] = RaftReplica(
            self.name, log, disk.hard_state, self._options, self._random.random, now, boot=self.boot
        )
        self.host.add(name, group)
        self.ports[name] = SimPort(self, name)
        if disk.snapshot.index:
            self._restore(name, disk.snapshot)
        else:
            self.replicas[name] = self.engine.replicated.open(config, CREATED_NS, self.ports[name])

    def _restore(self, name: str, snapshot: RaftSnapshot) -> None:
        self.restored += 1
        self.replicas[name] = self.engine.replicated.restore(
            snapshot.data, self.chunks[name].__getitem__, snapshot.index, snapshot.term, self.ports[name]
        )

    def stop(self, *, loses_power: bool = False) -> None:
        """The process ends. What it wrote is on disk, or after a power failure the first part of it."""
        written = [one for batch in self._unsynced for one in batch]
        if loses_power:
            written = written[: self._random.randrange(len(written) + 1)]
        for group, ready in written:
            self.disk[group].write(ready)
        self._unsynced = []
        self.is_up = False

    def set_sync_time(self, duration_ns: int) -> None:
        """The longest time that a sync takes from now on."""
        self._sync_ns_max = duration_ns

    def pause(self) -> None:
        """It does nothing until resume()."""
        self.is_paused = True

    def resume(self) -> None:
        """It goes on."""
        self.is_paused = False

    def set_clock(self, skew_ns: int) -> None:
        """Its clock is off by so much from now on."""
        self.skew_ns = skew_ns

    def compact(self, name: str, keep: int, now: int) -> None:
        """Takes a checkpoint, and drops all but the last entries before it."""
        group, replica = self.host.touch(name), self.replicas[name]
        index, term = replica.applied_index, replica.applied_term
        if index <= group.log.snapshot.index or group.log.term_at(index) != term:
            return
        manifest, chunks = replica.take_state(CHUNK_SEQS)
        self._note_checkpoint(name, manifest, chunks)
        snapshot = RaftSnapshot(index, term, group.log.membership_at(index), manifest)
        keep_from = max(1, index + 1 - keep)
        self.disk[name].compact(snapshot, keep_from)
        group.compact(snapshot, keep_from)
        self.pump(now)

    def _note_checkpoint(self, name: str, manifest: bytes, chunks: dict[bytes, bytes]) -> None:
        present = self.chunks[name]
        self.written += sum(one not in present for one in chunks)
        self.kept += sum(one in present for one in chunks)
        self.chunks[name] = chunks
        assert not missing_chunks(decode_state(manifest), chunks.__contains__)

    def stream_clock(self) -> int:
        """The server's own clock, ns since the epoch."""
        return CREATED_NS + self.clock() + self.skew_ns

    def leads(self, stream: str) -> bool:
        """Whether it takes requests about a stream."""
        return self.is_up and self.replicas[stream].is_serving

    # --- input

    def publish(self, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        """A client here publishes a message, or sends a request."""
        publish(self.index, subject.encode(), reply.encode(), header, payload)

    def receive(self, frame: Frame, now: int) -> None:
        self.host.receive(frame, now)
        self.pump(now)

    def tick(self, now: int) -> None:
        self.host.tick(now)
        self.pump(now)

    def _on_arrival(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._arrived(self, subject.decode(), reply, header, payload)

    def _wake(self) -> None:
        self._awake = True

    # --- what it does

    def pump(self, now: int) -> None:
        """Does what the engine and the groups have to do until nothing is left."""
        self._run_engine()
        while work := self._ready(now):
            self._unsynced.append(work)
            for name, ready in work:
                self._take(name, ready)
            self._run_engine()
        self._begin_sync()
        for frame in self.host.take_frames(now):
            self._send(frame)

    def _ready(self, now: int) -> list[GroupReady]:
        work = self.host.ready(now)
        for name, group in self.groups.items():
            replica = self.replicas[name]
            if group.role is not Role.LEADER or group.term != self._terms.get(name):
                replica.role_changed(leads=False, term=group.term)
        return work

    def _run_engine(self) -> None:
        tick = self.engine.tick
        for _ in range(TICKS_MAX):
            due = tick.next_deadline()
            now = self.stream_clock()
            if due is not None and due <= now:
                tick.on_time(now)
                self._awake = True
            if not self._awake:
                return
            self._awake = False
            tick.apply(now)
            tick.write()
            tick.acknowledge()
            tick.deliver(now)
        raise AssertionError(f"{self.name} does not come to rest")

    def _take(self, name: str, ready: Ready) -> None:
        replica, history = self.replicas[name], self._histories[name]
        for entry in ready.committed:
            if entry.kind is EntryKind.COMMANDS:
                replica.committed(entry.index, entry.term, entry.data)
                history.applied(self.name, replica)
            group = self.groups[name]
            if entry.kind is EntryKind.NOOP and entry.term == group.term and group.role is Role.LEADER:
                self._terms[name] = entry.term
                replica.role_changed(leads=True, term=entry.term)
        for read in ready.reads:
            self.ports[name].confirmed(read.context)

    def _begin_sync(self) -> None:
        if self._unsynced and not self._is_syncing:
            self._is_syncing = True
            covered, boot = len(self._unsynced), self.boot
            needs_disk = any(ready.needs_sync for batch in self._unsynced for _, ready in batch)
            delay = self._random.randrange(self._sync_ns_max) if needs_disk else 0
            self._call_later(delay, lambda: self._synced(covered, boot))

    def _synced(self, count: int, boot: int) -> None:
        if not self.is_up or self.boot != boot:
            return
        if self.is_paused:
            self._call_later(PAUSED_NS, lambda: self._synced(count, boot))
            return
        self._is_syncing = False
        now = self.clock()
        done, self._unsynced = self._unsynced[:count], self._unsynced[count:]
        for batch in done:
            for group, ready in batch:
                self.disk[group].write(ready)
            self.host.synced(batch, now)
            for group, ready in batch:
                if ready.snapshot is not None:
                    self._install(group, ready.snapshot, now)
        self.pump(now)

    def _install(self, name: str, snapshot: RaftSnapshot, now: int) -> None:
        """Fetches the chunks that are missing here from a server whose checkpoint has them."""
        group = self.host.touch(name)
        state = decode_state(snapshot.data)
        own = dict(self.replicas[name].take_state(CHUNK_SEQS)[1])
        missing = missing_chunks(state, own.__contains__)
        if missing and self._random.random() < 0.1:
            group.snapshot_failed(snapshot)
            return
        for one in missing:
            chunk = self._fetch(name, one)
            if chunk is None:
                group.snapshot_failed(snapshot)
                return
            own[one] = chunk
        self.fetched += len(missing)
        self.spared += len(state.chunks) - len(missing)
        agrees = group.log.term_at(snapshot.index) == snapshot.term
        self.chunks[name] = {one: own[one] for one in state.chunks if one}
        self.disk[name].install(snapshot, keeps_entries=agrees)
        self._restore(name, snapshot)
        self._histories[name].applied(self.name, self.replicas[name])
        group.snapshot_installed(snapshot, now)

    def state(self) -> str:
        """The roles of its replicas, for a failure's message."""
        roles = [
            f"{name}: {one.role.value} {one.term}, {one.log.commit_index}/{one.log.last_index} committed"
            for name, one in self.groups.items()
        ]
        return f"{self.name} {'is up' if self.is_up else 'is down'}: {'; '.join(roles)}"
