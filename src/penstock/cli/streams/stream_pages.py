"""Pages about streams: info, state, tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.cli.framework.value_texts import (
    ago_text,
    duration_text,
    limit_text,
    number_text,
    size_limit_text,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from penstock.cli.framework.cli_output import CommandOutput
    from penstock.protocol.api import (
        ApiStreamConfig,
        ApiStreamInfo,
        ApiStreamSourceInfo,
        ClusterInfo,
        StreamSource,
    )

Rows = list[tuple[str, object]]


def show_stream(output: CommandOutput, info: ApiStreamInfo) -> None:
    """The page of `stream info`."""
    config = info.config
    output.sections(
        f"Information for Stream {config.name} created {time_text(info.created)}",
        [
            ("", _head(config)),
            ("Options", _options(config)),
            ("Limits", _limits(config)),
            ("Replication", _replication(info)),
            ("Cluster Information", cluster_rows(info.cluster)),
            ("Metadata", metadata_rows(config.metadata)),
            ("State", _state(info)),
        ],
    )


def show_state(output: CommandOutput, info: ApiStreamInfo) -> None:
    """The page of `stream state`."""
    title = f"State for Stream {info.config.name} created {time_text(info.created)}"
    output.sections(title, [("Cluster Information", cluster_rows(info.cluster)), ("State", _state(info))])


def _head(config: ApiStreamConfig) -> Rows:
    rows: Rows = []
    if config.description:
        rows.append(("Description", config.description))
    if config.subjects:
        rows.append(("Subjects", ", ".join(config.subjects)))
    rows += [("Replicas", config.num_replicas), ("Storage", _storage(config))]
    if config.placement is not None:
        if config.placement.cluster:
            rows.append(("Placement Cluster", config.placement.cluster))
        if config.placement.tags:
            rows.append(("Placement Tags", ", ".join(config.placement.tags)))
    return rows


def _storage(config: ApiStreamConfig) -> str:
    text = config.storage.capitalize()
    return f"{text} ({config.compression.upper()} Compression)" if config.compression != "none" else text


def _options(config: ApiStreamConfig) -> Rows:
    discard = "New Per Subject" if config.discard_new_per_subject else config.discard.capitalize()
    rows: Rows = [
        ("Retention", {"workqueue": "WorkQueue"}.get(config.retention, config.retention.capitalize())),
        ("Acknowledgments", _flag(not config.no_ack)),
        ("Discard Policy", discard),
        ("Duplicate Window", duration_text(config.duplicate_window / 1e9)),
        ("Direct Get", _flag(config.allow_direct)),
    ]
    if config.mirror_direct:
        rows.append(("Mirror Direct Get", "true"))
    rows += [
        ("Allows Atomic Batch Publish", _flag(config.allow_atomic)),
        ("Allows Fast Batch Publish", _flag(config.allow_batched)),
        ("Allows Counters", _flag(config.allow_msg_counter)),
        ("Allows Msg Delete", _flag(not config.deny_delete)),
        ("Allows Per-Message TTL", _flag(config.allow_msg_ttl)),
        ("Allows Purge", _flag(not config.deny_purge)),
        ("Allows Schedules", _flag(config.allow_msg_schedules)),
        ("Allows Rollups", _flag(config.allow_rollup_hdrs)),
    ]
    if config.subject_delete_marker_ttl:
        rows.append(("Subject Delete Markers TTL", duration_text(config.subject_delete_marker_ttl / 1e9)))
    if config.persist_mode != "default":
        rows.append(("Persist Mode", config.persist_mode.capitalize()))
    if config.first_seq > 1:
        rows.append(("First Sequence", number_text(config.first_seq)))
    if config.sealed:
        rows.append(("Sealed", "true"))
    if config.subject_transform is not None:
        transform = config.subject_transform
        rows.append(("Subject Transform", f"{transform.src or '>'} to {transform.dest}"))
    if config.republish is not None:
        more = " (headers only)" if config.republish.headers_only else ""
        rows.append(("Republishing", f"{config.republish.src or '>'} to {config.republish.dest}{more}"))
    return rows


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _limits(config: ApiStreamConfig) -> Rows:
    limits = config.consumer_limits
    rows: Rows = [
        ("Maximum Messages", limit_text(config.max_msgs)),
        ("Maximum Per Subject", limit_text(config.max_msgs_per_subject)),
        ("Maximum Bytes", size_limit_text(config.max_bytes)),
        ("Maximum Age", duration_text(config.max_age / 1e9) if config.max_age else "unlimited"),
        ("Maximum Message Size", size_limit_text(config.max_msg_size)),
        ("Maximum Consumers", limit_text(config.max_consumers)),
    ]
    if limits.inactive_threshold:
        rows.append(("Consumer Inactive Threshold", duration_text(limits.inactive_threshold / 1e9)))
    if limits.max_ack_pending:
        rows.append(("Consumer Max Ack Pending", number_text(limits.max_ack_pending)))
    return rows


def _replication(info: ApiStreamInfo) -> Rows:
    rows: Rows = []
    config = info.config
    if config.mirror is not None:
        rows.append(("Mirror", source_text(config.mirror, info.mirror)))
    states = {state.name: state for state in info.sources}
    rows += [("Source", source_text(source, states.get(source.name))) for source in config.sources]
    return rows


def source_text(source: StreamSource, state: ApiStreamSourceInfo | None) -> str:
    """What a mirror or source copies, and how far it is."""
    lines = [source.name]
    if source.external is not None:
        lines[0] += f", API prefix {source.external.api}"
    if source.filter_subject:
        lines.append(f"Filter: {source.filter_subject}")
    if source.opt_start_seq:
        lines.append(f"Start sequence: {number_text(source.opt_start_seq)}")
    lines += [f"Transform: {one.src or '>'} to {one.dest}" for one in source.subject_transforms]
    if state is not None:
        active = "never" if state.active < 0 else f"{duration_text(state.active / 1e9)} ago"
        lines.append(f"Lag: {number_text(state.lag)}, last message {active}")
        if state.error is not None:
            lines.append(f"Error: {state.error.description}")
    return "\n".join(lines)


def cluster_rows(cluster: ClusterInfo | None) -> Rows:
    """Rows about the servers of a group; none where there is no cluster."""
    if cluster is None or not (cluster.name or cluster.replicas):
        return []
    rows: Rows = [("Name", cluster.name)]
    if cluster.raft_group:
        rows.append(("Cluster Group", cluster.raft_group))
    rows.append(("Leader", cluster.leader or "none"))
    if cluster.leader_since:
        rows[-1] = ("Leader", f"{cluster.leader} ({ago_text(cluster.leader_since)})")
    for peer in cluster.replicas:
        words = ["current" if peer.current else "outdated"]
        words += ["offline"] if peer.offline else []
        words.append(f"seen {duration_text(peer.active / 1e9)} ago" if peer.active else "not seen")
        words += [f"{number_text(peer.lag)} operations behind"] if peer.lag else []
        rows.append(("Replica", f"{peer.name}, {', '.join(words)}"))
    return rows


def metadata_rows(metadata: dict[str, str]) -> Rows:
    """The user's metadata; that of servers is left out."""
    return sorted((key, value) for key, value in metadata.items() if not key.startswith("_nats."))


def version_rows(metadata: dict[str, str]) -> Rows:
    """The server's version and API level, of the metadata that servers add."""
    rows: Rows = []
    if "_nats.ver" in metadata:
        rows.append(("Host Version", metadata["_nats.ver"]))
    if "_nats.req.level" in metadata:
        level = metadata["_nats.req.level"]
        rows.append(("Required API Level", f"{level} hosted at level {metadata.get('_nats.level', level)}"))
    return rows


def _state(info: ApiStreamInfo) -> Rows:
    state = info.state
    first, last = number_text(state.first_seq), number_text(state.last_seq)
    if state.messages:
        first += f" @ {time_text(state.first_ts)}"
    if state.last_seq:
        last += f" @ {time_text(state.last_ts)}"
    rows = version_rows(info.config.metadata)
    rows += [
        ("Messages", number_text(state.messages)),
        ("Bytes", size_text(state.bytes)),
        ("First Sequence", first),
        ("Last Sequence", last),
        ("Active Consumers", number_text(state.consumer_count)),
    ]
    if state.num_deleted:
        rows.append(("Deleted Messages", number_text(state.num_deleted)))
    if state.num_subjects:
        rows.append(("Number of Subjects", number_text(state.num_subjects)))
    if state.lost is not None and state.lost.msgs:
        rows.append(("Lost Messages", f"{number_text(len(state.lost.msgs))} ({size_text(state.lost.bytes)})"))
    for alternate in info.alternates:
        where = ", ".join(one for one in (alternate.cluster, alternate.domain) if one)
        rows.append(("Alternate", f"{alternate.name} ({where})" if where else alternate.name))
    return rows


def show_streams(output: CommandOutput, infos: Iterable[ApiStreamInfo]) -> None:
    """The table of `stream ls`."""
    output.table(
        ("Name", "Description", "Created", "Messages", "Size", "Last Message"),
        [
            (
                info.config.name,
                info.config.description,
                time_text(info.created),
                number_text(info.state.messages),
                size_text(info.state.bytes),
                ago_text(info.state.last_ts) if info.state.messages else "never",
            )
            for info in infos
        ],
        title="Streams",
        numbers="Messages,Size",
    )
