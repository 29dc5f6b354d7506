"""A wheel on a Python that has the Spark source only: what every other part says. Run by tools/wheels.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock
import penstock.testing.plugin  # every pytest run of such an environment imports it
from penstock.errors import UnsupportedPythonError

assert sys.version_info < (3, 11), sys.version


def refusal(part: str) -> str:
    try:
        exec(part, {"penstock": penstock})
    except UnsupportedPythonError as error:
        return str(error)
    raise AssertionError(f"{part} worked")


for code in ("penstock.Server", "penstock.connect", "import penstock.client", "import penstock.sync"):
    assert "needs Python 3.11 or later" in refusal(code), code
assert "needs Python 3.11 or later" in refusal("from penstock.testing import server")

command = [str(Path(sys.executable).parent / "penstock"), "serve", "-p", "-1"]
ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
assert ended.returncode == 2, ended
assert ended.stderr.startswith("the command line needs Python 3.11 or later, this is 3.10"), ended
