"""`penstock stream add|edit|copy|rm|purge|seal`."""

from __future__ import annotations

from msgspec import structs

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandRun, ask_text
from penstock.cli.framework.command_table import Argument, Option
from penstock.cli.framework.editing import INTERACTIVE, edited_config
from penstock.cli.framework.value_kinds import path, whole
from penstock.cli.framework.value_texts import number_text
from penstock.cli.streams.stream_group import FORCE, STREAM, STREAM_NAME, stream_info_of, stream_name
from penstock.cli.streams.stream_pages import show_state, show_stream
from penstock.cli.streams.stream_settings import (
    CONFIG,
    QUESTIONS,
    SETTING_OPTIONS,
    change_config,
    checked_config,
    read_config,
)
from penstock.client import JetStream, StreamConfig
from penstock.client.config import to_wire
from penstock.client.conflicts import differences

DEFAULTS = Option(names=("--defaults",), convert=bool, help="Take defaults for all that was not given")
DRY_RUN = Option(names=("--dry-run",), convert=bool, help="Show what would change, and change nothing")


async def show_one(run: CommandRun, js: JetStream, name: str) -> None:
    """Print a stream as it is now."""
    info = await stream_info_of(js, name)
    if run.output.as_json:
        run.output.json(info)
    else:
        show_stream(run.output, info)


@STREAM.command(
    "add",
    "Create a stream.",
    arguments=(Argument(name="stream", help="Stream name", required=False),),
    options=(
        CONFIG,
        Option(names=("--validate",), convert=bool, help="Check the configuration, and create nothing"),
        Option(
            names=("--output",),
            convert=path,
            metavar="FILE",
            help="Write the configuration to a file, and create nothing",
        ),
        *SETTING_OPTIONS,
        DEFAULTS,
    ),
    aliases=("create", "new"),
    details="At a terminal it asks for what the options leave open, unless --defaults is given.",
    examples=(
        "stream add ORDERS --subjects 'orders.>' --defaults",
        "stream add ORDERS --subjects orders.new,orders.done --storage memory --max-age 1h --retention work",
        "stream add --config orders.json",
    ),
)
async def add(run: CommandRun) -> None:
    config = read_config(run.values.value("config")) if run.values.given("config") else {}
    name = run.values.text("stream") or config.get("name", "")
    if not name:
        if not run.can_ask:
            raise UsageError("stream is missing: give its name, or a configuration by --config that has one")
        name = ask_text("Stream name: ")
    if not config and not run.values.flag("defaults") and run.can_ask:
        skipped = {"subjects"} if run.values.any_given("mirror", "source") else set()
        run.ask_options(SETTING_OPTIONS, [one for one in QUESTIONS if one.key not in skipped])
    made = checked_config(change_config({**config, "name": name}, run.values))
    if not (made.subjects or made.mirror or made.sources) and not run.values.flag("defaults"):
        raise UsageError("--subjects is missing; with --defaults the stream's name is its subject")
    if await _only_checked(run, made):
        return
    async with run.jetstream() as js:
        await js.create_stream(made)
        run.output.note(f"Stream {name} was created\n")
        await show_one(run, js, name)


async def _only_checked(run: CommandRun, config: StreamConfig) -> bool:
    target = run.values.path("output")
    if target is not None:
        import msgspec

        target.write_bytes(msgspec.json.format(msgspec.json.encode(to_wire(config)), indent=2) + b"\n")
        run.output.note(f"wrote {target}")
        return True
    if run.values.flag("validate"):
        to_wire(config)
        run.output.line("Configuration is valid")
        return True
    return False


@STREAM.command(
    "edit",
    "Change the configuration of a stream.",
    arguments=(STREAM_NAME,),
    options=(
        CONFIG,
        INTERACTIVE,
        FORCE,
        DRY_RUN,
        *SETTING_OPTIONS,
        Option(names=("--no-mirror",), convert=bool, help="Make a mirror a stream of its own"),
        Option(names=("--no-republish",), convert=bool, help="Publish nothing again"),
        Option(names=("--no-transform",), convert=bool, help="Change no subjects"),
    ),
    aliases=("update",),
    examples=("stream edit ORDERS --max-age 2h --force", "stream edit ORDERS --interactive"),
)
async def edit(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        found = _of_user((await js.stream_info(name)).config)
        base = read_config(run.values.value("config")) if run.values.given("config") else None
        wire = to_wire(found)
        current = {key: getattr(wire, key) for key in wire.__struct_fields__}
        changed = change_config({**current, **(base or {}), "name": name}, run.values)
        for option, key in (
            ("no-mirror", "mirror"),
            ("no-republish", "republish"),
            ("no-transform", "subject_transform"),
        ):
            if run.values.flag(option):
                changed[key] = None
        if run.values.flag("interactive"):
            wanted = await edited_config(
                run, name, changed, lambda edited: checked_config({**edited, "name": name})
            )
        else:
            wanted = checked_config(changed)
        texts = differences(wanted, found)
        if not texts:
            run.output.note("nothing differs")
            return
        for text in texts:
            run.output.note(f"  {text.replace(', not ', ', was ')}")
        if run.values.flag("dry-run"):
            return
        run.confirm(f"Really edit stream {name}?", force=run.values.flag("force"))
        await js.update_stream(wanted)
        run.output.note(f"Stream {name} was updated\n")
        await show_one(run, js, name)


@STREAM.command(
    "copy",
    "Create a stream with the configuration of another; its messages are not copied.",
    arguments=(
        Argument(name="original", help="Stream to copy"),
        Argument(name="destination", help="Stream to create"),
    ),
    options=SETTING_OPTIONS,
    aliases=("cp",),
    examples=("stream copy ORDERS ORDERS2 --subjects 'orders2.>'",),
)
async def copy(run: CommandRun) -> None:
    values = run.values
    name = values.text("destination")
    async with run.jetstream() as js:
        found = to_wire(_of_user((await js.stream_info(values.text("original"))).config))
        config = {key: getattr(found, key) for key in found.__struct_fields__}
        changed = change_config({**config, "name": name}, values)
        await js.create_stream(checked_config(changed))
        run.output.note(f"Stream {name} was created\n")
        await show_one(run, js, name)


def _of_user(config: StreamConfig) -> StreamConfig:
    """A configuration without the metadata that servers add."""
    metadata = {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}
    return structs.replace(config, metadata=metadata)


@STREAM.command(
    "rm",
    "Remove a stream with its messages and consumers.",
    arguments=(STREAM_NAME,),
    options=(FORCE,),
    aliases=("delete", "del"),
)
async def remove(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        run.confirm(f"Really delete stream {name}?", force=run.values.flag("force"))
        await js.delete_stream(name)
        if run.output.as_json:
            run.output.json({"success": True})


@STREAM.command(
    "purge",
    "Remove messages from a stream.",
    arguments=(STREAM_NAME,),
    options=(
        FORCE,
        Option(names=("--subject",), help="Only messages of subjects that match"),
        Option(names=("--seq",), convert=whole, help="Only messages below this sequence"),
        Option(names=("--keep",), convert=whole, help="Keep so many of the newest messages"),
    ),
)
async def purge(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        run.confirm(f"Really purge stream {name}?", force=run.values.flag("force"))
        stream = await js.stream(name)
        purged = await stream.purge(
            run.values.text("subject"), seq=run.values.number("seq"), keep=run.values.number("keep")
        )
        info = await stream_info_of(js, name)
        if run.output.as_json:
            run.output.json({"purged": purged, "state": info.state})
            return
        run.output.line(f"Purged {number_text(purged)} messages from {name}\n")
        show_state(run.output, info)


@STREAM.command(
    "seal",
    "Refuse all further changes to a stream; this can't be undone.",
    arguments=(Argument(name="stream", help="Stream to seal"),),
    options=(FORCE,),
)
async def seal(run: CommandRun) -> None:
    async with run.jetstream() as js:
        name = await stream_name(run, js)
        run.confirm(f"Really seal stream {name}? It can't be undone.", force=run.values.flag("force"))
        await js.update_stream(name, sealed=True)
        await show_one(run, js, name)
