"""Limits and permissions of accounts and users, from the values of flags.

Only flags that were given change something: None leaves a limit as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.protocol.claims import NO_LIMIT, OperatorLimits, PermissionClaim, UserFields

ACCOUNT_FLAGS = {
    "connections": "conn",
    "subscriptions": "subs",
    "payload": "payload",
    "exports": "exports",
    "imports": "imports",
    "leafnodes": "leaf",
    "js_streams": "streams",
    "js_consumers": "consumer",
    "js_disk": "disk_storage",
    "js_memory": "mem_storage",
    "js_disk_stream": "disk_max_stream_bytes",
    "js_memory_stream": "mem_max_stream_bytes",
    "js_max_pending": "max_ack_pending",
    "js_stream_size_required": "max_bytes_required",
}
"""Flag -> field of OperatorLimits."""


def account_limits(
    limits: OperatorLimits,
    flags: dict[str, int | bool | None],
    *,
    jetstream: bool | None,
    bearer: bool | None,
) -> OperatorLimits:
    """The limits with those flags that are not None. Sizes in bytes, -1 = no limit.

    jetstream: True turns it on, without limits that no flag names; False turns it off.
    """
    changes: dict[str, Any] = {}
    if jetstream is False:
        changes = dict.fromkeys(("disk_storage", "mem_storage", "streams", "consumer"), 0)
    elif jetstream and not limits.has_jetstream:
        changes = dict.fromkeys(("disk_storage", "mem_storage", "streams", "consumer"), NO_LIMIT)
    if bearer is not None:
        changes["disallow_bearer"] = not bearer
    changes |= {ACCOUNT_FLAGS[name]: value for name, value in flags.items() if value is not None}
    return msgspec.structs.replace(limits, **changes)


def user_changes(
    fields: UserFields,
    *,
    payload: int | None = None,
    subscriptions: int | None = None,
    data: int | None = None,
    bearer: bool | None = None,
    locale: str | None = None,
    pub_allow: Iterable[str] | None = None,
    pub_deny: Iterable[str] | None = None,
    sub_allow: Iterable[str] | None = None,
    sub_deny: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Changes of UserFields by the flags that are not None; permissions replace the earlier ones."""
    plain = {
        "payload": payload,
        "subs": subscriptions,
        "data": data,
        "bearer_token": bearer,
        "times_location": locale,
        "tags": tuple(tag.lower() for tag in tags) if tags is not None else None,
    }
    changes: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    for name, allow, deny in (("pub", pub_allow, pub_deny), ("sub", sub_allow, sub_deny)):
        if allow is None and deny is None:
            continue
        old: PermissionClaim = getattr(fields, name)
        changes[name] = PermissionClaim(
            allow=old.allow if allow is None else tuple(allow),
            deny=old.deny if deny is None else tuple(deny),
        )
    return changes
