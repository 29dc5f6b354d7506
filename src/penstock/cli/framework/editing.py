"""The user's editor: `stream edit --interactive`, `context edit`."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun, ask_text
from penstock.cli.framework.command_table import Option
from penstock.errors import ConfigError, MisuseError

Checked = TypeVar("Checked")

INTERACTIVE = Option(
    names=("--interactive", "-i"), convert=bool, help="Change the configuration as JSON in $VISUAL or $EDITOR"
)


def find_editor(environment: Mapping[str, str]) -> str:
    """The command of the user's editor. Raises ConfigError if none is named."""
    found = environment.get("VISUAL") or environment.get("EDITOR")
    if not found:
        raise ConfigError("neither $VISUAL nor $EDITOR is set; set one to the name of an editor")
    return found


def run_editor(path: Path, environment: Mapping[str, str]) -> None:
    """Open a file in the user's editor, which may have options: `code --wait`. Raises CommandFailed."""
    editor = find_editor(environment)
    done = subprocess.run([*shlex.split(editor), str(path)], env=dict(environment), check=False)
    if done.returncode:
        raise CommandFailed(f"{editor!r} ended with {done.returncode}")


def _edited_text(path: Path, environment: Mapping[str, str]) -> bytes:
    run_editor(path, environment)
    return path.read_bytes()


async def edited_config(
    run: CommandRun, name: str, config: Mapping[str, Any], check: Callable[[dict[str, Any]], Checked]
) -> Checked:
    """What `check` makes of a configuration that the user changed in the editor. name: for the file's name.

    What is no JSON object, or raises MisuseError, can be edited again. Raises UsageError without a terminal,
    CommandFailed with the name of the file, which is kept, if the user gives up.
    """
    if not run.can_ask:
        raise UsageError("--interactive opens an editor, and this is no terminal; give options or --config")
    find_editor(run.environment)
    handle, file = tempfile.mkstemp(prefix=f"penstock-{name}-", suffix=".json")
    path = Path(file)
    with os.fdopen(handle, "wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(dict(config)), indent=2) + b"\n")
    while True:
        # In a thread: the connection is served while the user thinks.
        text = await asyncio.to_thread(_edited_text, path, run.environment)
        try:
            found = check(msgspec.json.decode(text, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            problem = f"{path} is not a JSON object: {error}"
        except MisuseError as error:
            problem = str(error)
        else:
            os.unlink(path)
            return found
        if ask_text(f"{problem}\nEdit again? [Y/n] ").lower() in ("n", "no"):
            raise CommandFailed(f"{problem}; your changes are in {path}, give it by --config")
