"""Replicated streams in simulation: the first seeds, fresh ones, and planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.testing.stream_sim.stream_run import run_stream_seed
from tests.simulation.replicated_stream_bugs import REPLICATED_STREAM_BUGS, Plant
from tests.simulation.stream_group_bugs import STREAM_GROUP_BUGS

CHUNK = 6
FAILED_ONCE = (
    1795968671087,  # the state of the leader took the place of the own one at a start, and could not be had
    1795968283540,  # a server that was paused delivered as the leader of the term before (the checker)
    1795969018476,  # an entry of a timer was in flight at the end (the checker)
    1795939375972,  # after a checkpoint that was given up for another state, a member never took one again
)
BUGS = REPLICATED_STREAM_BUGS + STREAM_GROUP_BUGS


def check_seed(seed: int) -> None:
    outcome = run_stream_seed(seed)
    if outcome.rule:
        pytest.fail(f"make stream-sim SEED={seed} replays it: {outcome.what}", pytrace=False)


def test_the_first_seeds_of_replicated_streams_pass() -> None:
    for seed in range(1, 1 + CHUNK):
        check_seed(seed)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_of_replicated_streams_that_failed_once_passes(seed: int) -> None:
    check_seed(seed)


def test_fresh_seeds_of_replicated_streams_pass() -> None:
    first = int(os.environ["SIM_FIRST"])
    for seed in range(first, first + CHUNK):
        check_seed(seed)


@pytest.mark.share(3)
@pytest.mark.parametrize(("plant", "hint"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_bug_planted_in_replicated_streams_fails_a_seed(
    plant: Plant, hint: int, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    for seed in (hint, *range(1, 60)):
        with monkeypatch.context() as patch:
            plant(patch)
            if run_stream_seed(seed).rule:
                patch.undo()
                noted_faults.clear()  # of the bug
                check_seed(seed)
                return
    pytest.fail(f"{plant.__name__} is not found by 60 seeds")


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
