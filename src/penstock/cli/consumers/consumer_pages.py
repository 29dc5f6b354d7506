"""Pages about consumers: info, state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.framework.value_texts import (
    ago_text,
    duration_text,
    limit_text,
    number_text,
    size_text,
    time_text,
)
from penstock.cli.streams.stream_pages import Rows, cluster_rows, metadata_rows, version_rows

if TYPE_CHECKING:
    from penstock.cli.framework.cli_output import CommandOutput
    from penstock.protocol.api import ApiConsumerConfig, ApiConsumerInfo, SequenceInfo

_POLICIES = {
    "by_start_sequence": "From Sequence",
    "by_start_time": "Since",
    "last_per_subject": "Last Per Subject",
}


def show_consumer(output: CommandOutput, info: ApiConsumerInfo) -> None:
    """The page of `consumer info`."""
    output.sections(
        f"Information for Consumer {info.stream_name} > {info.name} created {time_text(info.created)}",
        [
            ("Configuration", _configuration(info)),
            ("Metadata", metadata_rows(info.config.metadata)),
            ("Cluster Information", cluster_rows(info.cluster)),
            ("State", _state(info)),
        ],
    )


def show_consumer_state(output: CommandOutput, info: ApiConsumerInfo) -> None:
    """The page of `consumer state`."""
    output.sections(
        f"State for Consumer {info.stream_name} > {info.name} created {time_text(info.created)}",
        [("Cluster Information", cluster_rows(info.cluster)), ("State", _state(info))],
    )


def _configuration(info: ApiConsumerInfo) -> Rows:
    config = info.config
    rows: Rows = [("Name", info.name)]
    if config.description:
        rows.append(("Description", config.description))
    if config.deliver_subject:
        rows.append(("Delivery Subject", config.deliver_subject))
    else:
        rows.append(("Pull Mode", "true"))
    if config.deliver_group:
        rows.append(("Deliver Queue Group", config.deliver_group))
    subjects = config.filter_subjects or ([config.filter_subject] if config.filter_subject else [])
    if subjects:
        rows.append(("Filter Subjects" if len(subjects) > 1 else "Filter Subject", ", ".join(subjects)))
    rows.append(("Deliver Policy", _deliver_text(config)))
    rows.append(("Ack Policy", config.ack_policy.replace("_", " ").title()))
    if config.ack_policy != "none":
        rows.append(("Ack Wait", duration_text(config.ack_wait / 1e9)))
    rows.append(("Replay Policy", config.replay_policy.capitalize()))
    if config.max_deliver > 0:
        rows.append(("Maximum Deliveries", number_text(config.max_deliver)))
    if config.sample_freq:
        rows.append(("Sampling Rate", config.sample_freq))
    return rows + _limits(config)


def _deliver_text(config: ApiConsumerConfig) -> str:
    text = _POLICIES.get(config.deliver_policy, config.deliver_policy.capitalize())
    if config.opt_start_seq:
        text += f" {number_text(config.opt_start_seq)}"
    if config.opt_start_time:
        text += f" {time_text(config.opt_start_time)}"
    return text


def _limits(config: ApiConsumerConfig) -> Rows:
    """Rows of settings that are shown only where they are set."""

    def duration(value_ns: int) -> str:
        return duration_text(value_ns / 1e9)

    push = bool(config.deliver_subject)
    shown: tuple[tuple[str, object, str], ...] = (
        ("Rate Limit", config.rate_limit_bps, f"{number_text(config.rate_limit_bps)} bits per second"),
        ("Max Ack Pending", config.max_ack_pending, limit_text(config.max_ack_pending)),
        ("Max Waiting Pulls", config.max_waiting and not push, number_text(config.max_waiting)),
        ("Idle Heartbeat", config.idle_heartbeat, duration(config.idle_heartbeat)),
        ("Flow Control", push, "true" if config.flow_control else "false"),
        ("Headers Only", config.headers_only, "true"),
        ("Inactive Threshold", config.inactive_threshold, duration(config.inactive_threshold)),
        ("Max Pull Expire", config.max_expires, duration(config.max_expires)),
        ("Max Pull Batch", config.max_batch, number_text(config.max_batch)),
        ("Max Pull MaxBytes", config.max_bytes, size_text(config.max_bytes)),
        ("Backoff", config.backoff, ", ".join(map(duration, config.backoff))),
        ("Replicas", config.num_replicas, str(config.num_replicas)),
        ("Memory Storage", config.mem_storage, "yes"),
        ("Priority Policy", config.priority_groups, config.priority_policy.replace("_", " ").title()),
        ("Priority Groups", config.priority_groups, ", ".join(config.priority_groups)),
        ("Pinned TTL", config.priority_timeout, duration(config.priority_timeout)),
        ("Paused Until Deadline", config.pause_until, time_text(config.pause_until)),
    )
    return [(name, text) for name, value, text in shown if value]


def _sequence_text(sequence: SequenceInfo, what: str) -> str:
    text = f"Consumer sequence: {number_text(sequence.consumer_seq)} "
    text += f"Stream sequence: {number_text(sequence.stream_seq)}"
    return f"{text} {what}: {ago_text(sequence.last_active)} ago" if sequence.last_active else text


def _state(info: ApiConsumerInfo) -> Rows:
    config = info.config
    rows = version_rows(config.metadata)
    rows.append(("Last Delivered Message", _sequence_text(info.delivered, "Last delivery")))
    if config.ack_policy != "none":
        rows.append(("Acknowledgment Floor", _sequence_text(info.ack_floor, "Last Ack")))
        pending = number_text(info.num_ack_pending)
        if config.max_ack_pending > 0:
            pending += f" out of maximum {number_text(config.max_ack_pending)}"
        rows.append(("Outstanding Acks", pending))
        rows.append(("Redelivered Messages", number_text(info.num_redelivered)))
    rows.append(("Unprocessed Messages", number_text(info.num_pending)))
    if config.deliver_subject:
        rows.append(("Active Interest", "Active" if info.push_bound else "No interest"))
    else:
        rows.append(
            ("Waiting Pulls", f"{number_text(info.num_waiting)} of maximum {number_text(config.max_waiting)}")
        )
    if info.paused:
        rows.append(("Paused Until", f"{duration_text(info.pause_remaining / 1e9)} from now"))
    for group in info.priority_groups:
        if group.pinned_client_id:
            rows.append(
                (f"Pinned in {group.group}", f"{group.pinned_client_id} since {time_text(group.pinned_ts)}")
            )
    return rows
