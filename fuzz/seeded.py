"""How the fuzzers begin: with a corpus of their seeds besides the one that is kept."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris


def fuzz(seeds: Iterable[bytes], test_one_input: Callable[[bytes], None]) -> None:
    """Runs until atheris ends the process; its options are the command line's."""
    with tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(seeds):
            Path(corpus, f"seed{i}").write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], test_one_input)
        atheris.Fuzz()
