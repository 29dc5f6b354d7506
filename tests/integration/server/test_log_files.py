"""Where log lines go: files that are rotated, and syslog. Compared with the official server."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.option_checks import syslog_address
from penstock.server.config.server_options import ServerOptions
from penstock.server.logging.log_spool import QUEUE_BYTES, Spool, Writer
from penstock.server.logging.logs import FromLogging, LineWriter, ServedLog, escaped, opened
from penstock.server.logging.syslog import SyslogWriter
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.rawnats import RawNats
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("operations.logging")

BACKUP = re.compile(r"server\.log\.\d{4}(\.\d\d){5}\.\d{9}")


def say(writer: Writer, label: str, text: str) -> None:
    writer.write([writer.line(label, text, "server")])


def backups(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if BACKUP.fullmatch(path.name))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_file_is_moved_away_at_its_size_and_only_so_many_are_kept(kind: str, tmp_path: Path) -> None:
    conf = "trace: true\nlogfile_max_num: 3\n"
    with served(kind, tmp_path, conf, "--log_size_limit", "3000") as server:
        port = server.port
        client = RawNats(port)
        for _ in range(20):
            client.send(b"PUB x 0\r\n\r\n" * 20)
            client.flush()
        wait_until(lambda: "Purged log file" in server.log, "a purge")
        client.close()
        assert len(backups(tmp_path)) == 2
        begun = server.log.splitlines()[0]
        assert re.search(r'\[INF\] Rotated log, backup saved as ".*server\.log\.\d{4}\.', begun), begun
        assert all((tmp_path / name).stat().st_size < 3300 for name in backups(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_lines_go_to_a_syslog_that_is_named(kind: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(20)
        url = f"udp://127.0.0.1:{syslog.getsockname()[1]}"
        with served(kind, tmp_path, f'remote_syslog: "{url}"\ndebug: true\n', log=False):
            lines = []
            while not lines or "Server is ready" not in lines[-1]:
                lines.append(syslog.recv(65536).decode())
    form = r"<(\d+)>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d) \S+ \S+\[\d+\]: (.+)\n"
    ready = re.fullmatch(form, lines[-1])
    assert ready is not None, lines[-1]
    assert (ready[1], ready[3]) == ("5", "Server is ready")


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_syslog_that_goes_and_comes_back_gets_later_lines(kind: str) -> None:
    types = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}
    with socket.socket(socket.AF_INET, types[kind]) as syslog:
        syslog.bind(("127.0.0.1", 0))
        syslog.settimeout(20)
        port = syslog.getsockname()[1]
        if kind == "tcp":
            syslog.listen()
        writer = SyslogWriter(f"{kind}://127.0.0.1:{port}")
        reader = syslog.accept()[0] if kind == "tcp" else syslog
        say(writer, "WRN", "first")
        assert reader.recv(65536).endswith(b": first\n")
        if kind == "tcp":
            reader.close()
            for _ in range(
                3
            ):  # the first of them may be lost: the close of the other side may not have arrived
                say(writer, "ERR", "second")
            with syslog.accept()[0] as again:
                assert again.recv(65536).endswith(b": second\n")
        writer.close()


def test_a_syslog_that_is_gone_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as syslog:
        writer = SyslogWriter(f"tcp://127.0.0.1:{syslog.getsockname()[1]}")
        syslog.accept()[0].close()
    for _ in range(3):
        say(writer, "INF", "x")
    tried: list[str] = []
    monkeypatch.setattr(writer, "_connected", lambda: tried.append("again"))
    say(writer, "INF", "y")
    assert tried == []
    writer.close()


def test_a_local_syslog_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(path))
        writer = SyslogWriter(f"unix://{path}")
        say(writer, "FTL", "the end")
        assert re.fullmatch(rb"<2>.*: the end\n", syslog.recv(65536))
        writer.close()


@pytest.mark.parametrize(
    ("url", "reported"),
    [
        ("ftp://h:1", 'invalid network type "ftp"'),
        ("localhost:514", "invalid network type"),
        ("udp://h", "write it as udp://host:port"),
        ("tcp://h:x", "Port could not be cast"),
    ],
)
def test_a_syslog_address_that_is_none_is_refused(url: str, reported: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reported)):
        syslog_address(url)


def test_a_file_that_can_not_be_moved_grows_to_twice_its_size_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "server.log")
    writer = LineWriter(opened(path), path=path, size_limit=1000)

    def fail(*names: str) -> None:
        raise PermissionError(13, "no", *names)

    monkeypatch.setattr("os.rename", fail)
    for _ in range(30):
        say(writer, "INF", "x" * 60)
    monkeypatch.undo()
    text = Path(path).read_text()
    assert text.count("Unable to rotate the log") == 2
    assert "next rotation at size 2000" in text
    assert "next rotation at size 4000" in text
    for _ in range(30):
        say(writer, "INF", "x" * 60)
    assert len(backups(tmp_path)) >= 1
    writer.close()


def test_other_files_beside_the_log_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    others = ["server.log.old", "server.log.2024.01.01.00.00.00", "server.log.2024.01.01.00.00.00.000000001x"]
    for name in others:
        (tmp_path / name).touch()
    writer = LineWriter(opened(str(path)), path=str(path), size_limit=50, files_max=1)
    for _ in range(10):
        say(writer, "INF", "x" * 60)
    writer.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["server.log", *others])


def test_lines_may_be_objects_for_programs(tmp_path: Path) -> None:
    """Time, level, component, connection."""
    conf = 'log_format: json\ndebug: true\ntrace: true\nauthorization { user: a, password: "b" }\n'
    with served("penstock", tmp_path, conf) as server:
        client = RawNats(server.port, user="a", **{"pass": "b"}, name="n", lang="raw", version="1")
        client.subscribe("x", 1)
        client.flush()
        port = client.sock.getsockname()[1]
        client.close()
        lines = [json.loads(line) for line in server.log.splitlines()]
    (ready,) = [line for line in lines if line["text"] == "Server is ready"]
    assert (ready["level"], ready["component"]) == ("INF", "server")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", ready["time"])
    assert "connection" not in ready
    (traced,) = [line for line in lines if line["text"] == "<<- [SUB x 1]"]
    assert traced["level"] == "TRC"
    connection = {"peer": f"127.0.0.1:{port}", "cid": 1, "client": "v1:raw:n", "user": "$G/user:a"}
    assert traced["connection"] == connection | {"cid": traced["connection"]["cid"]}


def test_what_other_floors_say_names_them(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = ServedLog(ServerOptions(log_file=str(path), log_format="json"))
    handler = FromLogging(log)
    record = logging.LogRecord("penstock.store.file", logging.WARNING, "", 0, "a torn %s", ("tail",), None)
    handler.handle(record)
    log.close()
    line = json.loads(path.read_text())
    assert (line["level"], line["component"], line["text"]) == ("WRN", "store", "a torn tail")


def test_an_error_with_a_traceback_is_one_line_for_each_of_its(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = ServedLog(ServerOptions(log_file=str(path), logtime=False))
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log.log.failure("it failed:\nbadly", error)
        info = (ValueError, error, error.__traceback__)
        FromLogging(log).handle(logging.LogRecord("penstock.store", logging.ERROR, "", 0, "again", (), info))
    log.close()
    lines = path.read_text().splitlines()
    assert {line.split("] ", 1)[1].split("]")[0] for line in lines} == {"[ERR"}
    texts = [line.split("[ERR] ")[1] for line in lines]
    assert texts[0] == "it failed:\\nbadly"
    assert texts.count("Traceback (most recent call last):") == 2
    assert texts.count("lines") == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 \U0001f600", "plain é 漢字 \U0001f600"),
        ("a\r\n\tb", "a\\r\\n\\tb"),
        ("\x00\x1b[31m\x7f\x9b", "\\u0000\\u001b[31m\\u007f\\u009b"),
        ("\u2028\u202e\ufeff", "\\u2028\\u202e\\ufeff"),
        ("\ud800\U000e0041", "\\ud800\\udb40\\udc41"),
    ],
)
def test_what_does_not_show_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


class Pipe:
    """A writer that waits until the test lets it go on."""

    waits = True

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.written: list[bytes] = []
        self.is_broken = False
        self.is_closed = threading.Event()

    def line(self, label: str, text: str, component: str) -> bytes:
        return text.encode()

    def write(self, lines: Sequence[bytes]) -> int:
        self.begun.release()
        assert self.go_on.acquire(timeout=20)
        if self.is_broken:
            return len(lines)
        self.written += lines
        return 0

    def reopened(self) -> Writer:
        return self

    def close(self) -> None:
        self.is_closed.set()


def test_lines_that_can_not_be_kept_are_counted_in_their_place() -> None:
    pipe = Pipe()
    spool = Spool(pipe)
    big = b"x" * (QUEUE_BYTES // 2)
    spool.put(b"first")
    assert pipe.begun.acquire(timeout=20)
    for line in (big, b"second", big, b"third", big):
        spool.put(line)  # the last two don't fit
    for _ in range(2):
        pipe.go_on.release()
        assert pipe.begun.acquire(timeout=20)
    spool.put(b"later")
    for _ in range(9):
        pipe.go_on.release()
    spool.close()
    assert pipe.is_closed.is_set()
    lost = [line for line in pipe.written if b"lost" in line]
    assert lost == [b"2 log lines were lost: they could not be written"]
    assert [line for line in pipe.written if len(line) < 10] == [b"first", b"second", b"third", b"later"]
    assert pipe.written.index(b"third") < pipe.written.index(lost[0]) < pipe.written.index(b"later")


def test_lines_that_could_not_be_written_are_counted_until_one_can() -> None:
    pipe = Pipe()
    pipe.is_broken = True
    spool = Spool(pipe)
    for text in (b"a", b"b", b"c"):
        spool.put(text)
        assert pipe.begun.acquire(timeout=20)
        pipe.is_broken = text != b"c"
        pipe.go_on.release()
    for _ in range(9):
        pipe.go_on.release()
    spool.close()
    assert pipe.written == [b"c", b"2 log lines were lost: they could not be written"]


def test_closing_does_not_wait_for_a_reader_that_never_comes() -> None:
    pipe = Pipe()
    spool = Spool(pipe)
    spool.put(b"x")
    spool.close(grace_s=0.01)
    assert not pipe.is_closed.is_set()
    spool.put(b"y")
    pipe.go_on.release()
    assert pipe.is_closed.wait(20)
    assert pipe.written == [b"x"]


def test_a_full_disk_loses_lines_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.log"
    log = ServedLog(ServerOptions(log_file=str(path), logtime=False))
    log.log.info("before")

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", fail)
    log.log.info("lost")
    log.log.info("lost as well")
    monkeypatch.undo()
    log.log.info("after")
    log.close()
    reported = [line.split("] ", 1)[1] for line in path.read_text().splitlines()]
    assert reported == [
        "[INF] before",
        "[WRN] 2 log lines were lost: they could not be written",
        "[INF] after",
    ]


def test_a_named_pipe_is_opened_again_only_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = ServedLog(ServerOptions(log_file=str(path), logtime=False))
    os.close(reader)
    with pytest.raises(OSError, match="No such device"):
        log.reopen()
    log.close()
