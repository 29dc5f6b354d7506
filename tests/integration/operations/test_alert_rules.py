"""The alert rules and the dashboard: they name metrics that exist, and each rule fires on a server in the
state that it is about, and not on a healthy one."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import faults
from penstock.server.config.server_options import (
    AccountJetStream,
    AccountOptions,
    JetStreamOptions,
    ServerOptions,
    User,
)
from penstock.server.monitoring import metrics
from penstock.store.disk import LocalDisk
from penstock.testing import server as embedded
from penstock.testing.embedded import EmbeddedServer
from tests.support.alert_timelines import STEP_S, AlertTimeline
from tests.support.documented_scripts import ROOT
from tests.support.metric_scrapes import metrics_text
from tests.support.promql_evaluation import names_in
from tests.support.rawnats import RawNats

yaml = pytest.importorskip("yaml", reason="needs the dependency group `deploy`")
promql = pytest.importorskip("promql_parser", reason="needs the dependency group `deploy`")

pytestmark = pytest.mark.feature("monitoring.prometheus")

RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/penstock.rules.yml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/penstock.json").read_text())
UNITS_S = {"s": 1, "m": 60, "h": 3600}
MANY = 10_001


def seconds(text: str) -> float:
    return float(text[:-1]) * UNITS_S[text[-1]]


@dataclass
class Stage:
    """A server that a scenario brings into a state. `act(minute)` is called before each scrape."""

    directory: Path
    patch: pytest.MonkeyPatch
    options: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    clients: list[RawNats] = field(default_factory=list)
    running: EmbeddedServer | None = None

    def start(self) -> EmbeddedServer:
        store = JetStreamOptions(store_dir=str(self.directory), **self.store)
        options = ServerOptions(port=-1, http_port=-1, jetstream=store, **self.options)
        self.running = embedded(options=options).start()
        return self.running

    @property
    def server(self) -> EmbeddedServer:
        assert self.running is not None
        return self.running

    def client(self, **connect: object) -> RawNats:
        self.clients.append(RawNats(self.server.port, **connect))
        return self.clients[-1]

    def stream(self, **config: object) -> RawNats:
        nats = self.client()
        nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **config})
        return nats

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()
        self.server.stop()


def once(work: Callable[[], object]) -> Callable[[int], object]:
    """Acts before the second scrape, so that counters have a value before."""
    return lambda minute: work() if minute == 1 else None


Scenario = Callable[[Stage], Callable[[int], object]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(alert: str) -> Callable[[Scenario], Scenario]:
    def register(made: Scenario) -> Scenario:
        SCENARIOS[alert] = made
        return made

    return register


@scenario("PenstockDown")
def down(stage: Stage) -> Callable[[int], object]:
    stage.start()
    return once(stage.stop)


@scenario("PenstockRestarted")
def restarted(stage: Stage) -> Callable[[int], object]:
    stage.start()
    return once(lambda: (stage.stop(), stage.start()))


@scenario("PenstockUnhealthy")
def unhealthy(stage: Stage) -> Callable[[int], object]:
    stage.start()

    def damage() -> None:
        stage.stream()
        stage.stop()
        (meta,) = stage.directory.glob("jetstream/*/streams/S/meta")
        meta.write_bytes(b"damaged")
        stage.start()

    return once(damage)


@scenario("PenstockFault")
def fault(stage: Stage) -> Callable[[int], object]:
    stage.start()
    return once(lambda: faults.note("a test", ValueError("planted")))


def fails(*_: object) -> Any:
    raise OSError(errno.EIO, "planted")


@scenario("PenstockWritesFail")
def writes_fail(stage: Stage) -> Callable[[int], object]:
    stage.start()
    nats = stage.stream()

    def full() -> None:
        stage.patch.setattr(LocalDisk, "write", fails)
        nats.request("s", {})

    return once(full)


@scenario("PenstockSyncsFail")
def syncs_fail(stage: Stage) -> Callable[[int], object]:
    stage.store["sync_always"] = True
    stage.start()
    nats = stage.stream()

    def broken() -> None:
        stage.patch.setattr(os, "fdatasync", fails)
        nats.request("s", {})

    return once(broken)


def filled(stage: Stage, **config: object) -> Callable[[int], object]:
    """Stores 900 of 1,000 bytes and some."""
    stage.start()
    nats = stage.stream(**config)
    return once(lambda: nats.request("s", {"": "x" * 850}))


@scenario("PenstockFileStoreNearLimit")
def file_store(stage: Stage) -> Callable[[int], object]:
    stage.store["max_file_bytes"] = 1000
    return filled(stage)


@scenario("PenstockMemoryStoreNearLimit")
def memory_store(stage: Stage) -> Callable[[int], object]:
    stage.store["max_memory_bytes"] = 1000
    return filled(stage, storage="memory")


@scenario("PenstockDiskNearlyFull")
def disk(stage: Stage) -> Callable[[int], object]:
    stage.start()
    return once(lambda: give_free_space(stage.patch, 9))


def give_free_space(patch: pytest.MonkeyPatch, percent: int) -> None:
    stat = SimpleNamespace(f_blocks=100, f_bavail=percent, f_frsize=1 << 30)
    patch.setattr(metrics, "os", SimpleNamespace(statvfs=lambda path: stat))


@scenario("PenstockAccountNearLimit")
def account(stage: Stage) -> Callable[[int], object]:
    users = (User(name="u", password="p", account="A"),)
    limits = AccountJetStream(max_file_bytes=1000)
    stage.options["accounts"] = (AccountOptions(name="A", users=users, jetstream=limits),)
    stage.options["no_auth_user"] = "u"
    return filled(stage)


@scenario("PenstockStreamNearLimit")
def stream(stage: Stage) -> Callable[[int], object]:
    return filled(stage, max_bytes=1000, discard="new")


@scenario("PenstockConnectionsNearLimit")
def connections(stage: Stage) -> Callable[[int], object]:
    stage.options["max_connections"] = 3
    stage.start()
    return once(lambda: [stage.client() for _ in range(3)])


@scenario("PenstockOpenFilesNearLimit")
def open_files(stage: Stage) -> Callable[[int], object]:
    stage.start()
    # The limit of a process is shown, and not used up: the tests need descriptors too.
    opened = len(os.listdir("/proc/self/fd"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return once(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (int(opened * 1.1) + 4, hard)))


def unread(stage: Stage, size: int) -> None:
    """A client has so many bytes pending, and reads nothing."""
    slow, nats = stage.client(), stage.client()
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.subscribe("big", 1)
    slow.flush()
    for _ in range(size // 500_000):
        nats.publish("big", bytes(500_000))
    nats.flush()


@scenario("PenstockSlowConsumers")
def slow_consumers(stage: Stage) -> Callable[[int], object]:
    stage.options |= {"max_pending": 2_000_000, "fast_producer_stall": False}
    stage.start()
    return once(lambda: unread(stage, 20_000_000))


@scenario("PenstockSlowReader")
def slow_reader(stage: Stage) -> Callable[[int], object]:
    stage.options |= {"max_pending": 20_000_000, "fast_producer_stall": False, "write_deadline_ns": 10**12}
    stage.start()
    return once(lambda: unread(stage, 17_000_000))


@scenario("PenstockAuthenticationFailures")
def failed_logins(stage: Stage) -> Callable[[int], object]:
    stage.options |= {"user": "u", "password": "p"}
    stage.start()

    def guess() -> None:
        for number in range(21):
            with pytest.raises((ConnectionError, ValueError)):
                RawNats(stage.server.port, user="u", **{"pass": str(number)})

    return once(guess)


@scenario("PenstockSlowSyncs")
def slow_syncs(stage: Stage) -> Callable[[int], object]:
    stage.start()
    service = stage.server.server.jetstream
    assert service is not None
    return lambda minute: service.disk.sync_times.observe(700_000_000, 2 * minute)


@scenario("PenstockSlowAcks")
def slow_acks(stage: Stage) -> Callable[[int], object]:
    stage.start()
    stage.stream()
    service = stage.server.server.jetstream
    assert service is not None
    return lambda minute: service.running["$G"].tick.ack_times.observe(1_500_000_000, 2 * minute)


def consumer(nats: RawNats, **config: object) -> None:
    config |= {"durable_name": "D", "ack_policy": "explicit"}
    nats.request("$JS.API.CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})


@scenario("PenstockConsumerPaused")
def consumer_paused(stage: Stage) -> Callable[[int], object]:
    stage.start()
    nats = stage.stream()
    consumer(nats, max_ack_pending=2)

    def take() -> None:
        for _ in range(3):
            nats.request("s", {})
        nats.subscribe("_INBOX.pull", 7)
        nats.publish("$JS.API.CONSUMER.MSG.NEXT.S.D", b'{"batch":3,"expires":60000000000}', "_INBOX.pull")
        nats.message()
        nats.message()

    return once(take)


@scenario("PenstockConsumerFallsBehind")
def falls_behind(stage: Stage) -> Callable[[int], object]:
    stage.start()
    nats = stage.stream(storage="memory")
    consumer(nats)

    def publish(minute: int) -> None:
        nats.send(b"PUB s 0\r\n\r\n" * (MANY if not minute else 10))
        nats.flush()

    return publish


@contextmanager
def limits_kept() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage(tmp_path, monkeypatch)
    with limits_kept():
        yield made
    monkeypatch.undo()  # the disk works again
    if made.running is not None:
        made.stop()


@pytest.mark.parametrize("alert", RULES)
def test_a_rule_fires_on_a_server_in_the_state_it_is_about(
    alert: str, stage: Stage, noted_faults: list[BaseException]
) -> None:
    act = SCENARIOS[alert](stage)
    timeline = AlertTimeline(lambda: stage.server)
    rule = RULES[alert]
    assert timeline.fires(promql.parse(rule["expr"]), seconds(rule.get("for", "0s")), act)
    noted_faults.clear()


def test_no_rule_fires_on_a_server_that_works(stage: Stage) -> None:
    give_free_space(stage.patch, 50)
    stage.options["max_connections"] = 10
    stage.start()
    nats = stage.stream(max_bytes=100_000, discard="new")
    consumer(nats)
    timeline = AlertTimeline(lambda: stage.server)
    before = faults.count()
    for _ in range(20):
        nats.request("s", {})
        timeline.scrape()
        for alert, rule in RULES.items():
            assert not timeline.active(promql.parse(rule["expr"])), alert
    assert faults.count() == before
    assert timeline.now_s == 20 * STEP_S


def test_each_rule_says_what_to_do(stage: Stage) -> None:
    stage.start()
    known = names_on_the_page(stage.server) | {"up"}  # `up` is Prometheus' own
    for alert, rule in RULES.items():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        used = names_in(promql.parse(rule["expr"]))
        assert used, alert
        assert used <= known, alert
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in ("instance", "job", "account", "stream", "consumer"), alert


def names_on_the_page(running: EmbeddedServer) -> set[str]:
    """The names of all samples that the page may have."""
    names: set[str] = set()
    for line in metrics_text(running)[1].splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            endings = {"counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {name + ending for ending in endings.get(kind, [""])}
    return names


def test_the_dashboard_shows_metrics_that_exist(stage: Stage) -> None:
    stage.start()
    known = names_on_the_page(stage.server)
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m")
            assert set(re.findall(r"\$(\w+)", text)) <= variables
            assert names_in(promql.parse(text)) <= known, text
    for one in DASHBOARD["templating"]["list"]:
        for metric in re.findall(r"label_values\((\w+),", one["query"]):
            assert metric in known
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(places) == len(set(places))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
