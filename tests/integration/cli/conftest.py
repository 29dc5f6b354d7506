"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def run(url: str) -> Iterator[CommandLine]:
    """Commands against each kind of server; its streams are removed afterwards."""
    command_line = CommandLine(url)
    yield command_line
    for name in command_line("stream", "ls", "-n", "--json", "--all").json:
        command_line("stream", "rm", name, "-f")
