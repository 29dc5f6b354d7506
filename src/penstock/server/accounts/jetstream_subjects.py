"""Subjects of JetStream in an account: who serves its API there, and the mappings of the server's domain.

As on the official server, requests below `$JS.<domain>.API.` become requests below `$JS.API.`, and writes to
key-value and object stores with that prefix lose it. They are mappings, so permissions apply to the subject
without the domain.

Invariant: unknown requests below the prefix keep their subject, because another server may have the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.protocol.subjects import matches
from penstock.routing.imports_exports import ServiceImport, plan
from penstock.routing.mapping import SubjectMapping

if TYPE_CHECKING:
    from penstock.server.config.server_options import AccountOptions

_REQUESTS = ("INFO", "STREAM.>", "CONSUMER.>", "DIRECT.>", "META.>", "SERVER.>", "ACCOUNT.>")
_STORES = ("$KV.>", "$OBJ.>")


def imports_api(own: AccountOptions | None) -> bool:
    """Whether another account serves the API in the account with these options, through an import."""
    services = [entry for entry in (own.imports if own else ()) if isinstance(entry, ServiceImport)]
    return any(matches(plan(entry).local, "$JS.API.INFO") for entry in services)


def domain_mappings(domain: str, configured: Iterable[SubjectMapping]) -> tuple[SubjectMapping, ...]:
    """Mappings of a domain, without those whose source is configured."""
    taken = {mapping.source for mapping in configured}
    return tuple(mapping for mapping in _mappings(domain) if mapping.source not in taken)


@lru_cache(maxsize=1)
def _mappings(domain: str) -> tuple[SubjectMapping, ...]:
    # Remembered: checking them takes half a millisecond, and a reload sets up all accounts at once.
    targets = {subject: f"$JS.API.{subject}" for subject in _REQUESTS} | {
        subject: subject for subject in _STORES
    }
    return tuple(
        SubjectMapping.to(f"$JS.{domain}.API.{subject}", target) for subject, target in targets.items()
    )
