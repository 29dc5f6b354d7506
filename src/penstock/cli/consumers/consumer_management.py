"""`penstock consumer add|edit|copy|rm|pause|resume|reset|unpin`."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import structs

from penstock.cli.consumers.consumer_group import CONSUMER, CONSUMER_NAME, consumer_info_of, consumer_names
from penstock.cli.consumers.consumer_pages import show_consumer
from penstock.cli.consumers.consumer_settings import (
    CONSUMER_OPTIONS,
    CONSUMER_QUESTIONS,
    EDIT_KEYS,
    change_consumer,
    checked_consumer,
)
from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun, ask_text
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.editing import INTERACTIVE, edited_config
from penstock.cli.framework.value_kinds import moment, path, whole
from penstock.cli.framework.value_texts import duration_text, number_text, time_text
from penstock.cli.streams.stream_group import FORCE, STREAM_NAME, stream_name
from penstock.cli.streams.stream_management import DEFAULTS, DRY_RUN
from penstock.cli.streams.stream_settings import CONFIG, read_config
from penstock.client import ConsumerConfig, JetStream
from penstock.client.config import to_wire
from penstock.protocol.api import SuccessResponse


async def show_one(run: CommandRun, js: JetStream, stream: str, consumer: str) -> None:
    """Print a consumer as it is now."""
    info = await consumer_info_of(js, stream, consumer)
    if run.output.as_json:
        run.output.json(info)
    else:
        show_consumer(run.output, info)


@CONSUMER.command(
    "add",
    "Create a consumer.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(
        CONFIG,
        Option(names=("--validate",), convert=bool, help="Check the configuration, and create nothing"),
        Option(
            names=("--output",),
            convert=path,
            metavar="FILE",
            help="Write the configuration to a file, and create nothing",
        ),
        *CONSUMER_OPTIONS,
        DEFAULTS,
    ),
    aliases=("create", "new"),
    details="""It is durable unless --ephemeral is given. Without --ack it acks explicitly; without --target
it is a pull consumer.

At a terminal it asks for what the options leave open, unless --defaults is given.""",
    examples=(
        "consumer add ORDERS NEW --filter ORDERS.received --ack explicit --pull --max-deliver=-1",
        "consumer add ORDERS MONITOR --filter '' --ack none --target monitor.ORDERS --deliver last",
    ),
)
async def add(run: CommandRun) -> None:
    values = run.values
    config = read_config(values.value("config")) if values.given("config") else {}
    ephemeral = values.flag("ephemeral")
    async with run.jetstream() as js:
        stream = await stream_name(run, js) if values.text("stream") or not run.can_ask else ""
        name = values.text("consumer") or config.get("durable_name") or config.get("name") or ""
        if not name and not ephemeral:
            if not run.can_ask:
                raise UsageError("consumer is missing: give its name, or --ephemeral for one without a name")
            name = ask_text("Consumer name: ")
        if not config and not values.flag("defaults") and run.can_ask:
            skipped = {"target"} if values.flag("pull") else set()
            run.ask_options(CONSUMER_OPTIONS, [one for one in CONSUMER_QUESTIONS if one.key not in skipped])
        made = checked_consumer(change_consumer({"ack_policy": "explicit", **config}, run.values))
        if values.flag("pull") and made.deliver_subject:
            raise UsageError("--pull and --target are both given; a pull consumer has no target")
        if name:
            made = structs.replace(made, name=name, durable_name="" if ephemeral else name)
        if _only_checked(run, made):
            return
        stream = stream or await stream_name(run, js)
        created = await (await js.stream(stream)).create_consumer(made)
        await show_one(run, js, stream, created.name)


def _only_checked(run: CommandRun, config: ConsumerConfig) -> bool:
    target = run.values.path("output")
    if target is not None:
        target.write_bytes(msgspec.json.format(msgspec.json.encode(to_wire(config)), indent=2) + b"\n")
        run.output.note(f"wrote {target}")
        return True
    if run.values.flag("validate"):
        to_wire(config)
        run.output.line("Configuration is valid")
        return True
    return False


def _of_user(config: ConsumerConfig) -> ConsumerConfig:
    """A configuration without the metadata that servers add."""
    metadata = {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}
    return structs.replace(config, metadata=metadata)


@CONSUMER.command(
    "edit",
    "Change the configuration of a consumer.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(CONFIG, INTERACTIVE, FORCE, DRY_RUN, *(one for one in CONSUMER_OPTIONS if one.key in EDIT_KEYS)),
    aliases=("update",),
    examples=("consumer edit ORDERS NEW --max-pending 500 --force",),
)
async def edit(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        handle = await js.stream(stream)
        found = _of_user((await handle.consumer_info(name)).config)
        base = read_config(run.values.value("config")) if run.values.given("config") else {}
        wire = to_wire(found)
        current = {key: getattr(wire, key) for key in wire.__struct_fields__}
        changed = change_consumer({**current, **base}, _editable(run))
        if run.values.flag("interactive"):
            wanted = await edited_config(run, name, changed, checked_consumer)
        else:
            wanted = checked_consumer(changed)
        texts = [
            f"{key} is {getattr(wanted, key)!r}, was {getattr(found, key)!r}"
            for key in ConsumerConfig.__struct_fields__
            if getattr(wanted, key) != getattr(found, key)
        ]
        if not texts:
            run.output.note("nothing differs")
            return
        for text in texts:
            run.output.note(f"  {text}")
        if run.values.flag("dry-run"):
            return
        run.confirm(f"Really edit consumer {stream} > {name}?", force=run.values.flag("force"))
        await handle.update_consumer(wanted)
        await show_one(run, js, stream, name)


def _editable(run: CommandRun) -> CommandValues:
    """Values with what `consumer edit` has no options for."""
    return run.values.with_defaults({one.key: None for one in CONSUMER_OPTIONS}).only(EDIT_KEYS)


@CONSUMER.command(
    "copy",
    "Create a consumer with the configuration of another; it begins where its options say.",
    arguments=(
        Argument(name="stream", help="Stream name"),
        Argument(name="original", help="Consumer to copy"),
        Argument(name="destination", help="Consumer to create"),
    ),
    options=CONSUMER_OPTIONS,
    aliases=("cp",),
)
async def copy(run: CommandRun) -> None:
    values = run.values
    async with run.jetstream() as js:
        stream = await js.stream(values.text("stream"))
        wire = to_wire(_of_user((await stream.consumer_info(values.text("original"))).config))
        config = {key: getattr(wire, key) for key in wire.__struct_fields__}
        name = values.text("destination")
        made = checked_consumer(change_consumer(config, values))
        made = structs.replace(made, name=name, durable_name="" if values.flag("ephemeral") else name)
        await stream.create_consumer(made)
        await show_one(run, js, stream.name, name)


@CONSUMER.command(
    "rm",
    "Remove a consumer.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(FORCE,),
    aliases=("delete", "del"),
)
async def remove(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        run.confirm(f"Really delete consumer {stream} > {name}?", force=run.values.flag("force"))
        await js.call(SuccessResponse, f"CONSUMER.DELETE.{stream}.{name}")
        if run.output.as_json:
            run.output.json({"success": True})


@CONSUMER.command(
    "pause",
    "Pause the deliveries of a consumer.",
    arguments=(
        STREAM_NAME,
        CONSUMER_NAME,
        Argument(name="until", help="A time, or a duration from now", convert=moment, required=False),
    ),
    options=(FORCE,),
    examples=("consumer pause ORDERS NEW 1h -f", "consumer pause ORDERS NEW '2030-01-01 00:00:00' -f"),
)
async def pause(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        until = run.values.value("until")
        if until is None:
            if not run.can_ask:
                raise UsageError("until is missing: give a time, or a duration from now such as 1h")
            until = moment(ask_text("Pause until (time or duration): "))
        if until <= datetime.now(UTC):
            raise UsageError(f"{time_text(until)} is in the past")
        run.confirm(
            f"Really pause {stream} > {name} until {time_text(until)}?", force=run.values.flag("force")
        )
        paused = await (await js.stream(stream)).pause_consumer(name, until)
        if run.output.as_json:
            run.output.json(paused)
        elif paused.paused:
            left = duration_text(paused.pause_remaining)
            run.output.line(f"Paused {stream} > {name} until {time_text(paused.pause_until)} ({left})")
        else:
            raise CommandFailed(f"the server has not paused {stream} > {name}; is it older than 2.11?")


@CONSUMER.command(
    "resume", "End the pause of a consumer.", arguments=(STREAM_NAME, CONSUMER_NAME), options=(FORCE,)
)
async def resume(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        if not (await consumer_info_of(js, stream, name)).paused:
            raise CommandFailed(f"consumer {stream} > {name} is not paused")
        run.confirm(f"Really resume consumer {stream} > {name}?", force=run.values.flag("force"))
        resumed = await (await js.stream(stream)).resume_consumer(name)
        if run.output.as_json:
            run.output.json(resumed)
        else:
            run.output.line(f"Resumed {stream} > {name}")


@CONSUMER.command(
    "reset",
    "Let a consumer begin again, and forget unacked messages.",
    arguments=(STREAM_NAME, CONSUMER_NAME),
    options=(
        Option(
            names=("--sequence",), convert=whole, help="Begin at this sequence (default: after the ack floor)"
        ),
        FORCE,
    ),
)
async def reset(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        run.confirm(f"Really reset consumer {stream} > {name}?", force=run.values.flag("force"))
        consumer = await (await js.stream(stream)).consumer(name)
        seq = await consumer.reset(run.values.number("sequence"))
        if run.output.as_json:
            run.output.json({"reset_seq": seq})
        else:
            run.output.line(f"Reset {stream} > {name}: it goes on with sequence {number_text(seq)}")


@CONSUMER.command(
    "unpin",
    "Unpin the client of a priority group; the next one that pulls is pinned.",
    arguments=(STREAM_NAME, CONSUMER_NAME, Argument(name="group", help="Priority group", required=False)),
    options=(FORCE,),
)
async def unpin(run: CommandRun) -> None:
    async with run.jetstream() as js:
        stream, name = await consumer_names(run, js)
        consumer = await (await js.stream(stream)).consumer(name)
        groups = consumer.cached_info.config.priority_groups
        if not groups:
            raise CommandFailed(f"consumer {stream} > {name} has no priority groups")
        group = run.values.text("group") or (groups[0] if len(groups) == 1 else run.choose("group", groups))
        run.confirm(f"Really unpin the client of group {group}?", force=run.values.flag("force"))
        await consumer.unpin(group)
        run.output.note(f"unpinned the client of group {group} of {stream} > {name}")
