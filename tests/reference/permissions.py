"""What filters and permissions mean, by trying every subject of a small world."""

from __future__ import annotations

from itertools import product

from penstock.routing.permissions import PermissionEntry, Permissions

TOKENS = ("a", "b", "c")  # filters use a and b; c is a token that no filter names
DEPTH_MAX = 4
WORLD = [".".join(words) for n in range(1, DEPTH_MAX + 1) for words in product(TOKENS, repeat=n)]


def matches(filter_: str, subject: str) -> bool:
    filters, tokens = filter_.split("."), subject.split(".")
    if filters[-1] == ">":
        filters = filters[:-1]
        if len(tokens) <= len(filters):
            return False
        tokens = tokens[: len(filters)]
    return len(filters) == len(tokens) and all(f in ("*", t) for f, t in zip(filters, tokens, strict=True))


def subjects_of(filter_: str) -> set[str]:
    return {subject for subject in WORLD if matches(filter_, subject)}


def named(entries: tuple[PermissionEntry, ...], subject: str) -> bool:
    """Does an entry without queue match the subject of a message?"""
    return any(entry.queue is None and matches(entry.subject, subject) for entry in entries)


def may_publish(permissions: Permissions, subject: str) -> bool:
    allow, deny = permissions.publish.allow, permissions.publish.deny
    if allow is None and permissions.responses is not None:
        return False
    return (allow is None or named(allow, subject)) and not named(deny, subject)


def may_read(permissions: Permissions, subject: str) -> bool:
    allow, deny = permissions.subscribe.allow, permissions.subscribe.deny
    return (allow is None or named(allow, subject)) and not named(deny, subject)
