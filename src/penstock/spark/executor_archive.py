"""One file with what Spark's Python processes need of penstock, for clusters where nothing can be installed.

    python -m penstock.spark.executor_archive penstock-spark.zip

The source and the sink need six compiled modules and msgspec, which is compiled as well. Python imports no
compiled module from a zip file, so the archive has a package `penstock` that unpacks it once per machine and
user, and continues from there. The file works with `--py-files`, `SparkContext.addPyFile` and
`SparkSession.addArtifact(..., pyfile=True)`, and with `--archives`, which unpacks it (PYTHONPATH then has its
folder `lib`). pyarrow comes with the cluster's PySpark.

Invariants: it is for the version of Python and the platform that made it, and says so elsewhere instead of
failing inside an import; it is unpacked under a temporary name and renamed, so concurrent workers are safe;
the folder's name has the content's hash, so two versions never mix.

Rejected: a distribution of its own (its files would be those of penstock-nats, and pip lets one overwrite the
other); a pure Python fallback of the kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from penstock.errors import ConfigError

KERNELS = (
    "base/memory",
    "log/records",
    "spark/columns",
    "spark/row_frames",
    "wire/frames",
    "wire/output",
)
"""Compiled modules that reading and writing import."""
PACKAGES = ("protocol", "spark")
MODULES = ("__init__.py", "errors.py", "extras.py")

_UNPACKER = '''"""Unpacks the archive that this module is in, and becomes the package in it."""

import os
import sys
import sysconfig
import tempfile
import zipfile

_MADE_FOR = {made_for!r}
_HERE = (sys.version_info[:2], sysconfig.get_platform())
if _HERE != _MADE_FOR:
    raise ImportError(
        f"this archive of penstock is for Python {{_MADE_FOR[0]}} on {{_MADE_FOR[1]}}, this is {{_HERE[0]}} "
        f"on {{_HERE[1]}}: make it with the Python of the cluster (python -m penstock.spark.executor_archive)"
    )
_ARCHIVE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BASE = os.path.join(tempfile.gettempdir(), f"penstock-spark-{{os.getuid()}}")
_FOLDER = os.path.join(_BASE, {digest!r})


def _unpack():
    os.makedirs(_BASE, mode=0o700, exist_ok=True)
    if os.lstat(_BASE).st_uid != os.getuid():
        raise ImportError(f"{{_BASE}} belongs to another user: remove it, or set TMPDIR")
    made = tempfile.mkdtemp(dir=_BASE)
    with zipfile.ZipFile(_ARCHIVE) as archive:
        archive.extractall(made, [name for name in archive.namelist() if name.startswith("lib/")])
    try:
        os.rename(made, _FOLDER)
    except OSError:  # another process was faster
        import shutil

        shutil.rmtree(made)
        if not os.path.isdir(_FOLDER):
            raise


if os.path.isdir(_ARCHIVE):
    _UNPACKED = os.path.join(_ARCHIVE, "lib")
else:
    if not os.path.isdir(_FOLDER):
        _unpack()
    _UNPACKED = os.path.join(_FOLDER, "lib")
sys.path.insert(0, _UNPACKED)
__path__[:] = [os.path.join(_UNPACKED, "penstock")]
__file__ = os.path.join(_UNPACKED, "penstock", "__init__.py")
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''


def executor_archive(path: str | Path) -> Path:
    """Write the archive to `path`, a name that ends in .zip, and return it.

    Raises ConfigError for another name, or if a compiled module is missing.
    """
    target = Path(path)
    if target.suffix != ".zip":
        raise ConfigError(f"{target} is no name of a zip file: Spark takes a pyfile that ends in .zip")
    files = dict(_files())
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(files[name].read_bytes()).digest())
    unpacker = _UNPACKER.format(
        made_for=(tuple(sys.version_info[:2]), sysconfig.get_platform()), digest=digest.hexdigest()[:24]
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("penstock/__init__.py", unpacker)
        archive.writestr(
            "pyspark_jetstream.py", "from penstock.spark.source import JetStreamSource as DefaultSource\n"
        )
        for name in sorted(files):
            archive.write(files[name], f"lib/{name}")
    return target


def _files() -> Iterator[tuple[str, Path]]:
    """(name below lib, file) of everything in the archive."""
    package = Path(__file__).resolve().parents[1]
    for module in MODULES:
        yield f"penstock/{module}", package / module
    for folder in PACKAGES:
        for file in (package / folder).rglob("*"):
            if file.suffix in (".py", ".json"):
                yield f"penstock/{file.relative_to(package)}", file
    kernels = package / "kernels"
    folders = {Path(kernel).parent.as_posix() for kernel in KERNELS}
    for name in ("__init__.py", *(f"{folder}/__init__.py" for folder in sorted(folders))):
        yield f"penstock/kernels/{name}", kernels / name
    for kernel in KERNELS:
        file = _compiled(kernels / kernel)
        yield f"penstock/kernels/{file.relative_to(kernels)}", file
    spec = importlib.util.find_spec("msgspec")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for file in root.rglob("*"):
        if file.suffix in (".py", ".so", ".pyd"):
            yield f"msgspec/{file.relative_to(root)}", file


def _compiled(kernel: Path) -> Path:
    for suffix in EXTENSION_SUFFIXES:
        file = kernel.with_name(kernel.name + suffix)
        if file.exists():
            return file
    raise ConfigError(f"the compiled module {kernel} is missing: install penstock-nats again")


def main() -> None:
    """Write the archive named in the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.spark.executor_archive",
        description="Writes what Spark's Python processes need of penstock to one file.",
    )
    parser.add_argument("path", type=Path, help="the file to write, such as penstock-spark.zip")
    path = executor_archive(parser.parse_args().path)
    version = ".".join(map(str, sys.version_info[:2]))
    sys.stdout.write(
        f"{path}: {path.stat().st_size / 1e6:.1f} MB, Python {version}, {sysconfig.get_platform()}\n"
    )


if __name__ == "__main__":
    main()
