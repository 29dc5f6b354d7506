"""Entry point `penstock <command> ...`: imports and runs one command.

If the executable is named `nats-server`, it takes that program's flags without a command, so that test suites
and scripts can run penstock in place of it.
"""

from __future__ import annotations

import os
import sys

from penstock.errors import MissingExtraError

HELP = """Usage: penstock <command> [options]

Commands:
    serve      run a server in the foreground (nats-server's flags; `penstock serve --help` lists them)
    pipeline   archive, replay and examine streams with Spark
    pub        publish a message or each line of an input, also as an atomic or fast batch
    store      check, repair or dump a store that no server uses
    version    show the version

Run `penstock <command> --help` for the options of a command.
"""

EXIT_MISUSED = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    Without `arguments` those of the process are used, and a server's end is the end of the process.
    """
    words, program = sys.argv[1:] if arguments is None else arguments, os.path.basename(sys.argv[0])
    try:
        status = _run(words, program)
    except MissingExtraError as error:
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
    if command == "pipeline":
        return _pipeline(rest)
    if command == "store":
        return _store(rest)
    if command == "pub":
        return _pub(rest)
    if command in ("version", "-v", "--version"):
        return _version()
    if command in ("help", "-h", "--help"):
        sys.stdout.write(HELP)
        return 0
    sys.stderr.write(f"penstock: unknown command {command!r}\n\n{HELP}")
    return EXIT_MISUSED


def _serve(words: list[str], program: str) -> int:
    from penstock.cli.serve import serve

    return serve(words, program)


def _pipeline(words: list[str]) -> int:
    from penstock.extras import need

    need("penstock pipeline", "pipelines")
    from penstock.cli.pipeline import pipeline

    return pipeline(words)


def _pub(words: list[str]) -> int:
    from penstock.extras import need

    need("penstock pub", "cli")
    from penstock.cli.pub import pub

    return pub(words)


def _store(words: list[str]) -> int:
    from penstock.extras import need

    need("penstock store", "cli", "server")
    from penstock.cli.store import store

    return store(words)


def _version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("penstock-nats")
    except PackageNotFoundError:
        own = "not installed"
    from penstock.server.server_identity import VERSION

    sys.stdout.write(f"penstock {own} (speaks NATS {VERSION})\n")
    return 0
