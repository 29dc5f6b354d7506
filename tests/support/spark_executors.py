"""Python environments as executors have them: what a cluster brings along, and nothing of penstock."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

# What PySpark itself needs in a Python process that handles Arrow batches; PySpark comes from SPARK_HOME.
CLUSTER_HAS = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six")


def bare_python(folder: Path) -> Path:
    """A Python in `folder` with links to the modules of CLUSTER_HAS, and without penstock and msgspec."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for name in CLUSTER_HAS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue  # not every version of pandas needs it
        module = Path(spec.origin)
        found = module.parent if module.name == "__init__.py" else module
        for link in (found, found.with_name(f"{name}.libs")):
            if link.exists():
                (site / link.name).symlink_to(link)
    python = folder / "bin" / "python"
    lacks = "import importlib.util as u; assert not any(map(u.find_spec, ('penstock', 'msgspec', 'pyspark')))"
    subprocess.run([python, "-c", lacks], check=True, env=cluster_environment(python))
    return python


def cluster_environment(python: Path) -> dict[str, str]:
    """The environment of a cluster's processes: Spark as it was installed, and this Python."""
    import pyspark

    from penstock.spark.jvm import ensure_java

    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
