"""A deterministic simulation of one server's JetStream: the real engine and store on a simulated disk and
clock, a random workload with crashes and disk failures, and checkers.

`make sim SEED=n` replays one run. `make sim SEEDS=n` runs many fresh seeds and prints the first one, which is
taken from the clock; `ARGS="--first n"` sets it. Everything follows from the seed. The test suite also runs
fresh seeds, because fixed ones find nothing new, and every seed that failed once
(tests/simulation/regression_seeds.py).

runner.py runs a seed: it draws actions (workload.py, with stream_work.py, consumer_work.py and disk_work.py),
runs them in the simulator (simulator.py: engine, store, clock and the clients' side) and lets the checkers
look (stream_checks.py, consumer_checks.py); draining.py ends the run. Batches have publishers
(batchwork.py), models (atomic_checks.py, fast_checks.py) and a registry (batch_publishers.py).
dead_letter_checks.py follows dead letters, pin_checks.py pinned clients; feature_checks.py is the base of the
checks for special configurations. replicas.py follows every stream with a second instance that applies its
commands (following_replica.py). quorum_commit.py commits by imagined replicas, observed_commit.py reports
failed syncs. sim_executor.py replaces the disk threads, sim_disk.py the disk.
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


def check_committed(stream: str, seq: int, what: str, committed: int | None) -> None:
    """Raises Violation when the message at `seq` leaves the server before a majority has it. committed: the
    last sequence that one has; None: of a commit that takes none."""
    if committed is not None and seq > committed:
        raise Violation(
            "acked means committed", f"{stream} {seq} is {what}, and the majority has {committed}"
        )
