"""`penstock man DIRECTORY`: writes man pages of all commands, from the tables that the help texts come
from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.framework.command_help import option_names, option_text, usage_line
from penstock.cli.framework.command_run import CommandRun, shared_options
from penstock.cli.framework.command_table import Argument, Command, CommandGroup
from penstock.cli.framework.value_kinds import path
from penstock.cli.registry import REGISTRY


def all_commands() -> Iterator[tuple[str, Command]]:
    """Every command with the words that lead to it, such as `penstock stream add`, except those that read
    their words themselves.
    """
    for registered in REGISTRY:
        if not registered.takes_words:
            yield from _below(f"penstock {registered.name}", registered.load())


def _below(words: str, member: Command | CommandGroup) -> Iterator[tuple[str, Command]]:
    if isinstance(member, Command):
        if not member.hidden:
            yield words, member
        return
    for one in member.members.values():
        yield from _below(f"{words} {one.name}", one)


def escaped(text: str) -> str:
    """A text for roff: backslashes, dashes, and control characters at the beginnings of lines."""
    found = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in found.split("\n"))


def manual(words: str, command: Command) -> str:
    """The man page of a command."""
    title = words.replace(" ", "-")
    lines = [f'.TH "{escaped(title.upper())}" 1 "" "penstock"', ".SH NAME"]
    lines += [
        escaped(f"{title} - {command.summary.rstrip('.')}"),
        ".SH SYNOPSIS",
        escaped(usage_line(words, command)),
    ]
    lines += [".SH DESCRIPTION", escaped(command.summary)]
    for paragraph in command.details.strip().split("\n\n") if command.details else []:
        laid_out = paragraph.startswith("  ")
        lines += (
            [".nf", escaped(paragraph), ".fi"] if laid_out else [".PP", escaped(" ".join(paragraph.split()))]
        )
    if command.arguments:
        lines.append(".SH ARGUMENTS")
        for argument in command.arguments:
            lines += [".TP", f"\\fI{escaped(argument.name)}\\fR", escaped(argument.help)]
    for heading, options in (("Options", command.options), *shared_options(command)):
        shown = [one for one in options if not one.hidden]
        if shown:
            lines.append(f'.SH "{heading.upper()}"')
        for option in shown:
            lines += [".TP", f"\\fB{escaped(option_names(option))}\\fR", escaped(option_text(option))]
    if command.examples:
        lines += [".SH EXAMPLES", ".nf", *(escaped(f"penstock {one}") for one in command.examples), ".fi"]
    return "\n".join(lines) + "\n"


def write_manuals(folder: Path) -> list[Path]:
    """Write a page for every command, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for words, command in all_commands():
        file = folder / f"{words.replace(' ', '-')}.1"
        file.write_text(manual(words, command), encoding="utf-8")
        written.append(file)
    return written


async def _man(run: CommandRun) -> None:
    written = await asyncio.to_thread(write_manuals, run.values.value("directory"))
    if run.output.as_json:
        run.output.json([str(file) for file in written])
    else:
        run.output.line(f"wrote {len(written)} man pages to {run.values.value('directory')}")


MAN = Command(
    name="man",
    summary="Write man pages of all commands to a directory.",
    run=_man,
    arguments=(Argument(name="directory", help="Directory, such as ~/.local/share/man/man1", convert=path),),
    connects=False,
)
