"""The tables of commands: arguments, options, commands and groups, as values.

A module of commands builds a `CommandGroup` and adds functions to it with the decorator `command`.
Parser, help text, shell completion, man pages and the reference in docs/ all read the same tables, so
that they can't differ.

    STREAM = CommandGroup("stream", "Manage JetStream streams.", aliases=("str",))

    @STREAM.command("rm", "Remove a stream.", arguments=(STREAM_NAME,), options=(FORCE,))
    async def remove(run: CommandRun) -> None: ...

Rejected: typer (70 ms of imports, options of the program before the command only, no `--no-ack` beside
`--ack` without a second declaration), argparse (the same, and abbreviations);
docs/decisions/0004-command-lines.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cli.framework.command_run import CommandRun

Converter = Callable[[str], Any]
"""Text to value; raises ValueError that says what was expected. `bool` marks an option without a value."""
CommandFunction = Callable[["CommandRun"], Awaitable[int | None]]
"""Runs a command. Returns the exit status; None is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option such as `--filter`, `-f`.

    names: with their dashes, the long one first. convert: `bool` for a flag. default: what a missing
    option is (a flag: False, or None if `negatable`). repeated: its value is a list; a comma separates
    values too where `commas` is set. choices: the values allowed. env: environment variable that stands
    for a missing option. negatable: `--no-NAME` is there as well. metavar: the value in help texts.
    hidden: not in help texts.
    """

    names: tuple[str, ...]
    help: str
    convert: Converter = str
    default: Any = None
    metavar: str = ""
    choices: tuple[str, ...] = ()
    env: str = ""
    repeated: bool = False
    commas: bool = False
    negatable: bool = False
    hidden: bool = False

    @property
    def key(self) -> str:
        """Its name in `CommandValues`: the first name without dashes."""
        return self.names[0].lstrip("-")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.convert is bool

    @property
    def value_name(self) -> str:
        """What help texts call the value; empty for a flag."""
        if self.is_flag:
            return ""
        return self.metavar or getattr(self.convert, "metavar", "") or self.key.upper()

    def spellings(self) -> Iterator[tuple[str, bool]]:
        """Every name it is known by, and whether this name negates it."""
        for name in self.names:
            yield name, False
            if self.negatable and name.startswith("--"):
                yield f"--no-{name[2:]}", True


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A word by position. required: asked for at a terminal when it is missing. repeated: takes all words
    that are left; its value is a list."""

    name: str
    help: str
    convert: Converter = str
    required: bool = True
    repeated: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: what it is called, what it takes, and the function that runs it.

    summary: one sentence. details: further paragraphs of the help text. examples: command lines, each
    shown with the program's name in front.
    """

    name: str
    summary: str
    run: CommandFunction
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    details: str = ""
    examples: tuple[str, ...] = ()
    connects: bool = True
    until_interrupted: bool = False
    hidden: bool = False


@dataclass(slots=True)
class CommandGroup:
    """Commands below a word, such as `stream`; a member may be a group again."""

    name: str
    summary: str
    aliases: tuple[str, ...] = ()
    members: dict[str, Command | CommandGroup] = field(default_factory=dict)
    hidden: bool = False

    def command(
        self,
        name: str,
        summary: str,
        *,
        arguments: tuple[Argument, ...] = (),
        options: tuple[Option, ...] = (),
        aliases: tuple[str, ...] = (),
        details: str = "",
        examples: tuple[str, ...] = (),
        connects: bool = True,
        until_interrupted: bool = False,
    ) -> Callable[[CommandFunction], CommandFunction]:
        """Decorator: add a command; see `Command`."""

        def add(function: CommandFunction) -> CommandFunction:
            self.add(
                Command(
                    name=name,
                    summary=summary,
                    run=function,
                    arguments=arguments,
                    options=options,
                    aliases=aliases,
                    details=details,
                    examples=examples,
                    connects=connects,
                    until_interrupted=until_interrupted,
                )
            )
            return function

        return add

    def group(self, name: str, summary: str, aliases: tuple[str, ...] = ()) -> CommandGroup:
        """Add a group below this one, and return it."""
        made = CommandGroup(name, summary, aliases)
        self.add(made)
        return made

    def add(self, member: Command | CommandGroup) -> None:
        """Add a command or a group. Its names must be new here."""
        taken = {name for one in self.members.values() for name in (one.name, *one.aliases)}
        for name in (member.name, *member.aliases):
            assert name not in taken, f"{self.name} {name} is declared twice"
        self.members[member.name] = member

    def find(self, word: str) -> Command | CommandGroup | None:
        """The member with this name or alias."""
        found = self.members.get(word)
        if found is not None:
            return found
        return next((one for one in self.members.values() if word in one.aliases), None)
