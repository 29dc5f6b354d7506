"""Making a release: one place for the version, and the changelog's section."""

from __future__ import annotations

import datetime
import shutil
import tarfile
import tomllib
from pathlib import Path

import pytest
from tools.release import ReleaseError, begin, build, notes, sections, version_of

import penstock

ROOT = Path(__file__).parents[2]
TODAY = datetime.date(2027, 1, 31)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the two files that a release changes."""
    (tmp_path / "src/penstock").mkdir(parents=True)
    (tmp_path / "src/penstock/__init__.py").write_text('"""P."""\n\n__version__ = "0.1.0"\n\nX = 1\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n### Added\n- Something.\n\n"
        "## 0.1.0 - 2026-12-01\n\n### Added\n- All.\n"
    )
    return tmp_path


def test_the_version_is_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "penstock.__version__"}
    assert version_of(ROOT) == penstock.__version__


def test_a_release_has_what_was_unreleased(tree: Path) -> None:
    begin(tree, "0.2.0", TODAY)
    assert version_of(tree) == "0.2.0"
    changelog = (tree / "CHANGELOG.md").read_text()
    assert "## Unreleased\n\n## 0.2.0 - 2027-01-31\n\n### Added\n- Something.\n" in changelog
    assert sections(changelog) == {
        "Unreleased": "",
        "0.2.0": "### Added\n- Something.",
        "0.1.0": "### Added\n- All.",
    }
    assert notes(tree) == "# penstock 0.2.0\n\n### Added\n- Something.\n"
    assert (tree / "src/penstock/__init__.py").read_text().endswith('__version__ = "0.2.0"\n\nX = 1\n')


@pytest.mark.parametrize(("version", "why"), [
    ("0.1.0", "has a section of 0.1.0 already"), ("1.0", "is no version"), ("v1.0.0", "is no version"),
])  # fmt: skip
def test_a_version_that_can_not_be_released_changes_nothing(tree: Path, version: str, why: str) -> None:
    before = {path: path.read_text() for path in tree.rglob("*.*") if path.is_file()}
    with pytest.raises(ReleaseError, match=why):
        begin(tree, version, TODAY)
    assert {path: path.read_text() for path in before} == before


def test_nothing_unreleased_is_no_release(tree: Path) -> None:
    begin(tree, "0.2.0", TODAY)
    with pytest.raises(ReleaseError, match="nothing to release"):
        begin(tree, "0.3.0", TODAY)


def test_the_source_distribution_has_the_version_and_what_wheels_are_built_of(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    kept = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
    shutil.copytree(
        ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    )
    for name in kept:
        shutil.copy(ROOT / name, tree / name)
    begin(tree, "9.8.7", TODAY)
    written, archive = build(tree, tmp_path / "dist")
    assert written.read_text().startswith("# penstock 9.8.7\n")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        info = tar.extractfile("penstock_nats-9.8.7/PKG-INFO")
        assert info is not None
        assert "\nVersion: 9.8.7\n" in info.read().decode()
    kernels = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.pyx")}
    assert kernels <= names
