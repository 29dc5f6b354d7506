"""A SPARK_HOME of links, without the archive that every Python process would compile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.spark import spark_home
from penstock.spark.spark_home import ensure_compiled_spark, linked_home

pytestmark = pytest.mark.feature("spark.sessions")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages" / "pyspark"
    for name in ("jars", "bin", "python/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "python" / "lib" / "pyspark.zip").touch()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    # Put back afterwards, whatever is set here.
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    return folder


def test_the_home_links_to_all_but_the_python_folder(installed: Path, tmp_path: Path) -> None:
    home = ensure_compiled_spark(tmp_path / "cache")
    assert home is not None
    assert os.environ["SPARK_HOME"] == str(home)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert {path.name: path.readlink() for path in home.iterdir()} == {
        name: installed / name for name in ("jars", "bin", "__init__.py")
    }
    assert list((tmp_path / "cache").iterdir()) == [home]


def test_it_is_made_once_and_again_for_another_installation(installed: Path, tmp_path: Path) -> None:
    home = linked_home(installed, tmp_path)
    assert linked_home(installed, tmp_path) == home
    (installed / "sql").mkdir()
    other = linked_home(installed, tmp_path)
    assert other != home
    assert (other / "sql").is_dir()


def test_of_two_that_make_it_at_once_both_get_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = linked_home(installed, tmp_path / "other").name
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        if not target.exists():
            target.mkdir()
            (target / "jars").symlink_to(installed / "jars")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    home = linked_home(installed, tmp_path / "cache")
    assert home == tmp_path / "cache" / expected
    assert list((tmp_path / "cache").iterdir()) == [home]


@pytest.mark.parametrize("variable", ["SPARK_HOME", "PYSPARK_PYTHON"])
def test_who_chose_keeps_the_choice(
    installed: Path, tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/bin/sh")
    assert ensure_compiled_spark(tmp_path / "cache") is None
    assert os.environ[variable] == "/bin/sh"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("missing", ["python/lib/pyspark.zip", "jars"])
def test_a_spark_that_pip_did_not_install_is_left_alone(
    installed: Path, tmp_path: Path, missing: str
) -> None:
    path = installed / missing
    path.unlink() if path.is_file() else path.rmdir()
    assert ensure_compiled_spark(tmp_path / "cache") is None
    assert not os.environ["SPARK_HOME"]


def test_without_pyspark_there_is_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.setattr(spark_home.importlib.util, "find_spec", lambda name: None)
    assert ensure_compiled_spark(tmp_path) is None
