"""Settings of a connection: options before environment before context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.framework.cli_connection import CONNECTION_OPTIONS, ConnectionSettings, resolve
from penstock.cli.framework.cli_contexts import context_names, selected_context
from penstock.cli.framework.command_parser import parse_command
from penstock.cli.framework.command_table import Command
from penstock.errors import ConfigError, MisuseError

pytestmark = pytest.mark.feature("cli.contexts")


async def _nothing(run: object) -> None: ...


def settings(folder: Path, *words: str, **environment: str) -> ConnectionSettings:
    command = Command(name="rtt", summary="", run=_nothing)
    variables = {"XDG_CONFIG_HOME": str(folder), **environment}
    return resolve(parse_command(command, list(words), CONNECTION_OPTIONS, variables), variables)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    work = {"url": "nats://work:4222", "user": "ann", "password": "secret", "jetstream_domain": "hub", "x": 1}
    (contexts / "work.json").write_text(json.dumps(work))
    (contexts / "home.json").write_text(json.dumps({"url": "nats://home", "creds": "/c", "tls_first": True}))
    (contexts / "bad.json").write_text("[")
    (tmp_path / "nats" / "context.txt").write_text("home\n")
    return tmp_path


def test_the_selected_context_is_used_unless_another_is_named(folder: Path) -> None:
    home = settings(folder)
    assert (home.context, home.url, home.creds, home.tls_first) == ("home", "nats://home", "/c", True)
    work = settings(folder, "--context", "work")
    assert (work.url, work.user, work.password, work.js_domain) == (
        "nats://work:4222",
        "ann",
        "secret",
        "hub",
    )
    assert settings(folder, NATS_CONTEXT="work").context == "work"
    assert settings(folder, "--no-context").url == "nats://127.0.0.1:4222"
    assert settings(folder / "none").url == "nats://127.0.0.1:4222"


def test_options_win_over_environment_over_context(folder: Path) -> None:
    assert settings(folder, NATS_URL="nats://env").url == "nats://env"
    assert settings(folder, "-s", "nats://opt", NATS_URL="nats://env").url == "nats://opt"
    assert settings(folder, "--no-tlsfirst").tls_first is False


def test_another_login_replaces_that_of_the_context(folder: Path) -> None:
    other = settings(folder, "--context", "work", "--creds", "/mine")
    assert (other.user, other.password, other.creds) == ("", "", "/mine")
    assert settings(folder, "--context", "work", "--js-api-prefix", "JS.x").js_domain == ""


def test_a_user_without_a_password_is_a_token(folder: Path) -> None:
    options = settings(folder, "--no-context", "--user", "t0ken").client_options("penstock rtt")
    assert (options["token"], options["name"]) == ("t0ken", "penstock rtt")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--context", "wrok"], "no context 'wrok' in .*did you mean 'work'"),
        (["--context", "bad"], "is not a JSON object"),
        (["--context", "../x"], "is not a name of a context"),
    ],
)
def test_contexts_that_can_not_be_used_are_said(folder: Path, words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings(folder, *words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tlscert", "a"], "--tlscert and --tlskey belong together"),
        (["--jwt", "a"], "--jwt and --seed belong together"),
        (["--tlsca", "/nowhere"], "TLS files /nowhere"),
    ],
)
def test_options_that_do_not_go_together_are_said(folder: Path, words: list[str], text: str) -> None:
    with pytest.raises((MisuseError, ConfigError), match=text):
        settings(folder, "--no-context", *words).client_options("x")
    with pytest.raises(MisuseError, match="a domain is a prefix"):
        settings(folder, "--domain", "a", "--js-api-prefix", "b")


def test_names_of_contexts_are_listed(folder: Path) -> None:
    variables = {"XDG_CONFIG_HOME": str(folder)}
    assert context_names(variables) == ["bad", "home", "work"]
    assert selected_context(variables) == "home"
