"""A deterministic simulation of one server's JetStream: the real engine and store on a disk and a clock that
are not real, a random workload with crashes and failing disks, and checkers.

`make sim SEED=n` replays one run. `make sim SEEDS=n` does many with fresh seeds, from a first one by the
clock, which it prints; `ARGS="--first n"` chooses it. Everything follows from the seed. The test suite runs
fresh seeds too, because seeds that never change find nothing new, and every seed that failed once
(tests/simulation/regression_seeds.py).

runner.py runs a seed: it draws actions (workload.py), does them in a world (simulator.py: engine, store,
clock and the clients' ends) and lets the models look (streams.py, consumers.py: what must be true of each).
Batches have publishers (batchwork.py), their models (atomic_checks.py, fast_checks.py) and a book of them all
(batch_publishers.py); dead_letter_checks.py follows dead letters, feature_checks.py and what it names what
special configurations promise. sim_executor.py has the threads that aren't there, secrets.py the keys that
aren't secret.
"""
