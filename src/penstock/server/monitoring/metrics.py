"""/metrics in the two text formats of Prometheus.

`collect` gathers samples in the server's loop, in pieces. `encode` formats them with prometheus-client in the
monitoring thread, which alone imports that package, and adds what the operating system says.

A scraper that asks for OpenMetrics gets it, others get the classic format, version 0.0.4. `format_of` reads
the Accept header as RFC 9110 (12.5.1) says; who accepts neither gets the classic format all the same, as from
Prometheus' own exporters.

Cardinality is bounded: connections are summed, and only the CONNECTIONS_SHOWN with the most pending bytes
appear by name. All streams and consumers appear: their number is the operator's decision.

Rejected: prometheus-client's counters. They cost a lock and a Python call per message; all values exist
    already and are read on request.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import penstock
from penstock import faults
from penstock.net.reasons import CloseReason
from penstock.server.monitoring.metric_families import CONNECTIONS_SHOWN, Durations, Families
from penstock.server.monitoring.pages.connz import account_of
from penstock.server.monitoring.pages.healthz import HealthzOptions, healthz
from penstock.server.monitoring.pages.page_options import RefusedQuery, pieces
from penstock.server.monitoring.pages.varz import num_subscriptions, resident_bytes, traffic
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.monitoring.monitored_server import MonitoredServer

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"


def format_of(accept: str) -> str:
    """The content type for an Accept header: OPENMETRICS or CLASSIC."""
    weights = {"application/openmetrics-text": -1.0, "text/plain": -1.0, "text/*": -1.0, "*/*": -1.0}
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        if kind not in weights:
            continue
        named = dict(one.partition("=")[::2] for one in parameters)
        try:
            weight = float(named.get("q", "1"))
        except ValueError:
            continue
        if kind == "application/openmetrics-text" and named.get("version", "1.0.0") not in ("1.0.0", "0.0.1"):
            continue
        weights[kind] = max(weights[kind], weight)
    wanted = weights.pop("application/openmetrics-text")
    classic = next((weight for weight in weights.values() if weight >= 0), 0.0)  # the most specific one
    return OPENMETRICS if wanted > 0 and wanted >= classic else CLASSIC


def collect(server: MonitoredServer) -> Generator[None, None, Families]:
    """Collects what the server knows; yields after each piece of work."""
    families = Families()
    _totals(server, families)
    yield
    yield from _connections(server, families)
    if server.jetstream is not None:
        yield from _jetstream(server.jetstream, families, server.context.clock())
    return families


def encode(families: Families, content_type: str, store_dir: str = "") -> bytes:
    """Formats metrics. Adds those of the process, and of the file system of `store_dir` ("" = none), which
    may take long to answer: not in the server's loop."""
    from prometheus_client import ProcessCollector, core, exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    _add_store(families, store_dir)
    for family in ProcessCollector(registry=None).collect():
        families.add(family.name, family.samples[0].value)
    kinds: dict[str, Any] = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "info": core.InfoMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }

    class Collected:
        def collect(self) -> Iterator[Any]:
            for family in families:
                metric = kinds[family.kind](family.name, family.help, labels=family.labels)
                for labels, value in family.samples:
                    if family.kind == "info":
                        metric.add_metric([], dict(zip(family.labels, labels, strict=True)))
                    elif isinstance(value, Durations):
                        buckets = [(repr(bound), events) for bound, events in value.below]
                        metric.add_metric(labels, [*buckets, ("+Inf", value.events)], value.sum_s)
                    else:
                        metric.add_metric(labels, value)
                yield metric

    write: Any = openmetrics.generate_latest if content_type == OPENMETRICS else exposition.generate_latest
    text: bytes = write(Collected())
    return text


def _add_store(families: Families, store_dir: str) -> None:
    if not store_dir:
        return
    try:
        stat = os.statvfs(store_dir)
    except OSError:  # healthz and the log say more about a directory that is gone
        return
    families.add("store_size_bytes", stat.f_blocks * stat.f_frsize)
    families.add("store_free_bytes", stat.f_bavail * stat.f_frsize)


def _totals(server: MonitoredServer, families: Families) -> None:
    context, totals, sums = server.context, server.sessions.totals, traffic(server)
    add, options = families.add, context.options
    python = ".".join(map(str, sys.version_info[:3]))
    add("build", 1, penstock.__version__, VERSION, python)
    add("server", 1, context.server_id, context.server_name, VERSION)
    add("healthy", _is_healthy(server))
    add("start_time_seconds", server.started_ns / 1e9)
    add("resident_memory_bytes", resident_bytes())
    add("faults", faults.count())
    add("accounts", len(server.accounts))
    add("connections", len(server.sessions))
    families.add_limit("connections_limit", options.max_connections, no_limit=0)
    add("connections_accepted", totals.connections)
    for reason in CloseReason:
        add("connections_closed", totals.by_reason.get(reason, 0), reason)
        if reason.is_failed_authentication:
            add("authentication_failures", totals.by_reason.get(reason, 0), reason)
    add("subscriptions", num_subscriptions(server))
    add("received_messages", sums.in_msgs)
    add("received_bytes", sums.in_bytes)
    add("sent_messages", sums.out_msgs)
    add("sent_bytes", sums.out_bytes)
    add("slow_consumers", totals.slow_consumers)
    add("stale_connections", totals.stale_connections)
    add("stalled_publishers", server.stalled_clients)
    add("connection_pending_limit_bytes", options.max_pending)
    if server.links.routes is not None:
        add("links", len(server.links.routes.mesh.links), "route")
    if server.links.leafs is not None:
        add("links", len(server.links.leafs.sessions), "leafnode")
    if server.links.gateways is not None:
        ways = server.links.gateways.gateways
        add("links", len(ways.outbound) + len(ways.inbound), "gateway")


def _is_healthy(server: MonitoredServer) -> bool:
    try:
        healthz(server, HealthzOptions())
    except RefusedQuery:
        return False
    return True


def _connections(server: MonitoredServer, families: Families) -> Generator[None, None, None]:
    waiting = []
    for piece in pieces(server.sessions.values(), 1024):
        waiting += [(session.connection.pending_bytes(), session.cid, session) for session in piece]
        yield
    families.add("connections_pending_bytes", sum(size for size, _, _ in waiting))
    for size, cid, session in nlargest(CONNECTIONS_SHOWN, waiting, key=lambda one: one[:2]):
        labels = (account_of(session), str(cid), session.options.name)
        families.add("connection_pending_bytes", size, *labels)
        families.add("connection_subscriptions", len(session.subscriptions), *labels)


def _jetstream(service: JetStreamService, families: Families, now: int) -> Generator[None, None, None]:
    families.add("sync_duration_seconds", Durations.of(service.disk.sync_times))
    families.add("sync_failures", service.disk.sync_failures)
    used_memory = used_storage = 0
    for account, engine in tuple(service.engines.items()):
        memory, storage = _account(account, engine, families)
        used_memory += memory
        used_storage += storage
        for stream in tuple(engine.streams.values()):
            state, config = stream.state(), stream.config
            labels = (account, stream.name)
            families.add("stream_messages", state.messages, *labels)
            families.add_limit("stream_limit_messages", config.max_msgs, *labels, config.discard)
            families.add("stream_bytes", state.bytes, *labels)
            families.add_limit("stream_limit_bytes", config.max_bytes, *labels, config.discard)
            families.add("stream_first_seq", state.first_seq, *labels)
            families.add("stream_last_seq", state.last_seq, *labels)
            families.add("stream_consumers", len(stream.consumers), *labels)
            for piece in pieces(stream.consumers.values(), 32):
                for consumer in piece:
                    _consumer(consumer, families, now, labels)
                yield
            yield
    families.add("jetstream_memory_bytes", used_memory)
    families.add_limit("jetstream_memory_limit_bytes", service.max_memory_bytes)
    families.add("jetstream_storage_bytes", used_storage)
    families.add_limit("jetstream_storage_limit_bytes", service.max_file_bytes)


def _account(account: str, engine: JetStreamEngine, families: Families) -> tuple[int, int]:
    """Adds an account's samples; returns the bytes that it uses of memory and of files."""
    info, add, add_limit = engine.capacity.info(), families.add, families.add_limit
    add("account_memory_bytes", info.memory, account)
    add_limit("account_memory_limit_bytes", info.limits.max_memory, account)
    add("account_storage_bytes", info.storage, account)
    add_limit("account_storage_limit_bytes", info.limits.max_storage, account)
    add("account_streams", info.streams, account)
    add_limit("account_streams_limit", info.limits.max_streams, account)
    add("account_consumers", info.consumers, account)
    add_limit("account_consumers_limit", info.limits.max_consumers, account)
    add("jetstream_api_requests", info.api.total, account)
    add("jetstream_api_errors", info.api.errors, account)
    add("jetstream_offline", len(engine.containment.problems()), account)
    add("jetstream_write_failing", engine.commit.has_failing, account)
    add("publish_ack_duration_seconds", Durations.of(engine.tick.ack_times), account)
    return info.memory, info.storage


def _consumer(consumer: ConsumerReplica, families: Families, now: int, stream: tuple[str, str]) -> None:
    info = consumer.info(now)
    labels = (*stream, info.name)
    families.add("consumer_num_pending", info.num_pending, *labels)
    families.add("consumer_ack_pending", info.num_ack_pending, *labels)
    families.add_limit("consumer_ack_pending_limit", consumer.config.max_ack_pending, *labels, no_limit=0)
    families.add("consumer_redelivered", info.num_redelivered, *labels)
    families.add("consumer_waiting", info.num_waiting, *labels)
