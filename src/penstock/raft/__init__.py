"""Consensus: a log that a majority of servers agrees on, without IO.

The package decides which messages leave and what must be on disk before they do; sockets, files and clocks
belong to others. It imports nothing but the standard library. Exploration and simulation drive the same code
(`testing/raft_explore`, `testing/raft_sim`).

- `raft_messages`: entries, hard state, snapshots, and the messages as a table.
- `membership`: voters and learners, and how they change.
- `raft_log`: the entries of one replica: on disk, committed, applied.
- `peer_progress`: what a leader knows of a member, and how much it may send.
- `leadership`: what exists only while a replica leads: commit, reads, transfer, membership, quiescence.
- `raft_replica`: roles, terms, elections, following; `Ready`, the contract with the disk and the network.
- `raft_host`: all groups of a server, one frame per tick to each other server, who is alive.
- `disk_identity`: wiped and restored disks.
- `raft_options`: timeouts and limits.

Terms: a *replica* is one server's part of a *group*; a *member* is a replica that the group's membership
names, a voter or a learner. *Quiesced*: idle, without heartbeats. *Recovering*: its log lost a part, so it
does not vote. *Boot*: the number of a start of the server.
"""
