"""Programs built by `go install` for tests and benchmarks (tools/go_programs.py)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
from tools import go_programs
from tools.go_programs import GoProgram, GoProgramError, found, installed

PROGRAM = GoProgram("thing", "example.org/thing", "v1.0.0")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The directories that were built into, in a cache of the test's own."""
    built: list[Path] = []
    company = Barrier(2)

    def build(program: GoProgram, directory: Path) -> None:
        built.append(directory)
        with suppress(BrokenBarrierError):
            company.wait(0.1)  # a second builder would come in this time
        (directory / program.name).touch()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(go_programs, "_build", build)
    return built


def test_a_program_is_built_once_however_many_ask_for_it_at_once(builds: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(installed, [PROGRAM] * 8))
    assert len(builds) == 1
    assert paths == {builds[0] / "thing"}


def test_another_version_is_another_program(builds: list[Path]) -> None:
    assert installed(PROGRAM) != installed(PROGRAM._replace(version="v1.0.1"))
    assert len(builds) == 2


def test_without_go_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GoProgramError, match="no `thing` and no `go` to build it: put one of them on PATH"):
        installed(PROGRAM)


def test_a_program_that_is_there_is_not_built(
    builds: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = named, on_path, by_go = tmp_path / "named", tmp_path / "path", tmp_path / "go" / "bin"
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "thing").touch(0o755)
    monkeypatch.setenv("PENSTOCK_THING", str(named / "thing"))
    monkeypatch.setenv("PATH", str(on_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    program = PROGRAM._replace(variable="PENSTOCK_THING")
    assert found(program) == named / "thing"
    monkeypatch.delenv("PENSTOCK_THING")
    assert found(program) == on_path / "thing"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(program) == by_go / "thing"
    assert builds == []
    (by_go / "thing").unlink()
    assert found(program) == builds[0] / "thing"
