"""Checks of streams, consumers, messages and key-value buckets.

Thresholds of streams and consumers may be stored in their metadata (`io.nats.monitor.lag-critical` and
others), where they take precedence over those of the command, as with the official command line.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from penstock.cli.checks.check_result import CheckResult
from penstock.cli.checks.connection_checks import matches
from penstock.client.config import ConsumerInfo, StreamInfo, StreamSourceInfo
from penstock.client.direct import StoredMessage
from penstock.client.keyvalue.bucket_config import KeyValueStatus
from penstock.errors import MisuseError
from penstock.protocol.api import PriorityPolicy
from penstock.protocol.durations import NS_PER_S, format_duration, parse_duration, parse_time

METADATA_PREFIX = "io.nats.monitor."


@dataclass(frozen=True)
class StreamThresholds:
    """0 turns a threshold off. Seconds, messages, or numbers of sources and peers. peer_expect: the replicas
    of the stream."""

    lag_critical: int = 0
    seen_critical: float = 0
    min_sources: int = 0
    max_sources: int = 0
    peer_expect: int = 0
    peer_lag_critical: int = 0
    peer_seen_critical: float = 0
    msgs_warn: int = 0
    msgs_critical: int = 0
    subjects_warn: int = 0
    subjects_critical: int = 0


@dataclass(frozen=True)
class ConsumerThresholds:
    """0 turns a threshold off. Times in seconds. pinned: every priority group must have a pinned client."""

    outstanding_ack_critical: int = 0
    waiting_critical: int = 0
    unprocessed_critical: int = 0
    last_delivery_critical: float = 0
    last_ack_critical: float = 0
    redelivery_critical: int = 0
    pinned: bool = False


Thresholds = TypeVar("Thresholds", StreamThresholds, ConsumerThresholds)


def with_metadata(limits: Thresholds, metadata: dict[str, str]) -> Thresholds:
    """The thresholds, with those of the asset's metadata in their place. Raises MisuseError."""
    found: dict[str, int | float | bool] = {}
    for one in fields(limits):
        text = metadata.get(METADATA_PREFIX + one.name.replace("_", "-"))
        if text is None:
            continue
        try:
            if one.type == "bool":
                found[one.name] = text.lower() in ("1", "t", "true")
            elif one.type == "int":
                found[one.name] = int(text)
            else:
                found[one.name] = parse_duration(text) / NS_PER_S
        except ValueError as error:
            name = METADATA_PREFIX + one.name.replace("_", "-")
            raise MisuseError(f"metadata {name} is {text!r}: {error}") from None
    return replace(limits, **found)  # type: ignore[arg-type]


def check_stream(result: CheckResult, info: StreamInfo, limits: StreamThresholds) -> None:
    """Judge replicas, messages, subjects, sources and the mirror of a stream."""
    _check_replicas(result, info, limits)
    _check_messages(result, info.state.messages, limits)
    _check_subjects(result, info.state.num_subjects, limits)
    _check_sources(result, info.sources, limits)
    _check_mirror(result, info, limits)


def _check_replicas(result: CheckResult, info: StreamInfo, limits: StreamThresholds) -> None:
    cluster = info.cluster
    is_replicated = cluster is not None and info.config.num_replicas > 1
    if not is_replicated or cluster is None:
        if limits.peer_expect > 0:
            result.critical("Stream is not clustered")
        return
    if not cluster.leader:
        result.critical("No leader")
        return
    peers = len(cluster.replicas) + 1
    expected = limits.peer_expect or info.config.num_replicas
    result.measure("peers", peers, "The number of peers in the cluster", warn=expected, crit=expected)
    if peers != expected:
        result.critical(f"Expected {expected} replicas got {peers}")
        return
    result.ok(f"{peers} peers")
    lagged = sum(0 < limits.peer_lag_critical < peer.lag for peer in cluster.replicas)
    inactive = sum(0 < limits.peer_seen_critical * NS_PER_S < peer.active for peer in cluster.replicas)
    offline = sum(peer.offline for peer in cluster.replicas)
    for name, count, trouble, fine in (
        ("peer_lagged", lagged, "replicas lagged", "current"),
        ("peer_inactive", inactive, "replicas inactive", "active"),
        ("peer_offline", offline, "replicas offline", "online"),
    ):
        result.measure(name, count, f"The number of peers with trouble: {trouble}")
        result.judge(f"{count} {trouble}" if count else f"replicas are {fine}", is_critical=count > 0)


def _check_messages(result: CheckResult, messages: int, limits: StreamThresholds) -> None:
    if limits.msgs_warn <= 0 and limits.msgs_critical <= 0:
        return
    result.measure(
        "messages", messages, "Messages stored in the stream",
        warn=limits.msgs_warn, crit=limits.msgs_critical,
    )  # fmt: skip
    result.judge(
        f"{messages} messages",
        is_critical=limits.msgs_critical > 0 and messages <= limits.msgs_critical,
        is_warning=limits.msgs_warn > 0 and messages <= limits.msgs_warn,
    )


def _check_subjects(result: CheckResult, subjects: int, limits: StreamThresholds) -> None:
    warn, critical = limits.subjects_warn, limits.subjects_critical
    if warn <= 0 and critical <= 0:
        return
    result.measure("subjects", subjects, "Subjects stored in the stream", warn=warn, crit=critical)
    _judge_both_ways(result, f"{subjects} subjects", subjects, warn, critical)


def _judge_both_ways(result: CheckResult, text: str, value: float, warn: float, critical: float) -> None:
    """Values from a threshold on are bad; if the critical one is the lower one, values down to it are."""
    if warn < critical:
        result.judge(text, is_critical=value >= critical, is_warning=value >= warn)
    else:
        result.judge(text, is_critical=value <= critical, is_warning=value <= warn)


def _check_sources(result: CheckResult, sources: list[StreamSourceInfo], limits: StreamThresholds) -> None:
    count = len(sources)
    result.measure(
        "sources", count, "Number of sources of this stream",
        warn=limits.min_sources, crit=limits.max_sources,
    )  # fmt: skip
    too_few, too_many = 0 < limits.min_sources > count, 0 < limits.max_sources < count
    result.judge(f"{count} sources", is_critical=too_few or too_many)
    if not sources or (limits.lag_critical <= 0 and limits.seen_critical <= 0):
        return
    lagged = sum(0 < limits.lag_critical <= one.lag for one in sources)
    inactive = sum(_is_unseen(one, limits) for one in sources)
    result.measure("sources_lagged", lagged, "Sources that are further behind than the threshold")
    result.measure("sources_inactive", inactive, "Sources that were not seen for longer than the threshold")
    result.judge(f"{lagged} sources are lagged" if lagged else f"{count} sources current",
                 is_critical=lagged > 0)  # fmt: skip
    result.judge(f"{inactive} sources are inactive" if inactive else f"{count} sources active",
                 is_critical=inactive > 0)  # fmt: skip


def _check_mirror(result: CheckResult, info: StreamInfo, limits: StreamThresholds) -> None:
    if (limits.lag_critical <= 0 and limits.seen_critical <= 0) or info.sources or info.config.sources:
        return
    mirror = info.mirror
    if mirror is None:
        result.critical("not mirrored" if info.config.mirror is None else "the mirror has no state yet")
        return
    result.measure("lag", mirror.lag, "Messages behind the origin", crit=limits.lag_critical)
    result.measure(
        "active", max(mirror.active, 0), "Time since the origin was seen", unit="s", crit=limits.seen_critical
    )
    is_lagged = 0 < limits.lag_critical <= mirror.lag
    if is_lagged:
        result.critical(f"Mirror Lag {mirror.lag}")
    if _is_unseen(mirror, limits):
        result.critical(f"Mirror Seen {_shown(mirror.active)}" if mirror.active >= 0 else "Mirror never seen")
    elif not is_lagged:
        result.ok(f"Mirror {mirror.name}")


def _is_unseen(source: StreamSourceInfo, limits: StreamThresholds) -> bool:
    """Whether a source was last seen too long ago, or never (-1)."""
    return limits.seen_critical > 0 and (source.active < 0 or source.active >= limits.seen_critical)


# --- consumers -------------------------------------------------------------------------------------


def check_consumer(result: CheckResult, info: ConsumerInfo, limits: ConsumerThresholds, now_ns: int) -> None:
    """Judge the counts and times of a consumer. now_ns: ns since 1970."""
    rows = (
        ("ack_pending", info.num_ack_pending, "Messages waiting to be acknowledged",
         "Ack Pending", limits.outstanding_ack_critical),
        ("pull_waiting", info.num_waiting, "Waiting pull requests",
         "Waiting Pulls", limits.waiting_critical),
        ("pending", info.num_pending, "Messages not yet delivered",
         "Unprocessed Messages", limits.unprocessed_critical),
        ("redelivered", info.num_redelivered, "Messages being redelivered",
         "Redelivered", limits.redelivery_critical),
    )  # fmt: skip
    for name, value, about, _, critical in rows:
        result.measure(name, value, about, crit=critical)
    for _, value, _, text, critical in rows:
        if critical > 0:
            result.judge(f"{text}: {value}", is_critical=value >= critical)
    times = (
        ("last_delivery", info.delivered.last_active, "Last delivery", "No deliveries",
         limits.last_delivery_critical),
        ("last_ack", info.ack_floor.last_active, "Last ack", "No acks", limits.last_ack_critical),
    )  # fmt: skip
    for name, at, text, none, critical_s in times:
        age_s = (now_ns - parse_time(at)) / NS_PER_S if at else None
        if age_s is not None:
            result.measure(name, age_s, f"Seconds since: {text.lower()}", unit="s", crit=critical_s)
        if critical_s <= 0:
            continue
        if age_s is None:
            result.critical(none)
        else:
            result.judge(f"{text} {_shown(age_s)} ago", is_critical=age_s >= critical_s)
    if limits.pinned:
        _check_pinned(result, info)


def _check_pinned(result: CheckResult, info: ConsumerInfo) -> None:
    groups = len(info.config.priority_groups)
    pinned = sum(bool(group.pinned_client_id) for group in info.priority_groups)
    result.measure("pinned_groups", pinned, "Consumer groups with pinned clients")
    result.measure("groups", groups, "Consumer groups")
    if info.config.priority_policy is not PriorityPolicy.PINNED_CLIENT or not groups:
        result.critical("Not pinned client priority mode")
    else:
        text = f"{pinned} pinned clients" if pinned == groups else f"{pinned} / {groups} pinned clients"
        result.judge(text, is_critical=pinned != groups)


# --- messages and buckets --------------------------------------------------------------------------


def check_message(
    result: CheckResult,
    message: StoredMessage | None,
    now_ns: int,
    *,
    age_warn: float = 0,
    age_critical: float = 0,
    content: str = "",
    body_timestamp: bool = False,
) -> None:
    """Judge the age and content of the last message of a subject. message: None if there is none.

    age_*: seconds. content: a regular expression. body_timestamp: the payload is the time, in s since 1970.
    Raises MisuseError for an invalid regular expression.
    """
    if message is None:
        result.critical("no message found")
        return
    stored_ns = message.time_ns
    if body_timestamp:
        try:
            stored_ns = int(message.data.strip()) * NS_PER_S
        except ValueError:
            result.critical(f"invalid timestamp body: {message.data[:40]!r} is not a number of seconds")
            return
    age_s = (now_ns - stored_ns) / NS_PER_S
    result.measure("age", age_s, "The age of the message", unit="s", warn=age_warn, crit=age_critical)
    result.measure("size", len(message.data), "The size of the message", unit="B")
    if 0 < age_critical < age_s:
        result.critical(f"{_shown(age_s)} old")
    elif 0 < age_warn < age_s:
        result.warn(f"{_shown(age_s)} old")
    if content and not matches(content, message.data):
        result.critical(f"does not match regex: {content}")
    result.ok_unless_found(f"Valid message on {message.stream} > {message.subject}")


def check_bucket_values(
    result: CheckResult, status: KeyValueStatus, *, values_warn: int = -1, values_critical: int = -1
) -> None:
    """Judge the number of values in a bucket; -1 turns a threshold off. If the critical one is the lower
    one, values down to it are bad."""
    values = status.values
    result.ok(f"bucket {status.bucket}")
    result.measure("values", values, "Values stored in the bucket", warn=values_warn, crit=values_critical)
    result.measure("bytes", status.bytes, "Bytes stored in the bucket", unit="B")
    result.measure("replicas", status.config.replicas, "Replicas of the bucket")
    if values_warn < 0 and values_critical < 0:
        return
    if values_critical < values_warn:
        is_critical = 0 <= values_critical >= values
        is_warning = 0 <= values_warn >= values
    else:
        is_critical = 0 <= values_critical <= values
        is_warning = 0 <= values_warn <= values
    result.judge(f"{values} values", is_critical=is_critical, is_warning=is_warning)


def _shown(seconds: float) -> str:
    return format_duration(round(seconds * 1000) * 1_000_000)
