"""Exhaustive exploration of the consensus core: every state that a small group can reach, and what must hold.

`python -m penstock.testing.raft_explore` explores the named configurations and prints what each has.

The explorer drives `penstock.raft` itself. A state is the replicas with their disks, and the set of all
messages that were ever sent: any of them may arrive at any time, several times, or never, which covers loss,
duplication and reordering without an action for each. Elections begin at any time; syncs end at any time, or
at once; a crash keeps any prefix of what was not synced.

What one replica does with one input is computed once (`local_states`): replicas are deterministic, so the
search itself (`exploration`) only combines numbers. That makes a million states a matter of seconds.

- `local_states`: the states of single replicas and their transitions.
- `exploration`: the search, and the invariants.
- `raft_configurations`: the named configurations with their bounds.
"""
