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
    purge.py, rollups.py, shrinking.py
                           removals in slices: purges, roll-ups, smaller limits
    stream_timers.py       what is due when: the next deadline, and the call of what it was for
    applying.py            commands that remove or change messages, as every replica applies them
    stream_sources.py      a stream's mirror and sources
    replica_state.py, stream_recovery.py
                           the state as bytes, for checkpoints and other replicas; a stored stream's start
    overflow.py            limits on publishes that wait to be stored
    subject_transforms.py  subject_transform and republish
    source_config.py, source_state.py, source_positions.py
                           mirrors and sources: configuration, copies, positions

Invariant: a stream changes only within `StreamReplica.apply` and the methods that it calls (also those in
applying.py and retention.py), and each depends on the stream's state, its arguments and the time alone.
"""
