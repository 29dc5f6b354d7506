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

    def failure(self, text: str, error: BaseException | None) -> None:
        """An error that should not have happened, with its traceback, each of whose lines is one here."""
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
    """A text as a log line may hold it: control characters, and others that don't show, as `\\n`, `\\u001b`.

    Names, subjects and errors come from peers. A newline among them would begin a line that the server never
    said, an escape sequence would change what a terminal shows.
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
    """A descriptor of the file to append to, stderr's when path is empty; LineWriter.close() closes it.

    A named pipe is there when somebody reads it; without `wait` that is an error now. Raises OSError.
    """
    if not path and sys.stderr is not None:
        return sys.stderr.fileno()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if wait else os.O_NONBLOCK)
    found = os.open(path or os.devnull, flags, 0o666)
    os.set_blocking(found, True)
    return found


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
        client, user = found[3], found[4]
        if client and not user and "/" in client.partition(":")[0]:
            client, user = None, client  # <account>/<kind>:<user>; a client that says nothing of itself
        connection |= {name: told for name, told in (("client", client), ("user", user)) if told}
        line["connection"], text = connection, found["text"]
    return msgspec.json.encode(line | {"text": text}).decode() + "\n"


_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_CONNECTION = rf"(?P<peer>\S+:\d+) - [cw]id:(?P<cid>\d+)(?: - {_QUOTED})?(?: - {_QUOTED})? - (?P<text>.*)"


class LineWriter:
    """Formats lines and writes them to a file, a pipe or a terminal.

    Args:
        file: where to, a descriptor; opened from `path`, or stderr's when path is empty.
        path: the file behind it.
        logtime, utc: whether lines begin with the time, and whether that is UTC.
        size_limit: bytes above which the file is moved to `<path>.<time>` and a new one begun; 0 = never.
        files_max: files that are kept then, the open one included; 0 = all.
        json: lines are objects, see `as_json`.
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
        self._limit = size_limit if path and not self.waits else 0  # doubled while the file can't be moved
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
        """Returns how many lines could not be written, all of them when one part could not."""
        rest = memoryview(b"".join(lines))
        try:
            while rest:
                count = os.write(self.file, rest)
                self._size += count
                rest = rest[count:]
        except OSError:  # no reader any more, a full disk: there is no place where this could be said
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
        """Closes the file, unless it is the process's own stderr."""
        if self.path:
            os.close(self.file)

    def _rotate(self) -> None:
        """Moves the file away and begins a new one; when that fails, tries again at twice the size."""
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
        """Removes the oldest backups. Their names sort by time."""
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
    """Hands a line to the logger `penstock.server` of Python's logging."""
    levels = {"INF": logging.INFO, "WRN": logging.WARNING, "ERR": logging.ERROR, "FTL": logging.CRITICAL}
    logging.getLogger("penstock.server").log(levels.get(label, logging.DEBUG), "%s", escaped(text))


class FromLogging(logging.Handler):
    """Takes what the store and JetStream say to Python's logging into a server's log."""

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
    """The lines of an error's traceback, each to be a log line of its own."""
    import traceback  # imported when first needed: it costs start-up time

    return "".join(traceback.format_exception(error)).splitlines()


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


def writer_of(options: ServerOptions, *, wait: bool = True) -> Writer:
    """What writes as the options say: to a file, else to a syslog, else to stderr. Raises OSError.

    wait: until somebody reads the log, where it is a named pipe.
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
    """The log of a served server, whose writer a reload may exchange.

    Every line passes `emit`, whichever its writer: what it says is made harmless there.

    Raises OSError when it can't be opened.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._spool = Spool(writer_of(options))
        self.log = Log(self.emit, debug=options.debug, trace=options.trace)
        self.path = options.log_file

    def emit(self, label: str, text: str, component: str = SERVER) -> None:
        spool = self._spool
        spool.put(spool.writer.line(label, escaped(text), component))

    def reopen(self) -> None:
        """Opens the log file anew, for whoever has moved the old one away. Raises OSError."""
        self._use(self._spool.writer.reopened())

    def use(self, writer: Writer, options: ServerOptions) -> None:
        """Writes with `writer`, made of these options, from now on."""
        self._use(writer)
        self.path = options.log_file

    def _use(self, writer: Writer) -> None:
        before, self._spool = self._spool, Spool(writer)
        before.close(grace_s=0.0)

    def close(self) -> None:
        self._spool.close()
