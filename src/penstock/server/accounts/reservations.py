"""Reservations: storage that the accounts' JetStream limits set aside, as in the official server.

A positive `max_mem` or `max_file` of an account is reserved for it, used or not. A server whose accounts
reserve more than it has does not start. At a reload, limits that would reserve too much are refused, and the
account keeps its previous ones. (The official server then drops limits of random other accounts as well; that
is not imitated.)
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.server.config.server_options import AccountJetStream


def excess(accounts: Iterable[AccountJetStream], max_memory_bytes: int, max_file_bytes: int) -> str:
    """The official error text for the exceeded reservation; "" when the reservations fit."""
    memory, file = _reserved(accounts)
    if memory <= max_memory_bytes and file <= max_file_bytes:
        return ""
    from penstock.protocol.error_codes import MEMORY_RESOURCES_EXCEEDED, STORAGE_RESOURCES_EXCEEDED

    error = MEMORY_RESOURCES_EXCEEDED if memory > max_memory_bytes else STORAGE_RESOURCES_EXCEEDED
    return f"{error.description} ({error.err_code})"


def growth(before: AccountJetStream | None, after: AccountJetStream | None) -> int:
    """Bytes by which an account's reservation grows, for the kind that grows most."""
    old, new = (_reserved([one] if one is not None else []) for one in (before, after))
    return max(new[0] - old[0], new[1] - old[1])


def _reserved(accounts: Iterable[AccountJetStream]) -> tuple[int, int]:
    """Reserved (memory, file) bytes, summed over tiers."""
    limits = [tier for one in accounts for _, tier in one.tiers or (("", one),)]
    return (
        sum(max(0, one.max_memory_bytes) for one in limits),
        sum(max(0, one.max_file_bytes) for one in limits),
    )
