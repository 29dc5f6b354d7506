"""The help of every command beside that of the official command line."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from penstock.cli.framework.command_parser import parse_command
from penstock.cli.framework.command_run import shared_options
from penstock.cli.framework.command_table import Command
from penstock.cli.framework.value_kinds import existing_file
from penstock.cli.main import main
from penstock.cli.registry import find_registered
from tests.support.official_options import PAGE, official_model, page
from tests.unit.cli.test_command_names import COMMANDS

pytestmark = pytest.mark.feature("cli.commands")


@pytest.mark.official
def test_the_page_of_differences_is_that_of_today() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(official_model()), (
        "run python -m tests.support.official_options, and review what changed"
    )


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_help_shows_every_argument_option_choice_and_example(
    path: str, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    joined = " ".join(text.split())
    assert command.summary.rstrip(".") in joined
    for argument in command.arguments:
        assert argument.name.upper() in text or argument.name in text, argument
        assert " ".join(argument.help.split()) in joined
    for option in command.options:
        if not option.hidden:
            spelled = option.names[0].replace("--", "--[no-]") if option.negatable else option.names[0]
            assert spelled in text
            assert " ".join(option.help.split()).rstrip(".") in joined, option.names
            assert all(choice in text for choice in option.choices)
            assert not option.help.endswith("."), option.names
    assert all(example in text for example in command.examples)
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(("path", "command"), [one for one in COMMANDS if one.values[1].examples])
def test_the_examples_of_a_help_text_can_be_typed(path: str, command: Command) -> None:
    for example in command.examples:
        first, _, second = example.partition(" | ")
        line = (second if "penstock " in second else first).removeprefix("penstock ").partition(" >")[0]
        found = find_registered(shlex.split(line)[0])
        assert found is not None, example
        member, rest = found.load(), shlex.split(line)[1:]
        while not isinstance(member, Command):
            below = member.find(rest.pop(0))
            assert below is not None, example
            member = below
        shared = [one for _, group in shared_options(member) for one in group]
        options = [replace(one, convert=str) if one.convert is existing_file else one for one in shared]
        own = [replace(one, convert=str) if one.convert is existing_file else one for one in member.options]
        arguments = [replace(one, convert=str) for one in member.arguments]
        command = replace(member, options=tuple(own), arguments=tuple(arguments))
        parse_command(command, rest, options, environment={})
