"""`penstock context`: files that the official command line reads and writes as well."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import KINDS, free_port, running_server

pytestmark = pytest.mark.feature("cli.contexts")


@pytest.fixture
def shell(tmp_path: Path) -> CommandShell:
    return CommandShell(tmp_path)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with running_server(request.param, tmp_path / "store") as server:
        yield server.url


def test_a_selected_context_is_used_by_commands_without_options(shell: CommandShell, url: str) -> None:
    shell.ok("context", "add", "local", "--server", url, "--description", "mine", "--select")
    shell.ok("kv", "add", "B")
    assert shell.json("kv", "ls", "--names") == ["B"]
    assert shell.json("kv", "ls", "--names", "--context", "local") == ["B"]
    shell.ok("context", "unselect")
    away = f"nats://127.0.0.1:{free_port()}"
    shell.ok("context", "add", "away", "--server", away)
    assert shell.run("kv", "ls", "--context", "away", "--timeout", "1s").status == 1


def test_contexts_are_listed_shown_copied_and_removed(shell: CommandShell) -> None:
    assert "No known contexts" in shell.ok("context", "ls").text
    shell.ok("context", "add", "a", "--server", "nats://one:4222", "--user", "bob", "--password", "secret")
    shell.ok("context", "add", "a", "--description", "changed")
    shell.ok("context", "copy", "a", "b", "--server", "nats://two:4222", "--select")
    assert shell.ok("context", "ls", "--names").text == "a\nb\n"
    assert shell.json("context", "ls") == [
        {"name": "a", "description": "changed", "selected": False},
        {"name": "b", "description": "changed", "selected": True},
    ]
    assert "b*" in shell.ok("context", "ls").text
    info = shell.json("context", "info", "a")
    assert (info["url"], info["user"], info["password"]) == ("nats://one:4222", "bob", "secret")
    text = shell.ok("context", "show").text
    assert "nats://two:4222" in text
    assert "secret" not in text
    shell.ok("context", "rm", "b", "--force")
    assert shell.ok("context", "ls", "-n").text == "a\n"
    assert shell.run("context", "info").status == 1
    missing = shell.run("context", "select", "c")
    assert (missing.status, "there is no context 'c'" in missing.err) == (2, True)


def test_previous_goes_back_and_forth(shell: CommandShell) -> None:
    for name in ("a", "b"):
        shell.ok("context", "add", name, "--select")
    for name in ("a", "b", "a"):
        shell.ok("context", "previous")
        assert [one["name"] for one in shell.json("context", "ls") if one["selected"]] == [name]


def test_a_context_is_tried_and_validated(shell: CommandShell, url: str, tmp_path: Path) -> None:
    shell.ok("context", "add", "good", "--server", url)
    shell.ok("context", "add", "bad", "--server", f"nats://127.0.0.1:{free_port()}")
    assert "Connection: OK" in shell.ok("context", "info", "good", "--connect").text
    assert shell.run("context", "info", "bad", "--connect").status == 1
    assert shell.ok("context", "validate").text == "bad: OK\ngood: OK\n"
    shell.ok("context", "add", "bad", "--creds", str(tmp_path / "missing.creds"))
    ran = shell.run("context", "validate", "--json")
    assert ran.status == 1
    assert [bool(one["problems"]) for one in ran.json] == [True, False]
    assert "1 of 2 contexts have problems" in ran.err


def test_files_are_private_and_unknown_fields_survive(shell: CommandShell) -> None:
    shell.ok("context", "add", "a")
    path = shell.home / ".config/nats/context/a.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(json.dumps({"url": "nats://x", "of_the_future": 1}))
    shell.ok("context", "add", "a", "--user", "token")
    assert json.loads(path.read_text())["of_the_future"] == 1


def test_an_editor_changes_a_context_and_damage_is_undone(shell: CommandShell) -> None:
    shell.ok("context", "add", "a", "--server", "nats://one:4222")
    shell.variables["EDITOR"] = "sed -i s/one/two/"
    shell.ok("context", "edit", "a")
    assert shell.json("context", "info", "a")["url"] == "nats://two:4222"
    shell.variables["EDITOR"] = "sed -i s/{/x/"
    ran = shell.run("context", "edit", "a")
    assert (ran.status, "is as it was before" in ran.err) == (1, True)
    assert shell.json("context", "info", "a")["url"] == "nats://two:4222"


@pytest.mark.feature("cli.nats")
def test_the_official_command_line_uses_our_contexts_and_we_use_its(shell: CommandShell, url: str) -> None:
    shell.ok("context", "add", "ours", "--server", url, "--description", "by penstock", "--select")
    assert "by penstock" in shell.official("context", "ls")
    shell.official("kv", "add", "B")
    shell.official("context", "add", "theirs", "--server", url, "--description", "by nats", "--select")
    assert shell.json("kv", "ls", "--names") == ["B"]
    assert [one["name"] for one in shell.json("context", "ls") if one["selected"]] == ["theirs"]
    info = shell.json("context", "info", "theirs")
    assert (info["url"], info["description"]) == (url, "by nats")
    shell.ok("context", "previous")
    assert json.loads(shell.official("context", "info", "--json"))["description"] == "by penstock"
