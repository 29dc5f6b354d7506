"""How the fuzzers begin: with a corpus of their seeds besides the one that is kept.

With PENSTOCK_FUZZ_SLOW=DIRECTORY, inputs that took more CPU time than others may wait (SLOW_S) are kept
there, with their milliseconds in their names. libFuzzer's own slow units are those of seconds. Instrumented
code takes several times as long, and an input may be many turns of the event loop: what is kept is to be
looked at.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

SLOW_S = 0.05
SLOW_MAX = 200  # files

Mutator = Callable[[bytes, int, int], bytes]


def keeping_slow(test_one_input: Callable[[bytes], None], directory: Path) -> Callable[[bytes], None]:
    """The same, which keeps inputs that take long."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = 0

    def timed(data: bytes) -> None:
        nonlocal kept
        start = time.process_time()
        test_one_input(data)
        took = time.process_time() - start
        if took > SLOW_S and kept < SLOW_MAX:
            kept += 1
            name = f"{Path(sys.argv[0]).stem}-{took * 1e3:05.0f}ms-{hashlib.sha1(data).hexdigest()[:12]}"
            Path(directory, name).write_bytes(data)

    return timed


def fuzz(
    seeds: Iterable[bytes], test_one_input: Callable[[bytes], None], mutator: Mutator | None = None
) -> None:
    """Runs until atheris ends the process; its options are the command line's.

    mutator: see `mutations`; with one, inputs may be large from the start.
    """
    options = list(sys.argv)
    if "PENSTOCK_FUZZ_SLOW" in os.environ:
        test_one_input = keeping_slow(test_one_input, Path(os.environ["PENSTOCK_FUZZ_SLOW"]))
    if mutator is not None:
        options[1:1] = ["-max_len=65536", "-len_control=0"]
    with tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(seeds):
            Path(corpus, f"seed{i}").write_bytes(seed)
        settings = {} if mutator is None else {"custom_mutator": mutator}
        atheris.Setup([*options, corpus], test_one_input, **settings)
        atheris.Fuzz()
