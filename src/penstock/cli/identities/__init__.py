"""Operators, accounts and users with JWTs, in the files of the official tools.

identity_store.py    the files: tokens and keys, as `nsc` and `nats auth` keep them
identity_issuing.py  making and signing operators, accounts and users
identity_limits.py   limits and permissions from flags
"""
