"""What accounts' JetStream limits reserve of the server's, up front, as the official server has it.

A positive `max_mem` or `max_file` of an account is set aside for it, used or not. A server whose accounts
together reserve more than it has doesn't start; later, limits of an account that would reserve too much are
refused, and it keeps those it had. The official server forgets, with such a reload, limits of other accounts
as well, whichever its map brings up; that is not imitated.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.server.config.server_options import AccountJetStream


def excess(accounts: Iterable[AccountJetStream], max_memory_bytes: int, max_file_bytes: int) -> str:
    """What these reserve too much of, in the official words; "" when there is enough."""
    memory, file = _reserved(accounts)
    if memory <= max_memory_bytes and file <= max_file_bytes:
        return ""
    from penstock.protocol.error_codes import MEMORY_RESOURCES_EXCEEDED, STORAGE_RESOURCES_EXCEEDED

    error = MEMORY_RESOURCES_EXCEEDED if memory > max_memory_bytes else STORAGE_RESOURCES_EXCEEDED
    return f"{error.description} ({error.err_code})"


def growth(before: AccountJetStream | None, after: AccountJetStream | None) -> int:
    """How many bytes more an account reserves now, of the kind of which it is most."""
    old, new = (_reserved([one] if one is not None else []) for one in (before, after))
    return max(new[0] - old[0], new[1] - old[1])


def _reserved(accounts: Iterable[AccountJetStream]) -> tuple[int, int]:
    """Bytes of memory and of files that the limits set aside, each tier's on its own."""
    limits = [tier for one in accounts for _, tier in one.tiers or (("", one),)]
    return (
        sum(max(0, one.max_memory_bytes) for one in limits),
        sum(max(0, one.max_file_bytes) for one in limits),
    )
