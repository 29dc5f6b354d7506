"""What `-t` accepts and refuses, on both servers; what a flag that is wrong prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import ENVIRONMENT, command_of, served
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("operations.configuration")

TIMEOUT_S = 60.0
ACCOUNT = "accounts {{ A {{ jetstream {{ {} }} }} }}\n"
FILES = {"outer.conf": "port: $X\n", "inner.conf": "Y: 8333\nport: $Y\n", "empty.conf": ""}


def run(kind: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command_of(kind), *arguments],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def checked(kind: str, directory: Path, conf: str) -> subprocess.CompletedProcess[str]:
    for name, text in {**FILES, "nats.conf": conf}.items():
        (directory / name).write_text(text)
    return run(kind, directory, "-t", "-c", "nats.conf")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "conf",
    [
        "port: 4222\n}\n",
        "port: 4222\n}",
        "port: 4222 }\n",
        "authorization { user: a } }\n",
        "max_control_line: 10MB\n",
        'listen: "127.0.0.1:+4222"\n',
        "authorization { token: +5 }\n",
        "include './inner.conf'\nhttp: $Y\n",
        "include './empty.conf'\nport: 4222\n",
        'jetstream { max_mem: "1G", max_file: "" }\n',
        "authorization { timeout: 5 }\n",
        ACCOUNT.format("max_mem: 1G"),
    ],
)
def test_a_configuration_that_is_valid(conf: str, kind: str, tmp_path: Path) -> None:
    ended = checked(kind, tmp_path, conf)
    assert (ended.returncode, "is valid" in ended.stderr) == (0, True), ended.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("", "nats.conf: config has no values or is empty"),
        ("# nothing\n\n", "nats.conf: config has no values or is empty"),
        ("include './empty.conf'\n", "nats.conf: config has no values or is empty"),
        ("port: 4222\n} foo\n", ""),
        ("port: +4222\n", ""),
        ("ping_max: +2\n", ""),
        ("ping_interval: 60\n", "ping_interval should be converted to a duration"),
        ("write_deadline: 10\n", "write_deadline should be converted to a duration"),
        ("jetstream { sync_interval: 60 }\n", "sync_interval should be converted to a duration"),
        (
            "websocket { port: -1, no_tls: true, ping_interval: 5 }\n",
            "ping_interval should be converted to a duration",
        ),
        (
            "authorization { default_permissions: { publish: a, allow_responses: { expires: 5 } } }\n",
            "expires",
        ),
        (ACCOUNT.format('max_mem: "1G"'), 'Expected a parseable size for "max_mem"'),
        (ACCOUNT.format('max_file: "1G"'), 'Expected a parseable size for "max_file"'),
        ('jetstream { max_mem: "1GB" }\n', ""),
        ('jetstream { max_mem: "1g" }\n', ""),
        ("X: 4333\ninclude './outer.conf'\n", "variable reference for 'X' on line 1 can not be found"),
    ],
)
def test_a_configuration_that_a_test_refuses(conf: str, text: str, kind: str, tmp_path: Path) -> None:
    ended = checked(kind, tmp_path, conf)
    assert ended.returncode == 1, ended.stderr
    assert text in ended.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("conf", ["", "ping_interval: 60\nwrite_deadline: 10\n"])
def test_a_server_starts_with_what_only_a_test_refuses(conf: str, kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path / kind, conf) as server:
        assert Wire(server.port).connect().info["max_payload"] == 1024 * 1024


@pytest.mark.parametrize("kind", KINDS)
def test_a_control_line_of_ten_megabytes_is_read(kind: str, tmp_path: Path) -> None:
    size = 10_000_000
    with served(kind, tmp_path / kind, "max_control_line: 10MB\n") as server:
        client = Wire(server.port)
        client.send(b'CONNECT {"verbose":false,"name":"%s"}\r\nPING\r\n' % (b"n" * size))
        assert client.until(b"PONG\r\n") == b"PONG\r\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (["-foo"], "flag provided but not defined: -foo"),
        (["-p"], "flag needs an argument: -p"),
        (["-p", "abc"], 'invalid value "abc" for flag -p'),
        (["-js=maybe"], 'invalid boolean value "maybe" for -js'),
    ],
)
def test_a_wrong_flag_shows_the_flags_on_stdout(
    flag: list[str], text: str, kind: str, tmp_path: Path
) -> None:
    ended = run(kind, tmp_path, *flag)
    assert text in ended.stderr
    assert ended.stdout.startswith("\nUsage: ")
    assert "--store_dir" in ended.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_that_is_no_flag_shows_no_flags(kind: str, tmp_path: Path) -> None:
    ended = run(kind, tmp_path, "foo")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "unrecognized command" in ended.stderr
