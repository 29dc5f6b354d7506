"""Imports penstock with coverage, and makes it and `tests` importable: the first import of each fuzzer.

Modules that the server imports when it needs them are imported here: later they would not be instrumented.
"""

import importlib
import logging
import pkgutil
import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
PACKAGES = (
    *("penstock.protocol", "penstock.routing", "penstock.jetstream", "penstock.net", "penstock.cluster"),
    *("penstock.server", "penstock.wal"),
)

with atheris.instrument_imports(include=list(PACKAGES)):
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(found.name)

logging.disable()  # what is refused is logged, thousands of times
