"""The README's examples run as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.feature("embedding.server")

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()
EXAMPLES = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", README, re.S)
RUNS = re.compile(r"asyncio\.run\(|penstock\.sync")
SCRIPTS = [pytest.param(code, id=title) for title, code in EXAMPLES if RUNS.search(code)]
TESTS = [pytest.param(code, id=title) for title, code in EXAMPLES if "async def test_" in code]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_has_examples() -> None:
    assert len(SCRIPTS) == 5
    assert len(TESTS) == 1


@pytest.mark.parametrize("code", SCRIPTS)
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    printed = run(str(script))
    expected = re.findall(r"^ *print\(.*\)  # (.+)$", code, re.M)
    assert expected
    assert printed.splitlines() == expected


@pytest.mark.parametrize("code", TESTS)
def test_the_example_of_a_test_passes(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(code)
    arguments = ["-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    if "penstock" not in entry_points():
        arguments += ["-p", "penstock.testing.plugin"]
    assert "1 passed" in run("-m", "pytest", *arguments, str(tmp_path))


def entry_points() -> set[str]:
    from importlib.metadata import entry_points as found

    return {point.name for point in found(group="pytest11")}
