"""Accounts of a running server.

- `account_registry`: creates accounts from options and tokens, and updates them at a reload.
- `reservations`: JetStream storage reserved by accounts.
- `service_requests`, `latency_sampling`: imported services, their request info and latency measurements.
"""
