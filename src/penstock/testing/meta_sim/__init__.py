"""A deterministic simulation of a cluster around its meta state: the real state machine, and real desired
states.

`python -m penstock.testing.meta_sim --seed 7` replays one run, `--seeds 1000` runs fresh ones. `meta_run`
has the run and says what is checked. Consensus is not simulated here (raft_sim does that): the log is
given, and every server applies it at its own pace.
"""
