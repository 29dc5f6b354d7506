"""Unit tests use no network and start no servers: an audit hook refuses it while one of them runs.

Pairs of Unix sockets are allowed: event loops wake themselves up through one. So are processes of this Python
(tests of what is imported, and of memory) and of git (the list of files). An audit hook and no patch of
`socket.socket`, because uvloop and other libraries keep a reference to the class.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NETWORK = (socket.AF_INET, socket.AF_INET6)
PROGRAMS = (Path(sys.executable).name, "git")


class OutsideError(RuntimeError):
    """A unit test reached outside of its process."""


class Guard:
    """Refuses sockets and programs from start() to stop(), and keeps what it refused: the code under test may
    contain the exception."""

    def __init__(self) -> None:
        self._active = False
        self._refused: list[str] = []
        sys.addaudithook(self._hear)  # for the life of the process: hooks can't be removed

    def start(self) -> None:
        self._active = True

    def stop(self) -> list[str]:
        """What was refused since start()."""
        self._active = False
        refused, self._refused = self._refused, []
        return refused

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "socket.__new__" and arguments[1] in NETWORK:
            self._refuse(f"a socket of family {socket.AddressFamily(arguments[1]).name}")
        elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec") and (
            Path(arguments[0]).name not in PROGRAMS
        ):
            self._refuse(f"the program {arguments[0]}")

    def _refuse(self, what: str) -> None:
        self._refused.append(what)
        raise OutsideError(f"a unit test opens {what}: move it to tests/integration")


GUARD: list[Guard] = []


@pytest.fixture(autouse=True)
def nothing_outside() -> Iterator[None]:
    """Fails a test that opens a network socket or starts a program."""
    if not GUARD:
        GUARD.append(Guard())
    GUARD[0].start()
    yield
    refused = GUARD[0].stop()
    assert not refused, f"a unit test opens {', '.join(refused)}: move it to tests/integration"
