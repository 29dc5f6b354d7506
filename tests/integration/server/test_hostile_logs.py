"""What peers say can not forge log lines or show secrets, and a log that takes nothing delays no client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import ENVIRONMENT, command_of, served
from tests.support.rawnats import RawNats
from tests.support.wire import Wire, wait_until

pytestmark = pytest.mark.feature("operations.logging")

FORGED = 'x\n[1] 2026/01/01 00:00:00.000000 [INF] forged" - "\x1b[2J\x9b31m\r\u2028'
TIMEOUT_S = 20.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["name", "lang", "version", "user"])
def test_what_a_client_says_of_itself_forges_no_line(kind: str, field: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, "", "-D") as server:
        client = RawNats(server.port, **{field: FORGED})
        client.close()
        server.wait_for("Client connection closed")
        lines = server.log.split("\n")
    assert not [line for line in lines if line and not line.startswith(f"[{server.process.pid}] ")]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", server.log)


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_user_who_is_refused_forges_no_line(kind: str, tmp_path: Path) -> None:
    with (
        served(kind, tmp_path, "authorization { user: a, password: b }") as server,
        Wire(server.port) as wire,
    ):
        wire.send(b"CONNECT " + json.dumps({"user": FORGED, "pass": "x"}).encode() + b"\r\n")
        wire.rest()
        server.wait_for("authentication error")
        lines = server.log.split("\n")
    assert not [line for line in lines if line and not line.startswith(f"[{server.process.pid}] ")]
    assert "\x1b" not in server.log


def test_a_name_can_not_pass_for_a_user_in_lines_for_programs(tmp_path: Path) -> None:
    conf = "log_format: json\ndebug: true\nauthorization { user: a, password: b }\n"
    with served("penstock", tmp_path, conf) as server:
        for name in ('n" - "$G/user:admin', "$G/user:admin"):
            RawNats(server.port, user="a", **{"pass": "b"}, name=name).close()
        wait_until(lambda: server.log.count("Client connection closed") == 2, "both to be gone")
        lines = [json.loads(line) for line in server.log.splitlines()]
    closed = [line["connection"] for line in lines if "Client connection closed" in line["text"]]
    assert [entry["user"] for entry in closed] == ["$G/user:a", "$G/user:a"]
    assert [entry["client"] for entry in closed] == ['n\\" - \\"$G/user:admin', "$G/user:admin"]


@pytest.mark.parametrize(
    "connect",
    [
        b'{"user":"a","pass":70712345}',
        b'{"user":"a","pass":["s3cr3t-70712345"]}',
        b'{"user":"a","pass":{"x":"70712345"}}',
        b'{"user":"a","Pass":"70712345"}',
        b'{"user":"a","password":"70712345"}',
        b'{"user":{"pass":"70712345"}}',
        b'{"user":"a","pass":"70712345',
        b'{"user":"a","pass":70712345,',
        b'{"user":"a", "pass" : "\\u0037\\u0030712345"} 70712345',
        b'{"user":"a","jwt":70712345,"sig":70712345,"auth_token":70712345}',
        b'{"user":"a","pass":"ok","verbose":"70712345"}',
    ],
)
def test_a_secret_that_is_no_string_or_cut_off_is_not_shown(connect: bytes, tmp_path: Path) -> None:
    with served("penstock", tmp_path, "authorization { user: a, password: b }", "-DV") as server:
        with Wire(server.port) as wire:
            wire.send(b"CONNECT " + connect + b"\r\n")
            wire.rest()
        server.wait_for("Client connection closed")
        assert "<<- [CONNECT " in server.log
        assert "70712345" not in server.log


# -- a log that takes nothing


@contextmanager
def unread(directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server whose stderr is a pipe without a reader, and its port."""
    directory.mkdir(exist_ok=True)
    command = [
        *command_of("penstock"),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "--ports_file_dir",
        str(directory),
        *flags,
    ]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until(lambda: any(directory.glob("*.ports")), "the ports file", TIMEOUT_S)
            (ports,) = directory.glob("*.ports")
            yield process, int(json.loads(ports.read_text())["nats"][0].rsplit(":", 1)[1])
        finally:
            process.kill()


def test_a_log_pipe_that_is_not_read_delays_no_client(tmp_path: Path) -> None:
    with unread(tmp_path, "-DV") as (process, port):
        client = RawNats(port)
        for _ in range(20):  # much more than a pipe and the queue behind it hold
            client.send(b"PUB x 1000\r\n" + b"a" * 1000 + b"\r\n" + b"PUB y 0\r\n\r\n" * 1000)
            client.flush()
        RawNats(port).close()  # a new client gets INFO
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


def test_lines_that_were_lost_are_counted_once_the_log_is_read_again(tmp_path: Path) -> None:
    with unread(tmp_path, "-V") as (process, port):
        client = RawNats(port)
        sent = 0
        for _ in range(20):
            client.send(b"PUB y 0\r\n\r\n" * 1000)
            sent += 1000
            client.flush()
        assert process.stderr is not None
        found = b""
        while b"log lines were lost" not in found:
            found += os.read(process.stderr.fileno(), 1 << 16)
        lost = re.search(rb"\[WRN\] (\d+) log lines were lost", found)
        assert lost is not None
        client.send(b"PUB last 0\r\n\r\n")
        client.flush()
        while b"[PUB last 0]" not in found:
            found += os.read(process.stderr.fileno(), 1 << 16)
        client.close()
    reported = sum(int(count) for count in re.findall(rb"(\d+) log lines were lost", found))
    others = 100  # lines about pings and connections may be among the lost ones
    assert sent <= found.count(b"[PUB y 0]") + reported <= sent + others


def test_a_log_pipe_whose_reader_is_gone_stops_nothing(tmp_path: Path) -> None:
    with unread(tmp_path, "-V") as (process, port):
        assert process.stderr is not None
        process.stderr.close()
        client = RawNats(port)
        client.publish("x", b"y")
        client.flush()
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


# -- interrupts


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A suite that a shell runs in the background ignores SIGINT, and so would all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_while_the_server_starts_ends_it_without_a_word(kind: str, tmp_path: Path) -> None:
    pipe = tmp_path / "nats.conf"
    os.mkfifo(pipe)  # reading the configuration waits for a writer
    with subprocess.Popen(
        [*command_of(kind), "-p", "-1", "-c", str(pipe)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
    ) as process:
        writer = opened_by_reader(pipe)
        process.send_signal(signal.SIGINT)
        try:
            _, output = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        os.close(writer)
    assert (output, process.returncode) == (b"", -signal.SIGINT)


def opened_by_reader(pipe: Path) -> int:
    """A descriptor to write to a named pipe, there as soon as it is being read."""
    found: list[int] = []

    def is_open() -> bool:
        try:
            found.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    wait_until(is_open, "the server to open its configuration", TIMEOUT_S)
    return found[0]
