"""What accounts' JetStream limits reserve of the server's, up front, as the official server has it.

A positive `max_mem` or `max_file` of an account is set aside for it, used or not. A server whose accounts
together reserve more than it has doesn't start; later, limits of an account that would reserve too much are
refused, and it keeps those it had. The official server forgets, with such a reload, limits of other accounts
as well, whichever its map brings up; that is not imitated.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol.error_codes import MEMORY_RESOURCES_EXCEEDED, STORAGE_RESOURCES_EXCEEDED
from penstock.server.options import AccountJetStream


def excess(accounts: Iterable[AccountJetStream], max_memory_bytes: int, max_file_bytes: int) -> str:
    """What these reserve too much of, in the official words; "" when there is enough."""
    limits = tuple(accounts)
    for error, reserved, available in (
        (MEMORY_RESOURCES_EXCEEDED, sum(max(0, one.max_memory_bytes) for one in limits), max_memory_bytes),
        (STORAGE_RESOURCES_EXCEEDED, sum(max(0, one.max_file_bytes) for one in limits), max_file_bytes),
    ):
        if reserved > available:
            return f"{error.description} ({error.err_code})"
    return ""


def growth(before: AccountJetStream | None, after: AccountJetStream | None) -> int:
    """How many bytes more an account reserves now, of the kind of which it is most."""
    old, new = before or AccountJetStream(), after or AccountJetStream()
    return max(
        max(0, new.max_memory_bytes) - max(0, old.max_memory_bytes),
        max(0, new.max_file_bytes) - max(0, old.max_file_bytes),
    )
