"""`penstock service` on both servers: services of this client, and of the official command line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import KINDS, running_server

pytestmark = pytest.mark.feature("cli.services")


@pytest.fixture(params=KINDS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandShell]:
    with running_server(request.param, tmp_path / "store") as server:
        yield CommandShell(tmp_path, server.url)


@pytest.fixture
def echo(shell: CommandShell) -> Iterator[subprocess.Popen[bytes]]:
    """A demo service in a process of its own, which answers when this fixture is done."""
    process = shell.start("service", "serve", "demo", "-H", "By:penstock")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert b"Service demo answers on demo.echo" in line, line + process.stderr.read()
    yield process
    process.terminate()
    process.communicate()


def test_without_a_service_the_commands_say_so(shell: CommandShell) -> None:
    for words in (["list"], ["ping"], ["info", "x"], ["stats", "x"], ["request", "x", "y", "z"]):
        ran = shell.run("service", *words)
        assert (ran.status, " found" in ran.err) == (1, True), ran
    assert shell.json("service", "list") == []


@pytest.mark.usefixtures("echo")
def test_a_demo_service_is_discovered_asked_and_counted(shell: CommandShell) -> None:
    (found,) = shell.json("service", "list")
    assert (found["name"], found["version"]) == ("demo", "1.0.0")
    assert "All Services" in shell.ok("service", "ls").text
    assert "Endpoint echo" in shell.ok("service", "info", "demo", found["id"]).text
    assert f"demo {found['id']}" in shell.ok("service", "ping").text
    assert shell.ok("service", "request", "demo", "echo", "hello", "--raw").text == "hello\n"
    answer = shell.json("service", "request", "demo", "echo", "hello")
    assert (answer["payload"], answer["headers"]) == ("hello", {"By": ["penstock"]})
    assert "By: penstock" in shell.ok("service", "req", "demo", "echo", stdin=b"from stdin").text
    (stats,) = shell.json("service", "stats", "demo")
    assert stats["endpoints"][0]["num_requests"] == 3
    assert "demo Service Statistics" in shell.ok("service", "stats", "demo").text
    words = ("service", "request", "demo", "echo", "{{Count}}", "--count", "2", "--raw")
    assert shell.ok(*words).text == "1\n2\n"
    assert shell.ok(*words[:4], "a {{Count}}", "--no-templates", "--raw").text == "a {{Count}}\n"
    assert shell.ok(*words[:4], "abc", "--raw", "--translate", "tr a-z A-Z").text == "ABC\n"
    wrong = shell.run("service", "request", "demo", "nothing", "x")
    assert (wrong.status, "its endpoints: echo" in wrong.err) == (1, True)


@pytest.mark.feature("cli.nats")
@pytest.mark.usefixtures("echo")
def test_the_official_command_line_finds_and_asks_the_demo_service(shell: CommandShell) -> None:
    assert "demo" in shell.official("service", "list")
    assert "hello" in shell.official("service", "request", "demo", "echo", "hello")


def test_a_demo_service_ends_after_its_count(shell: CommandShell) -> None:
    process = shell.start("service", "serve", "demo", "--count", "2", "--json")
    assert process.stderr is not None
    while not shell.json("service", "list"):
        assert process.poll() is None, process.stderr.read()
    shell.ok("service", "request", "demo", "echo", "x", "--count", "2")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out.count(b'"payload":"x"')) == (0, 2)
