"""Runs a command of several that typer defines, and makes an exit status of what comes of it."""

from __future__ import annotations

import sys

import typer


def run_app(app: typer.Typer, words: list[str], name: str, *, misused: int) -> int:
    """The exit status of `name words ...`; `misused` when typer refuses an option, and says so on stderr."""
    try:
        status = app(words, prog_name=name, standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):  # an option typer refuses says so itself
            raise
        sys.stderr.write(f"{name}: {error.format_message()}\n")
        return misused
    return int(status or 0)
