"""How the fuzzers begin: with a corpus of their seeds besides the one that is kept."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

Mutator = Callable[[bytes, int, int], bytes]


def fuzz(
    seeds: Iterable[bytes], test_one_input: Callable[[bytes], None], mutator: Mutator | None = None
) -> None:
    """Runs until atheris ends the process; its options are the command line's.

    mutator: see `mutations`; with one, inputs may be large from the start.
    """
    options = list(sys.argv)
    if mutator is not None:
        options[1:1] = ["-max_len=65536", "-len_control=0"]
    with tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(seeds):
            Path(corpus, f"seed{i}").write_bytes(seed)
        settings = {} if mutator is None else {"custom_mutator": mutator}
        atheris.Setup([*options, corpus], test_one_input, **settings)
        atheris.Fuzz()
