"""Where the bodies of `pub`, `req` and `reply` come from: arguments, a file, or stdin.

Input is read in a thread, so that a batch or a connection is kept alive while it is idle.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.cli.framework.command_table import Option
from penstock.cli.framework.value_kinds import header

READ_BYTES = 256 * 1024

HEADER = Option(names=("--header", "-H"), convert=header, repeated=True, help="A header of every message")
TEMPLATES = Option(
    names=("--templates",), convert=bool, negatable=True, help="Replace templates such as {{Count}} (default)"
)
FORCE_STDIN = Option(names=("--force-stdin",), convert=bool, help="Read stdin although there is a BODY")
TEMPLATES_HELP = """BODY may contain templates: {{Count}} (number of the message), {{Time}}, {{TimeStamp}},
{{Unix}}, {{UnixNano}}, {{ID}} (a unique id), {{Random 10 100}} (random letters, so many)."""


@contextmanager
def opened_input(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file or stdin, and its size when it is a file."""
    if path is None:
        yield sys.stdin.buffer, None
        return
    with path.open("rb") as file:
        yield file, path.stat().st_size or None


async def lines_of(source: BinaryIO) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield the lines of an input in groups as they are read, without their ends, and the bytes read for
    them.

    An empty line is one; what follows the last line end is one if it is not empty.
    """
    rest = b""
    while data := await asyncio.to_thread(source.read1, READ_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines, len(data)
    if rest:
        yield [rest], 0


async def whole_input(source: BinaryIO) -> bytes:
    """All of an input."""
    return await asyncio.to_thread(source.read)
