"""Accounts of a running server: set-up, sessions, imported services."""
