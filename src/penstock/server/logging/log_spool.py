"""Log lines on their way to where they are written, which may take none: a pipe that nobody reads, a terminal
that was stopped, a syslog that is gone.

A regular file takes a line at once, and has it when the server crashes right after. Anything else may make
the writer wait for its reader, so lines go there through a thread and a bounded queue: the event loop never
waits, whatever becomes of the log. What can't be kept or written is counted, and a line says how much was
lost as soon as one can be written again.

Rejected: writing without waiting (O_NONBLOCK). The flag belongs to the open file, which the shell and other
processes share, and would break their writes. Asking with poll() first: another process may fill the pipe in
between.

Invariant: lines are written in the order in which they came, and the line about lost ones in their place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

QUEUE_BYTES = 1 << 20
CLOSE_GRACE_S = 1.0


class Writer(Protocol):
    """Where the lines of a served server go."""

    waits: bool
    """May `write` wait for a reader? Then a thread calls it."""

    def line(self, label: str, text: str, component: str) -> bytes:
        """A log line: its label ("INF"), what it says, and which part of the server says it."""

    def write(self, lines: Sequence[bytes]) -> int:
        """Writes lines; returns how many could not be written."""

    def reopened(self) -> Writer:
        """One that writes to the same place, opened now; this one is closed by its owner. Raises OSError."""

    def close(self) -> None: ...


class Spool:
    """The lines of one writer. Any thread may call it.

    Args:
        writer: closed by `close()`.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._lines: list[bytes] = []
        self._bytes = 0  # of lines that wait, and of those that are being written
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Writes a line, now or when its turn comes. Never waits for a reader."""
        with self._changed:
            if self._closing:
                return
            if not self.writer.waits:
                self._write_now(line)
                return
            if self._bytes and self._bytes + len(line) > QUEUE_BYTES:
                self._lost += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="penstock-log", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Closes the writer, behind the lines that wait.

        After `grace_s` it returns all the same: what waits may still be written, if the process lives on.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is None:
            self.writer.close()
        else:
            self._thread.join(grace_s)

    def _write_now(self, line: bytes) -> None:
        if self._lost and self.writer.write([self._report(self._lost)]) == 0:
            self._lost = 0
        self._lost += self.writer.write([line])

    def _report(self, lost: int) -> bytes:
        return self.writer.line("WRN", f"{lost} log lines were lost: they could not be written", "server")

    def _work(self) -> None:
        """The thread: writes all that waits, then all that has come meanwhile."""
        while True:
            with self._changed:
                self._bytes = 0
                while not self._lines and not self._closing:
                    self._changed.wait()
                lines, self._lines = self._lines, []
                self._bytes = sum(map(len, lines))
                lost = self._lost  # after these lines, which fill the queue, and before any others
            if not lines:
                break
            failed = self.writer.write(lines)
            reported = lost if not failed and lost and self.writer.write([self._report(lost)]) == 0 else 0
            with self._changed:
                self._lost += failed - reported
        self.writer.close()
