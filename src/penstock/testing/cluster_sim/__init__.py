"""A deterministic simulation of a cluster's routes: the real mesh, links and kernels of several servers on a
simulated network and clock.

`python -m penstock.testing.cluster_sim --seed 7` replays one run, `--seeds 1000` runs many. Everything
follows from the seed.

- `sim_network`: virtual time, and connections that delay, cut bytes anywhere, break, and are partitioned.
- `sim_member`: one server: a mesh, accounts and clients.
- `cluster_run`: a seed: random subscriptions, publishes, broken connections, partitions, restarts; and the
  checks.

The checks, at any time: no subscription gets a message twice, no queue group more than one copy of it, and
the servers of one message send no more copies than there are servers. When all faults are over, within a
bound of virtual time: every server has a full pool to every other one, knows exactly the interest of all
others, and every message reaches each interested subscription once and each queue group once.
"""
