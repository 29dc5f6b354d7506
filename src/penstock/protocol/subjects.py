"""Subject grammar in plain Python: for configuration, the client and whatever is not a hot path.

A subject is tokens between dots: none empty, no whitespace, no NUL, FILTER_MAX bytes at most. In a filter `*`
stands for one whole token and `>`, as the last token, for one or more. The kernels hold the same rules for
hot paths.
"""

from __future__ import annotations

from penstock.errors import InvalidSubjectError

STREAM_NAME_MAX = 255
FILTER_MAX = 1 << 15  # bytes of a subject or filter: what the index of subscriptions takes
_FORBIDDEN = frozenset(" \t\r\n\f\0")
_FORBIDDEN_IN_NAMES = frozenset(" \t\r\n\f\0.*>/\\")


def is_valid_filter(subject: str) -> bool:
    """May one subscribe to it?"""
    if not subject or is_too_long(subject) or not _FORBIDDEN.isdisjoint(subject):
        return False
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1]


def is_too_long(subject: str) -> bool:
    """Does it exceed FILTER_MAX? The index refuses such a filter, so no configuration may hold one."""
    if len(subject) * 4 <= FILTER_MAX:
        return False
    return len(subject.encode("utf-8", "surrogateescape")) > FILTER_MAX


def is_valid_subject(subject: str) -> bool:
    """May one publish to it? A valid filter without wildcards."""
    return is_valid_filter(subject) and not has_wildcard(subject)


def has_wildcard(subject: str) -> bool:
    """Is a whole token `*` or `>`? (`a*` is a literal token.)"""
    if "*" not in subject and ">" not in subject:
        return False
    tokens = subject.split(".")
    return "*" in tokens or tokens[-1] == ">"


def is_valid_name(name: str) -> bool:
    """May a stream, consumer or bucket be called so? (Streams: at most STREAM_NAME_MAX as well.)"""
    return bool(name) and _FORBIDDEN_IN_NAMES.isdisjoint(name)


def is_valid_queue(queue: str) -> bool:
    """May a queue group be called so?"""
    return bool(queue) and _FORBIDDEN.isdisjoint(queue)


def matches(filter_subject: str, subject: str) -> bool:
    """Does the filter match the literal subject?"""
    if filter_subject == subject:
        return True
    return is_subset(subject, filter_subject)


def overlaps(one: str, other: str) -> bool:
    """Is there any literal subject which both filters match?"""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(left) == len(right)


def is_subset(subset: str, superset: str) -> bool:
    """Does `superset` match everything that `subset` matches?"""
    inner, outer = subset.split("."), superset.split(".")
    for a, b in zip(inner, outer, strict=False):
        if b == ">":
            return True
        if a == ">" or (a != b and b != "*"):
            return False
    return len(inner) == len(outer)


def any_overlap(filters: list[str]) -> tuple[str, str] | None:
    """The first two (valid) filters of a list that overlap, or None. Raises WorkLimitError for too many."""
    # The client checks subjects, too, and needs none of the kernels for routing: they are imported here.
    from penstock.kernels.log.filter_set import overlapping_pair

    pair = overlapping_pair([one.encode() for one in filters])
    return (filters[pair[0]], filters[pair[1]]) if pair is not None else None


def any_subset(filters: list[str]) -> bool:
    """Does one of these (valid) filters match everything that another does? Raises WorkLimitError."""
    from penstock.kernels.log.filter_set import any_covered

    return len(filters) > 1 and any_covered([one.encode() for one in filters])


def check_subject(subject: str) -> str:
    """`subject`, when one may publish to it. Raises InvalidSubjectError."""
    if not is_valid_subject(subject):
        raise InvalidSubjectError(
            f"can not publish to {subject!r}: a subject is tokens between dots, none empty, "
            "without spaces, and without the wildcards * and >"
        )
    return subject


def check_filter(subject: str) -> str:
    """`subject`, when one may subscribe to it. Raises InvalidSubjectError."""
    if not is_valid_filter(subject):
        raise InvalidSubjectError(
            f"can not subscribe to {subject!r}: a filter is tokens between dots, none empty, "
            "without spaces, * as a whole token, > as the last one"
        )
    return subject


def check_name(name: str, what: str) -> str:
    """`name`, when a `what` (stream, consumer, bucket) may have it. Raises InvalidSubjectError."""
    if not is_valid_name(name):
        raise InvalidSubjectError(
            f"{name!r} can not name a {what}: it must not be empty or hold spaces, dots, * > / or \\"
        )
    return name
