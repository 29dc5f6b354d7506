"""/metrics of a cluster: acks of replicated streams are timed where their leader is, and syncs everywhere."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.testing import cluster

pytestmark = pytest.mark.feature("monitoring.prometheus")
PUBLISHES = 20


def scraped(port: int) -> dict[str, float]:
    """Sums of the samples of a server by name."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def test_acks_of_a_replicated_stream_are_timed_by_its_leader() -> None:
    async with cluster(3) as running:
        client = await running.connect()
        js = client.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
        for _ in range(PUBLISHES):
            await js.publish("orders.1", b"pear")
        await client.close()
        leader = await running.leader_of("ORDERS")
        await running.wait_ready()  # a follower that is behind is not healthy
        found = [scraped(server.http_port) for server in running.servers]
    acks = "penstock_publish_ack_duration_seconds"
    assert [one[f"{acks}_count"] for one in found] == [
        PUBLISHES if number == leader else 0 for number in range(3)
    ]
    assert found[leader][f"{acks}_sum"] > 0
    for one in found:
        assert one["penstock_sync_duration_seconds_count"] >= 1  # a majority syncs each entry, in batches
        assert one["penstock_links"] >= 2
        assert one["penstock_healthy"] == 1
