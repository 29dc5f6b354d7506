"""Checks of a server, of the JetStream use of an account, and of the JetStream cluster.

The pages of servers are JSON objects as the official server writes them (`$SYS.REQ.SERVER.PING.VARZ`, JSZ).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.cli.checks.check_result import CheckResult
from penstock.client.config import StreamInfo
from penstock.errors import MisuseError
from penstock.protocol.api import AccountInfo
from penstock.protocol.durations import NS_PER_S, ZERO_TIME, format_duration, parse_time


@dataclass(frozen=True)
class ServerThresholds:
    """0 turns a threshold off. cpu: percent; mem: bytes; uptime and tls_cert: seconds. Where the critical
    number of connections or subscriptions is the lower one, numbers down to it are bad."""

    cpu_warn: float = 0
    cpu_critical: float = 0
    mem_warn: int = 0
    mem_critical: int = 0
    conn_warn: int = 0
    conn_critical: int = 0
    subs_warn: int = 0
    subs_critical: int = 0
    uptime_warn: float = 0
    uptime_critical: float = 0
    tls_cert_warn: float = 0
    tls_cert_critical: float = 0
    auth_required: bool = False
    tls_required: bool = False
    js_required: bool = False


def check_server(result: CheckResult, varz: Mapping[str, Any], limits: ServerThresholds) -> None:
    """Judge a server by its VARZ page."""
    jetstream = varz.get("jetstream") or {}
    demands = (
        (limits.js_required, bool(jetstream.get("config")), "JetStream enabled", "JetStream not enabled"),
        (limits.tls_required, bool(varz.get("tls_required")), "TLS required", "TLS not required"),
        (limits.auth_required, bool(varz.get("auth_required")), "Authentication required",
         "Authentication not required"),
    )  # fmt: skip
    for is_asked, holds, fine, trouble in demands:
        if is_asked:
            result.judge(fine if holds else trouble, is_critical=not holds)
    now_ns = parse_time(varz["now"])
    uptime_s = (now_ns - parse_time(varz["start"])) / NS_PER_S
    _check_certificates(result, varz, now_ns, limits)
    _check_uptime(result, uptime_s, limits)
    rows = (
        ("cpu", "CPU", varz.get("cpu", 0), "CPU usage in percent", "%",
         limits.cpu_warn, limits.cpu_critical, False),
        ("mem", "Memory", varz.get("mem", 0), "Memory usage in bytes", "",
         limits.mem_warn, limits.mem_critical, False),
        ("connections", "Connections", varz.get("connections", 0), "Active connections", "",
         limits.conn_warn, limits.conn_critical, True),
        ("subscriptions", "Subscriptions", varz.get("subscriptions", 0), "Active subscriptions", "",
         limits.subs_warn, limits.subs_critical, True),
    )  # fmt: skip
    for name, title, value, about, unit, warn, critical, may_invert in rows:
        result.measure(name, value, about, unit=unit, warn=warn, crit=critical)
        if not warn and not critical:
            continue
        if critical < warn and not may_invert:
            result.critical(f"{title} invalid thresholds")
        elif critical < warn:
            result.judge(f"{title} {value:.2f}", is_critical=value <= critical, is_warning=value <= warn)
        else:
            result.judge(f"{title} {value:.2f}", is_critical=value >= critical, is_warning=value >= warn)


def _check_uptime(result: CheckResult, uptime_s: float, limits: ServerThresholds) -> None:
    warn, critical = limits.uptime_warn, limits.uptime_critical
    result.measure("uptime", uptime_s, "Uptime in seconds", unit="s", warn=warn, crit=critical)
    if warn <= 0 and critical <= 0:
        return
    if critical > warn > 0:
        result.critical("Up invalid thresholds: the critical uptime is the shorter one")
        return
    text = f"Up {format_duration(round(uptime_s) * NS_PER_S)}"
    result.judge(text, is_critical=uptime_s <= critical, is_warning=uptime_s <= warn)


def _check_certificates(
    result: CheckResult, varz: Mapping[str, Any], now_ns: int, limits: ServerThresholds
) -> None:
    if limits.tls_cert_warn <= 0 and limits.tls_cert_critical <= 0:
        return
    parts = ("cluster", "gateway", "leaf", "mqtt", "websocket")
    pages = {"server": varz} | {part: varz.get(part) or {} for part in parts}
    ends = {part: page.get("tls_cert_not_after", "") for part, page in pages.items()}
    ends = {part: end for part, end in ends.items() if end and end != ZERO_TIME}
    if not ends:
        result.critical("TLS certificate expiry thresholds configured but no TLS certificates found")
    for part, end in ends.items():
        left_s = (parse_time(end) - now_ns) / NS_PER_S
        text = f"{part} TLS certificate expires in {format_duration(round(left_s) * NS_PER_S)} ({end})"
        if left_s <= 0:
            result.critical(f"{part} TLS certificate expired ({end})")
            continue
        result.judge(
            text, is_critical=left_s <= limits.tls_cert_critical, is_warning=left_s <= limits.tls_cert_warn
        )


# --- JetStream -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JetStreamThresholds:
    """Percents of the account's limits; -1 turns a threshold off. replica_*: seconds and operations, 0 for
    none."""

    mem_warn: int = 75
    mem_critical: int = 90
    store_warn: int = 75
    store_critical: int = 90
    streams_warn: int = -1
    streams_critical: int = -1
    consumers_warn: int = -1
    consumers_critical: int = -1
    replica_seen_critical: float = 5
    replica_lag_critical: int = 200


def check_jetstream(result: CheckResult, info: AccountInfo, limits: JetStreamThresholds) -> None:
    """Judge an account's use of JetStream by its limits. With tiers, each tier by its own."""
    uses = {"": info} if not info.tiers else {f"{name}_": tier for name, tier in info.tiers.items()}
    for prefix, use in uses.items():
        bounds = use.limits
        rows = (
            ("memory", "B", limits.mem_warn, limits.mem_critical, bounds.max_memory, use.memory),
            ("storage", "B", limits.store_warn, limits.store_critical, bounds.max_storage, use.storage),
            ("streams", "", limits.streams_warn, limits.streams_critical, bounds.max_streams, use.streams),
            ("consumers", "", limits.consumers_warn, limits.consumers_critical,
             bounds.max_consumers, use.consumers),
        )  # fmt: skip
        for item, unit, warn, critical, most, used in rows:
            _check_use(result, prefix + item, unit, warn, critical, most, used)
    result.ok_unless_found("JetStream usage is within its limits")


def _check_use(
    result: CheckResult, item: str, unit: str, warn: int, critical: int, most: int, used: int
) -> None:
    percent = used * 100 // most if most > 0 else 0
    result.measure(item, used, f"JetStream {item} resource usage", unit=unit)
    about = f"JetStream {item} resource usage in percent"
    result.measure(f"{item}_pct", percent, about, unit="%", warn=warn, crit=critical)
    if warn >= 0 and critical >= 0 and warn >= critical:
        result.critical(f"{item}: invalid thresholds")
    elif percent > 100:
        result.critical(f"{item}: exceed server limits")
    elif 0 <= critical < percent:
        result.critical(f"{percent}% {item}")
    elif 0 <= warn < percent:
        result.warn(f"{percent}% {item}")


def check_replicas(result: CheckResult, streams: Iterable[StreamInfo], limits: JetStreamThresholds) -> None:
    """Judge the replicas of an account's streams."""
    counts = dict.fromkeys(("ok", "no_leader", "missing_replicas", "lagged", "not_seen", "fail"), 0)
    for info in streams:
        counts[_replica_state(info, limits)] += 1
    about = {
        "ok": "Streams with healthy cluster state",
        "no_leader": "Streams with no leader elected",
        "missing_replicas": "Streams with fewer known replicas than configured",
        "lagged": "Streams with lagged replicas",
        "not_seen": "Streams with replicas that were not seen recently",
        "fail": "Streams with unhealthy cluster state",
    }
    for name, count in counts.items():
        result.measure(f"replicas_{name}", count, about[name])
    unhealthy = sum(counts.values()) - counts["ok"]
    if unhealthy:
        result.critical(f"{unhealthy} unhealthy streams")


def _replica_state(info: StreamInfo, limits: JetStreamThresholds) -> str:
    if info.config.num_replicas <= 1:
        return "ok"
    if info.cluster is None:
        return "fail"
    if not info.cluster.leader:
        return "no_leader"
    if len(info.cluster.replicas) != info.config.num_replicas - 1:
        return "missing_replicas"
    for replica in info.cluster.replicas:
        if replica.offline:
            return "fail"
        if 0 < limits.replica_seen_critical * NS_PER_S < replica.active:
            return "not_seen"
        if 0 < limits.replica_lag_critical < replica.lag:
            return "lagged"
    return "ok"


def check_meta(
    result: CheckResult,
    jsz: Mapping[str, Any],
    *,
    expect: int = 0,
    lag_critical: int = 0,
    seen_critical: float = 0,
) -> None:
    """Judge the group of servers that manages JetStream, by the JSZ page of its leader.

    expect: number of servers, 0 = any. seen_critical: seconds.
    """
    meta = jsz.get("meta_cluster")
    if not meta:
        result.critical("no cluster information")
        return
    if not meta.get("leader"):
        result.critical("No leader")
        return
    replicas = meta.get("replicas") or []
    count = len(replicas) + 1
    result.measure("peers", count, "Configured RAFT peers", warn=expect, crit=expect)
    if expect > 0 and count != expect:
        result.critical(f"{count} peers of expected {expect}")
    rows = (
        ("peer_offline", "offline", "Offline RAFT peers", sum(bool(one.get("offline")) for one in replicas)),
        ("peer_not_current", "not current", "RAFT peers that are not current",
         sum(not one.get("current") for one in replicas)),
        ("peer_inactive", f"inactive more than {seen_critical:g}s", "Inactive RAFT peers",
         sum(0 < seen_critical * NS_PER_S < one.get("active", 0) for one in replicas)),
        ("peer_lagged", f"lagged more than {lag_critical} ops", "RAFT peers behind by more than the limit",
         sum(0 < lag_critical < one.get("lag", 0) for one in replicas)),
    )  # fmt: skip
    for name, trouble, about, found in rows:
        result.measure(name, found, about)
        if found:
            result.critical(f"{found} {trouble}")
    result.ok_unless_found(f"{count} peers led by {meta['leader']}")


def named_server(pages: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The page of the server with this name. Raises MisuseError, which names those that answered."""
    found = list(pages)
    for page in found:
        if page.get("server", {}).get("name") == name:
            return page
    others = ", ".join(sorted(str(page.get("server", {}).get("name")) for page in found)) or "none"
    raise MisuseError(f"no server {name!r} answered; those that did: {others}")
