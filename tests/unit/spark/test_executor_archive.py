"""The archive for executors: whole, light, unpacked once, and honest about where it can't run."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark import session_setup
from penstock.spark.executor_archive import executor_archive
from penstock.spark.session_setup import share_archive
from penstock.spark.source import JetStreamSource
from tests.unit.spark.test_session_setup import FakeSession

pytestmark = pytest.mark.feature("spark.sessions")

BYTES_MAX = 2_000_000
# Whatever a query can import, on the driver and in a task.
IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
import penstock.spark.source, penstock.spark.sink, penstock.spark.reader, penstock.spark.decoders
import penstock.spark.pushdown, penstock.spark.driver_checks, penstock.spark.kafka_options
import penstock.spark.ledger, msgspec, pyspark_jetstream
from penstock.protocol import arrow_columns, proofs
from penstock.spark import register
assert pyspark_jetstream.DefaultSource is penstock.spark.source.JetStreamSource
print(penstock.__file__)
print(msgspec.__file__)
kernels = [module for name, module in sys.modules.items() if name.startswith("penstock.kernels.")]
print(*(module.__file__ for module in kernels if ".so" in str(module.__file__)))
"""


# Where penstock is installed for development, its finder is in sys.meta_path, or a .pth file has its folder.
LACKING = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [path for path in sys.path if path and not path.endswith("/src")]
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executor_archive(tmp_path_factory.mktemp("archive") / "penstock-spark.zip")


def run(code: str, archive: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code, str(archive)],
        env={**environment, "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_everything_a_query_imports_comes_from_the_archive(archive: Path, tmp_path: Path) -> None:
    ended = run(IMPORTS, archive, tmp_path)
    assert ended.returncode == 0, ended.stderr
    (folder,) = tmp_path.glob("penstock-spark-*/*")
    package, structs, kernels = ended.stdout.splitlines()
    assert package == str(folder / "lib/penstock/__init__.py")
    assert structs == str(folder / "lib/msgspec/__init__.py")
    assert kernels
    assert all(kernel.startswith(str(folder)) for kernel in kernels.split())


def test_it_is_unpacked_once(archive: Path, tmp_path: Path) -> None:
    first = run("import sys; sys.path.insert(0, sys.argv[1]); import penstock", archive, tmp_path)
    assert first.returncode == 0, first.stderr
    (folder,) = tmp_path.glob("penstock-spark-*/*")
    before = folder.stat().st_mtime_ns
    again = run("import sys; sys.path.insert(0, sys.argv[1]); import penstock.errors", archive, tmp_path)
    assert again.returncode == 0, again.stderr
    assert list(folder.parent.iterdir()) == [folder]
    assert folder.stat().st_mtime_ns == before
    assert folder.parent.stat().st_mode & 0o077 == 0  # no other user can put modules there


def test_of_two_workers_that_unpack_at_once_both_import(archive: Path, tmp_path: Path) -> None:
    late = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); rename = os.rename\n"
        "def slow(made, folder):\n"
        "    import shutil\n"
        "    shutil.copytree(made, folder)\n"
        "    rename(made, folder)\n"
        "os.rename = slow\n"
        "import penstock.errors"
    )
    ended = run(late, archive, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("penstock-spark-*/*"))) == 1


def test_it_has_nothing_of_the_server(archive: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        names = content.namelist()
        kernels = [content.read(name) for name in names if "kernels" in name and ".so" in name]
    is_sanitized = any(b"__asan_init" in kernel for kernel in kernels)  # `make asan`: three times as large
    assert is_sanitized or archive.stat().st_size < BYTES_MAX
    packages = {name.split("/")[2] for name in names if name.startswith("lib/penstock/")}
    assert packages == {"__init__.py", "errors.py", "extras.py", "kernels", "protocol", "spark"}
    assert len(kernels) == 6


def test_another_python_is_refused_with_what_to_do(archive: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.version_info = (3, 99, 0)\n"
        "try:\n    import penstock\nexcept ImportError as error:\n    print(error)"
    )
    said = run(code, archive, tmp_path).stdout
    assert "this archive of penstock is for Python (3, " in said
    assert "this is (3, 99)" in said
    assert "make it with the Python of the cluster" in said


def test_a_name_that_spark_would_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name of a zip file"):
        executor_archive(tmp_path / "penstock.tar")


def test_a_session_shares_the_archive_with_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    session.sparkContext.environment = {"PYTHONPATH": "/other"}
    share_archive(session)  # type: ignore[arg-type]
    assert session.sparkContext.environment == {"PYTHONPATH": "/other"}
    monkeypatch.setattr(session_setup.penstock, "_UNPACKED", "/tmp/unpacked/lib", raising=False)
    for _ in range(2):
        share_archive(session)  # type: ignore[arg-type]
    assert session.sparkContext.environment == {"PYTHONPATH": f"/tmp/unpacked/lib{os.pathsep}/other"}


def test_a_pickled_source_says_where_its_archive_is_unpacked(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives the driver's process of a streaming query no pyfiles; the pickle has to lead there."""
    from pyspark.serializers import CloudPickleSerializer

    dumps = CloudPickleSerializer().dumps
    source = JetStreamSource({"stream": "S"})
    assert b"_source_from" not in dumps(source)
    with zipfile.ZipFile(archive) as content:
        content.extractall(tmp_path)
    monkeypatch.setattr(session_setup.penstock, "_UNPACKED", str(tmp_path / "lib"), raising=False)
    (tmp_path / "pickled").write_bytes(dumps(source))
    code = (
        "import importlib.util, sys; assert importlib.util.find_spec('penstock') is None\n"
        "from pyspark.serializers import CloudPickleSerializer\n"
        "source = CloudPickleSerializer().loads(open(sys.argv[2], 'rb').read())\n"
        "print(source.parsed.streams, source.__module__, sys.modules['penstock'].__file__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-c", LACKING + code, "", str(tmp_path / "pickled")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [
        "('S',)",
        "penstock.spark.source",
        str(tmp_path / "lib" / "penstock" / "__init__.py"),
    ]
