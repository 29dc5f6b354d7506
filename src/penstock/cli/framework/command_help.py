"""Help texts, from the tables of commands."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from penstock.cli.framework.command_table import Argument, Command, CommandGroup, Option
from penstock.cli.framework.value_kinds import seconds
from penstock.cli.framework.value_texts import duration_text

INDENT = 2
NAMES_WIDTH = 30


def group_help(path: str, group: CommandGroup) -> str:
    """Help of a group: its commands. path: words that lead to it, with the program's name."""
    lines = [f"Usage: {path} <command> [options]", "", group.summary, "", "Commands:"]
    members = [(one.name, one.summary) for one in group.members.values() if not one.hidden]
    lines += _columns(members)
    if group.aliases:
        lines += ["", f"Aliases: {', '.join(group.aliases)}"]
    lines += ["", f"Run `{path} <command> --help` for the options of a command."]
    return "\n".join(lines) + "\n"


def command_help(path: str, command: Command, shared: Iterable[tuple[str, tuple[Option, ...]]]) -> str:
    """Help of a command. shared: titles and options that belong to other commands too."""
    lines = [f"Usage: {usage_line(path, command)}", "", command.summary]
    if command.details:
        for paragraph in command.details.strip().split("\n\n"):
            lines += ["", *_paragraph(paragraph)]
    if command.arguments:
        lines += ["", "Arguments:", *_columns((one.name, _argument_text(one)) for one in command.arguments)]
    for title, options in (("Options", command.options), *shared):
        shown = [(option_names(one), option_text(one)) for one in options if not one.hidden]
        if shown:
            lines += ["", f"{title}:", *_columns(shown)]
    if command.examples:
        lines += ["", "Examples:", *(f"  {path.partition(' ')[0]} {one}" for one in command.examples)]
    if command.aliases:
        lines += ["", f"Aliases: {', '.join(command.aliases)}"]
    return "\n".join(lines) + "\n"


def usage_line(path: str, command: Command) -> str:
    """`penstock stream rm [options] <stream>`."""
    return " ".join([path, "[options]", *(_placeholder(one) for one in command.arguments)])


def _placeholder(argument: Argument) -> str:
    name = f"<{argument.name}>" + ("..." if argument.repeated else "")
    return name if argument.required else f"[{name}]"


def _argument_text(argument: Argument) -> str:
    return argument.help + (f" ({', '.join(argument.choices)})" if argument.choices else "")


def option_names(option: Option) -> str:
    """`-f, --[no-]filter=SUBJECT ...`."""
    short = [name for name in option.names if not name.startswith("--")]
    long = [
        f"--[no-]{name[2:]}" if option.negatable else name for name in option.names if name.startswith("--")
    ]
    text = ", ".join([*short, *long])
    if option.value_name:
        text += f"={option.value_name}"
    return text + (" ..." if option.repeated else "")


def option_text(option: Option) -> str:
    """What an option is for, its choices, default and environment variable."""
    text = option.help
    if option.choices and not all(choice in text for choice in option.choices):
        text += f" ({', '.join(option.choices)})"
    if option.default not in (None, False, "", [], ()) and not option.is_flag:
        text += f" (default: {default_text(option)})"
    if option.env:
        text += f" (${option.env})"
    return text


def default_text(option: Option) -> str:
    """The default value of an option as one would type it."""
    if not isinstance(option.default, float):
        return str(option.default)
    return duration_text(option.default) if option.convert is seconds else f"{option.default:g}"


def _width() -> int:
    return max(60, min(100, shutil.get_terminal_size().columns))


def _paragraph(text: str) -> list[str]:
    if text.startswith("  "):  # laid out by its author
        return text.split("\n")
    return textwrap.wrap(" ".join(text.split()), _width(), break_on_hyphens=False)


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    found = list(rows)
    width = min(NAMES_WIDTH, max((len(names) for names, _ in found), default=0))
    lines = []
    for names, text in found:
        wrapped = textwrap.wrap(text, _width() - width - 2 * INDENT, break_on_hyphens=False) or [""]
        if len(names) > width:
            lines.append(" " * INDENT + names)
        else:
            lines.append(f"{'':{INDENT}}{names:{width}}{'':{INDENT}}{wrapped.pop(0)}".rstrip())
        lines += [" " * (width + 2 * INDENT) + line for line in wrapped]
    return lines
