"""Seeds of the simulation: the first forty, those that failed once, and fresh ones in each run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from penstock.testing.sim.churn import churn
from penstock.testing.sim.runner import fresh_seed, run_seed, shrink
from tests.simulation.regression_seeds import REGRESSION_SEEDS

CHUNK = 20
FIXED = range(1, 41, CHUNK)
# From a first seed that no run had before; see tests/conftest.py. About one in a thousand still fails, so the
# suite draws twenty; `make sim SEEDS=20000` is the measure, and this grows as failures get fewer.
FRESH = range(0, 20, CHUNK)


def check_seed(seed: int) -> None:
    outcome = run_seed(seed)
    if outcome.failure is not None:
        smaller, _ = shrink(outcome)
        log = "\n".join(smaller.events)
        pytest.fail(f"make sim SEED={seed} replays it: {outcome.summary}\n{log}", pytrace=False)


@pytest.mark.parametrize("first", FIXED)
def test_seeds_pass(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check_seed(seed)


@pytest.mark.parametrize("seed", REGRESSION_SEEDS)
def test_a_seed_that_failed_once_passes(seed: int) -> None:
    check_seed(seed)


def test_regression_seeds_are_sorted_and_there_once() -> None:
    assert list(REGRESSION_SEEDS) == sorted(set(REGRESSION_SEEDS))


@pytest.mark.parametrize("offset", FRESH)
def test_fresh_seeds_pass(offset: int) -> None:
    first = int(os.environ["SIM_FIRST"]) + offset
    for seed in range(first, first + CHUNK):
        check_seed(seed)


def test_many_seeds_begin_by_the_clock_and_print_the_first_one_and_the_work_per_seed() -> None:
    before = fresh_seed()
    command = [sys.executable, "-m", "penstock.testing.sim", "--seeds", "2", "--jobs", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^2 seeds from (\d+)$", printed, re.MULTILINE)
    assert found is not None, printed
    assert before <= int(found[1]) <= fresh_seed()
    counts = ("commands", "crashes", "power losses", "faults", "acks", "deliveries")
    assert re.search(
        "^per seed: " + ", ".join(rf"\d+\.\d {one}" for one in counts) + "$", printed, re.MULTILINE
    )


def test_a_seed_gives_the_same_events_in_every_process() -> None:
    # The last of them ended differently where the order of a set of strings decided.
    program = (
        "from penstock.testing.sim.runner import run_seed; "
        "print([run_seed(n).digest for n in (1, 2, 3, 4, 98440014)])"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True, check=True,
        ).stdout
        for hash_seed in (1, 3)
    }  # fmt: skip
    assert len(digests) == 1


def test_consumers_that_come_and_go_leave_nothing_behind() -> None:
    result = churn(1000, tell=lambda text: None)
    assert result.is_flat, result
