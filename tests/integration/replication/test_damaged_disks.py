"""A server whose disk was damaged while it was down: what is stored stays, and it takes no part with what it
lacks. On penstock and on the official server, of which only what it does well is expected.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.testing.sim.runner import fresh_seed
from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, messages_of
from tests.support.histories import violations
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, publish_sure

pytestmark = [pytest.mark.cluster_faults, pytest.mark.slow, pytest.mark.feature("cluster.quorum")]

Damage = Callable[[Path, random.Random], bool]


def flip_in_blocks(store: Path, rng: random.Random) -> bool:
    """One bit of a block of messages."""
    return flip(rng, [one for one in store.rglob("*.blk") if "APP" in one.parts])


def flip_in_log(store: Path, rng: random.Random) -> bool:
    """One bit of the log of groups, or of the log of the stream's group."""
    return flip(rng, [*store.rglob("*.wal"), *store.glob("jetstream/$SYS/_js_/S-*/msgs/*.blk")])


def tear_log(store: Path, rng: random.Random) -> None:
    """The log of groups ends too early."""
    found = [*store.rglob("*.wal"), *store.glob("jetstream/$SYS/_js_/S-*/msgs/*.blk")]
    path = max(found, key=lambda one: one.stat().st_mtime_ns)
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - rng.randrange(1, 4000), len(data) // 2)])


def flip(rng: random.Random, paths: list[Path]) -> bool:
    """Flips one bit of one of these files. Returns whether there is one."""
    paths = [one for one in paths if one.stat().st_size]
    if not paths:
        return False
    path = rng.choice(sorted(paths))
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) * 9 // 10)  # not in the last write, which may be torn without any damage
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    print(f"flipped a bit at {at} of {len(data)} in {path}")
    return True


def is_marked(store: Path, since_ns: int) -> bool:
    """Whether penstock has written, since this time, up to where its log is synced. It does so when there is
    nothing else to write. What is torn off before that looks like what was never written."""
    marks = [one.stat().st_mtime_ns for one in store.rglob("mark.?")]
    return len(marks) == 2 and min(marks) > since_ns


@pytest.mark.parametrize("damage", [flip_in_blocks, flip_in_log])
async def test_a_damaged_disk_is_repaired_from_the_other_servers(
    talk: ClusterTalk, kind: str, damage: Damage
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    name = damage.__name__.upper()
    await talk.create(name)
    load = ClusterLoad(talk, name)
    async with load.working(publish=2):
        for _ in range(3):
            goal = load.acked + 150
            await until(lambda goal=goal: load.acked >= goal, 60)  # type: ignore[misc]
            victim = await talk.leader(name) if rng.random() < 0.5 else rng.randrange(3)
            await talk.do(talk.made.kill, victim)
            assert damage(talk.made.servers[victim].store_dir, rng)
            await talk.do(talk.made.start_server, victim)
            await talk.do(talk.made.wait_ready)
            await talk.whole(name, 90)
    if kind == "official":  # a damaged replica may lead there: nats-server#7549
        print(violations(load.operations, await messages_of(talk, name))[:5])
        return
    assert violations(load.operations, await assert_equal_replicas(talk, name)) == []


async def test_a_server_with_a_torn_log_gives_no_majority_to_one_that_lags(
    talk: ClusterTalk, kind: str
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    await talk.create("TORN")
    leader = await talk.leader("TORN")
    torn, lagging = (server for server in range(3) if server != leader)
    await talk.do(talk.made.kill, lagging)
    client = await talk.client(leader)
    for number in range(100):
        await publish_sure(client, "TORN.1", b"%d" % number, str(number))
    if kind == "penstock":
        await until(partial(is_marked, talk.made.servers[torn].store_dir, time.time_ns()), 20)
    await talk.do(talk.made.kill, torn)
    await talk.do(talk.made.kill, leader)
    tear_log(talk.made.servers[torn].store_dir, rng)
    for server in (torn, lagging):
        await talk.do(talk.made.start_server, server)
    client = await talk.client(torn)
    try:
        await publish_sure(client, "TORN.2", b"after", "after", 8.0)
        is_acked = True
    except TimeoutError:
        is_acked = False
    await talk.do(talk.made.start_server, leader)
    await publish_sure(client, "TORN.2", b"after", "after")
    print(f"{kind}: {'acked' if is_acked else 'nothing acked'} by the torn log and the one that lags")
    if kind == "official":  # it takes the shorter log for the whole one: nats-server#7567
        return
    tags = [one.tag for one in await assert_equal_replicas(talk, "TORN")]
    assert tags == [*(str(number) for number in range(100)), "after"]


async def test_a_server_that_lost_what_it_knew_of_the_cluster_removes_no_stream(
    talk: ClusterTalk, kind: str
) -> None:
    await talk.create("META")
    await talk.create("LONELY", 1)
    client = await talk.client()
    for name in ("META", "LONELY"):
        for number in range(20):
            await publish_sure(client, f"{name}.1", b"%d" % number, f"{name} {number}")
    victim = await talk.leader("LONELY")
    await talk.do(talk.made.kill, victim)
    store = talk.made.servers[victim].store_dir / "jetstream"
    shutil.rmtree(store / ("_groups" if kind == "penstock" else "$SYS/_js_/_meta_"))
    await talk.do(talk.made.start_server, victim)
    await talk.whole("META", 90)
    stored = await assert_equal_replicas(talk, "META")
    assert [one.tag for one in stored] == [str(number) for number in range(20)]
    kept = [one for one in store.rglob("*.blk") if "LONELY" in str(one)]
    assert b"LONELY" in b"".join(one.read_bytes() for one in kept), "its only replica was here"
    await talk.ask("STREAM.DELETE.LONELY")
