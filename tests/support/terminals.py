"""Commands of `penstock` on a pseudo-terminal: what a user at a terminal sees, types and interrupts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

WAIT_S = 15.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")

# It takes the terminal, and heeds interrupts, which a suite that a shell runs in the background ignores.
_PROGRAM = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from penstock.cli.main import main
sys.exit(main())
"""


class Terminal:
    """One command on a terminal of its own.

    shown: everything it wrote, without control sequences. raw: with them.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self._process = process
        self._master = master
        self._seen = 0
        self.raw = b""

    @property
    def shown(self) -> str:
        return _CONTROL.sub("", self.raw.decode("utf-8", "replace"))

    def _read(self, wait_s: float) -> bool:
        """Read what is there; False at the end."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data
        return bool(data)

    def expect(self, text: str) -> str:
        """Wait until a text appears behind what was expected before. What stood in front of it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            shown = self.shown
            at = shown.find(text, self._seen)
            if at >= 0:
                before = shown[self._seen : at]
                self._seen = at + len(text)
                return before
            assert time.monotonic() < deadline, f"no {text!r} within {WAIT_S:g} s in:\n{shown}"
            assert self._read(0.2), f"the command ended without {text!r}:\n{self.shown}"

    def wait_until(self, holds: Callable[[str], bool], what: str) -> None:
        """Wait until something holds of all that it wrote. what: named when it never does."""
        deadline = time.monotonic() + WAIT_S
        while not holds(self.shown):
            assert time.monotonic() < deadline, f"no {what} within {WAIT_S:g} s in:\n{self.shown}"
            assert self._read(0.2), f"the command ended without {what}:\n{self.shown}"

    def type(self, line: str) -> None:
        """Type a line, and the key that ends it."""
        os.write(self._master, line.encode() + b"\n")

    def press(self, key: str) -> None:
        """Press a key, such as Ctrl-D (`\\x04`)."""
        os.write(self._master, key.encode())

    def answer(self, question: str, line: str) -> None:
        """Wait for a question, and answer it."""
        self.expect(question)
        self.type(line)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.press("\x03")

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        _resize(self._master, columns, rows)
        self._process.send_signal(signal.SIGWINCH)

    def end(self) -> int:
        """Wait for the end of the command, and read the rest. Its exit status."""
        deadline = time.monotonic() + WAIT_S
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it did not end within {WAIT_S:g} s:\n{self.shown}"
            if self._process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                break
        return self._process.wait(WAIT_S)


@contextmanager
def at_terminal(
    words: Sequence[str], *, columns: int = 160, rows: int = 50, **variables: str
) -> Iterator[Terminal]:
    """Run `penstock` with these words on a terminal of this size. variables: of its environment."""
    master, slave = pty.openpty()
    _resize(master, columns, rows)
    # pytest-xdist has a COLUMNS of its own.
    left_out = ("NATS_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**kept, "TERM": "xterm", **variables},
        )  # fmt: skip
    finally:
        os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            os.close(master)


def _resize(master: int, columns: int, rows: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
