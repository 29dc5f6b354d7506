"""`penstock stream ls|info|state|subjects|report|find|gaps`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.value_kinds import seconds, whole
from penstock.cli.framework.value_texts import number_text, parse_api_time, size_text
from penstock.cli.streams.stream_group import (
    ALL_STREAMS,
    HIDDEN_PREFIXES,
    NO_SELECT,
    STREAM,
    STREAM_NAME,
    all_streams,
    stream_info_of,
    stream_name,
)
from penstock.cli.streams.stream_pages import show_state, show_stream, show_streams
from penstock.client import JetStream
from penstock.protocol.api import ApiStreamInfo

NAMES = Option(names=("--names", "-n"), convert=bool, help="Show names only")


async def _visible(run: CommandRun, js: JetStream, subject: str) -> list[ApiStreamInfo]:
    """Streams, without those of buckets unless --all is given, by name."""
    found = [info async for info in all_streams(js, subject)]
    if not run.values.flag("all"):
        found = [info for info in found if not info.config.name.startswith(HIDDEN_PREFIXES)]
    return sorted(found, key=lambda info: info.config.name)


@STREAM.command(
    "ls",
    "List streams.",
    options=(
        Option(names=("--subject",), help="Only streams with subjects that overlap it"),
        NAMES,
        ALL_STREAMS,
    ),
    aliases=("list", "l"),
)
async def list_streams(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await _visible(run, js, run.values.text("subject"))
    _print(run, found)


def _print(run: CommandRun, found: list[ApiStreamInfo]) -> None:
    """The result of `ls` and `find`."""
    names = [info.config.name for info in found]
    if run.output.as_json:
        run.output.json(names if run.values.flag("names") else found)
    elif run.values.flag("names"):
        for name in names:
            run.output.line(name)
    elif found:
        show_streams(run.output, found)
    else:
        run.output.line("No streams found")


@STREAM.command(
    "info",
    "Show configuration and state of a stream.",
    arguments=(STREAM_NAME,),
    options=(Option(names=("--state",), convert=bool, help="Show the state only"), NO_SELECT),
    aliases=("nfo", "i"),
)
async def info(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await stream_info_of(js, await stream_name(run, js))
    if run.output.as_json:
        run.output.json(found.state if run.values.flag("state") else found)
    elif run.values.flag("state"):
        show_state(run.output, found)
    else:
        show_stream(run.output, found)


@STREAM.command("state", "Show the state of a stream.", arguments=(STREAM_NAME,), options=(NO_SELECT,))
async def state(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await stream_info_of(js, await stream_name(run, js))
    if run.output.as_json:
        run.output.json(found.state)
    else:
        show_state(run.output, found)


@STREAM.command(
    "subjects",
    "Show the subjects in a stream and their numbers of messages.",
    arguments=(STREAM_NAME, Argument(name="filter", help="Only subjects that match", required=False)),
    options=(
        Option(names=("--sort",), choices=("name", "messages"), default="messages", help="Order"),
        Option(names=("--reverse", "-R"), convert=bool, help="Reverse the order"),
        Option(names=("--names",), convert=bool, help="Show names only"),
    ),
    aliases=("subj",),
)
async def subjects(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        found = await stream_info_of(js, name, subjects_filter=run.values.text("filter", ">"))
    by_name = run.values.text("sort") == "name"
    rows = sorted(found.state.subjects.items(), key=lambda one: (0 if by_name else -one[1], one[0]))
    if run.values.flag("reverse"):
        rows.reverse()
    if run.output.as_json:
        run.output.json([one for one, _ in rows] if run.values.flag("names") else dict(rows))
    elif run.values.flag("names"):
        for subject, _ in rows:
            run.output.line(subject)
    elif rows:
        title = f"{number_text(len(rows))} Subjects in stream {name}"
        run.output.table(
            ("Subject", "Count"), [(one, number_text(n)) for one, n in rows], title=title, numbers="Count"
        )
    else:
        run.output.line(f"No subjects found in {name}")


_ORDERS: tuple[tuple[str, Callable[[ApiStreamInfo], Any]], ...] = (
    ("consumers", lambda info: -info.state.consumer_count),
    ("messages", lambda info: -info.state.messages),
    ("storage", lambda info: info.config.storage),
    ("name", lambda info: info.config.name),
)


@STREAM.command(
    "report",
    "Show statistics of all streams.",
    options=(
        Option(names=("--subject",), help="Only streams with subjects that overlap it"),
        Option(names=("--cluster",), help="Only streams in this cluster"),
        Option(names=("--consumers", "-o"), convert=bool, help="Order by number of consumers"),
        Option(names=("--messages", "-m"), convert=bool, help="Order by number of messages"),
        Option(names=("--name", "-n"), convert=bool, help="Order by name"),
        Option(names=("--storage", "-t"), convert=bool, help="Order by storage"),
        Option(names=("--raw", "-r"), convert=bool, help="Show sizes as numbers of bytes"),
        Option(names=("--leaders", "-l"), convert=bool, help="Show how many streams each server leads"),
        ALL_STREAMS,
    ),
)
async def report(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await _visible(run, js, run.values.text("subject"))
    cluster = run.values.text("cluster")
    if cluster:
        found = [one for one in found if one.cluster is not None and one.cluster.name == cluster]
    order = next((key for name, key in _ORDERS if run.values.flag(name)), None)
    if order is not None:
        found.sort(key=order)
    if run.output.as_json:
        run.output.json(found)
        return
    raw = run.values.flag("raw")
    rows = [
        (
            one.config.name,
            one.config.storage.capitalize(),
            _placement(one),
            number_text(one.state.consumer_count),
            number_text(one.state.messages),
            one.state.bytes if raw else size_text(one.state.bytes),
            len(one.state.lost.msgs) if one.state.lost is not None else 0,
            number_text(one.state.num_deleted),
            replicas_text(one),
        )
        for one in found
    ]
    columns = (
        "Stream",
        "Storage",
        "Placement",
        "Consumers",
        "Messages",
        "Bytes",
        "Lost",
        "Deleted",
        "Replicas",
    )
    run.output.table(columns, rows, title="Stream Report", numbers="Consumers,Messages,Bytes,Lost,Deleted")
    if run.values.flag("leaders"):
        leading: dict[str, int] = {}
        for one in found:
            if one.cluster is not None and one.cluster.leader:
                leading[one.cluster.leader] = leading.get(one.cluster.leader, 0) + 1
        run.output.table(
            ("Server", "Leader of"), sorted(leading.items()), title="Leaders", numbers="Leader of"
        )


def _placement(info: ApiStreamInfo) -> str:
    placement = info.config.placement
    if placement is None:
        return ""
    return " ".join(
        [*([placement.cluster] if placement.cluster else []), *(f"tag:{tag}" for tag in placement.tags)]
    )


def replicas_text(info: ApiStreamInfo) -> str:
    """Names of the servers that have a stream: `*` marks the leader, `!` who is offline or behind."""
    cluster = info.cluster
    if cluster is None:
        return ""
    peers = [f"{cluster.leader}*"] if cluster.leader else []
    peers += [f"{one.name}{'!' if one.offline or not one.current else ''}" for one in cluster.replicas]
    return ", ".join(sorted(peers))


STREAM_CRITERIA = (
    Option(names=("--server-name",), metavar="REGEX", help="On a server with a matching name"),
    Option(names=("--cluster",), metavar="REGEX", help="In a cluster with a matching name"),
    Option(names=("--empty",), convert=bool, help="Without messages"),
    Option(names=("--idle",), convert=seconds, help="Without new messages for so long"),
    Option(names=("--created",), convert=seconds, help="Created longer ago than that"),
    Option(names=("--consumers",), convert=whole, help="With fewer consumers"),
    Option(names=("--subject",), help="With subjects that overlap it"),
    Option(names=("--replicas",), convert=whole, help="With so many replicas or fewer"),
    Option(names=("--sourced",), convert=bool, help="With sources"),
    Option(names=("--mirrored",), convert=bool, help="That are mirrors"),
    Option(names=("--leader",), metavar="SERVER", help="Led by this server"),
    Option(names=("--api-level",), convert=whole, help="That need this level of the API or a higher one"),
    Option(names=("--invert",), convert=bool, negatable=True, help="Those that don't meet the criteria"),
    ALL_STREAMS,
)


@STREAM.command(
    "find",
    "Find streams by criteria.",
    options=(*STREAM_CRITERIA, NAMES),
    aliases=("query",),
    details="Streams that meet all criteria are listed. With --invert, those that miss one.",
)
async def find(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await matching_streams(run, js)
    _print(run, found)


async def matching_streams(run: CommandRun, js: JetStream) -> list[ApiStreamInfo]:
    """Streams that meet all of STREAM_CRITERIA that were given; with --invert, those that miss one."""
    values = run.values
    invert = values.flag("invert")
    found = await _visible(run, js, "" if invert else values.text("subject"))
    overlapping = set()
    if invert and values.given("subject"):
        overlapping = {one.config.name for one in await _visible(run, js, values.text("subject"))}
    now = datetime.now(UTC)

    def meets(info: ApiStreamInfo) -> bool:
        if invert and values.given("subject") and info.config.name not in overlapping:
            return False
        return _meets(run, info, now)

    return [one for one in found if meets(one) is not invert]


def _meets(run: CommandRun, info: ApiStreamInfo, now: datetime) -> bool:
    values, state, config = run.values, info.state, info.config
    cluster = info.cluster
    servers = [cluster.leader, *(one.name for one in cluster.replicas)] if cluster is not None else []
    checks: dict[str, Callable[[], bool]] = {
        "server-name": lambda: any(re.search(values.text("server-name"), one) for one in servers),
        "cluster": lambda: bool(cluster and re.search(values.text("cluster"), cluster.name)),
        "empty": lambda: not state.messages,
        "idle": lambda: _age_s(state.last_ts, now) >= values.seconds("idle"),
        "created": lambda: _age_s(info.created, now) >= values.seconds("created"),
        "consumers": lambda: state.consumer_count < values.number("consumers"),
        "replicas": lambda: config.num_replicas <= values.number("replicas"),
        "sourced": lambda: bool(config.sources),
        "mirrored": lambda: config.mirror is not None,
        "leader": lambda: cluster is not None and cluster.leader == values.text("leader"),
        "api-level": lambda: required_level(config.metadata) >= values.number("api-level"),
    }
    try:
        return all(check() for name, check in checks.items() if values.given(name))
    except re.error as error:
        raise CommandFailed(f"not a regular expression: {error}") from None


def required_level(metadata: Mapping[str, str] | None) -> int:
    """The level of the API that a server must have for a stream or a consumer, by its metadata."""
    found = (metadata or {}).get("_nats.req.level", "0")
    return int(found) if found.isdecimal() else 0


def _age_s(time: str, now: datetime) -> float:
    found = parse_api_time(time)
    return (now - found).total_seconds() if found is not None else float("inf")


@STREAM.command(
    "gaps",
    "Show ranges of sequences that were deleted from a stream.",
    arguments=(STREAM_NAME,),
)
async def gaps(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        found = await stream_info_of(js, name, deleted_details=True)
    ranges = ranges_of(found.state.deleted)
    if run.output.as_json:
        run.output.json({"stream": name, "gaps": [{"first": first, "last": last} for first, last in ranges]})
    elif not ranges:
        run.output.line(f"No deleted messages in {name}")
    else:
        rows = [
            (number_text(first), number_text(last), number_text(last - first + 1)) for first, last in ranges
        ]
        title = f"{number_text(len(ranges))} gaps in stream {name}"
        run.output.table(("First", "Last", "Messages"), rows, title=title, numbers="First,Last,Messages")


def ranges_of(sequences: list[int]) -> list[tuple[int, int]]:
    """Ascending sequences as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for seq in sequences:
        if found and seq == found[-1][1] + 1:
            found[-1] = found[-1][0], seq
        else:
            found.append((seq, seq))
    return found
