"""Replicated groups on a server: consensus, the write-ahead log and the links between servers put together.

An owner (a state machine) opens a group and proposes commands; it gets every committed command once and in
order. docs/decisions/0030 says why it is so. The package does no IO but that of `GroupStorage`, which a disk
thread calls; sockets and timers are in `server/links`.

- `group_port`: what an owner and its group expect of each other.
- `replica_group`: one group on this server: its owner's progress, proposals, reads, checkpoints.
- `group_storage`: the write-ahead log as the disk of all groups, and what a start finds in it.
- `replication_node`: all groups of the server: what goes to the disk, to other servers and to owners, when.
- `replication_messages`: messages between servers as bytes, and back.
- `replication_frames`: their framing: length, kind, checksum.
- `replication_link`: one connection to another server: greeting, features, frames.
- `raftz`: the state of the groups, as monitoring shows it.

Terms: a *proposal* is a command that is not committed yet. A *checkpoint* is a state that the owner has made
durable, so that the log before it may go. *Mail* is what owners of a group send each other beside the log.
"""
