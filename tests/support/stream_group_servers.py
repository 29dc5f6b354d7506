"""Servers with stream groups in a test: real engines, nodes and logs on simulated disks, and a network that
delivers at once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.jetstream.meta.assignments import GroupAssignment, StreamAssignment
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.protocol.api import ApiStreamConfig, StorageType
from penstock.replication.replica_group import ReplicaGroup
from penstock.server.replicated.request_tickets import PassedRequest
from penstock.server.replicated.stream_group_owner import StreamGroup
from penstock.server.replicated.stream_groups import StreamGroupPorts, StreamGroups
from penstock.store.executor import InlineExecutor
from penstock.store.interface import AccountStore
from tests.support.engine import START_NS, EngineHarness, Message
from tests.support.replication_nodes import NodesUnderTest, NodeUnderTest

ACCOUNT = "$G"
TICK_NS = 50_000_000
CHUNK_SEQS = 4


def assigned(
    name: str = "S", servers: str = "abc", *, incarnation: int = 7, founders: str | None = None, **config: Any
) -> StreamAssignment:
    """A stream on these servers. founders: of its group, by default all."""
    stream = ApiStreamConfig(
        name=name, subjects=[f"{name}.>"], num_replicas=len(servers), storage=StorageType.FILE,
        max_consumers=-1, max_msgs=-1, max_bytes=-1, max_msg_size=-1, max_msgs_per_subject=-1,
        duplicate_window=120_000_000_000, allow_atomic=True, allow_direct=True, **config,
    )  # fmt: skip
    begin = servers if founders is None else founders
    group = GroupAssignment(
        f"S-R{len(servers)}F-x", "c", tuple(servers), servers[0], tuple(f"{one}.d" for one in begin)
    )
    return StreamAssignment(ACCOUNT, name, stream, START_NS, incarnation, group)


class StreamServerUnderTest(NodeUnderTest):
    """A server: its disk survives stop() and start(). It is the watcher of its groups, too. store: with which
    it starts, None for an empty one. settings: of its engine. is_paused: its long work makes a pause."""

    store: AccountStore | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    is_paused = False

    def start(self, *, segment_bytes: int = 1 << 20) -> None:
        super().start(segment_bytes=segment_bytes)
        self.engine = EngineHarness(
            self.store, now=START_NS + self.nodes.now, is_clustered=True, **self.settings
        )
        self.calls: list[tuple[int, Callable[[], None]]] = []
        self.events: list[tuple[str, str, Any]] = []
        self.groups = StreamGroups(
            StreamGroupPorts(
                self.node, lambda account: self.engine.engine, lambda: "c", Path("/states"), self.disk,
                InlineExecutor(), self._call_later, chunk_seqs=CHUNK_SEQS,
            ),
            self,
        )  # fmt: skip

    def open(self, group: str, membership: Any = None, owner: Any = None) -> None:
        """Nothing is opened before its assignment is known."""

    def on_role(self, group: StreamGroup) -> None:
        self.events.append((group.assignment.name, "role", group.is_serving))

    def on_membership(self, group: StreamGroup) -> None:
        self.events.append((group.assignment.name, "members", group.port.membership.members))

    def on_failed(self, group: StreamGroup, text: str) -> None:
        self.events.append((group.assignment.name, "failed", text))

    def assign(self, assignment: StreamAssignment) -> StreamGroup:
        return self.groups.open(assignment, lambda peer: f"{peer}.d")

    def stream(self, name: str = "S") -> StreamGroup:
        found = self.groups.find(ACCOUNT, name)
        assert found is not None
        return found

    def replica(self, name: str = "S") -> ReplicatedStream:
        replica = self.stream(name).replica
        assert replica is not None
        return replica

    def group(self, name: str = "S") -> ReplicaGroup:
        return self.node.groups[self.stream(name).name]

    def on_deferred(self, group: StreamGroup, request: PassedRequest) -> None:
        self.events.append((group.assignment.name, "request", request.subject))

    def on_consumer_dropped(self, group: StreamGroup, name: str) -> None:
        self.events.append((group.assignment.name, "dropped", name))

    def _call_later(self, delay_ns: int, call: Callable[[], None]) -> None:
        # Pauses of work are no time here.
        self.calls.append((self.nodes.now + delay_ns if delay_ns >= TICK_NS else 0, call))

    def pump(self) -> bool:
        wakes, now = self.engine.wakes, self.nodes.now
        due = [] if self.is_paused else [call for at, call in self.calls if at <= now]
        if due:
            self.calls = [(at, call) for at, call in self.calls if at > now]
        for call in due:
            call()
        self.engine.tick()
        is_busy = super().pump() or self.engine.wakes > wakes
        return is_busy or (not self.is_paused and any(at <= now for at, _ in self.calls))


class StreamServers(NodesUnderTest):
    """See the module."""

    def __init__(self, servers: str = "abc", **options: object) -> None:
        super().__init__(servers, **options)
        self.streams: dict[str, StreamServerUnderTest] = {
            name: StreamServerUnderTest(name, self) for name in servers
        }
        self.servers = dict(self.streams)
        self._inboxes = itertools.count(1)

    def __getitem__(self, name: str) -> StreamServerUnderTest:
        return self.streams[name]

    def begin(self, *assignments: StreamAssignment) -> None:
        """Starts all servers, with these streams, and waits for their leaders."""
        for one in self.streams.values():
            one.start()
            for assignment in assignments:
                if one.server in assignment.group.peers:
                    one.assign(assignment)
        self.link()
        self.pass_time(200)

    def pass_time(self, milliseconds: int) -> None:
        """Lets time pass, in ticks."""
        end = self.now + milliseconds * 1_000_000
        self.settle()
        while self.now < end:
            self.now += TICK_NS
            for one in self.streams.values():
                if one.is_up:
                    one.engine.wait_until(START_NS + self.now)
                    one.node.tick()
                    one.groups.tick()
            self.settle()

    def leader(self, name: str = "S") -> StreamServerUnderTest:
        """The server that serves a stream."""
        [found] = [
            one
            for one in self.streams.values()
            if one.is_up and (group := one.groups.find(ACCOUNT, name)) is not None and group.is_serving
        ]
        return found

    def request(
        self, server: StreamServerUnderTest, subject: str, body: Any = b"", header: bytes = b""
    ) -> Any:
        """The one JSON answer to a request or publish at a server."""
        [(_, _, payload)] = self.answers(server, subject, body, header)
        return json.loads(payload)

    def answers(
        self, server: StreamServerUnderTest, subject: str, body: Any = b"", header: bytes = b""
    ) -> list[Message]:
        """What a request or publish at a server is answered with."""
        inbox = b"_ANSWER.%d" % next(self._inboxes)
        heard = server.engine.listen(inbox)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        server.engine.send(subject, inbox, header, payload)
        self.settle()
        return heard
