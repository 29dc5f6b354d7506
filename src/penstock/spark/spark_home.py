"""A SPARK_HOME whose Python processes import precompiled modules.

A pip-installed pyspark exists twice: compiled in site-packages, and as `python/lib/pyspark.zip` without
bytecode. Spark puts the archive first on sys.path, so every Python process it starts compiles some 350
modules: 1 to 1.5 s of CPU for the first worker of each kind and for every streaming query that reads a Python
source (its driver side is such a process). Without the archive the modules come from site-packages.

This module creates a directory in the cache that links to everything in the installation except `python`,
and sets SPARK_HOME to it. The installation is not changed.

Invariants: applies only to a pyspark that this interpreter imports and to workers that run this interpreter;
a SPARK_HOME or another worker interpreter set by the user is kept. The directory is built under a temporary
name and renamed, so concurrent processes are safe.

Rejected: adding bytecode to the archive (it belongs to the installation); reordering the workers' sys.path
(needs a sitecustomize, and one may exist already).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from penstock.spark.jvm import cache_folder

ARCHIVE = Path("python", "lib", "pyspark.zip")


def ensure_compiled_spark(cache: Path | None = None) -> Path | None:
    """Make the Python processes of a local session start about a second sooner.

    Sets SPARK_HOME and PYSPARK_PYTHON in the environment and returns the SPARK_HOME. Call before creating the
    session. Returns None and changes nothing if SPARK_HOME is set, PYSPARK_PYTHON is another interpreter, or
    pyspark was not installed by pip.

    cache: parent of the directory; default $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
    """
    installed = _installed()
    if os.environ.get("SPARK_HOME") or not _workers_are_like_this() or installed is None:
        return None
    home = linked_home(installed, cache if cache is not None else cache_folder())
    os.environ["SPARK_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return home


def _workers_are_like_this() -> bool:
    named = os.environ.get("PYSPARK_PYTHON")
    return not named or shutil.which(named) == sys.executable


def _installed() -> Path | None:
    """Directory of a pip-installed pyspark; None if there is none."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        return None
    folder = Path(spec.origin).resolve().parent
    return folder if (folder / ARCHIVE).is_file() and (folder / "jars").is_dir() else None


def linked_home(installed: Path, cache: Path) -> Path:
    """Directory in `cache` with links to everything in `installed` except `python`; created if missing."""
    wanted = {entry.name: entry for entry in installed.iterdir() if entry.name != ARCHIVE.parts[0]}
    facts = "\n".join([str(installed), *sorted(wanted)])
    home = cache / f"spark-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
    if home.is_dir():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="spark-", dir=cache))
    for name, entry in wanted.items():
        (made / name).symlink_to(entry)
    made.chmod(0o755)
    try:
        made.rename(home)
    except OSError:  # another process created it
        shutil.rmtree(made)
        if not home.is_dir():
            raise
    return home
