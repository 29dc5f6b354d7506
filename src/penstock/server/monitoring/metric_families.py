"""The metrics of a server: their names, types, labels and meaning.

One table is the source of the page /metrics, of docs/metrics.md (tools/metrics_page.py) and of the tests that
compare the dashboard and the alert rules with both. A name, once released, keeps its meaning.

A limit is a metric of its own, beside what it limits; without a limit, it has no sample, so that a quotient
of the two has none either. Counters get the suffix `_total` on the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.kernels.base.duration_histogram import DurationHistogram

PREFIX = "penstock_"
CONNECTIONS_SHOWN = 20

Rows = tuple[tuple[str, str, tuple[str, ...], str], ...]

_ACCOUNT = ("account",)
_STREAM = ("account", "stream")
_STREAM_LIMIT = ("account", "stream", "discard")
_CONSUMER = ("account", "stream", "consumer")
_CONNECTION = ("account", "cid", "name")

SERVER: Rows = (
    ("build", "info", ("version", "nats_version", "python"), "Version of penstock, of NATS, and of Python."),
    ("server", "info", ("id", "name", "version"), "The server, with the NATS version that it speaks."),
    ("healthy", "gauge", (), "1 when healthz says ok, else 0."),
    ("start_time_seconds", "gauge", (), "When the server started, since the epoch."),
    ("resident_memory_bytes", "gauge", (), "Memory of the process."),
    ("faults", "counter", (), "Unexpected exceptions that were contained; the log has each."),
    ("accounts", "gauge", (), "Accounts."),
    ("received_messages", "counter", (), "Messages from clients."),
    ("received_bytes", "counter", (), "Bytes of messages from clients."),
    ("sent_messages", "counter", (), "Messages to clients."),
    ("sent_bytes", "counter", (), "Bytes of messages to clients."),
    ("links", "gauge", ("kind",), "Connections to other servers: route, leafnode, gateway."),
)
CONNECTIONS: Rows = (
    ("connections", "gauge", (), "Open connections of clients."),
    ("connections_limit", "gauge", (), "`max_connections`."),
    ("connections_accepted", "counter", (), "Connections since the start."),
    ("connections_closed", "counter", ("reason",), "Closed connections by reason, as `connz` names it."),
    ("authentication_failures", "counter", ("reason",), "Clients that could not log in, or not stay."),
    ("subscriptions", "gauge", (), "Subscriptions, the server's own too."),
    ("slow_consumers", "counter", (), "Clients that did not read fast enough."),
    ("stale_connections", "counter", (), "Connections closed as stale."),
    ("stalled_publishers", "counter", (), "Times a publisher was slowed down."),
    ("connections_pending_bytes", "gauge", (), "Bytes that wait for all clients."),
    (
        "connection_pending_bytes",
        "gauge",
        _CONNECTION,
        f"Bytes that wait for a client; the {CONNECTIONS_SHOWN} with most.",
    ),
    ("connection_pending_limit_bytes", "gauge", (), "`max_pending`: a client with more is closed."),
    ("connection_subscriptions", "gauge", _CONNECTION, "Subscriptions of the same clients."),
)
JETSTREAM: Rows = (
    ("jetstream_memory_bytes", "gauge", (), "Bytes of streams in memory, of all accounts."),
    ("jetstream_memory_limit_bytes", "gauge", (), "`max_memory_store`."),
    ("jetstream_storage_bytes", "gauge", (), "Bytes of streams in files, of all accounts."),
    ("jetstream_storage_limit_bytes", "gauge", (), "`max_file_store`."),
    ("store_size_bytes", "gauge", (), "Size of the file system of `store_dir`."),
    ("store_free_bytes", "gauge", (), "Bytes that are free there for the server."),
    ("account_memory_bytes", "gauge", _ACCOUNT, "Bytes of an account's streams in memory."),
    ("account_memory_limit_bytes", "gauge", _ACCOUNT, "What the account may have of it."),
    ("account_storage_bytes", "gauge", _ACCOUNT, "Bytes of an account's streams in files."),
    ("account_storage_limit_bytes", "gauge", _ACCOUNT, "What the account may have of it."),
    ("account_streams", "gauge", _ACCOUNT, "Streams of an account."),
    ("account_streams_limit", "gauge", _ACCOUNT, "How many it may have."),
    ("account_consumers", "gauge", _ACCOUNT, "Consumers of an account."),
    ("account_consumers_limit", "gauge", _ACCOUNT, "How many it may have."),
    ("jetstream_api_requests", "counter", _ACCOUNT, "JetStream API requests."),
    ("jetstream_api_errors", "counter", _ACCOUNT, "Those that were refused."),
    ("jetstream_offline", "gauge", _ACCOUNT, "Streams and consumers that do not work; `healthz` names them."),
    ("jetstream_write_failing", "gauge", _ACCOUNT, "1 while a stream's files cannot be written or synced."),
    (
        "publish_ack_duration_seconds",
        "histogram",
        _ACCOUNT,
        "From the arrival of a publish until its ack leaves; all of a batch count as its first.",
    ),
    ("sync_duration_seconds", "histogram", (), "Syncs of files and directories that succeeded."),
    ("sync_failures", "counter", (), "Syncs that failed."),
)
STREAMS: Rows = (
    ("stream_messages", "gauge", _STREAM, "Messages in a stream."),
    ("stream_limit_messages", "gauge", _STREAM_LIMIT, "`max_msgs` of a stream."),
    ("stream_bytes", "gauge", _STREAM, "Bytes of a stream."),
    ("stream_limit_bytes", "gauge", _STREAM_LIMIT, "`max_bytes` of a stream."),
    ("stream_first_seq", "gauge", _STREAM, "First sequence."),
    ("stream_last_seq", "gauge", _STREAM, "Last sequence."),
    ("stream_consumers", "gauge", _STREAM, "Consumers of a stream."),
)
CONSUMERS: Rows = (
    ("consumer_num_pending", "gauge", _CONSUMER, "Messages a consumer has yet to deliver."),
    ("consumer_ack_pending", "gauge", _CONSUMER, "Messages delivered and not acknowledged."),
    ("consumer_ack_pending_limit", "gauge", _CONSUMER, "`max_ack_pending`: at this, deliveries pause."),
    ("consumer_redelivered", "gauge", _CONSUMER, "Of those, messages delivered more than once."),
    ("consumer_waiting", "gauge", _CONSUMER, "Pull requests that wait for messages."),
)
PROCESS: Rows = (
    ("process_cpu_seconds", "counter", (), "Processor time, of user and system."),
    ("process_open_fds", "gauge", (), "Open file descriptors."),
    ("process_max_fds", "gauge", (), "How many there may be (`ulimit -n`)."),
    ("process_resident_memory_bytes", "gauge", (), "Resident memory."),
    ("process_virtual_memory_bytes", "gauge", (), "Virtual memory."),
    ("process_start_time_seconds", "gauge", (), "When the process started, since the epoch."),
)
"""Names that Prometheus gives to every process, without a prefix."""
SECTIONS: dict[str, Rows] = {
    "Server": SERVER,
    "Connections": CONNECTIONS,
    "JetStream": JETSTREAM,
    "Streams": STREAMS,
    "Consumers": CONSUMERS,
}


class Durations(NamedTuple):
    """The state of a histogram: (bound in seconds, events up to it), all events, their sum in seconds."""

    below: list[tuple[float, int]]
    events: int
    sum_s: float

    @staticmethod
    def of(histogram: DurationHistogram) -> Durations:
        sum_ns, below, count = histogram.snapshot()
        return Durations([(bound / 1e9, events) for bound, events in below], count, sum_ns / 1e9)


@dataclass(slots=True)
class Family:
    """A metric family: samples of (label values, value)."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: list[tuple[tuple[str, ...], float | Durations]] = field(default_factory=list)


class Families:
    """All families of the table, and what is collected of them."""

    def __init__(self) -> None:
        self._by_name = {
            name: Family(PREFIX + name, kind, labels, text)
            for rows in SECTIONS.values()
            for name, kind, labels, text in rows
        }
        self._by_name |= {row[0]: Family(*row) for row in PROCESS}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._by_name.values())

    def add(self, name: str, value: float | Durations, *labels: str) -> None:
        """Adds a sample. name: without the prefix."""
        family = self._by_name[name]
        assert len(labels) == len(family.labels), name
        family.samples.append((labels, value))

    def add_limit(self, name: str, limit: int, *labels: str, no_limit: int = -1) -> None:
        """Adds a limit, unless there is none: `no_limit`, or a negative number."""
        if limit >= 0 and limit != no_limit:
            self.add(name, limit, *labels)
