"""A stream's log: records, blocks, per-subject state, readers of it."""
