"""`--translate COMMAND`: payloads go through a shell command before they are printed."""

from __future__ import annotations

import asyncio

from penstock.cli.framework.command_run import CommandFailed
from penstock.cli.framework.command_table import Option

TRANSLATE = Option(
    names=("--translate",),
    metavar="COMMAND",
    help="Pipe each payload through this command, and show its output",
)


async def translated(data: bytes, command: str) -> bytes:
    """The output of a shell command that gets a payload on stdin; the payload itself without a command.

    Raises CommandFailed if the command fails.
    """
    return await command_output(command, data, {}) if command else data


async def command_output(command: str, data: bytes, environment: dict[str, str]) -> bytes:
    """Run a shell command. data: its stdin. environment: all its variables; empty: those of this process.

    Raises CommandFailed with its stderr if its status is not 0.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment or None,
    )
    out, errors = await process.communicate(data)
    if process.returncode:
        text = errors.decode("utf-8", "replace").strip()
        raise CommandFailed(f"{command!r} exited with status {process.returncode}: {text}")
    return out
