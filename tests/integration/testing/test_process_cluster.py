"""Clusters of processes for tests: faults do what they say, on penstock and on the official server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import MisuseError, NoStreamError, ServerError
from penstock.testing import ProcessCluster, SyncProcessCluster, cluster, sync_cluster
from tests.support.nats_servers import official_binary, until

pytestmark = pytest.mark.feature("embedding.cluster")


@pytest.fixture
async def routed(tmp_path: Path) -> AsyncIterator[ProcessCluster]:
    """Three servers of penstock without JetStream."""
    async with cluster(3, jetstream=False, directory=tmp_path) as made:
        yield made


class Hearing:
    """Which numbers that a client of one server publishes a client of another one has received."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.got: list[int] = []

    async def listen(self, made: ProcessCluster, server: int) -> None:
        client = await made.connect(server)
        await client.subscribe(self.subject, callback=lambda message: self.got.append(int(message.data)))
        await client.flush()


async def crosses(made: ProcessCluster, sender: int, receiver: int, wait_s: float = 10.0) -> bool:
    """Whether messages pass from one server to another within a time."""
    subject = f"probe.{time.monotonic_ns()}"
    hearing = Hearing(subject)
    await hearing.listen(made, receiver)
    client = await made.connect(sender)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and not hearing.got:
        await client.publish(subject, b"1")
        await client.flush()
        await asyncio.sleep(0.02)
    return bool(hearing.got)


async def test_servers_are_connected_when_the_block_begins(routed: ProcessCluster) -> None:
    assert len(set(routed.urls)) == 3
    assert [one.name for one in routed.servers] == ["test-1", "test-2", "test-3"]
    assert await crosses(routed, 0, 2)
    assert (await routed.page("test-2", "varz"))["server_name"] == "test-2"
    assert "Authorization Violation" not in "".join(one.log for one in routed.servers), "no byte was lost"


async def test_a_partition_holds_messages_until_it_heals(routed: ProcessCluster) -> None:
    held, open_ = Hearing("held"), Hearing("held")
    await held.listen(routed, 0)
    await open_.listen(routed, 2)
    client = await routed.connect(1)
    publishing = asyncio.get_running_loop()

    async def arrives() -> bool:
        await client.publish("held", b"0")
        await client.flush()
        await asyncio.sleep(0.01)
        return bool(held.got and open_.got)

    await until(arrives)
    assert publishing.is_running()
    routed.partition([[0], [1, 2]])
    for number in range(1, 11):
        await client.publish("held", str(number).encode())
    await client.flush()
    await until(lambda: open_.got[-1:] == [10])
    assert 10 not in held.got
    routed.heal()
    await until(lambda: held.got[-10:] == list(range(1, 11)))


async def test_a_partition_of_one_way_leaves_the_other_one_open(routed: ProcessCluster) -> None:
    assert await crosses(routed, 0, 1)
    assert await crosses(routed, 1, 0)
    from_first, to_first = Hearing("from"), Hearing("to")
    await from_first.listen(routed, 1)
    await to_first.listen(routed, 0)
    first, second = await routed.connect(0), await routed.connect(1)

    async def both() -> bool:
        await first.publish("from", b"0")
        await second.publish("to", b"0")
        await asyncio.sleep(0.01)
        return bool(from_first.got and to_first.got)

    await until(both)
    routed.partition([[0], [1, 2]], one_way=True)
    await first.publish("from", b"1")
    await second.publish("to", b"1")
    await until(lambda: from_first.got[-1:] == [1])
    assert to_first.got[-1] == 0, "the first server hears nothing"
    routed.heal()
    await until(lambda: to_first.got[-1:] == [1])


async def test_a_killed_server_starts_again_on_its_ports(routed: ProcessCluster) -> None:
    server = routed.server("test-2")
    url, pid = server.url, server.pid
    await routed.kill(1)
    assert not server.is_running
    with pytest.raises(ServerError, match="does not answer"):
        await routed.page(1, "varz")
    await routed.restart(1)
    await routed.wait_ready()
    assert (server.url, server.pid != pid) == (url, True)
    assert await crosses(routed, 1, 0)


async def test_a_paused_server_answers_when_it_resumes(routed: ProcessCluster) -> None:
    client = await routed.connect(2)
    routed.pause(2)
    flushing = asyncio.ensure_future(client.flush())
    await asyncio.sleep(0.1)  # nothing can tell that a stopped process does nothing
    assert not flushing.done()
    assert routed.server(2).is_paused
    routed.resume(2)
    await flushing


async def test_a_server_that_starts_in_a_partition_joins_when_it_heals(routed: ProcessCluster) -> None:
    await routed.kill(0)
    routed.partition([[0]])
    await routed.start_server(0)
    await asyncio.sleep(0.3)  # several attempts to connect
    assert (await routed.page(0, "routez"))["num_routes"] == 0
    routed.heal()
    await routed.wait_ready()
    assert await crosses(routed, 0, 1)


async def test_mistakes_are_named(routed: ProcessCluster) -> None:
    with pytest.raises(MisuseError, match="no server 'four'; there are test-1, test-2, test-3, or 0 to 2"):
        await routed.kill("four")
    with pytest.raises(MisuseError, match="a server is in two groups"):
        routed.partition([[0, 1], [1, 2]])
    with pytest.raises(MisuseError, match="server test-1 runs already"):
        await routed.start_server(0)
    with pytest.raises(MisuseError, match="kill it before its disk is wiped"):
        routed.server(0).wipe()
    await routed.stop(0)
    with pytest.raises(ServerError, match=r"server test-1 does not run .* SIGSTOP not sent"):
        routed.pause(0)
    with pytest.raises(MisuseError, match="a cluster of 99 servers"):
        cluster(99)


async def test_a_failing_block_says_where_the_logs_are() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        async with cluster(1, jetstream=False) as made:
            raise ZeroDivisionError
    assert failure.value.__notes__ == [f"configuration, logs and stores of the cluster: {made.directory}"]
    assert "Server is ready" in made.servers[0].log
    assert not made.servers[0].is_running
    async with cluster(1, jetstream=False) as passing:
        pass
    assert not passing.directory.exists()


async def test_a_server_that_can_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"server test-1 ended with status 1:\n.*no_such_option"):
        async with cluster(1, jetstream=False, config="no_such_option: 1", directory=tmp_path):
            pass


def test_the_blocking_twin_does_the_same(tmp_path: Path) -> None:
    with sync_cluster(2, jetstream=False, directory=tmp_path) as made:
        made.partition([[0], [1]])
        made.heal()
        made.restart(0)
        made.wait_ready()
        made.kill("test-2")
        assert [one.is_running for one in made.servers] == [True, False]
    assert not made.servers[0].is_running
    with pytest.raises(ServerError, match="the cluster does not run"):
        made.kill(0)


def test_the_fixture_gives_clusters(nats_cluster_factory: Callable[..., SyncProcessCluster]) -> None:
    made = nats_cluster_factory(2, jetstream=False)
    assert made.page(0, "varz")["server_name"] == "test-1"
    assert made.directory.name == "cluster-1"


@pytest.mark.official
async def test_the_official_server_runs_in_it(tmp_path: Path) -> None:
    async with cluster(3, command=(official_binary(),), directory=tmp_path) as made:
        js = (await made.connect()).jetstream()
        await js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
        leader = await made.leader_of("ORDERS")

        async def takes_messages() -> bool:
            with suppress(NoStreamError):  # other servers may learn the stream's subjects half a second later
                return bool(await js.publish("orders.1", b"one"))
            return False

        await until(takes_messages)
        await made.kill(leader)

        async def has_moved() -> bool:
            with suppress(ServerError):
                return await made.leader_of("ORDERS") != leader
            return False

        await until(has_moved, 40)
        await made.start_server(leader)
        await made.wait_ready()
        message = await (await js.stream("ORDERS")).get_message(1)
        assert message.data == b"one"
