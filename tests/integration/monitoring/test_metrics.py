"""/metrics: what a scraper reads, with the format's own parser."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from penstock.server.monitoring.metrics import CONNECTIONS_SHOWN
from penstock.testing import server as embedded
from penstock.testing.embedded import EmbeddedServer
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.prometheus")


@pytest.fixture
def running() -> Iterator[EmbeddedServer]:
    with embedded(jetstream=True, http_port=-1) as started:
        yield started


def scrape(running: EmbeddedServer) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and values of labels."""
    monitor = running.server.monitor
    assert monitor is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_streams_consumers_and_totals_are_measured(running: EmbeddedServer) -> None:
    nats = RawNats(running.port, name="one", lang="raw", version="1")
    nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    config = {"durable_name": "D", "ack_policy": "explicit"}
    nats.request("$JS.API.CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
    for _ in range(3):
        nats.publish("s.1", b"12345")
    nats.request("$JS.API.INFO", {})
    found = scrape(running)
    nats.close()
    stream, consumer = ("$G", "S"), ("$G", "D", "S")  # the format sorts labels by name
    assert found["penstock_stream_messages"] == {stream: 3}
    assert found["penstock_stream_bytes"][stream] > 15
    assert found["penstock_stream_last_seq"] == {stream: 3}
    assert found["penstock_stream_consumers"] == {stream: 1}
    assert found["penstock_consumer_num_pending"] == {consumer: 3}
    assert found["penstock_consumer_ack_pending"] == {consumer: 0}
    assert found["penstock_connections"] == {(): 1}
    assert found["penstock_received_messages_total"] == {(): 6}
    assert found["penstock_jetstream_api_requests_total"][("$G",)] == 3
    ((account, _, name),) = found["penstock_connection_pending_bytes"]
    assert (account, name) == ("$G", "one")


def test_lag_redeliveries_and_pressure_are_measured(running: EmbeddedServer) -> None:
    """What is delivered and not acked, delivered again, asked for, and waiting for a slow reader."""
    nats, slow = RawNats(running.port), RawNats(running.port, name="slow")
    nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    config = {"durable_name": "D", "ack_policy": "explicit", "ack_wait": 20_000_000}
    nats.request("$JS.API.CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
    for _ in range(3):
        nats.publish("s.1", b"12345")
    nats.subscribe("_INBOX.pull", 7)
    nats.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch":5,"expires":60000000000}', "_INBOX.pull")
    for _ in range(4):  # three, and the first of them again
        nats.message()
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.subscribe("big", 1)
    slow.flush()
    for _ in range(20):
        nats.publish("big", bytes(500_000))
    nats.flush()
    found = scrape(running)
    nats.close()
    slow.close()
    consumer = ("$G", "D", "S")
    assert found["penstock_consumer_num_pending"] == {consumer: 0}
    assert found["penstock_consumer_ack_pending"] == {consumer: 3}
    assert found["penstock_consumer_redelivered"][consumer] >= 1
    assert found["penstock_consumer_waiting"][consumer] <= 1
    pressure = {name: size for (_, _, name), size in found["penstock_connection_pending_bytes"].items()}
    assert pressure["slow"] > 1_000_000
    assert found["penstock_connections_pending_bytes"][()] >= pressure["slow"]


def test_only_so_many_connections_are_named(running: EmbeddedServer) -> None:
    clients = [RawNats(running.port, name=f"c{i}") for i in range(CONNECTIONS_SHOWN + 5)]
    found = scrape(running)
    for client in clients:
        client.close()
    assert found["penstock_connections"] == {(): CONNECTIONS_SHOWN + 5}
    assert len(found["penstock_connection_pending_bytes"]) == CONNECTIONS_SHOWN
    assert len(found["penstock_connection_subscriptions"]) == CONNECTIONS_SHOWN
