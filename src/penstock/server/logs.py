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
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.server.options import Options

SERVER = "server"
_LABELS = ((logging.ERROR, "ERR"), (logging.WARNING, "WRN"), (logging.INFO, "INF"))
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


def opened(path: str) -> IO[str]:
    """The file to append to, stderr when path is empty; LineWriter.close() closes it. Raises OSError."""
    return open(path, "a", encoding="utf-8") if path else sys.stderr


def as_json(time_ns: int, label: str, text: str, component: str) -> str:
    """A line for programs.

        {"time":"2026-01-02T03:04:05.000000006Z","level":"ERR","component":"server",
         "connection":{"peer":"127.0.0.1:4333","cid":5},"text":"authentication error"}

    The connection is taken out of the text, which begins with it (`<peer> - cid:<n> - ...`).
    """
    import re  # imported when first needed: it costs start-up time

    import msgspec

    from penstock.protocol.durations import format_time

    line: dict[str, object] = {"time": format_time(time_ns), "level": label, "component": component}
    found = re.match(_CONNECTION, text, re.DOTALL)
    if found is not None:
        connection: dict[str, object] = {"peer": found["peer"], "cid": int(found["cid"])}
        connection |= {name: found[name] for name in ("client", "user") if found[name]}
        line["connection"], text = connection, found["text"]
    return msgspec.json.encode(line | {"text": text}).decode() + "\n"


_CONNECTION = (
    r"(?P<peer>\S+:\d+) - [cw]id:(?P<cid>\d+)"
    r'(?: - "(?P<client>v?[^"/]*:[^"]*)")?(?: - "(?P<user>[^"]*/[^"]*)")? - (?P<text>.*)'
)


class Writer(Protocol):
    """Where the lines of a served server go."""

    def __call__(self, label: str, text: str, component: str = SERVER) -> None:
        """component: which floor of the server says it."""

    def reopen(self) -> None:
        """Opens the log file anew, for whoever has moved the old one away. Raises OSError."""

    def close(self) -> None: ...


class LineWriter:
    """Formats lines and writes them to a stream, each at once.

    Args:
        stream: where to; opened from `path`, or stderr when path is empty.
        path: the file behind the stream.
        logtime, utc: whether lines begin with the time, and whether that is UTC.
        size_limit: bytes above which the file is moved to `<path>.<time>` and a new one begun; 0 = never.
        files_max: files that are kept then, the open one included; 0 = all.
        json: lines are objects, see `as_json`.
    """

    def __init__(
        self,
        stream: IO[str],
        *,
        path: str = "",
        logtime: bool = True,
        utc: bool = False,
        size_limit: int = 0,
        files_max: int = 0,
        json: bool = False,
    ) -> None:
        self.stream = stream
        self.logtime = logtime
        self.utc = utc
        self.coloured = stream.isatty()
        self.path = path
        self.pid = os.getpid()
        self.size_limit = size_limit
        self.files_max = files_max
        self.json = json
        self._limit = size_limit  # doubled while the file can't be moved
        self._size = os.fstat(stream.fileno()).st_size if path else 0

    def __call__(self, label: str, text: str, component: str = SERVER) -> None:
        self._write(label, text, component)
        if 0 < self._limit < self._size and self.path:
            self._rotate()

    def _write(self, label: str, text: str, component: str = SERVER) -> None:
        if self.json:
            line = as_json(time.time_ns(), label, text, component)
        else:
            if self.coloured:
                label = f"\x1b[{_COLOURS[label]}m{label}\x1b[0m"
            line = f"[{self.pid}] {self._time()}[{label}] {text}\n"
        self.stream.write(line)
        self.stream.flush()
        self._size += len(line)

    def _time(self) -> str:
        if not self.logtime:
            return ""
        now_ns = time.time_ns()
        parts = (time.gmtime if self.utc else time.localtime)(now_ns // 1_000_000_000)
        return f"{time.strftime('%Y/%m/%d %H:%M:%S', parts)}.{now_ns // 1000 % 1_000_000:06d} "

    def reopen(self) -> None:
        """Opens the log file anew, for whoever has moved the old one away. Raises OSError."""
        if self.path:
            fresh = opened(self.path)
            self.stream.close()
            self.stream = fresh
            self._size = os.fstat(fresh.fileno()).st_size
            self._limit = self.size_limit

    def close(self) -> None:
        """Closes the stream, unless it is the process's own stderr."""
        if self.stream is not sys.stderr:
            self.stream.close()

    def _rotate(self) -> None:
        """Moves the file away and begins a new one; when that fails, tries again at twice the size."""
        now_ns = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now_ns // 1_000_000_000))
        backup = f"{self.path}.{stamp}.{now_ns % 1_000_000_000:09d}"
        try:
            os.rename(self.path, backup)
            self.reopen()
        except OSError as error:
            self._limit *= 2
            self._write(
                "ERR", f"Unable to rotate the log ({error}), will attempt next rotation at size {self._limit}"
            )
            return
        self._write("INF", f'Rotated log, backup saved as "{backup}"')
        if self.files_max > 0:
            self._purge()

    def _purge(self) -> None:
        """Removes the oldest backups. Their names sort by time."""
        import re

        directory, name = os.path.split(self.path)
        backup = re.compile(re.escape(name) + r"\.\d{4}(\.\d\d){5}\.\d{9}")
        try:
            found = sorted(entry for entry in os.listdir(directory or ".") if backup.fullmatch(entry))
            for entry in found[: max(0, len(found) - (self.files_max - 1))]:
                os.unlink(os.path.join(directory, entry))
                self._write("INF", f'Purged log file "{entry}"')
        except OSError as error:
            self._write("ERR", f"Unable to remove a backup log file ({error}), will attempt next rotation")


def to_logging(label: str, text: str) -> None:
    """Hands a line to the logger `penstock.server` of Python's logging."""
    levels = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR, "FTL": logging.CRITICAL}
    logging.getLogger("penstock.server").log(levels.get(label, logging.DEBUG), "%s", text)


class FromLogging(logging.Handler):
    """Takes what the store and JetStream say to Python's logging into a server's log."""

    def __init__(self, served: ServedLog) -> None:
        super().__init__(logging.DEBUG if served.log.debug_on else logging.INFO)
        self.served = served

    def emit(self, record: logging.LogRecord) -> None:
        label = next((label for level, label in _LABELS if record.levelno >= level), "DBG")
        component = record.name.split(".")[1:2]
        self.served.emit(label, record.getMessage(), component[0] if component else SERVER)


def take_over_logging(served: ServedLog) -> None:
    """Makes a served server's log the place of everything penstock says in this process."""
    logger = logging.getLogger("penstock")
    handler = FromLogging(served)
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False


def set_levels(log: Log, *, debug: bool, trace: bool) -> None:
    """Changes what a log writes, and what it takes from the loggers of `take_over_logging`."""
    log.debug_on = debug
    log.trace_on = trace
    logger = logging.getLogger("penstock")
    for handler in logger.handlers:
        if isinstance(handler, FromLogging) and handler.served.log is log:
            handler.setLevel(logging.DEBUG if debug else logging.INFO)
            logger.setLevel(handler.level)


def writer_of(options: Options) -> Writer:
    """What writes as the options say: to a file, else to a syslog, else to stderr. Raises OSError."""
    if not options.log_file and (options.syslog or options.remote_syslog):
        from penstock.server.syslog import SyslogWriter

        return SyslogWriter(options.remote_syslog)
    return LineWriter(
        opened(options.log_file),
        path=options.log_file,
        logtime=options.logtime,
        utc=options.logtime_utc,
        size_limit=options.log_size_limit,
        files_max=options.logfile_max_num,
        json=options.log_format == "json",
    )


class ServedLog:
    """The log of a served server, whose writer a reload may exchange.

    Raises OSError when it can't be opened.
    """

    def __init__(self, options: Options) -> None:
        self._writer = writer_of(options)
        self.log = Log(self.emit, debug=options.debug, trace=options.trace)
        self.path = options.log_file

    def emit(self, label: str, text: str, component: str = SERVER) -> None:
        self._writer(label, text, component)

    def reopen(self) -> None:
        """Opens the log file anew. Raises OSError."""
        self._writer.reopen()

    def use(self, writer: Writer, options: Options) -> None:
        """Writes with `writer`, made of these options, from now on."""
        before, self._writer = self._writer, writer
        self.path = options.log_file
        before.close()

    def close(self) -> None:
        self._writer.close()
