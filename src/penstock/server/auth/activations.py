"""Activations: tokens by which an exporting account permits another account's import.

An activation is valid from its start until it expires or the exporting account revokes it, and only if that
account or one of its signing keys signed it.
"""

from __future__ import annotations

from penstock.errors import MisuseError
from penstock.protocol.claims import AccountClaims, ImportClaim
from penstock.protocol.jwt import decode_activation


def holds(importer: AccountClaims, one: ImportClaim, exporter: AccountClaims, now_s: int) -> bool:
    """Whether an import's token is from the exporting account, for this account and subject, and valid
    now."""
    try:
        activation = decode_activation(one.token)
    except MisuseError:
        return False
    if activation.subject != importer.subject or activation.nats.kind != one.type or activation.problems():
        return False
    if activation.issuer not in {one.account, *exporter.nats.scopes}:
        return False
    if activation.time_problem(now_s) or 0 < activation.expires <= now_s:
        return False
    export = next((e for e in exporter.nats.exports if e.type == one.type and e.subject == one.subject), None)
    revocations = export.revocations if export is not None else {}
    return not any(activation.issued_at <= revocations[who]
                   for who in ("*", importer.subject) if who in revocations)  # fmt: skip


def next_change(importer: AccountClaims, now_s: int) -> int:
    """Time at which the next activation of an account begins or expires, s since 1970; 0 = none."""
    found = []
    for one in importer.nats.imports:
        if not one.token:
            continue
        try:
            activation = decode_activation(one.token)
        except MisuseError:
            continue
        found += [at for at in (activation.not_before, activation.expires) if at > now_s]
    return min(found, default=0)
