"""`penstock-nats` alone, installed from a wheel: what is there, what is loaded, and what the rest says.

Run by tools/wheels.py in an environment that has penstock, msgspec and what venv puts there.
"""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

installed = {distribution.metadata["Name"].lower() for distribution in distributions()}
assert installed - {"pip", "setuptools"} == {"penstock-nats", "msgspec"}, installed

import penstock  # noqa: E402  what is installed is looked at first

assert Path(penstock.__file__).is_relative_to(sys.prefix), penstock.__file__
assert penstock.connect is not None
loaded = {name: module for name, module in sys.modules.items() if name.startswith("penstock.kernels.")}
compiled = {name: module for name, module in loaded.items() if name.count(".") > 2}
# `base` has the arrays of the wire kernels.
assert {name.split(".")[2] for name in compiled} == {"base", "wire"}, compiled
for module in compiled.values():
    assert str(module.__file__).endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)), module

try:
    refused = str(penstock.Server)
except ImportError as error:
    refused = str(error)
assert refused.endswith("pip install 'penstock-nats[server]'"), refused

command = [str(Path(sys.executable).parent / "penstock"), "serve", "-p", "-1"]
ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
assert ended.returncode == 2, ended
assert ended.stderr.endswith("pip install 'penstock-nats[server]'\n"), ended
