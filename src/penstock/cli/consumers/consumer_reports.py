"""`penstock consumer ls|info|state|report|find`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from penstock.cli.consumers.consumer_group import (
    CONSUMER,
    CONSUMER_NAME,
    all_consumers,
    consumer_info_of,
    consumer_names,
)
from penstock.cli.consumers.consumer_pages import show_consumer, show_consumer_state
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.value_kinds import seconds, whole
from penstock.cli.framework.value_texts import ago_text, duration_text, number_text, parse_api_time, time_text
from penstock.cli.streams.stream_group import NO_SELECT, STREAM_NAME, stream_name
from penstock.cli.streams.stream_reports import NAMES, required_level
from penstock.client import JetStream
from penstock.protocol.api import ApiConsumerInfo


async def _of_stream(run: CommandRun, js: JetStream) -> tuple[str, list[ApiConsumerInfo]]:
    """The stream that the command names, and its consumers by name."""
    stream = await stream_name(run, js)
    found = [info async for info in all_consumers(js, stream)]
    return stream, sorted(found, key=lambda info: info.name)


@CONSUMER.command(
    "ls",
    "List the consumers of a stream.",
    arguments=(STREAM_NAME,),
    options=(NAMES, NO_SELECT),
    aliases=("list",),
)
async def list_consumers(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, found = await _of_stream(run, js)
    _print(run, stream, found)


def _print(run: CommandRun, stream: str, found: list[ApiConsumerInfo]) -> None:
    names = [info.name for info in found]
    if run.output.as_json:
        run.output.json(names if run.values.flag("names") else found)
    elif run.values.flag("names"):
        for name in names:
            run.output.line(name)
    elif not found:
        run.output.line(f"No consumers found for stream {stream}")
    else:
        columns = ("Name", "Description", "Created", "Ack Pending", "Unprocessed", "Last Delivery")
        rows = [
            (
                info.name,
                info.config.description,
                time_text(info.created),
                number_text(info.num_ack_pending),
                number_text(info.num_pending),
                ago_text(info.delivered.last_active or ""),
            )
            for info in found
        ]
        run.output.table(columns, rows, title="Consumers", numbers="Ack Pending,Unprocessed")


@CONSUMER.command(
    "info",
    "Show configuration and state of a consumer.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(NO_SELECT,),
    aliases=("nfo",),
)
async def info(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await consumer_info_of(js, *await consumer_names(run, js))
    if run.output.as_json:
        run.output.json(found)
    else:
        show_consumer(run.output, found)


@CONSUMER.command(
    "state", "Show the state of a consumer.", arguments=(STREAM_NAME, CONSUMER_NAME), options=(NO_SELECT,)
)
async def state(run: CommandRun) -> None:
    async with run.jetstream() as js:
        found = await consumer_info_of(js, *await consumer_names(run, js))
    if run.output.as_json:
        run.output.json(found)
    else:
        show_consumer_state(run.output, found)


@CONSUMER.command(
    "report",
    "Show statistics of the consumers of a stream.",
    arguments=(STREAM_NAME,),
    options=(
        Option(names=("--raw", "-r"), convert=bool, help="Show plain numbers"),
        Option(names=("--leaders", "-l"), convert=bool, help="Show how many consumers each server leads"),
    ),
)
async def report(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, found = await _of_stream(run, js)
    if run.output.as_json:
        run.output.json(found)
        return
    number: Callable[[int], object] = (lambda n: n) if run.values.flag("raw") else number_text
    rows = [
        (
            info.name,
            "Push" if info.config.deliver_subject else "Pull",
            info.config.ack_policy.replace("_", " ").title(),
            duration_text(info.config.ack_wait / 1e9),
            number(info.num_ack_pending),
            number(info.num_redelivered),
            number(info.num_pending),
            number(info.ack_floor.stream_seq),
            "paused" if info.paused else "",
            info.cluster.leader if info.cluster is not None else "",
        )
        for info in found
    ]
    columns = (
        *("Consumer", "Mode", "Ack Policy", "Ack Wait", "Ack Pending", "Redelivered", "Unprocessed"),
        *("Ack Floor", "State", "Leader"),
    )
    title = f"Consumer report for {stream} with {number_text(len(found))} consumers"
    numbers = "Ack Wait,Ack Pending,Redelivered,Unprocessed,Ack Floor"
    run.output.table(columns, rows, title=title, numbers=numbers)
    if run.values.flag("leaders"):
        leading: dict[str, int] = {}
        for info in found:
            if info.cluster is not None and info.cluster.leader:
                leading[info.cluster.leader] = leading.get(info.cluster.leader, 0) + 1
        run.output.table(
            ("Server", "Leader of"), sorted(leading.items()), title="Leaders", numbers="Leader of"
        )


CONSUMER_CRITERIA = (
    Option(names=("--pull",), convert=bool, help="Pull consumers"),
    Option(names=("--push",), convert=bool, help="Push consumers"),
    Option(names=("--bound",), convert=bool, help="Push consumers with interest, pull consumers with pulls"),
    Option(names=("--waiting",), convert=whole, help="With fewer open pulls"),
    Option(names=("--ack-pending",), convert=whole, help="With fewer unacked messages"),
    Option(names=("--pending",), convert=whole, help="With fewer unprocessed messages"),
    Option(names=("--idle",), convert=seconds, help="Without deliveries for so long"),
    Option(names=("--created",), convert=seconds, help="Created longer ago than that"),
    Option(names=("--replicas",), convert=whole, help="With so many replicas or fewer"),
    Option(names=("--leader",), metavar="SERVER", help="Led by this server"),
    Option(names=("--pinned",), convert=bool, help="With a pinned client in every priority group"),
    Option(names=("--api-level",), convert=whole, help="That need this level of the API or a higher one"),
    Option(names=("--invert",), convert=bool, negatable=True, help="Those that don't meet the criteria"),
)


@CONSUMER.command(
    "find",
    "Find consumers by criteria.",
    arguments=(STREAM_NAME,),
    options=(*CONSUMER_CRITERIA, NAMES),
    aliases=("query",),
    details="Consumers that meet all criteria are listed. With --invert, those that miss one.",
)
async def find(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, found = await matching_consumers(run, js)
    _print(run, stream, found)


async def matching_consumers(run: CommandRun, js: JetStream) -> tuple[str, list[ApiConsumerInfo]]:
    """The stream, and its consumers that meet all of CONSUMER_CRITERIA that were given; with --invert, those
    that miss one."""
    stream, found = await _of_stream(run, js)
    now = datetime.now(UTC)
    invert = run.values.flag("invert")
    return stream, [one for one in found if _meets(run, one, now) is not invert]


def _meets(run: CommandRun, info: ApiConsumerInfo, now: datetime) -> bool:
    values, config, cluster = run.values, info.config, info.cluster
    push = bool(config.deliver_subject)
    groups = info.priority_groups
    checks: dict[str, Callable[[], bool]] = {
        "pull": lambda: not push,
        "push": lambda: push,
        "bound": lambda: info.push_bound if push else info.num_waiting > 0,
        "waiting": lambda: info.num_waiting < values.number("waiting"),
        "ack-pending": lambda: info.num_ack_pending < values.number("ack-pending"),
        "pending": lambda: info.num_pending < values.number("pending"),
        "idle": lambda: _age_s(info.delivered.last_active or "", now) >= values.seconds("idle"),
        "created": lambda: _age_s(info.created, now) >= values.seconds("created"),
        "replicas": lambda: config.num_replicas <= values.number("replicas"),
        "leader": lambda: cluster is not None and cluster.leader == values.text("leader"),
        "api-level": lambda: required_level(config.metadata) >= values.number("api-level"),
        "pinned": lambda: bool(groups) and all(group.pinned_client_id for group in groups),
    }
    return all(check() for name, check in checks.items() if values.given(name))


def _age_s(time: str, now: datetime) -> float:
    found = parse_api_time(time)
    return (now - found).total_seconds() if found is not None else float("inf")
