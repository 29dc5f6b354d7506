"""/metrics: what a scraper reads, with the parsers of both formats."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server.config.server_options import JetStreamOptions, ServerOptions
from penstock.server.monitoring.metric_families import CONNECTIONS_SHOWN, PROCESS, SECTIONS
from penstock.server.server_identity import VERSION
from penstock.testing import server as embedded
from penstock.testing.embedded import EmbeddedServer
from tests.support.metric_scrapes import CLASSIC, OPENMETRICS, metrics_text, scrape_samples
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.prometheus")


@pytest.fixture
def running() -> Iterator[EmbeddedServer]:
    with embedded(jetstream=True, http_port=-1) as started:
        yield started


def scrape(running: EmbeddedServer) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in scrape_samples(running):
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


def test_the_accept_header_chooses_the_format_and_both_have_the_same_metrics(running: EmbeddedServer) -> None:
    nats = RawNats(running.port)
    nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    nats.request("s.1", {})
    nats.close()
    kinds = {accept: metrics_text(running, accept)[0] for accept in (OPENMETRICS, CLASSIC, "", "*/*")}
    assert kinds.pop(OPENMETRICS).startswith("application/openmetrics-text; version=1.0.0")
    assert set(kinds.values()) == {"text/plain; version=0.0.4; charset=utf-8"}
    names = [
        {(sample.name, *sorted(sample.labels.items())) for sample in scrape_samples(running, accept)}
        for accept in (OPENMETRICS, CLASSIC)
    ]
    assert names[0] == names[1]


def test_every_documented_family_is_on_the_page_and_no_other(running: EmbeddedServer) -> None:
    _, text = metrics_text(running, OPENMETRICS)
    present = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    documented = [f"penstock_{row[0]}" for rows in SECTIONS.values() for row in rows]
    assert present == documented + [row[0] for row in PROCESS]


def test_the_page_has_the_versions_and_the_process(running: EmbeddedServer) -> None:
    samples = {sample.name: sample for sample in scrape_samples(running)}
    build = samples["penstock_build_info"].labels
    assert build["version"] == penstock.__version__
    assert build["nats_version"] == VERSION
    assert samples["process_max_fds"].value > samples["process_open_fds"].value > 3
    assert samples["process_cpu_seconds_total"].value > 0
    assert samples["penstock_healthy"].value == 1


def test_acked_publishes_and_syncs_are_timed(tmp_path: Path) -> None:
    options = JetStreamOptions(store_dir=str(tmp_path), sync_always=True)
    with embedded(options=ServerOptions(port=-1, http_port=-1, jetstream=options)) as running:
        nats = RawNats(running.port)
        nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        before = scrape(running)
        for _ in range(4):
            nats.request("s.1", {})
        nats.publish("s.1", b"no reply, no ack")
        found = scrape(running)
        nats.close()
    assert before["penstock_publish_ack_duration_seconds_count"] == {("$G",): 0}
    assert found["penstock_publish_ack_duration_seconds_count"] == {("$G",): 4}
    syncs = "penstock_sync_duration_seconds"
    assert found[f"{syncs}_count"][()] >= before[f"{syncs}_count"][()] + 4
    # An ack waits for its sync.
    in_syncs = found[f"{syncs}_sum"][()] - before[f"{syncs}_sum"][()]
    assert found["penstock_publish_ack_duration_seconds_sum"][("$G",)] >= in_syncs / 2
    assert found["penstock_sync_failures_total"] == {(): 0}
    assert found["penstock_store_size_bytes"][()] >= found["penstock_store_free_bytes"][()] > 0


def test_limits_are_beside_usages_where_there_are_limits(tmp_path: Path) -> None:
    options = JetStreamOptions(store_dir=str(tmp_path), max_file_bytes=1 << 20)
    with embedded(
        options=ServerOptions(port=-1, http_port=-1, jetstream=options, max_connections=7)
    ) as running:
        nats = RawNats(running.port)
        bounded = {"name": "B", "subjects": ["b"], "max_bytes": 5000, "discard": "new"}
        nats.request("$JS.API.STREAM.CREATE.B", bounded)
        nats.request("$JS.API.STREAM.CREATE.F", {"name": "F", "subjects": ["f"]})
        config = {"durable_name": "D", "ack_policy": "explicit", "max_ack_pending": 9}
        nats.request("$JS.API.CONSUMER.CREATE.F.D", {"stream_name": "F", "config": config})
        nats.request("b", {})
        found = scrape(running)
        nats.close()
    assert found["penstock_connections_limit"] == {(): 7}
    assert found["penstock_stream_limit_bytes"] == {("$G", "new", "B"): 5000}
    assert "penstock_stream_limit_messages" not in found
    assert found["penstock_consumer_ack_pending_limit"] == {("$G", "D", "F"): 9}
    assert found["penstock_jetstream_storage_limit_bytes"] == {(): 1 << 20}
    stored = found["penstock_stream_bytes"][("$G", "B")]
    assert found["penstock_jetstream_storage_bytes"] == {(): stored}
    assert found["penstock_account_storage_bytes"] == {("$G",): stored}
    assert "penstock_account_storage_limit_bytes" not in found


def test_failed_logins_are_counted_by_reason() -> None:
    with embedded(options=ServerOptions(port=-1, http_port=-1, user="u", password="p")) as running:
        right = RawNats(running.port, user="u", **{"pass": "p"})
        for _ in range(2):
            with pytest.raises((ConnectionError, ValueError)):
                RawNats(running.port, user="u", **{"pass": "wrong"})
        found = scrape(running)
        right.close()
    failures = found["penstock_authentication_failures_total"]
    assert {reason: count for reason, count in failures.items() if count} == {("Authentication Failure",): 2}
    closed = found["penstock_connections_closed_total"]
    assert closed[("Authentication Failure",)] == 2
