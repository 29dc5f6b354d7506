"""The write-ahead log of a server: one log for all groups, so that one sync a tick covers every one of them.

The package knows files and bytes, not consensus: a *group* has a name, a term with a vote, entries with
consecutive indexes, and a checkpoint. docs/decisions/0029 describes the format, and why it is so.

- `wal_records`: the records, encoded and decoded.
- `wal_reading`: a segment's bytes as records and damaged places; where a torn tail begins.
- `group_recovery`: one group, rebuilt from its records.
- `wal_recovery`: all segments: every group as it was, or marked as damaged.
- `wal_mark`: which disk this is, and what its log contains at least.
- `wal_file`: the log on a disk: group commit, segments, their removal.

The first four are functions of bytes: they read no file and change none.
"""
