"""Every command of the registry: its names do not collide, and its help text is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cli.framework.command_help import command_help, default_text, option_text
from penstock.cli.framework.command_parser import converted
from penstock.cli.framework.command_run import shared_options
from penstock.cli.framework.command_table import Command, CommandGroup
from penstock.cli.registry import REGISTRY


def commands(member: Command | CommandGroup, path: str) -> Iterator[tuple[str, Command]]:
    if isinstance(member, Command):
        yield path, member
        return
    for one in member.members.values():
        yield from commands(one, f"{path} {one.name}")


COMMANDS = [
    pytest.param(path, command, id=path)
    for registered in REGISTRY
    if not registered.takes_words
    for path, command in commands(registered.load(), registered.name)
]


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_each_argument_and_option_of_a_command_has_a_name_of_its_own(path: str, command: Command) -> None:
    options = [*command.options, *(one for _, group in shared_options(command) for one in group)]
    keys = [one.key for one in options] + [one.name for one in command.arguments]
    spellings = [name for one in options for name, _ in one.spellings()]
    for names in (keys, spellings):
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"{path}: {', '.join(sorted(twice))}"


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_each_command_argument_and_option_has_a_help_text(path: str, command: Command) -> None:
    assert command.summary.endswith("."), path
    assert all(one.help for one in command.arguments), path
    assert all(one.help for one in command.options if not one.hidden), path
    assert all(" in seconds" not in one.help for one in command.options), f"{path}: durations have units"
    text = command_help(f"penstock {path}", command, shared_options(command))
    assert text.startswith(f"Usage: penstock {path} [options]")


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_the_default_that_a_help_text_shows_can_be_typed(path: str, command: Command) -> None:
    for option in command.options:
        shown = default_text(option)
        if f"(default: {shown})" in option_text(option) and shown not in option.help and not option.repeated:
            assert converted(option, shown) == option.default, (path, option.names)
