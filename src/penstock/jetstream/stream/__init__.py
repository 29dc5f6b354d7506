"""One stream: its state machine, and the features that act on publishes.

Read first `stream_replica.py`. Plain publishes are stored by the ingest kernel; a publish with headers that
change its behaviour is decided in `publish_checks.py`, in the official server's order of checks.

    stream_replica.py      apply, write, update, purge, delete, expire
    effects.py             what commands cause outside: responses, republished messages, events
    publish_checks.py      expectations, roll-ups, TTL headers, discard-new limits
    atomic_batches.py, staged.py
                           atomic batches, and the checks at their commit
    fast_batches.py        fast ingest
    counter.py             counters
    message_schedules.py   scheduled messages
    dedupe.py, header_scan.py
                           recovery of the dedupe window, and of what other headers say
    ttl.py, retention.py   per-message TTLs and delete markers; max_age
    purge.py               purges in slices
    overflow.py            limits on publishes that wait to be stored
    subject_transforms.py  subject_transform and republish
    source_config.py, source_state.py, source_positions.py
                           mirrors and sources: configuration, copies, positions

Invariant: only the methods of `StreamReplica` change a stream, and each depends on the stream's state, its
arguments and the time alone.
"""
