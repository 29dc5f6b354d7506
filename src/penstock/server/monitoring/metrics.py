"""/metrics in the OpenMetrics format.

`collect` gathers samples in the server's loop, in pieces. `encode` formats them with prometheus-client in the
monitoring thread, which alone imports that package.

Cardinality is bounded: connections are summed, and only the CONNECTIONS_SHOWN with the most pending bytes
appear by name. All streams and consumers appear: their number is the operator's decision.

Rejected: prometheus-client's counters. They cost a lock and a Python call per message; all values exist
    already and are read on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from penstock.server.monitoring.pages.connz import account_of
from penstock.server.monitoring.pages.page_options import pieces
from penstock.server.monitoring.pages.varz import num_subscriptions, resident_bytes, traffic
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from penstock.jetstream.engine import JetStreamEngine
    from penstock.server.monitoring.monitored_server import MonitoredServer

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CONNECTIONS_SHOWN = 20
_STREAM = ("account", "stream")
_CONSUMER = ("account", "stream", "consumer")
_CONNECTION = ("account", "cid", "name")


@dataclass(slots=True)
class Family:
    """A metric family: samples of (label values, number)."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    samples: list[tuple[tuple[str, ...], float]] = field(default_factory=list)

    def add(self, value: float, *labels: str) -> None:
        self.samples.append((labels, value))


def collect(server: MonitoredServer) -> Generator[None, None, list[Family]]:
    """Collects all metrics; yields after each piece of work."""
    families = _totals(server)
    families += yield from _connections(server)
    if server.jetstream is not None:
        families += yield from _jetstream(server.jetstream.engines, server.context.clock())
    return families


def encode(families: list[Family]) -> bytes:
    """Formats metrics as OpenMetrics text."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "info": InfoMetricFamily,
    }

    class Collected:
        def collect(self) -> Iterator[Any]:
            for family in families:
                metric = kinds[family.kind](family.name, family.help, labels=family.labels)
                for labels, value in family.samples:
                    if family.kind == "info":
                        metric.add_metric([], dict(zip(family.labels, labels, strict=True)))
                    else:
                        metric.add_metric(labels, value)
                yield metric

    text: bytes = generate_latest(Collected())  # type: ignore[no-untyped-call]
    return text


def _totals(server: MonitoredServer) -> list[Family]:
    totals, sums = server.sessions.totals, traffic(server)
    about = Family("penstock_server", "info", "The server.", ("id", "name", "version"))
    about.add(1, server.context.server_id, server.context.server_name, VERSION)
    plain = [
        ("start_time_seconds", "gauge", "When the server started, since the epoch.", server.started_ns / 1e9),
        ("resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes()),
        ("accounts", "gauge", "Accounts.", len(server.accounts)),
        ("connections", "gauge", "Open connections.", len(server.sessions)),
        ("connections_accepted", "counter", "Connections since the start.", totals.connections),
        ("subscriptions", "gauge", "Subscriptions, the server's own too.", num_subscriptions(server)),
        ("received_messages", "counter", "Messages from clients.", sums.in_msgs),
        ("received_bytes", "counter", "Bytes of messages from clients.", sums.in_bytes),
        ("sent_messages", "counter", "Messages to clients.", sums.out_msgs),
        ("sent_bytes", "counter", "Bytes of messages to clients.", sums.out_bytes),
        ("slow_consumers", "counter", "Connections closed as slow consumers.", totals.slow_consumers),
        ("stale_connections", "counter", "Connections closed as stale.", totals.stale_connections),
        ("stalled_publishers", "counter", "Times a publisher was slowed down.", server.stalled_clients),
    ]  # fmt: skip
    families = [about]
    for name, kind, text, value in plain:
        family = Family(f"penstock_{name}", kind, text)
        family.add(value)
        families.append(family)
    return families


def _connections(server: MonitoredServer) -> Generator[None, None, list[Family]]:
    pending_all = Family("penstock_connections_pending_bytes", "gauge", "Bytes that wait for all clients.")
    pending = Family(
        "penstock_connection_pending_bytes",
        "gauge",
        f"Bytes that wait for a client; the {CONNECTIONS_SHOWN} with most.",
        _CONNECTION,
    )
    subscriptions = Family(
        "penstock_connection_subscriptions", "gauge", "Subscriptions of the same clients.", _CONNECTION
    )
    waiting = []
    for piece in pieces(server.sessions.values(), 1024):
        waiting += [(session.connection.pending_bytes(), session.cid, session) for session in piece]
        yield
    pending_all.add(sum(size for size, _, _ in waiting))
    for size, cid, session in nlargest(CONNECTIONS_SHOWN, waiting, key=lambda one: one[:2]):
        labels = (account_of(session), str(cid), session.options.name)
        pending.add(size, *labels)
        subscriptions.add(len(session.subscriptions), *labels)
    return [pending_all, pending, subscriptions]


def _jetstream(engines: Mapping[str, JetStreamEngine], now: int) -> Generator[None, None, list[Family]]:
    streams = {
        key: Family(f"penstock_stream_{key}", "gauge", text, _STREAM)
        for key, text in (
            ("messages", "Messages in a stream."),
            ("bytes", "Bytes of a stream."),
            ("first_seq", "First sequence."),
            ("last_seq", "Last sequence."),
            ("consumers", "Consumers of a stream."),
        )
    }
    consumers = {
        key: Family(f"penstock_consumer_{key}", "gauge", text, _CONSUMER)
        for key, text in (
            ("num_pending", "Messages a consumer has yet to deliver."),
            ("ack_pending", "Messages delivered and not acknowledged."),
            ("redelivered", "Of those, messages delivered more than once."),
            ("waiting", "Pull requests that wait for messages."),
        )
    }
    requests = {
        key: Family(f"penstock_jetstream_api_{key}", "counter", text, ("account",))
        for key, text in (("requests", "JetStream API requests."), ("errors", "Those that were refused."))
    }
    for account, engine in tuple(engines.items()):
        requests["requests"].add(engine.api_stats.total, account)
        requests["errors"].add(engine.api_stats.errors, account)
        for stream in tuple(engine.streams.values()):
            state = stream.state()
            labels = (account, stream.name)
            streams["messages"].add(state.messages, *labels)
            streams["bytes"].add(state.bytes, *labels)
            streams["first_seq"].add(state.first_seq, *labels)
            streams["last_seq"].add(state.last_seq, *labels)
            streams["consumers"].add(len(stream.consumers), *labels)
            for piece in pieces(stream.consumers.values(), 32):
                for consumer in piece:
                    info = consumer.info(now)
                    lag = (*labels, info.name)
                    consumers["num_pending"].add(info.num_pending, *lag)
                    consumers["ack_pending"].add(info.num_ack_pending, *lag)
                    consumers["redelivered"].add(info.num_redelivered, *lag)
                    consumers["waiting"].add(info.num_waiting, *lag)
                yield
            yield
    return [*requests.values(), *streams.values(), *consumers.values()]
