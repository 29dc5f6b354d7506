"""Accounts of a running server.

- `account_setup`: creates accounts from options and tokens, and updates them at a reload.
- `account_sessions`: the sessions of each account. `reservations`: JetStream storage reserved by accounts.
- `service_requests`, `latency_sampling`: imported services, their request info and latency measurements.
"""
