"""A deterministic simulation of replicated streams: real engines around real Raft groups, on a simulated
network and disks.

`python -m penstock.testing.stream_sim --seed 7` replays one run, `--seeds 1000` runs fresh ones. Everything
follows from the seed.

Clients publish (some with message ids, some expect a sequence, some in atomic or fast batches), delete,
purge, pull, ack and read at a server that says it leads, a deposed one that has not heard of it among them.
In some seeds there is a stream whose messages expire, and which has schedules.
Faults: frames that are late, lost, repeated or reordered; partitions, also in one direction; slow, paused and
killed servers; power failures of one or all; clocks that are wrong and jump; transfers of the leadership;
checkpoints, and catching up from them.

- `stream_history`: what clients and replicas saw, and what must hold.
- `stream_server`: one server: an engine, stream groups, node and log, on a simulated disk.
- `stream_run`: a seed: the faults and the clients; at the end all is healed, every message is delivered, what
  was due has happened, and all replicas are equal.
"""
