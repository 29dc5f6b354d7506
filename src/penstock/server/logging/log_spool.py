"""A queue between the server and a log output that may block: a pipe without reader, a stopped terminal, a
syslog that is down.

A regular file takes a line at once and keeps it if the server crashes. Any other output may block, so lines
go through a bounded queue and a thread, and the event loop never waits. Lines that cannot be queued or
written are counted; as soon as writing works again, a line reports the number lost.

Rejected: non-blocking writes (O_NONBLOCK). The flag belongs to the open file description, which the shell and
    other processes share, and would break their writes. Polling first: another process may fill the pipe in
    between.

Invariant: lines are written in order, and the report of lost lines comes in their place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

QUEUE_BYTES = 1 << 20
CLOSE_GRACE_S = 1.0


class Writer(Protocol):
    """An output for log lines."""

    waits: bool
    """Whether `write` may block. If so, a thread calls it."""

    def line(self, label: str, text: str, component: str) -> bytes:
        """Formats a line from its label ("INF"), text and component."""

    def write(self, lines: Sequence[bytes]) -> int:
        """Writes lines; returns how many could not be written."""

    def reopened(self) -> Writer:
        """A new writer for the same output. The owner closes this one. Raises OSError."""

    def close(self) -> None: ...


class Spool:
    """Passes lines to one writer. Thread-safe.

    Args:
        writer: the output; `close()` closes it.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._lines: list[bytes] = []
        self._bytes = 0  # bytes of queued lines, and of those being written
        self._lost = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Writes or queues a line. Never blocks."""
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
        """Writes the queued lines and closes the writer.

        Returns after `grace_s` at the latest; a thread may then still write the rest.
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
        """The thread: writes all queued lines, then those that arrived meanwhile."""
        while True:
            with self._changed:
                self._bytes = 0
                while not self._lines and not self._closing:
                    self._changed.wait()
                lines, self._lines = self._lines, []
                self._bytes = sum(map(len, lines))
                lost = self._lost  # reported after these lines, before any later ones
            if not lines:
                break
            failed = self.writer.write(lines)
            reported = lost if not failed and lost and self.writer.write([self._report(lost)]) == 0 else 0
            with self._changed:
                self._lost += failed - reported
        self.writer.close()
