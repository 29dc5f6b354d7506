"""Words to the values of a command. Options and arguments may be mixed, and options of all commands stand
anywhere.

`--name value`, `--name=value`, `-n value`, `-nvalue`, flags together (`-fq`), `--no-name` where a flag can be
negated, `--` before words that are no options. What begins with a dash and a digit is a value. Nothing is
abbreviated: a script would break with the next option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.cli.framework.command_table import Argument, Command, Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.suggestions import suggestion
from penstock.errors import MisuseError

Ask = Callable[[Argument], str | None]
"""Asks the user for a missing argument; None without a terminal."""

_NEGATIVE = re.compile(r"-\d.*", re.DOTALL)
_TRUE, _FALSE = ("1", "t", "true", "yes", "on"), ("0", "f", "false", "no", "off")


class UsageError(MisuseError):
    """A command line that can not be: an unknown command or option, a bad value, a missing argument."""


def parse_command(
    command: Command,
    words: list[str],
    shared: Iterable[Option],
    environment: Mapping[str, str] = os.environ,
    ask: Ask = lambda argument: None,
) -> CommandValues:
    """Parse the words behind a command.

    shared: options that each command has besides its own. environment: variables that stand for options.
    ask: asks for a missing required argument.

    Raises UsageError.
    """
    options = [*command.options, *shared]
    spelled = {name: (option, negated) for option in options for name, negated in option.spellings()}
    values: dict[str, Any] = {}
    positions = _read_words(list(words), spelled, values)
    given = set(values)
    for option in options:
        if option.key not in values and option.env and environment.get(option.env):
            _put(option, f"${option.env}", environment[option.env], values)
            given.add(option.key)
        values.setdefault(option.key, _missing(option))
    _bind(command, positions, values, given, ask)
    return CommandValues(values, frozenset(given))


def converted(option: Option, text: str) -> Any:
    """The value of an option as it is in `CommandValues`, from one text. Raises UsageError."""
    values: dict[str, Any] = {}
    _put(option, option.names[0], text, values)
    return values[option.key]


def _missing(option: Option) -> Any:
    if option.repeated:
        return []
    if option.is_flag and not option.negatable and option.default is None:
        return False
    return option.default


def _read_words(
    rest: list[str], spelled: dict[str, tuple[Option, bool]], values: dict[str, Any]
) -> list[str]:
    """Read options into `values` and return the other words."""
    positions: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            return positions + rest
        if word == "-" or not word.startswith("-") or _NEGATIVE.fullmatch(word):
            positions.append(word)
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            _read_option(name, value if equals else None, rest, spelled, values)
        else:
            _read_letters(word, rest, spelled, values)
    return positions


def _read_letters(
    word: str, rest: list[str], spelled: dict[str, tuple[Option, bool]], values: dict[str, Any]
) -> None:
    """`-n`, `-n=value`, `-nvalue`, or several flags."""
    letters = word[1:]
    while letters:
        name, letters = f"-{letters[0]}", letters[1:]
        option, _ = _find(name, spelled)
        if option.is_flag and not letters.startswith("="):
            _read_option(name, None, rest, spelled, values)
            continue
        _read_option(name, letters.removeprefix("=") if letters else None, rest, spelled, values)
        return


def _find(name: str, spelled: dict[str, tuple[Option, bool]]) -> tuple[Option, bool]:
    found = spelled.get(name)
    if found is None:
        known = [one for one, (option, _) in spelled.items() if not option.hidden and one.startswith("--")]
        raise UsageError(f"unknown option {name}{suggestion(name, known) or '; see --help'}")
    return found


def _read_option(
    name: str,
    value: str | None,
    rest: list[str],
    spelled: dict[str, tuple[Option, bool]],
    values: dict[str, Any],
) -> None:
    option, negated = _find(name, spelled)
    if option.is_flag:
        values[option.key] = _switch(name, value) is not negated
        return
    if value is None:
        if not rest:
            raise UsageError(f"option {name} needs a value: {name} {option.value_name}")
        value = rest.pop(0)
    _put(option, name, value, values)


def _switch(name: str, value: str | None) -> bool:
    if value is None or value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise UsageError(f"option {name} is true or false, not {value!r}")


def _put(option: Option, name: str, text: str, values: dict[str, Any]) -> None:
    """Convert a value and put it. name: what the user calls the option, for errors."""
    if option.is_flag:
        values[option.key] = _switch(name, text)
        return
    parts = text.split(",") if option.commas else [text]
    found = [_converted(option, name, part.strip() if option.commas else part) for part in parts]
    if option.repeated:
        values.setdefault(option.key, []).extend(found)
    else:
        values[option.key] = found[-1]


def _converted(option: Option | Argument, name: str, text: str) -> Any:
    if option.choices and text not in option.choices:
        near = suggestion(text, option.choices)
        raise UsageError(f"{name} is {text!r}; it is one of {', '.join(option.choices)}{near}")
    try:
        return option.convert(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _bind(command: Command, positions: list[str], values: dict[str, Any], given: set[str], ask: Ask) -> None:
    """Bind words to arguments by position, and ask for what is missing."""
    rest = list(positions)
    for argument in command.arguments:
        if argument.repeated:
            taken, rest = rest, []
        else:
            taken, rest = rest[:1], rest[1:]
        if not taken and argument.required:
            answer = ask(argument)
            if answer is None:
                raise UsageError(f"{argument.name} is missing: {argument.help.rstrip('.')}; see --help")
            taken = [answer]
        if taken:
            given.add(argument.name)
        found = [_converted(argument, argument.name, word) for word in taken]
        values[argument.name] = found if argument.repeated else (found[0] if found else None)
    if rest:
        raise UsageError(f"unexpected {rest[0]!r}; see --help")
