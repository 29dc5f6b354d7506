"""Every command that talks to a server, on both kinds of server, with the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.conf_servers import running_conf
from tests.support.every_command import (
    CONF,
    ELSEWHERE,
    ScriptRun,
    command_of,
    connecting_commands,
    script_lines,
)

pytestmark = pytest.mark.feature("cli.commands")


def test_every_command_that_connects_is_run_on_both_servers() -> None:
    run = {command_of(line.words) for line in script_lines() if line.words != ("wait",)}
    connecting = set(connecting_commands())
    missing = connecting - run - set(ELSEWHERE)
    assert not missing, f"add them to the script in tests/support/every_command.py: {sorted(missing)}"
    assert not run & set(ELSEWHERE), "the script runs them"
    assert set(ELSEWHERE) <= connecting, "there are no such commands"
    for command, text in ELSEWHERE.items():
        module = Path(__file__).with_name(f"{text.partition(':')[0]}.py").read_text(encoding="utf-8")
        assert "KINDS" in module, command
        words = ", ".join(f'"{word}"' for word in command.split())
        assert words in module, f"{command} is not run in {text}"


@pytest.mark.official
def test_every_command_prints_the_same_on_both_servers(tmp_path: Path) -> None:
    printed = {}
    for kind in ("penstock", "official"):
        with running_conf(kind, CONF, tmp_path / kind) as port:
            script = ScriptRun(tmp_path / kind, port)
            script.run()
            printed[kind] = script.printed
    for ours, official in zip(printed["penstock"], printed["official"], strict=True):
        assert ours == official
