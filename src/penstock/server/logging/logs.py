"""The server's log: lines in the official server's format, to stderr, a file or Python's logging.

`[<pid>] 2006/01/02 15:04:05.000000 [INF] text`. Labels INF DBG WRN ERR FTL TRC, coloured on terminals only.

Rejected: handlers of the `logging` package for a served server. Test suites of other clients parse these
    lines, and a formatter for them costs more than this code. An embedded server logs to the logger
    `penstock.server` instead, so that its lines go where the host program's go. `take_over_logging` routes
    other loggers below `penstock` into a served server's log.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.server.logging.log_spool import Spool, Writer

if TYPE_CHECKING:
    from penstock.server.config.server_options import ServerOptions

SERVER = "server"
_LABELS = ((logging.ERROR, "ERR"), (logging.WARNING, "WRN"), (logging.INFO, "INF"))
_COLOURS = {"INF": "32", "DBG": "36", "WRN": "93", "ERR": "31", "FTL": "91", "TRC": "33"}


class Log:
    """Writes log lines. `debug_on` and `trace_on` say whether building such a line is worthwhile.

    Args:
        emit: called with a label ("INF") and a text.
        debug: whether DBG lines are written.
        trace: whether TRC lines are written.
    """

    def __init__(self, emit: Callable[[str, str], None], *, debug: bool = False, trace: bool = False) -> None:
        self._emit = emit
        self.debug_on = debug
        self.trace_on = trace

    def set_levels(self, *, debug: bool, trace: bool) -> None:
        """Sets whether DBG and TRC lines are written from now on."""
        self.debug_on = debug
        self.trace_on = trace

    def info(self, text: str) -> None:
        self._emit("INF", text)

    def warning(self, text: str) -> None:
        self._emit("WRN", text)

    def error(self, text: str) -> None:
        self._emit("ERR", text)

    def fatal(self, text: str) -> None:
        """Logs an error after which the caller ends the process."""
        self._emit("FTL", text)

    def failure(self, text: str, error: BaseException | None) -> None:
        """Logs an unexpected error with its traceback, one log line per traceback line."""
        self.error(text)
        for line in traceback_of(error) if error is not None else ():
            self.error(line)

    def debug(self, text: str) -> None:
        if self.debug_on:
            self._emit("DBG", text)

    def trace(self, text: str) -> None:
        if self.trace_on:
            self._emit("TRC", text)


def escaped(text: str) -> str:
    """Escapes control and other non-printable characters, as `\\n`, `\\u001b`.

    Names, subjects and errors come from peers. A newline in them would forge a log line; an escape sequence
    would change what a terminal shows.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    known = _ESCAPES.get(char)
    if known is not None:
        return known
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def opened(path: str, *, wait: bool = True) -> int:
    """Opens the log file for appending; stderr when path is empty. Returns the descriptor.

    Opening a named pipe waits for its reader; without `wait`, a missing reader is an error. Raises OSError.
    """
    if not path and sys.stderr is not None:
        return sys.stderr.fileno()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if wait else os.O_NONBLOCK)
    found = os.open(path or os.devnull, flags, 0o666)
    os.set_blocking(found, True)
    return found


def as_json(time_ns: int, label: str, text: str, component: str) -> str:
    """A log line as JSON object.

        {"time":"2026-01-02T03:04:05.000000006Z","level":"ERR","component":"server",
         "connection":{"peer":"127.0.0.1:4333","cid":5},"text":"authentication error"}

    The `connection` comes from the start of the text (`<peer> - cid:<n> - ...`), which is removed there.
    """
    import re  # imported on first use: costs start-up time

    import msgspec

    from penstock.protocol.durations import format_time

    line: dict[str, object] = {"time": format_time(time_ns), "level": label, "component": component}
    found = re.match(_CONNECTION, text, re.DOTALL)
    if found is not None:
        connection: dict[str, object] = {"peer": found["peer"], "cid": int(found["cid"])}
        client, user = found[3], found[4]
        if client and not user and "/" in client.partition(":")[0]:
            client, user = None, client  # only <account>/<kind>:<user>, without client library
        connection |= {name: value for name, value in (("client", client), ("user", user)) if value}
        line["connection"], text = connection, found["text"]
    return msgspec.json.encode(line | {"text": text}).decode() + "\n"


_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_CONNECTION = rf"(?P<peer>\S+:\d+) - [cw]id:(?P<cid>\d+)(?: - {_QUOTED})?(?: - {_QUOTED})? - (?P<text>.*)"


class LineWriter:
    """Formats lines and writes them to a file, a pipe or a terminal.

    Args:
        file: descriptor of the output.
        path: path of the file; "" = stderr.
        logtime, utc: whether lines begin with the time, and whether it is UTC.
        size_limit: size in bytes above which the file is renamed to `<path>.<time>`; 0 = never.
        files_max: number of files to keep, including the open one; 0 = all.
        json: write JSON objects, see `as_json`.
    """

    def __init__(
        self,
        file: int,
        *,
        path: str = "",
        logtime: bool = True,
        utc: bool = False,
        size_limit: int = 0,
        files_max: int = 0,
        json: bool = False,
    ) -> None:
        self.file = file
        self.logtime = logtime
        self.utc = utc
        self.coloured = os.isatty(file)
        self.path = path
        self.pid = os.getpid()
        self.size_limit = size_limit
        self.files_max = files_max
        self.json = json
        about = os.fstat(file)
        self.waits = not stat.S_ISREG(about.st_mode)
        self._limit = size_limit if path and not self.waits else 0  # doubled when a rotation fails
        self._size = about.st_size

    def line(self, label: str, text: str, component: str = SERVER) -> bytes:
        if self.json:
            line = as_json(time.time_ns(), label, text, component)
        else:
            if self.coloured:
                label = f"\x1b[{_COLOURS[label]}m{label}\x1b[0m"
            line = f"[{self.pid}] {self._time()}[{label}] {text}\n"
        return line.encode("utf-8", "backslashreplace")

    def write(self, lines: Sequence[bytes]) -> int:
        lost = self._append(lines)
        if 0 < self._limit < self._size:
            self._rotate()
        return lost

    def _append(self, lines: Sequence[bytes]) -> int:
        """Writes lines; returns how many could not be written: all of them after a partial failure."""
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                count = os.write(self.file, rest)
                self._size += count
                rest = rest[count:]
        except OSError:  # no reader, or a full disk: there is nowhere to report it
            return len(lines)
        return 0

    def _say(self, label: str, text: str) -> None:
        self._append([self.line(label, escaped(text))])

    def _time(self) -> str:
        if not self.logtime:
            return ""
        now_ns = time.time_ns()
        parts = (time.gmtime if self.utc else time.localtime)(now_ns // 1_000_000_000)
        return f"{time.strftime('%Y/%m/%d %H:%M:%S', parts)}.{now_ns // 1000 % 1_000_000:06d} "

    def reopened(self) -> LineWriter:
        return LineWriter(
            opened(self.path, wait=False),
            path=self.path,
            logtime=self.logtime,
            utc=self.utc,
            size_limit=self.size_limit,
            files_max=self.files_max,
            json=self.json,
        )

    def close(self) -> None:
        """Closes the file unless it is the process's stderr."""
        if self.path:
            os.close(self.file)

    def _rotate(self) -> None:
        """Renames the file and opens a new one. On failure, retries at twice the size."""
        now_ns = time.time_ns()
        stamp = time.strftime("%Y.%m.%d.%H.%M.%S", time.localtime(now_ns // 1_000_000_000))
        backup = f"{self.path}.{stamp}.{now_ns % 1_000_000_000:09d}"
        try:
            os.rename(self.path, backup)
            fresh = opened(self.path)
        except OSError as error:
            self._limit *= 2
            self._say(
                "ERR", f"Unable to rotate the log ({error}), will attempt next rotation at size {self._limit}"
            )
            return
        os.close(self.file)
        self.file, self._size, self._limit = fresh, os.fstat(fresh).st_size, self.size_limit
        self._say("INF", f'Rotated log, backup saved as "{backup}"')
        if self.files_max > 0:
            self._purge()

    def _purge(self) -> None:
        """Removes the oldest backups. File names sort by time."""
        import re

        directory, name = os.path.split(self.path)
        backup = re.compile(re.escape(name) + r"\.\d{4}(\.\d\d){5}\.\d{9}")
        try:
            found = sorted(entry for entry in os.listdir(directory or ".") if backup.fullmatch(entry))
            for entry in found[: max(0, len(found) - (self.files_max - 1))]:
                os.unlink(os.path.join(directory, entry))
                self._say("INF", f'Purged log file "{entry}"')
        except OSError as error:
            self._say("ERR", f"Unable to remove a backup log file ({error}), will attempt next rotation")


def to_logging(label: str, text: str) -> None:
    """Passes a line to the logger `penstock.server`."""
    levels = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR, "FTL": logging.CRITICAL}
    logging.getLogger("penstock.server").log(levels.get(label, logging.DEBUG), "%s", escaped(text))


class FromLogging(logging.Handler):
    """Routes records of penstock's loggers (store, JetStream) into a served server's log."""

    def __init__(self, served: ServedLog) -> None:
        super().__init__(logging.DEBUG if served.log.debug_on else logging.INFO)
        self.served = served

    def emit(self, record: logging.LogRecord) -> None:
        label = next((label for level, label in _LABELS if record.levelno >= level), "DBG")
        component = record.name.split(".")[1:2] or [SERVER]
        self.served.emit(label, record.getMessage(), component[0])
        if record.exc_info is not None and record.exc_info[1] is not None:
            for line in traceback_of(record.exc_info[1]):
                self.served.emit(label, line, component[0])


def traceback_of(error: BaseException) -> list[str]:
    """The lines of an error's traceback."""
    import traceback  # imported on first use: costs start-up time

    return "".join(traceback.format_exception(error)).splitlines()


def take_over_logging(served: ServedLog) -> None:
    """Routes all loggers below `penstock` in this process into a served server's log."""
    logger = logging.getLogger("penstock")
    handler = FromLogging(served)
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False


def set_levels(log: Log, *, debug: bool, trace: bool) -> None:
    """Sets the levels of a log, and of the loggers of `take_over_logging`."""
    log.set_levels(debug=debug, trace=trace)
    logger = logging.getLogger("penstock")
    for handler in logger.handlers:
        if isinstance(handler, FromLogging) and handler.served.log is log:
            handler.setLevel(logging.DEBUG if debug else logging.INFO)
            logger.setLevel(handler.level)


def writer_of(options: ServerOptions, *, wait: bool = True) -> Writer:
    """The writer for the options: a file, else a syslog, else stderr. Raises OSError.

    `wait`: wait for the reader of a named pipe.
    """
    if not options.log_file and (options.syslog or options.remote_syslog):
        from penstock.server.logging.syslog import SyslogWriter

        return SyslogWriter(options.remote_syslog)
    return LineWriter(
        opened(options.log_file, wait=wait),
        path=options.log_file,
        logtime=options.logtime,
        utc=options.logtime_utc,
        size_limit=options.log_size_limit,
        files_max=options.logfile_max_num,
        json=options.log_format == "json",
    )


class ServedLog:
    """The log of a served server. A reload may exchange its writer.

    Every line passes `emit`, which escapes it, whatever the writer.

    Raises OSError when the output cannot be opened.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._spool = Spool(writer_of(options))
        self.log = Log(self.emit, debug=options.debug, trace=options.trace)
        self.path = options.log_file

    def emit(self, label: str, text: str, component: str = SERVER) -> None:
        spool = self._spool
        spool.put(spool.writer.line(label, escaped(text), component))

    def reopen(self) -> None:
        """Reopens the log file, after it was renamed externally. Raises OSError."""
        self._use(self._spool.writer.reopened())

    def use(self, writer: Writer, options: ServerOptions) -> None:
        """Switches to `writer`, which was created from these options."""
        self._use(writer)
        self.path = options.log_file

    def _use(self, writer: Writer) -> None:
        before, self._spool = self._spool, Spool(writer)
        before.close(grace_s=0.0)

    def close(self) -> None:
        self._spool.close()
