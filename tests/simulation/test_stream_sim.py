"""Replicated streams in simulation: the first seeds, and fresh ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing.stream_sim.stream_run import run_stream_seed

CHUNK = 6


def check_seed(seed: int) -> None:
    outcome = run_stream_seed(seed)
    if outcome.rule:
        pytest.fail(f"make stream-sim SEED={seed} replays it: {outcome.what}", pytrace=False)


def test_the_first_seeds_of_replicated_streams_pass() -> None:
    for seed in range(1, 1 + CHUNK):
        check_seed(seed)


def test_fresh_seeds_of_replicated_streams_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + CHUNK):
        check_seed(seed)


def test_a_seed_of_replicated_streams_gives_the_same_events_in_every_process() -> None:
    program = (
        "from penstock.testing.stream_sim.stream_run import run_stream_seed; "
        "print([run_stream_seed(n).digest for n in (1, 2)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, check=True,
        ).stdout
        for hash_seed in ("1", "3")
    }  # fmt: skip
    assert len(digests) == 1
