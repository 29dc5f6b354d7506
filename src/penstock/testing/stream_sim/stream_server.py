"""One server of the simulation: an engine, with the stream groups, node and log of a real server, on a
simulated disk."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from penstock.errors import StoreError
from penstock.jetstream.api import ApiService
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta.assignments import GroupAssignment, StreamAssignment
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.api import ApiStreamConfig
from penstock.raft.raft_host import Frame
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica
from penstock.replication.group_storage import DiskWrite, SaveCheckpoint, SaveInstalled
from penstock.replication.replication_node import Mail, ReplicationOptions
from penstock.server.replicated.request_tickets import PassedRequest
from penstock.server.replicated.stream_group_owner import StreamGroup
from penstock.server.replicated.stream_groups import StreamGroupPorts, StreamGroups
from penstock.store.executor import Done, T, Work
from penstock.store.file import FileStore
from penstock.store.interface import AccountStore
from penstock.store.memory import MemoryAccountStore
from penstock.testing.raft_sim.node_server import NodeServer
from penstock.testing.raft_sim.raft_history import BrokenPromise
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.testing.stream_sim.stream_history import StreamHistory

CREATED_NS = 1_700_000_000_000_000_000
ACCOUNT = "$G"
STATES = Path("/states")
TICKS_MAX = 1000
CHUNK_SEQS = 8
BLOCK_BYTES = 400

Arrived = Callable[["StreamServer", str, bytes, bytes, bytes], None]


class LaterExecutor:
    """Implements store.executor.DiskExecutor in virtual time: a killed process has done some of the work."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self._works: list[Work[Any]] = []

    def run(self, work: Work[T], done: Done[T], owner: object = None) -> None:
        self._works.append(work)

        def job() -> None:
            self._works.remove(work)
            try:
                result = work()
            except (StoreError, OSError) as error:
                done(None, error)
            else:
                done(result, None)

        self._later(job)

    def complete_one(self, owner: object) -> bool:
        """Returns False: this work is never waited for."""
        return False

    def take(self) -> list[Work[Any]]:
        """Removes what was not done."""
        works, self._works = self._works, []
        return works


class StreamServer(NodeServer):
    """See the module. skew_ns: how far its clock is off. arrived: called with what clients receive here.
    rollup_messages: see EngineConfig."""

    def __init__(
        self,
        number: int,
        streams: dict[str, ApiStreamConfig],
        members: tuple[str, ...],
        options: RaftOptions,
        random: Random,
        histories: dict[str, StreamHistory],
        send: Callable[[Frame], None],
        send_mail: Callable[[str, Mail], None],
        call_later: Callable[[int, Callable[[], None]], None],
        clock: Callable[[], int],
        arrived: Arrived,
        rollup_messages: int,
    ) -> None:
        of_node = replace(
            ReplicationOptions(),
            raft=options,
            checkpoint_bytes=random.choice((3000, 20_000, 1 << 20)),
            keep_bytes=random.choice((0, 0, 1000)),
            segments_max=3,
            unsaved_bytes_max=random.choice((4000, 40_000, 256 << 20)),
            segments_full=random.choice((4, 16)),
        )
        segment_bytes = random.choice((20_000, 200_000))
        super().__init__(number, 0, of_node, segment_bytes, random, send, send_mail, call_later, clock)
        self._assignments = [
            StreamAssignment(
                ACCOUNT, name, config, CREATED_NS, 1 + at,
                GroupAssignment(f"S-R3F-{name}", "c", members, members[at % len(members)], members),
            )
            for at, (name, config) in enumerate(streams.items())
        ]  # fmt: skip
        self._histories = histories
        self._arrived = arrived
        self._rollup_messages = rollup_messages
        self.skew_ns = 0
        self._ids = itertools.count(1)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._awake = False
        self._executor = LaterExecutor(self._soon)
        self.index = SubscriptionIndex()
        self.engine: JetStreamEngine
        self.streams: StreamGroups

    # --- life

    def _open_groups(self) -> None:
        self.index = SubscriptionIndex()
        self.index.insert(SinkSubscription(ServiceSink(self._on_arrival), b"_IN.>"))
        self.engine = JetStreamEngine(
            self.index,
            self._account_store(),
            api=ApiService,
            config=EngineConfig(
                server_name=self.name,
                version="2.14.0",
                journal_min_bytes=300,
                rollup_messages=self._rollup_messages,
            ),
            clock=self.stream_clock,
            new_id=lambda: f"id{self.number}{next(self._ids):08d}",
            wake=self._wake,
        )
        self.engine.recover(self.stream_clock())
        self._executor = LaterExecutor(self._soon)
        self.streams = StreamGroups(
            StreamGroupPorts(
                self.node, lambda account: self.engine, lambda: "sim", STATES, self._disk, self._executor,
                self._later, chunk_seqs=CHUNK_SEQS, applied=self._applied,
            ),
            self,
        )  # fmt: skip
        for assignment in self._assignments:
            self.counts["starts"] += bool(self.node.unopened_groups)
            self.streams.open(assignment, lambda peer: peer)

    def _account_store(self) -> AccountStore:
        """An empty one: no start needs what the last one wrote. One of three servers has its blocks in
        memory, one writes its oldest ones, and one writes each as soon as it closes."""
        if self.number % 3 == 0:
            return MemoryAccountStore()
        memory = (self.number % 3 - 1) * 5 * BLOCK_BYTES
        disk = SimDisk(Random(0))
        store = FileStore("/streams", block_size=BLOCK_BYTES, disk=disk, block_memory=memory)
        return store.account(ACCOUNT)

    def _soon(self, work: Callable[[], None]) -> None:
        self._later(self._random.randrange(self._sync_ns_max), work)

    def stop(self, *, loses_power: bool = False) -> None:
        """The process ends, perhaps while it writes states."""
        for work in self._executor.take()[:1]:
            if self._random.random() < 0.7:
                self._disk.kill_at = self._disk.ops + self._random.randrange(1, 6)
                with suppress(Killed, StoreError, OSError):
                    work()
                self._disk.kill_at = None
                self._disk.dead = False
        super().stop(loses_power=loses_power)

    def set_clock(self, skew_ns: int) -> None:
        """Its clock is off by so much from now on."""
        self.skew_ns = skew_ns

    def compact(self, name: str, now: int) -> None:
        """Asks for a checkpoint."""
        self.stream(name).port.checkpoint()
        self.pump(now)

    def transfer(self, name: str, to: str, now: int) -> bool:
        """Hands a stream over. Returns whether that began."""
        is_begun = self.stream(name).port.step_down(to)
        self.pump(now)
        return is_begun

    # --- state

    def stream(self, name: str) -> StreamGroup:
        """The group of a stream."""
        found = self.streams.find(ACCOUNT, name)
        assert found is not None
        return found

    @property
    def groups(self) -> dict[str, RaftReplica]:
        """The consensus of each stream."""
        found = self.node.groups
        return {name: found[group.name].replica for (_, name), group in self.streams.groups.items()}

    @property
    def replicas(self) -> dict[str, ReplicatedStream]:
        """The replicas of its streams, without those whose state is being loaded."""
        return {
            name: group.replica
            for (_, name), group in self.streams.groups.items()
            if group.replica is not None
        }

    def stream_clock(self) -> int:
        """The server's own clock, ns since the epoch."""
        return CREATED_NS + self.clock() + self.skew_ns

    def leads(self, stream: str) -> bool:
        """Whether it takes requests about a stream."""
        return self.is_up and self.stream(stream).is_serving

    # --- what groups report (GroupWatcher)

    def on_role(self, group: StreamGroup) -> None:
        """See GroupWatcher."""

    def on_membership(self, group: StreamGroup) -> None:
        """See GroupWatcher."""

    def on_deferred(self, group: StreamGroup, request: PassedRequest) -> None:
        """No requests of clients wait in a simulation."""

    def on_consumer_dropped(self, group: StreamGroup, name: str) -> None:
        """No meta group has to forget it."""

    def on_failed(self, group: StreamGroup, text: str) -> None:
        """No group may fail."""
        self.failures.append(f"{self.name}: {text}")

    def _applied(self, replica: ReplicatedStream) -> None:
        try:
            self._histories[replica.stream.name].applied(self.name, replica)
        except BrokenPromise as broken:
            self.failures.append(str(broken))

    # --- input

    def publish(self, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        """A client here publishes a message, or sends a request."""
        publish(self.index, subject.encode(), reply.encode(), header, payload)

    def receive_mail(self, sender: str, mail: Mail, now: int) -> None:
        """Mail of another server."""
        self.counts["mails"] += 1
        self.node.receive_mail(sender, mail.group, mail.payload)
        self.pump(now)

    def tick(self, now: int) -> None:
        self.streams.tick()
        super().tick(now)

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
        super().pump(now)
        while self._awake:
            self._run_engine()
            super().pump(now)
        if self.failures:
            raise BrokenPromise("replicas follow", "; ".join(self.failures))

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

    def _begin_write(self, write: DiskWrite) -> None:
        self.counts["checkpoints"] += sum(isinstance(one, SaveCheckpoint) for one in write.writes)
        self.counts["installed"] += sum(isinstance(one, SaveInstalled) for one in write.writes)
        super()._begin_write(write)
