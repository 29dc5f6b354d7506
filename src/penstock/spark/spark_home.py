"""A SPARK_HOME whose Python processes import compiled modules.

A pip-installed pyspark is there twice: in site-packages, compiled, and as `python/lib/pyspark.zip`, which
holds no bytecode. Spark puts the archive in front, so every Python process it begins compiles some 350
modules anew: 1 to 1.5 s of CPU, for the first worker of each kind, and for every streaming query that reads a
Python source (its driver side is such a process). Without the archive the same modules come from
site-packages.

So a folder is made in the cache directory that links to all of the installation but its `python`, and
SPARK_HOME names it. Nothing of the installation is changed.

Invariants: only for a pyspark that this interpreter imports, and workers that are this interpreter; who has
set SPARK_HOME, or another interpreter for the workers, keeps it. The folder is made beside and renamed into
place, so processes may race.

Rejected: bytecode in the archive (it is not ours to write to); another order of the workers' sys.path (only a
sitecustomize could do that, and there may be one).
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
    """Sees to it that the Python processes of a session on this machine start a second sooner, and returns
    the SPARK_HOME that does it, which is also set in the environment, as is PYSPARK_PYTHON. Call it before
    the session is made. None, and nothing is changed, where SPARK_HOME is set already, PYSPARK_PYTHON is
    another interpreter than this one, or pyspark was not installed by pip.

    cache: where the folder may be made; default $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
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
    """The folder of a pip-installed pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        return None
    folder = Path(spec.origin).resolve().parent
    return folder if (folder / ARCHIVE).is_file() and (folder / "jars").is_dir() else None


def linked_home(installed: Path, cache: Path) -> Path:
    """A folder in `cache` of links to everything in `installed` but `python`; made when it is not there."""
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
    except OSError:  # another process was faster
        shutil.rmtree(made)
        if not home.is_dir():
            raise
    return home
