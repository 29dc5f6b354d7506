"""A test that hangs fails with the place where it waits, and the tests after it run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.support.hanging import stacks_of_tasks

ROOT = Path(__file__).parents[2]
HANGING = """
import asyncio

async def test_hangs():
    never = asyncio.Event()
    await never.wait()

def test_after_it():
    pass
"""


def test_a_test_that_hangs_fails_with_the_place_where_it_waits(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.hanging import pytest_runtest_makereport\n")
    (tmp_path / "test_it.py").write_text(HANGING)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"),
        f"--rootdir={tmp_path}", f"--confcutdir={tmp_path}", "--timeout", "0.5", str(tmp_path),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "from pytest-timeout" in ran.stdout
    assert "asyncio tasks" in ran.stdout
    assert "in test_hangs\n    await never.wait()" in ran.stdout


async def test_the_stacks_of_tasks_name_what_each_waits_for() -> None:
    never = asyncio.Event()

    async def waits_for_ever() -> None:
        await never.wait()

    waiting = asyncio.create_task(waits_for_ever(), name="the one that waits")
    await asyncio.sleep(0)
    try:
        stacks = stacks_of_tasks(asyncio.get_running_loop())
    finally:
        waiting.cancel()
    assert "name='the one that waits'" in stacks
    assert "in waits_for_ever\n    await never.wait()" in stacks
