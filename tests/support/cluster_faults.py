"""A campaign of faults against a cluster of processes, and what its clients saw.

    python -m tests.support.cluster_faults --servers 3 --seconds 120 --seed 7
    python -m tests.support.cluster_faults --kind official --seconds 120
    python -m tests.support.cluster_faults --namespaces --seconds 120

Faults are kills, restarts, pauses, partitions of both kinds, kills behind a partition, wiped disks of a
minority, and step-downs; with `--namespaces`, where a partition drops packets instead of holding bytes up,
lost packets as well. At any time they concern a minority of the servers. At the end all are repaired, and the
history of the clients is compared with every replica. The seed decides which faults follow each other, not
how the servers take them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from nats.errors import Error as NatsError

from penstock.errors import ServerError
from penstock.testing import SyncProcessCluster
from penstock.testing.sim.runner import fresh_seed
from tests.support.cluster_load import ClusterLoad, longest_gap_s, replicas_of, state_of_consumer
from tests.support.histories import (
    Action,
    Outcome,
    Stored,
    consumer_violations,
    is_linearizable,
    not_linearizable,
    violations,
)
from tests.support.nats_servers import until
from tests.support.network_namespaces import NamespaceNetwork, namespaces
from tests.support.replicated_clusters import ClusterTalk, replicated_cluster

STREAM = "FAULTS"
DRAIN_S = 90.0
DRAINERS = 8
SHOWN = 5


@dataclass
class Campaign:
    """What happened. gaps: seconds without acks after the kill of the stream's leader."""

    faults: Counter[str] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)


class FaultDriver:
    """Breaks a minority of the servers for a while, and repairs it, again and again."""

    def __init__(
        self,
        talk: ClusterTalk,
        load: ClusterLoad,
        rng: random.Random,
        campaign: Campaign,
        network: NamespaceNetwork | None,
    ) -> None:
        self._talk, self._load, self._rng, self._campaign = talk, load, rng, campaign
        self._made = talk.made
        self._network = network

    async def run(self, until_s: float) -> None:
        """Breaks until this time of the monotonic clock; everything is repaired when it returns."""
        faults: list[tuple[int, str, Callable[[int], Awaitable[None]]]] = [
            (4, "kill", self._kill), (2, "restart", self._restart), (2, "pause", self._pause),
            (2, "partition", self._partition), (2, "partition one way", self._partition_one_way),
            (1, "wipe", self._wipe), (2, "step-down", self._step_down), (1, "meta step-down", self._meta),
            (1, "kill behind a partition", self._kill_unseen),
        ]  # fmt: skip
        if self._network is not None:
            faults.append((3, "lost packets", self._lose))
        while time.monotonic() < until_s:
            _, name, fault = self._rng.choices(faults, [one[0] for one in faults])[0]
            # Leaders suffer most.
            victim = await self._leader() if self._rng.random() < 0.6 else None
            if victim is None:
                victim = self._rng.randrange(len(self._made.servers))
            self._campaign.faults[name] += 1
            print(f"{time.strftime('%H:%M:%S')} {name} of server {victim + 1}", flush=True)
            await fault(victim)
            await asyncio.sleep(self._rng.uniform(0.5, 3))

    async def _leader(self) -> int | None:
        with suppress(ServerError):
            return await asyncio.to_thread(self._made.leader_of, STREAM)
        return None

    async def _kill(self, victim: int) -> None:
        was_leader = await self._leader() == victim
        at = time.monotonic()
        await self._talk.do(self._made.kill, victim)
        goal = self._load.acked + 20
        with suppress(TimeoutError):
            await until(lambda: self._load.acked >= goal, 30)
        if was_leader:
            self._campaign.gaps.append(longest_gap_s(self._load.acks, at))
        await asyncio.sleep(self._rng.uniform(0, 3))
        await self._start(victim)

    async def _start(self, victim: int) -> None:
        await self._talk.do(self._made.start_server, victim)
        await self._repaired()

    async def _repaired(self) -> None:
        """A majority must hold all that is acknowledged before the next server may suffer."""
        with suppress(AssertionError):
            await self._talk.whole(STREAM, DRAIN_S)
            return
        self._campaign.violations.append(f"replicas not current {DRAIN_S:g} s after a repair")

    async def _restart(self, victim: int) -> None:
        await self._talk.do(self._made.restart, victim)
        await self._repaired()

    async def _pause(self, victim: int) -> None:
        self._made.pause(victim)
        await asyncio.sleep(self._rng.uniform(0.5, 8))
        self._made.resume(victim)
        await self._repaired()

    async def _partition(self, victim: int, *, one_way: bool = False) -> None:
        others = [one for one in range(len(self._made.servers)) if one != victim]
        groups = [[victim], others]
        self._rng.shuffle(groups)
        self._made.partition(groups, one_way=one_way)
        await asyncio.sleep(self._rng.uniform(1, 12))
        self._made.heal()
        await self._repaired()

    async def _partition_one_way(self, victim: int) -> None:
        await self._partition(victim, one_way=True)

    async def _kill_unseen(self, victim: int) -> None:
        """The others hear nothing of its end: their connections to it stay open."""
        others = [one for one in range(len(self._made.servers)) if one != victim]
        self._made.partition([[victim], others])
        await self._talk.do(self._made.kill, victim)
        await asyncio.sleep(self._rng.uniform(1, 8))
        self._made.heal()
        await self._start(victim)

    async def _lose(self, victim: int) -> None:
        assert self._network is not None
        await self._talk.do(self._network.lose, victim, self._rng.choice([1, 5, 20, 40]))
        await asyncio.sleep(self._rng.uniform(2, 12))
        await self._talk.do(self._network.lose, victim, 0)
        await self._repaired()

    async def _wipe(self, victim: int) -> None:
        await self._talk.do(self._made.wipe, victim)
        await self._start(victim)

    async def _step_down(self, victim: int) -> None:
        with suppress(NatsError):
            await self._talk.ask(f"STREAM.LEADER.STEPDOWN.{STREAM}", timeout_s=3)

    async def _meta(self, victim: int) -> None:
        with suppress(NatsError):
            await self._talk.ask("META.LEADER.STEPDOWN", timeout_s=3)


async def run_campaign(
    made: SyncProcessCluster, seconds: float, rng: random.Random, network: NamespaceNetwork | None = None
) -> tuple[Campaign, ClusterLoad]:
    """A campaign on a ready cluster. network: its hosts, if they are not this one."""
    campaign = Campaign()
    talk = ClusterTalk(made)
    try:
        await talk.create(STREAM, len(made.servers))
        config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 5_000_000_000}
        created = await talk.ask(
            f"CONSUMER.DURABLE.CREATE.{STREAM}.d", {"stream_name": STREAM, "config": config}
        )
        assert "error" not in created, created
        load = ClusterLoad(talk, STREAM)
        async with load.working(publish=3, cas=3, read=1, consume=1):
            await FaultDriver(talk, load, rng, campaign, network).run(time.monotonic() + seconds)
        await judge(talk, load, campaign)
    finally:
        await talk.close()
    return campaign, load


async def judge(talk: ClusterTalk, load: ClusterLoad, campaign: Campaign) -> None:
    """Compares the history with all replicas, and what the consumer delivered."""
    found = campaign.violations
    found += await drain(talk, load)
    replicas = await replicas_of(talk, STREAM)
    (first, stored), *others = replicas.items()
    for name, other in others:
        different = sorted(set(stored) ^ set(other))
        if different:
            found.append(f"replicas {first} and {name} differ: {len(different)}, first {different[0]}")
    found += violations(load.operations, stored)
    wrong, campaign.undecided = not_linearizable(load.operations, stored)
    found += [f"not linearizable: {explain(load, subject, stored)}" for subject in wrong]
    found += consumer_violations(load.deliveries, load.confirmed, [one.seq for one in stored])


async def drain(talk: ClusterTalk, load: ClusterLoad) -> list[str]:
    """Fetches what the consumer has left, as long as there is some and it comes. Returns what is wrong."""
    clients = [await talk.client() for _ in range(DRAINERS)]
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        if any(await asyncio.gather(*(load.fetch(client, 500, 1.0) for client in clients))):
            deadline = time.monotonic() + DRAIN_S
            continue
        progress = await state_of_consumer(talk, STREAM, "d")
        if not progress["num_pending"] and not progress["num_ack_pending"]:
            return []
    return [f"nothing came for {DRAIN_S:g} s of a consumer: {await state_of_consumer(talk, STREAM, 'd')}"]


def explain(load: ClusterLoad, subject: str, stored: list[Stored]) -> str:
    """The shortest part of a subject's history that has no explanation: its last request is the wrong one."""
    history = sorted((one for one in load.operations if one.subject == subject), key=lambda one: one.returned)
    messages = [one for one in stored if one.subject == subject]
    low, high = 0, len(history)
    while low + 1 < high:
        middle = (low + high) // 2
        end = history[middle - 1].returned
        later = [
            replace(one, returned=inf, outcome=Outcome.UNKNOWN)
            for one in history[middle:]
            if one.invoked < end and one.action is not Action.READ
        ]
        if is_linearizable(history[:middle] + later, stored=messages) is False:
            high = middle
        else:
            low = middle
    return f"{subject}: {history[high - 1]}"


def table(kind: str, campaign: Campaign, load: ClusterLoad, seconds: float) -> str:
    """The result, for people."""
    counts = load.counts()
    gaps = campaign.gaps
    rows = {
        "servers": kind,
        "seconds": f"{seconds:.0f}",
        "acked": counts[Outcome.DONE],
        "refused (compare and set)": counts[Outcome.REFUSED],
        "failed": counts[Outcome.FAILED],
        "unknown": counts[Outcome.UNKNOWN],
        "deliveries": f"{len(load.deliveries)}, {len(load.confirmed)} confirmed",
        "faults": ", ".join(f"{number} {name}" for name, number in campaign.faults.most_common()),
        "kills of the leader": len(gaps),
        "longest time without acks after one": f"{max(gaps):.1f} s" if gaps else "-",
        "median": f"{statistics.median(gaps):.1f} s" if gaps else "-",
        "errors": ", ".join(f"{number} x {name}" for name, number in load.errors.most_common(8)),
        "not decided": len(campaign.undecided),
        "violations": len(campaign.violations),
    }
    lines = [f"{name:36} {value}" for name, value in rows.items()]
    kinds = Counter(one.split(":")[0] for one in campaign.violations)
    lines += [f"  {number} x {name}" for name, number in kinds.most_common()]
    lines += [f"  {one}" for one in campaign.violations[:SHOWN]]
    return "\n".join(lines)


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Runs a campaign as the command line says. Returns the exit status: 1 for violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.cluster_faults", description=__doc__)
    parser.add_argument("--kind", choices=("penstock", "official"), default="penstock")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--namespaces", action="store_true", help="a host for each server (needs root)")
    parser.add_argument("--dir", type=Path, help="of logs and stores, which stay (default: a temporary one)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)  # the servers end with this process
    seed = fresh_seed() if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="cluster-faults-"))
    with ExitStack() as stack:
        network = stack.enter_context(namespaces(arguments.servers)) if arguments.namespaces else None
        made = stack.enter_context(
            replicated_cluster(arguments.kind, directory, servers=arguments.servers, network=network)
        )
        work = run_campaign(made, arguments.seconds, random.Random(seed), network)
        campaign, load = asyncio.run(work)
    print(table(arguments.kind, campaign, load, arguments.seconds))
    print(f"logs and stores: {directory}")
    return 1 if campaign.violations else 0


if __name__ == "__main__":
    sys.exit(main())
