"""A deterministic simulation of one server's JetStream: the real engine and store on a simulated disk and
clock, a random workload with crashes and disk failures, and checkers.

`make sim SEED=n` replays one run. `make sim SEEDS=n` runs many fresh seeds and prints the first one, which is
taken from the clock; `ARGS="--first n"` sets it. Everything follows from the seed. The test suite also runs
fresh seeds, because fixed ones find nothing new, and every seed that failed once
(tests/simulation/regression_seeds.py).

runner.py runs a seed: it draws actions (workload.py), runs them in the simulator (simulator.py: engine,
store, clock and the clients' side) and lets the checkers look (stream_checks.py, consumer_checks.py). Batches
have publishers (batchwork.py), models (atomic_checks.py, fast_checks.py) and a registry
(batch_publishers.py). dead_letter_checks.py follows dead letters; feature_checks.py is the base of the checks
for special configurations. sim_executor.py replaces the disk threads, sim_disk.py the disk.
"""

from __future__ import annotations


class Violation(AssertionError):
    """The server broke a promise. `rule` names it, so that shrinking finds runs with the same failure."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(holds: bool, rule: str, what: str) -> None:
    """Raises Violation unless `holds`. For rare checks, since `what` is built in any case."""
    if not holds:
        raise Violation(rule, what)
