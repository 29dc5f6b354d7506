"""Grammars and data formats of NATS and JetStream. No IO, except for the time zone database.

- `api`, `error_codes`: JetStream API structs and errors. `batch`, `flow`: batch publishing (ADR-50).
- `subjects`, `transforms`, `headers`, `status`, `acks`, `ids`, `durations`, `numbers`, `json_names`: texts on
  the wire.
- `nkeys`, `curvekeys`, `jwt`, `claims`, `user_templates`, `proofs`: keys, tokens and credentials.
- `schedule_patterns`: message schedules (ADR-51). `proxy_protocol`: PROXY headers.
- `s2_stream`, `snapshot_archive`: stream backups.

Invariant: nothing here reads a clock or a random source; times, random numbers and keys are arguments.
"""
