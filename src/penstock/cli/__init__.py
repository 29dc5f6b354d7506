"""The command line: `penstock <command>`. Every command imports only what it needs."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # see serve.py
if TYPE_CHECKING:
    import typer


def run_app(app: typer.Typer, words: list[str], name: str, *, misused: int) -> int:
    """Run a typer command and return its exit status.

    misused: status to return when typer rejects an option, with its message on stderr.
    """
    import typer

    try:
        status = app(words, prog_name=name, standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):  # only typer's usage errors have it
            raise
        sys.stderr.write(f"{name}: {error.format_message()}\n")
        return misused
    return int(status or 0)
