"""Engines that have replicas of streams, with groups that commit when the test says so.

An entry is committed on every engine at once, unless it is held back from one (`behind`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.api import ApiStreamConfig
from penstock.testing.stream_sim.stream_server import CREATED_NS
from tests.support.engine import EngineHarness


class EngineGroup:
    """The group of one stream. leader: the number of an engine. entries: proposed, (term, bytes)."""

    def __init__(self) -> None:
        self.leader = 0
        self.term = 1
        self.entries: list[tuple[int, bytes]] = []
        self.committed = 0
        self.takes = True
        self.reads: list[Callable[[], object]] = []
        self.dropped: list[str] = []


class EnginePort:
    """The group as one engine's replica has it."""

    def __init__(self, group: EngineGroup, number: int) -> None:
        self._group = group
        self._number = number

    def propose(self, data: bytes) -> int:
        group = self._group
        if self._number != group.leader or not group.takes:
            return 0
        group.entries.append((group.term, data))
        return len(group.entries)

    def read_index(self, done: Callable[[], object]) -> bool:
        if self._number == self._group.leader:
            self._group.reads.append(done)
        return self._number == self._group.leader

    def consumer_dropped(self, name: str) -> None:
        self._group.dropped.append(name)


class ReplicatedEngines:
    """engines: with a replica of each stream that is opened."""

    def __init__(self, count: int = 2, **settings: Any) -> None:
        self.engines = [EngineHarness(**settings) for _ in range(count)]
        self.groups: dict[str, EngineGroup] = {}
        self.replicas: dict[str, list[ReplicatedStream]] = {}

    def open(self, name: str, *subjects: str, **fields: Any) -> None:
        """Opens a stream on all engines; engine 0 leads it."""
        unlimited = dict.fromkeys(
            ("max_consumers", "max_msgs", "max_bytes", "max_msg_size", "max_msgs_per_subject"), -1
        )
        settings = {"num_replicas": len(self.engines), **unlimited, **fields}
        config = ApiStreamConfig(name=name, subjects=list(subjects), **settings)
        group = self.groups[name] = EngineGroup()
        self.replicas[name] = [
            js.engine.replicated.open(config, CREATED_NS, EnginePort(group, number))
            for number, js in enumerate(self.engines)
        ]
        self.replicas[name][0].role_changed(leads=True, term=group.term)
        self.settle()

    def publish(
        self, subject: bytes, payload: bytes = b"", reply: bytes = b"", header: bytes = b"", at: int = 0
    ) -> None:
        """A client of engine `at` publishes."""
        publish(self.engines[at].index, subject, reply, header, payload)

    def commit(self, name: str, most: int = 1_000_000) -> None:
        """Commits up to so many entries everywhere."""
        group = self.groups[name]
        while group.committed < len(group.entries) and most:
            term, entry = group.entries[group.committed]
            group.committed += 1
            most -= 1
            for replica in self.replicas[name]:
                if replica.committed(group.committed, term, entry):
                    deque(replica.finish(), maxlen=0)
        if group.committed == len(group.entries):
            reads, group.reads = group.reads, []
            for done in reads:
                done()

    def lead(self, name: str, number: int, *, keeps: int | None = None) -> None:
        """Another engine leads. keeps: so many of the entries in flight are committed first, else none."""
        group = self.groups[name]
        del group.entries[group.committed + (keeps or 0) :]
        self.replicas[name][group.leader].role_changed(leads=False, term=group.term)
        group.leader, group.term = number, group.term + 1
        group.reads.clear()
        self.commit(name)
        self.replicas[name][number].role_changed(leads=True, term=group.term)

    def tick(self) -> None:
        """The end of a tick on each engine."""
        for js in self.engines:
            js.tick()

    def settle(self) -> None:
        """Ticks and commits until nothing happens any more."""
        for _ in range(1000):
            wakes = sum(js.wakes for js in self.engines)
            self.tick()
            for name in self.groups:
                self.commit(name)
            if wakes == sum(js.wakes for js in self.engines):
                return
        raise AssertionError("the engines do not come to rest")

    def leader(self, name: str) -> EngineHarness:
        """The engine that leads a stream."""
        return self.engines[self.groups[name].leader]
