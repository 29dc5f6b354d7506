"""Expands the template of a scoped signing key for one user.

Subjects may contain `{{name()}}`, `{{subject()}}`, `{{account-name()}}`, `{{account-subject()}}`,
`{{tag(key)}}` and `{{account-tag(key)}}`. A tag `key:value` may occur several times, and then the subject
expands to several. A result that is not a valid subject is removed from an allow list and is an error in a
deny list, because a missing value must not widen permissions. An allow list that becomes empty denies
everything.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.claims import AccountClaims, PermissionClaim, UserClaims, UserLimits
from penstock.protocol.subjects import is_valid_filter

EXPANSIONS_MAX = 4096
"""Maximum number of subjects that one list may expand to."""
_CALL = re.compile(r"\{\{([^}]+)\}\}")
_TAG = re.compile(r"(tag|account-tag)\((.*)\)", re.IGNORECASE)


def fill(template: UserLimits, user: UserClaims, account: AccountClaims) -> UserLimits:
    """The limits of a user whose token is signed by a scoped key.

    Raises:
        MisuseError: an unknown function, a deny entry without value, or too many expansions.
    """

    def values(call: str) -> list[str]:
        return _values(call, user, account)

    return msgspec.structs.replace(
        template, pub=_permission(template.pub, values), sub=_permission(template.sub, values)
    )


def _permission(permission: PermissionClaim, values: Callable[[str], list[str]]) -> PermissionClaim:
    allow = _expanded(permission.allow, values, strict=False)
    deny = _expanded(permission.deny, values, strict=True)
    if permission.allow and not allow:
        deny += (">",)
    return PermissionClaim(allow=allow, deny=deny)


def _expanded(
    entries: tuple[str, ...], values: Callable[[str], list[str]], *, strict: bool
) -> tuple[str, ...]:
    if not any(_CALL.search(entry) for entry in entries):
        return entries
    found: list[str] = []
    for entry in entries:
        literals, calls = _CALL.split(entry)[::2], _CALL.findall(entry)
        choices = [values(call.strip()) for call in calls]
        for call, choice in zip(calls, choices, strict=True):
            if strict and not choice:
                raise MisuseError(f"generated invalid subject {entry!r}: {call.strip()!r} is not defined")
        count = 1
        for choice in choices:
            count *= len(choice)
        if len(found) + count > EXPANSIONS_MAX:
            raise MisuseError(f"template expansion exceeds limit: {EXPANSIONS_MAX}")
        for chosen in itertools.product(*choices):
            subject = literals[0] + "".join(map("".join, zip(chosen, literals[1:], strict=True)))
            if all(map(is_valid_filter, subject.split(" "))):
                found.append(subject)
            elif strict:
                raise MisuseError("generated invalid subject")
    return tuple(found)


def _values(call: str, user: UserClaims, account: AccountClaims) -> list[str]:
    """The values of a template function; empty for a missing tag."""
    plain = {
        "name()": user.name,
        "subject()": user.subject,
        "account-name()": account.name,
        "account-subject()": user.nats.issuer_account,
    }.get(call.lower())
    if plain is not None:
        return [plain]
    tag = _TAG.fullmatch(call)
    if tag is None:
        raise MisuseError(f"template operation: {call!r} is not defined")
    tags = user.nats.tags if tag[1].lower() == "tag" else account.nats.tags
    prefix = tag[2].lower() + ":"
    return [one[len(prefix) :] for one in tags if one.startswith(prefix)]
