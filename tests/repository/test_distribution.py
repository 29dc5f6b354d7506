"""The distribution is penstock-nats, the import name and the command are penstock; all texts agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "penstock-nats"


def test_metadata_and_extras_have_the_name_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == NAME
    extras = project["optional-dependencies"]
    own = [one for names in extras.values() for one in names if one.startswith("penstock")]
    assert own
    assert all(one.startswith(f"{NAME}[") for one in own)
    assert project["scripts"].keys() == {"penstock"}


def test_no_text_tells_to_install_another_project() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in texts
        if (found := re.findall(r"pip install ['\"]?penstock(?!-nats|_nats)\S*", path.read_text()))
        and path.name != "CHANGELOG.md"
    }
    assert wrong == {}


def test_results_of_a_pipeline_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.pipeline import _finish

    _finish({"stream": "ORDERS", "messages": 12345}, None, None)
    captured = capsys.readouterr()
    assert captured.out == "stream: ORDERS\nmessages: 12,345\n"
    assert captured.err == ""
