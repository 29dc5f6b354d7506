"""Streams of a cluster for the Spark tests, which publish by raw frames and kill leaders."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from urllib.parse import urlsplit

from penstock.errors import ServerError
from penstock.testing import SyncProcessCluster
from tests.support.spark import Feed

FAILOVER_S = 30.0
_names = (f"R{n}" for n in itertools.count())


class ReplicatedFeeds:
    """Streams of a ready cluster, with a replica on each server, and the ends of their leaders."""

    def __init__(self, made: SyncProcessCluster) -> None:
        self.made = made

    def feed(self) -> Feed:
        """Of a server that runs."""
        running = next(one for one in self.made.servers if one.is_running)
        return Feed(urlsplit(running.url).port or 0)

    def create(self, count: int = 0, name: str = "") -> str:
        """Creates a stream with subjects NAME.>, and so many messages. Returns its name."""
        name = name or next(_names)
        with closing(self.feed()) as feed:
            feed.create(
                name, [f"{name}.>"], storage="file", num_replicas=3, allow_direct=True, allow_atomic=True,
                allow_batched=True,
            )  # fmt: skip
        self.publish(name, range(1, count + 1))
        return name

    def publish(self, stream: str, numbers: Iterable[int]) -> None:
        """Publishes numbers, all of which are acknowledged."""
        with closing(self.feed()) as feed:
            feed.publish((f"{stream}.{i % 5}", b"%d" % i) for i in numbers)

    @property
    def urls(self) -> str:
        return ",".join(self.made.urls)

    def step_down(self, stream: str) -> None:
        self.leader(stream)
        with closing(self.feed()) as feed, suppress(TimeoutError):  # the leader may have been one before
            feed.api(f"STREAM.LEADER.STEPDOWN.{stream}")

    def kill_leader(self, stream: str) -> None:
        self.made.kill(self.leader(stream))

    def leader(self, stream: str) -> int:
        deadline = time.monotonic() + FAILOVER_S
        while True:
            try:
                return self.made.leader_of(stream)
            except ServerError:
                assert time.monotonic() < deadline, f"no leader of {stream}"
                time.sleep(0.05)

    def repair(self) -> None:
        for index, one in enumerate(self.made.servers):
            if not one.is_running:
                self.made.start_server(index)
        self.made.wait_ready()
