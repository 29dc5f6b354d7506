"""A deterministic simulation of Raft groups on servers: the real core on a simulated network and disks.

`python -m penstock.testing.raft_sim --seed 7` replays one run, `--seeds 1000` runs fresh ones. Everything
follows from the seed.

Faults: frames that are late, lost, repeated or reordered; partitions, also in one direction; slow, paused and
killed servers; power failures of one or all, which tear what was not synced; failing, damaged and wiped
disks; and meanwhile transfers of the leadership, compaction and changes of the membership.

- `raft_history`: what clients and replicas saw, and what must hold: one leader a term; one history of
  committed entries; linearizable writes and reads.
- `node_server`: one server: its ReplicationNode and write-ahead log, on a simulated disk. `raft_server`: with
  groups whose state machine is `hashing_owner`.
- `raft_run`: a seed: the faults, the clients, the administrator that changes memberships; at the end all is
  healed, and every group must make progress, become equal on all members, and then become idle.
"""
