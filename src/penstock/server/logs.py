"""The server's log: lines as the official server writes them, to stderr, a file or Python's logging.

`[<pid>] 2006/01/02 15:04:05.000000 [INF] text`. Labels INF DBG WRN ERR FTL TRC, coloured on a terminal only.

Rejected: handlers of the `logging` package for served servers. Suites of other clients read these lines,
and a formatter that yields them costs more than the few lines here; an embedded server hands its lines
to the logger `penstock.server` instead, so that they end where the host program's do. What other floors
say to the loggers below `penstock` comes into the lines of a served server by `take_over_logging`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import IO

_COLOURS = {"INF": "32", "DBG": "36", "WRN": "93", "ERR": "31", "FTL": "91", "TRC": "33"}


class Log:
    """Writes log lines. `debug_on` and `trace_on` tell callers whether a line is worth building.

    Args:
        emit: takes a label ("INF") and a text.
        debug: whether DBG lines are written.
        trace: whether TRC lines are written.
    """

    def __init__(self, emit: Callable[[str, str], None], *, debug: bool = False, trace: bool = False) -> None:
        self._emit = emit
        self.debug_on = debug
        self.trace_on = trace

    def info(self, text: str) -> None:
        self._emit("INF", text)

    def warning(self, text: str) -> None:
        self._emit("WRN", text)

    def error(self, text: str) -> None:
        self._emit("ERR", text)

    def fatal(self, text: str) -> None:
        """The server can't go on; whoever calls this ends the process."""
        self._emit("FTL", text)

    def debug(self, text: str) -> None:
        if self.debug_on:
            self._emit("DBG", text)

    def trace(self, text: str) -> None:
        if self.trace_on:
            self._emit("TRC", text)


def _opened(path: str) -> IO[str]:
    """The file to append to, stderr when path is empty; LineWriter.close() closes it. Raises OSError."""
    return open(path, "a", encoding="utf-8") if path else sys.stderr


class LineWriter:
    """Formats lines and writes them to a stream, each at once."""

    def __init__(self, stream: IO[str], *, logtime: bool = True, utc: bool = False) -> None:
        self.stream = stream
        self.logtime = logtime
        self.utc = utc
        self.coloured = stream.isatty()
        self.path = ""
        self.pid = os.getpid()

    def __call__(self, label: str, text: str) -> None:
        if self.coloured:
            label = f"\x1b[{_COLOURS[label]}m{label}\x1b[0m"
        self.stream.write(f"[{self.pid}] {self._time()}[{label}] {text}\n")
        self.stream.flush()

    def _time(self) -> str:
        if not self.logtime:
            return ""
        now_ns = time.time_ns()
        parts = (time.gmtime if self.utc else time.localtime)(now_ns // 1_000_000_000)
        return f"{time.strftime('%Y/%m/%d %H:%M:%S', parts)}.{now_ns // 1000 % 1_000_000:06d} "

    def reopen(self) -> None:
        """Opens the log file anew, for whoever has moved the old one away. Raises OSError."""
        if self.path:
            fresh = _opened(self.path)
            self.stream.close()
            self.stream = fresh

    def configure(self, path: str, *, logtime: bool, utc: bool) -> None:
        """Writes to another file (stderr when path is empty) or in another form. Raises OSError."""
        if path != self.path:
            fresh = _opened(path)
            self.close()
            self.stream = fresh
            self.path = path
            self.coloured = fresh.isatty()
        self.logtime = logtime
        self.utc = utc

    def close(self) -> None:
        """Closes the stream, unless it is the process's own stderr."""
        if self.stream is not sys.stderr:
            self.stream.close()


def to_logging(label: str, text: str) -> None:
    """Hands a line to the logger `penstock.server` of Python's logging."""
    levels = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR, "FTL": logging.CRITICAL}
    logging.getLogger("penstock.server").log(levels.get(label, logging.DEBUG), "%s", text)


class FromLogging(logging.Handler):
    """Takes what the store and JetStream say to Python's logging into a server's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.DEBUG if log.debug_on else logging.INFO)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self.log.error(text)
        elif record.levelno >= logging.WARNING:
            self.log.warning(text)
        elif record.levelno >= logging.INFO:
            self.log.info(text)
        else:
            self.log.debug(text)


def take_over_logging(log: Log) -> None:
    """Makes a served server's log the place of everything penstock says in this process."""
    logger = logging.getLogger("penstock")
    handler = FromLogging(log)
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False


def set_levels(log: Log, *, debug: bool, trace: bool) -> None:
    """Changes what a log writes, and what it takes from the loggers of `take_over_logging`."""
    log.debug_on = debug
    log.trace_on = trace
    logger = logging.getLogger("penstock")
    for handler in logger.handlers:
        if isinstance(handler, FromLogging) and handler.log is log:
            handler.setLevel(logging.DEBUG if debug else logging.INFO)
            logger.setLevel(handler.level)


def log_lines(path: str, *, logtime: bool, utc: bool, debug: bool, trace: bool) -> tuple[Log, LineWriter]:
    """A log that appends to a file (stderr when path is empty), and its writer, to be closed at the end."""
    writer = LineWriter(_opened(path), logtime=logtime, utc=utc)
    writer.path = path
    return Log(writer, debug=debug, trace=trace), writer
