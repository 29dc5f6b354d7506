"""Health checks: what they find, and their output for monitoring systems."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.checks.check_result import CheckFormat, CheckResult, CheckStatus
from penstock.cli.checks.connection_checks import (
    ConnectionThresholds,
    ConnectionTimes,
    RequestExpectations,
    check_connection,
    check_credential,
    check_request,
)
from penstock.cli.checks.server_checks import (
    JetStreamThresholds,
    ServerThresholds,
    check_jetstream,
    check_meta,
    check_replicas,
    check_server,
)
from penstock.cli.checks.stream_health import (
    ConsumerThresholds,
    StreamThresholds,
    check_consumer,
    check_message,
    check_stream,
    with_metadata,
)
from penstock.client.config import ConsumerInfo, StreamConfig, StreamInfo, StreamSourceInfo
from penstock.client.direct import StoredMessage
from penstock.errors import MisuseError
from penstock.protocol import api
from penstock.protocol.durations import NS_PER_S, format_time
from penstock.protocol.headers import Headers
from penstock.protocol.jwt import format_credentials
from tests.support import keys

NOW_NS = 1_800_000_000 * NS_PER_S


def result(name: str = "X") -> CheckResult:
    return CheckResult("test", name)


def stream(*, messages: int = 0, subjects: int = 0, **fields: Any) -> StreamInfo:
    values: dict[str, Any] = {"cluster": None, "mirror": None, "sources": [], **fields}
    config = values.pop("config", StreamConfig(name="S", num_replicas=values.pop("replicas", 1)))
    state = api.StreamState(messages=messages, num_subjects=subjects)
    return StreamInfo(config=config, created="", state=state, domain="", alternates=[], ts="", **values)


def source(lag: int = 0, active: float = 0) -> StreamSourceInfo:
    return StreamSourceInfo(
        name="ORIGIN", external=None, lag=lag, seq=0, active=active, error=None, filter_subject="",
        subject_transforms=[],
    )  # fmt: skip


def cluster(*, leader: str = "n1", **peer: Any) -> api.ClusterInfo:
    peers = [api.PeerInfo(name="n2", current=True), api.PeerInfo(name="n3", current=True, **peer)]
    return api.ClusterInfo(name="C", leader=leader, replicas=peers)


# --- output ----------------------------------------------------------------------------------------


def mixed() -> CheckResult:
    made = result("a name")
    made.ok("fine")
    made.warn("not so fine")
    made.measure("time", 0.25, "How long", unit="s", warn=0.2, crit=0.5)
    made.measure("count", 3)
    return made


def test_a_nagios_line_has_status_findings_and_performance_data() -> None:
    line = mixed().render(CheckFormat.NAGIOS)
    assert line == "WARNING a name Warn:not so fine OK:fine | time=0.2500s;0.2000;0.5000 count=3"


def test_a_finding_with_a_line_break_stays_on_one_line() -> None:
    made = result()
    made.critical("two\nlines")
    assert "\n" not in made.render(CheckFormat.NAGIOS)


@pytest.mark.parametrize(("degree", "code"), [("ok", 0), ("warn", 1), ("critical", 2)])
def test_the_exit_code_is_that_of_the_worst_finding_except_for_prometheus(degree: str, code: int) -> None:
    made = result()
    made.ok("fine")
    getattr(made, degree)("found")
    assert made.exit_code(CheckFormat.NAGIOS) == made.exit_code(CheckFormat.JSON) == code
    assert made.exit_code(CheckFormat.PROMETHEUS) == 0


def test_prometheus_parses_the_metrics_and_the_status() -> None:
    made = mixed()
    made.name = 'quo"ted\\'
    text = made.render(CheckFormat.PROMETHEUS, namespace="ns") + "\n"
    samples = {
        sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples
    }
    assert samples["ns_test_time"].value == 0.25
    assert samples["ns_test_time"].labels == {"item": 'quo"ted\\'}
    assert samples["ns_test_status_code"].value == 1
    assert samples["ns_test_status_code"].labels["status"] == "WARNING"


def test_json_has_the_official_field_names() -> None:
    page = json.loads(mixed().render(CheckFormat.JSON))
    assert page == {
        "status": "WARNING", "check_suite": "test", "check_name": "a name",
        "warning": ["not so fine"], "ok": ["fine"],
        "perf_data": [
            {"name": "time", "value": 0.25, "warning": 0.2, "critical": 0.5, "unit": "s"},
            {"name": "count", "value": 3, "warning": 0, "critical": 0},
        ],
    }  # fmt: skip


# --- connections -----------------------------------------------------------------------------------


def test_a_slow_connection_is_judged_by_each_of_its_times() -> None:
    made = result()
    limits = ConnectionThresholds(connect_warn=1, connect_critical=2, rtt_warn=0.1, rtt_critical=0.2)
    check_connection(made, "nats://x", ConnectionTimes(connect=1.5, rtt=0.3, request=0.01), limits)
    assert [len(made.criticals), len(made.warnings), len(made.oks)] == [1, 1, 1]
    assert "rtt time 300ms" in made.criticals[0]


def test_an_answer_is_matched_by_payload_headers_and_time() -> None:
    wanted = RequestExpectations(match_payload="^ok", match_headers={"A": "1"}, response_critical=1)
    made = result()
    check_request(made, b"ok then", {"A": "1"}, 0.5, wanted)
    assert made.status is CheckStatus.OK
    made = result()
    check_request(made, b"no", {"A": "2"}, 2, wanted)
    assert len(made.criticals) == 3
    with pytest.raises(MisuseError, match="regular expression"):
        check_request(result(), b"", {}, 0, RequestExpectations(match_payload="("))


@pytest.mark.parametrize(
    ("left_s", "status"),
    [
        (-5, CheckStatus.CRITICAL),
        (50, CheckStatus.CRITICAL),
        (500, CheckStatus.WARNING),
        (5000, CheckStatus.OK),
    ],
)
def test_a_credentials_file_is_judged_by_the_time_until_its_expiry(left_s: int, status: CheckStatus) -> None:
    now_s = keys.now_s()
    token = keys.user_token("main", "joe", head={"expires": now_s + left_s})
    text = format_credentials(token, keys.key("user", "joe").seed)
    made = result()
    check_credential(made, text, now_s, validity_warn=1000, validity_critical=100)
    assert made.status is status


def test_credentials_without_expiry_or_with_rubbish_are_critical() -> None:
    made = result()
    check_credential(made, format_credentials(keys.user_token("main", "joe"), "SU"), 0)
    assert made.criticals == ["never expires"]
    made = result()
    check_credential(made, "rubbish", 0)
    assert "invalid credential" in made.criticals[0]


# --- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "limits", "criticals"),
    [
        (stream(), StreamThresholds(), []),
        (stream(), StreamThresholds(peer_expect=3), ["Stream is not clustered"]),
        (stream(replicas=3, cluster=cluster()), StreamThresholds(), []),
        (stream(replicas=3, cluster=cluster(leader="")), StreamThresholds(), ["No leader"]),
        (stream(replicas=3, cluster=cluster()), StreamThresholds(peer_expect=5),
         ["Expected 5 replicas got 3"]),
        (stream(replicas=3, cluster=cluster(offline=True)), StreamThresholds(), ["1 replicas offline"]),
        (stream(replicas=3, cluster=cluster(lag=9)), StreamThresholds(peer_lag_critical=5),
         ["1 replicas lagged"]),
        (stream(replicas=3, cluster=cluster(active=9 * NS_PER_S)), StreamThresholds(peer_seen_critical=5),
         ["1 replicas inactive"]),
        (stream(messages=5), StreamThresholds(msgs_critical=5), ["5 messages"]),
        (stream(messages=6), StreamThresholds(msgs_critical=5), []),
        (stream(subjects=5), StreamThresholds(subjects_warn=2, subjects_critical=5), ["5 subjects"]),
        (stream(subjects=5), StreamThresholds(subjects_warn=9, subjects_critical=5), ["5 subjects"]),
        (stream(sources=[source()]), StreamThresholds(min_sources=2), ["1 sources"]),
        (stream(sources=[source(lag=7)]), StreamThresholds(lag_critical=7), ["1 sources are lagged"]),
        (stream(sources=[source(active=-1)]), StreamThresholds(seen_critical=7), ["1 sources are inactive"]),
        (stream(mirror=source(lag=7)), StreamThresholds(lag_critical=7), ["Mirror Lag 7"]),
        (stream(mirror=source(active=8)), StreamThresholds(seen_critical=7), ["Mirror Seen 8s"]),
        (stream(), StreamThresholds(lag_critical=7), ["not mirrored"]),
    ],
)  # fmt: skip
def test_each_threshold_of_a_stream_finds_its_trouble(
    info: StreamInfo, limits: StreamThresholds, criticals: list[str]
) -> None:
    made = result()
    check_stream(made, info, limits)
    assert made.criticals == criticals


def test_thresholds_in_metadata_take_precedence() -> None:
    metadata = {"io.nats.monitor.msgs-critical": "7", "io.nats.monitor.seen-critical": "1m", "other": "x"}
    limits = with_metadata(StreamThresholds(msgs_critical=1, msgs_warn=3), metadata)
    assert limits == StreamThresholds(msgs_critical=7, msgs_warn=3, seen_critical=60)
    pinned = with_metadata(ConsumerThresholds(), {"io.nats.monitor.pinned": "true"})
    assert pinned.pinned
    with pytest.raises(MisuseError, match="msgs-critical is 'x'"):
        with_metadata(StreamThresholds(), {"io.nats.monitor.msgs-critical": "x"})


def consumer(*, acked_s_ago: int | None = None, **counts: int) -> ConsumerInfo:
    from penstock.client.config import ConsumerConfig

    ack = format_time(NOW_NS - acked_s_ago * NS_PER_S) if acked_s_ago is not None else None
    zero = dict.fromkeys(("num_ack_pending", "num_redelivered", "num_waiting", "num_pending"), 0)
    return ConsumerInfo(
        stream_name="S", name="C", created="", config=ConsumerConfig(), delivered=api.SequenceInfo(),
        ack_floor=api.SequenceInfo(last_active=ack), cluster=None, push_bound=False, paused=False,
        pause_remaining=0, ts="", priority_groups=[], **{**zero, **counts},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("info", "limits", "criticals"),
    [
        (consumer(num_ack_pending=5), ConsumerThresholds(outstanding_ack_critical=5), ["Ack Pending: 5"]),
        (consumer(num_waiting=5), ConsumerThresholds(waiting_critical=6), []),
        (consumer(num_pending=5), ConsumerThresholds(unprocessed_critical=4), ["Unprocessed Messages: 5"]),
        (consumer(num_redelivered=5), ConsumerThresholds(redelivery_critical=4), ["Redelivered: 5"]),
        (consumer(), ConsumerThresholds(last_ack_critical=4), ["No acks"]),
        (consumer(acked_s_ago=3), ConsumerThresholds(last_ack_critical=4), []),
        (consumer(acked_s_ago=5), ConsumerThresholds(last_ack_critical=4), ["Last ack 5s ago"]),
        (consumer(), ConsumerThresholds(last_delivery_critical=4), ["No deliveries"]),
        (consumer(), ConsumerThresholds(pinned=True), ["Not pinned client priority mode"]),
    ],
)
def test_each_threshold_of_a_consumer_finds_its_trouble(
    info: ConsumerInfo, limits: ConsumerThresholds, criticals: list[str]
) -> None:
    made = result()
    check_consumer(made, info, limits, NOW_NS)
    assert made.criticals == criticals


def test_a_message_is_judged_by_age_and_content() -> None:
    message = StoredMessage("S", "a", 1, NOW_NS - 10 * NS_PER_S, Headers(), b"1799999000")
    for settings, status in (
        ({}, CheckStatus.OK),
        ({"age_warn": 5}, CheckStatus.WARNING),
        ({"age_warn": 5, "age_critical": 9}, CheckStatus.CRITICAL),
        ({"content": "^17"}, CheckStatus.OK),
        ({"content": "^18"}, CheckStatus.CRITICAL),
        ({"body_timestamp": True, "age_critical": 999}, CheckStatus.CRITICAL),
        ({"body_timestamp": True, "age_critical": 1001}, CheckStatus.OK),
    ):
        made = result()
        check_message(made, message, NOW_NS, **settings)  # type: ignore[arg-type]
        assert made.status is status, settings
    made = result()
    check_message(made, None, NOW_NS)
    assert made.criticals == ["no message found"]


# --- servers ---------------------------------------------------------------------------------------


def varz(**fields: Any) -> dict[str, Any]:
    page = {"now": format_time(NOW_NS), "start": format_time(NOW_NS - 100 * NS_PER_S), "cpu": 50, "mem": 1000}
    return {**page, "connections": 10, "subscriptions": 20, **fields}


@pytest.mark.parametrize(
    ("fields", "limits", "criticals"),
    [
        ({}, ServerThresholds(), []),
        ({}, ServerThresholds(cpu_warn=40, cpu_critical=50), ["CPU 50.00"]),
        ({}, ServerThresholds(cpu_warn=50, cpu_critical=40), ["CPU invalid thresholds"]),
        ({}, ServerThresholds(conn_warn=20, conn_critical=10), ["Connections 10.00"]),
        ({}, ServerThresholds(conn_warn=11, conn_critical=12), []),
        ({}, ServerThresholds(uptime_warn=300, uptime_critical=200), ["Up 1m40s"]),
        ({}, ServerThresholds(js_required=True), ["JetStream not enabled"]),
        ({"jetstream": {"config": {"max_memory": 1}}}, ServerThresholds(js_required=True), []),
        ({}, ServerThresholds(tls_required=True, auth_required=True),
         ["TLS not required", "Authentication not required"]),
        ({"tls_cert_not_after": format_time(NOW_NS + 50 * NS_PER_S)},
         ServerThresholds(tls_cert_warn=100, tls_cert_critical=60),
         [f"server TLS certificate expires in 50s ({format_time(NOW_NS + 50 * NS_PER_S)})"]),
    ],
)  # fmt: skip
def test_each_threshold_of_a_server_finds_its_trouble(
    fields: dict[str, Any], limits: ServerThresholds, criticals: list[str]
) -> None:
    made = result()
    check_server(made, varz(**fields), limits)
    assert made.criticals == criticals


def account(used: int, most: int) -> api.AccountInfo:
    limits = api.AccountLimits(max_storage=most)
    return api.AccountInfo(storage=used, limits=limits, api=api.ApiStats())


@pytest.mark.parametrize(
    ("used", "most", "status"),
    [(1000, -1, "OK"), (75, 100, "OK"), (76, 100, "WARNING"), (91, 100, "CRITICAL"), (101, 100, "CRITICAL")],
)
def test_jetstream_use_is_judged_in_percent_of_the_limits(used: int, most: int, status: str) -> None:
    made = result()
    check_jetstream(made, account(used, most), JetStreamThresholds())
    assert made.status == status


def test_streams_without_enough_healthy_replicas_are_counted() -> None:
    infos = [
        stream(), stream(replicas=3, cluster=cluster()), stream(replicas=3),
        stream(replicas=3, cluster=cluster(leader="")), stream(replicas=5, cluster=cluster()),
        stream(replicas=3, cluster=cluster(offline=True)), stream(replicas=3, cluster=cluster(lag=201)),
        stream(replicas=3, cluster=cluster(active=6 * NS_PER_S)),
    ]  # fmt: skip
    made = result()
    check_replicas(made, infos, JetStreamThresholds())
    assert made.criticals == ["6 unhealthy streams"]
    counts = {metric.name: metric.value for metric in made.metrics}
    assert counts == {
        "replicas_ok": 2, "replicas_no_leader": 1, "replicas_missing_replicas": 1, "replicas_lagged": 1,
        "replicas_not_seen": 1, "replicas_fail": 2,
    }  # fmt: skip


def test_the_meta_group_needs_a_leader_and_its_peers() -> None:
    made = result()
    check_meta(made, {})
    assert made.criticals == ["no cluster information"]
    peers = [
        {"name": "n2", "current": True, "active": 1, "lag": 0},
        {"name": "n3", "current": False, "lag": 9},
    ]
    made = result()
    check_meta(made, {"meta_cluster": {"leader": "n1", "replicas": peers}}, expect=3, lag_critical=5)
    assert made.criticals == ["1 not current", "1 lagged more than 5 ops"]
