"""Replicated JetStream of a running server: its groups, and what joins them to the engines.

- `stream_group_owner`: one stream between its engine and its group. `stream_groups`: all of them.
"""
