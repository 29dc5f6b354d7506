"""Entry point `penstock <command> ...`: imports and runs one command.

If the executable is named `nats-server`, it takes that program's flags without a command, so that test suites
and scripts can run penstock in place of it.
"""

from __future__ import annotations

import os
import sys

from penstock.errors import MissingExtraError, UnsupportedPythonError

TYPE_CHECKING = False  # see serve.py
if TYPE_CHECKING:
    from penstock.cli.framework.command_table import Command, CommandGroup

EXIT_MISUSED = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    Without `arguments` those of the process are used, and a server's end is the end of the process.
    """
    words, program = sys.argv[1:] if arguments is None else arguments, os.path.basename(sys.argv[0])
    try:
        if sys.version_info < (3, 11):  # noqa: UP036  else a server imports nothing for this
            from penstock.extras import need_python

            need_python("the command line")
        status = _run(words, program)
    except (MissingExtraError, UnsupportedPythonError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_MISUSED
    if arguments is None and (program == "nats-server" or words[:1] == ["serve"]):
        _exit(status)
    return status


def _exit(status: int) -> None:
    """End the process without freeing every object, which takes 10 ms, and seconds with much in memory.

    The server has closed its files. Clients are disconnected already and try to connect again, so scripts
    that wait for the process to end would find them on another server.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(words: list[str], program: str) -> int:
    if program == "nats-server":
        return _serve(words, program)
    command, *rest = words or ["--help"]
    if command == "serve":
        return _serve(rest, "penstock serve")
    if command in ("version", "-v", "--version"):
        return _version()
    if command in ("help", "-h", "--help"):
        return _run([*rest, "--help"], program) if rest and command == "help" else _help()
    from penstock.cli.registry import find_registered

    found = find_registered(command)
    if found is None:
        return _unknown("penstock", command, _names())
    if found.takes_words:
        return found.run_words(rest)
    return _run_member(found.load(), rest, f"penstock {found.name}")


def _run_member(member: Command | CommandGroup, words: list[str], path: str) -> int:
    """Run a command, or the member of a group that the words name."""
    from penstock.cli.framework.command_run import run_command
    from penstock.cli.framework.command_table import Command

    while not isinstance(member, Command):
        word, *rest = words or [""]
        if not word or word in ("-h", "--help", "help"):
            from penstock.cli.framework.command_help import group_help

            sys.stdout.write(group_help(path, member))
            return 0 if word else EXIT_MISUSED
        found = member.find(word)
        if found is None:
            return _unknown(
                path, word, [name for one in member.members.values() for name in (one.name, *one.aliases)]
            )
        member, words, path = found, rest, f"{path} {found.name}"
    return run_command(member, words, path)


def _unknown(path: str, word: str, known: list[str]) -> int:
    from penstock.cli.framework.suggestions import suggestion

    kind = "option" if word.startswith("-") else "command"
    near = (suggestion(word, known) if kind == "command" else "") or f"; see `{path} --help`"
    place = " before the command; options stand behind it" if kind == "option" else ""
    sys.stderr.write(f"{path}: unknown {kind} {word!r}{place}{near}\n")
    return EXIT_MISUSED


def _names() -> list[str]:
    from penstock.cli.registry import REGISTRY

    return ["version", "help", *(name for one in REGISTRY for name in (one.name, *one.aliases))]


def _help() -> int:
    from penstock.cli.registry import REGISTRY

    lines = ["Usage: penstock <command> [options]"]
    for section in dict.fromkeys(one.section for one in REGISTRY if one.section):
        lines += ["", f"{section}:"]
        lines += [f"    {one.name:10} {one.summary}" for one in REGISTRY if one.section == section]
    lines += [
        "    version    Show the version",
        "",
        "Run `penstock <command> --help` for the options of a command.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _serve(words: list[str], program: str) -> int:
    from penstock.cli.serve import serve

    return serve(words, program)


def _version() -> int:
    from penstock import __version__
    from penstock.server.server_identity import VERSION

    sys.stdout.write(f"penstock {__version__} (speaks NATS {VERSION})\n")
    return 0
